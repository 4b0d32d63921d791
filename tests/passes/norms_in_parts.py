"""Normalizations as exporters write them in their parts."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.text import parse

ROWS, WIDTH = 64, 16
WIDE, ONE = f"{ROWS}x{WIDTH}xf32", f"{ROWS}x1xf32"
HEAD = f"""graph main {{
  %x = input() : {WIDE}
  %zero = constant(0.0) : f32
  %one = constant(1.0) : f32
  %two = constant(2.0) : f32
  %half = constant(0.5) : f32
  %least = constant(-0.5) : f32
  %count = constant({WIDTH}.0) : f32
  %share = constant({1 / WIDTH}) : f32
  %column = constant([{ROWS}, 1]) : 2xi64
  %eps = constant(0.000001) : f32
  %gamma = constant(@gamma) : {WIDTH}xf32
  %beta = constant(@beta) : {WIDTH}xf32
"""
SQUARES = ("mul(%d, %d)", "square(%d)", "pow(%d, %two)")
MEANS = (
    f"%M = reduce_mean(%S) {{axes = (-1,)}} : {ONE}",
    f"%M.s = reduce_sum(%S) {{axes = (-1,)}} : {ONE}; %M = div(%M.s, %count) : {ONE}",
    f"%M.s = reduce_sum(%S) {{axes = (-1,), keep = false}} : {ROWS}xf32"
    f"; %M.u = unsqueeze(%M.s) {{axes = (-1,)}} : {ONE}; %M = div(%M.u, %count) : {ONE}",
)
ROOTS = (
    f"%r = rsqrt(%e) : {ONE}",
    f"%q = sqrt(%e) : {ONE}; %r = reciprocal(%q) : {ONE}",
    f"%q = sqrt(%e) : {ONE}; %r = div(%one, %q) : {ONE}",
    f"%r = pow(%e, %least) : {ONE}",
)
KINDS = ("deviations", "mean squares", "flat squares", "squares")
"""The variance as the mean of squared deviations, as a difference of means (kept, or flat and put
back), or the mean of squares alone."""
ENDS = (
    f"%k = mul(%r, %gamma) : {WIDE}; %n = mul(%d, %k) : {WIDE}; %y = add(%n, %beta) : {WIDE}",
    f"%n = mul(%d, %r) : {WIDE}; %f = mul(%n, %gamma) : {WIDE}; %y = add(%f, %beta) : {WIDE}",
    f"%n = mul(%r, %d) : {WIDE}; %f = mul(%gamma, %n) : {WIDE}; %y = add(%beta, %f) : {WIDE}",
)


NOT_BELOW = (
    f"%v = max(xs.0=%u, xs.1=%zero) : {ONE}",
    f"%v = max(xs.0=%zero, xs.1=%u) : {ONE}",
    f"%v = relu(%u) : {ONE}",
)
FLAT = f"""%a = reduce_sum(%x) {{axes = (1,), keep = false}} : {ROWS}xf32
  %m = mul(%a, %share) : {ROWS}xf32
  %s = SQUARE : {WIDE}
  %b = reduce_sum(%s) {{axes = (-1,), keep = false}} : {ROWS}xf32
  %t = div(%b, %count) : {ROWS}xf32
  %mm = mul(%m, %m) : {ROWS}xf32
  %u = sub(%t, %mm) : {ROWS}xf32
  %vf = max(xs.0=%u, xs.1=%zero) : {ROWS}xf32
  %v = reshape(%vf, %column) : {ONE}
  %mk = unsqueeze(%m) {{axes = (-1,)}} : {ONE}
  %d = sub(%x, %mk) : {WIDE}"""
"""As JAX writes it: sums without their axes, and reshapes."""


def norm(pick: random.Random, kind: str) -> str:
    """Returns the text of a normalization in its parts, each written in one of its ways."""

    def mean(name: str, of: str) -> str:
        return pick.choice(MEANS).replace("%M", f"%{name}").replace("%S", f"%{of}")

    square = pick.choice(SQUARES)
    centre = f"{mean('m', 'x')}; %d = sub(%x, %m) : {WIDE}"
    if kind == "deviations":
        body = f"{centre}; %s = {square} : {WIDE}; {mean('v', 's')}"
    elif kind == "flat squares":
        body = FLAT.replace("SQUARE", square.replace("%d", "%x"))
    elif kind == "mean squares":
        square = square.replace("%d", "%x")
        body = f"{centre}; %s = {square} : {WIDE}; {mean('t', 's')}; %mm = mul(%m, %m) : {ONE}"
        body += f"; %u = sub(%t, %mm) : {ONE}; {pick.choice(NOT_BELOW)}"
    else:
        body = f"%d = identity(%x) : {WIDE}; %s = {square} : {WIDE}; {mean('v', 's')}"
    root, end = pick.choice(ROOTS), pick.choice(ENDS)
    return "; ".join([body, f"%e = add(%v, %eps) : {ONE}", root, end])


def normalized(x: NDArray[np.float32], kind: str) -> NDArray[np.float64]:
    """Returns what it computes before the factor and the shift, in float64."""
    wide = x.astype(np.float64)
    d = wide if kind == "squares" else wide - wide.mean(-1, keepdims=True)
    made: NDArray[np.float64] = d / np.sqrt(np.square(d).mean(-1, keepdims=True) + 1e-6)
    return made


def program(body: str, data: dict[str, NDArray[np.float32]]) -> Graph:
    """Returns the program of such lines on %x, with constants that they name."""
    return parse(HEAD + "\n".join(body.split(";")) + "\n  output(y=%y)\n}", data)
