"""Recorded cases at the edges of what a kernel takes: pixels looked at alone, weights of equal
scales, factors that XNNPACK leaves to others, sums that leave 32 bits, means on ties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backends.tflite.models import Case, F, Operand, Value
from tests.oracles.tflite_dynamic import REAL, bias, rows
from tests.oracles.tflite_operands import Suites, bounds, codes, seeds, window, zero_of


def pixels(count: int) -> Iterator[Case]:
    """Convolutions of reals: most by one tap, and every other by weights of equal scales."""
    for number, seed in seeds("pixels", count):
        kernel, step = ((1, 1), (1, 1), (3, 2))[number % 3], 1 + number // 3 % 2
        into, out, images = 1 + number * 5 % 9, 2 + number * 3 % 7, 1 + number % 2
        x = rows(seed, number, images, 5 * 6 * into).reshape(images, 5, 6, into)
        scale = seed.uniform(0.01, 0.03, out).astype(F)
        if number // 6 % 2:
            scale[:] = scale[0]
        data = seed.integers(-127, 128, (out, into, *kernel)).astype(np.int8)
        sizes, around = window((5, 6), kernel, (step, step), (1, 1), same=False)
        attrs: dict[str, Value] = {
            "stride": (step, step),
            "pad": around,
            "dilation": (1, 1),
            "layout": "NHWC",
            "groups": 1,
        }
        given = {"x": Operand(x), "w": Operand(data, scale), "bias": bias(seed, out)}
        yield Case("conv2d", given, REAL, (images, *sizes, out), attrs)


def slopes(kind: str, count: int) -> Iterator[Case]:
    """leaky_relu by slopes on both sides of zero, and by some that XNNPACK does not take."""
    for _, seed in seeds(f"slope{kind}", count):
        low, high = bounds(kind)
        x = np.linspace(low, high, 256).astype(kind)[None]
        about = zero_of(seed, kind)
        into = 2.0 ** float(seed.uniform(-10, 3))
        alpha = float(seed.choice([-1, 1])) * 2.0 ** float(seed.uniform(-9, 2))
        made = Operand(np.zeros(0, kind), 1.0, about)
        of = Operand(x, float(F(into)), about)
        yield Case("leaky_relu", {"x": of}, made, x.shape, {"alpha": float(F(alpha))})


def far(op: str, kind: str, count: int) -> Iterator[Case]:
    """Sums of operands one of whose scales is far below the result's; in most places of
    every other one the small operand is next to 0, and the sum on a tie or beside it."""
    for number, seed in seeds(f"far{op}{kind}", count):
        shape = (1, 24 + number * 11 % 71)
        one, two = float(F(2.0 ** -seed.uniform(8, 13))), float(F(seed.uniform(0.3, 1.5)))
        if number % 2 == 0:
            two = (0.5, 0.25)[number // 16 % 2]
            one = float(F(2.0 ** -int(seed.integers(17, 24)) * 1.3)) if number % 4 else two / 2**21
            one = one if number % 16 else 2.0**-10
        a, b = (Operand(codes(seed, kind, *shape), s, zero_of(seed, kind)) for s in (one, two))
        if number % 2 == 0:
            near = np.clip(a.zero + 4 * seed.integers(-2, 2, shape) + 2, *bounds(kind))
            a = replace(a, data=np.where(seed.random(shape) < 0.9, near, a.data).astype(kind))
        held = {"a": a, "b": b} if number // 2 % 2 else {"a": b, "b": a}
        made = Operand(np.zeros(0, kind), 1.0, zero_of(seed, kind))
        yield Case(op, held, made, shape, fed=("a", "b"))


def wrapped(count: int) -> Iterator[Case]:
    """Products of 16-bit codes whose results leave 32 bits."""
    for number, seed in seeds("wrapped", count):
        a = Operand(codes(seed, "int16", 3, 60), 0.25)
        b = Operand(codes(seed, "int16", 60, 7), 0.125)
        made = Operand(np.zeros(0, "int16"), 2.0 ** -(2 + number % 6))
        yield Case("matmul", {"a": a, "b": b}, made, (3, 7), fed=("a", "b"))


def tied(op: str, kind: str, count: int) -> Iterator[Case]:
    """Means and sums along some axes, with many results on ties."""
    for number, seed in seeds(f"tied{op}{kind}", count):
        size = (1, int(seed.integers(2, 9)), int(seed.integers(2, 9)), 60)
        axes = ((1, 2), (1,), (2,))[number % 3]
        into = float(F(2.0 ** -int(seed.integers(3, 6)) * (1, 1.1)[number % 2]))
        x = Operand(codes(seed, kind, *size), into, zero_of(seed, kind))
        ratio = (1, 0.5, 2, 1.3, 0.37, 4)[number % 6] * (1 if op == "reduce_mean" else 6)
        made = Operand(np.zeros(0, kind), float(F(into * ratio)), zero_of(seed, kind))
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(size))
        yield Case(op, {"x": x}, made, shape, {"axes": axes, "keep": True})


EDGES: Suites = {
    "pixels": lambda: pixels(24),
    "slopes": lambda: slopes("int8", 30),
    "slopes_u8": lambda: slopes("uint8", 30),
    "slopes_i16": lambda: slopes("int16", 12),
    "far_add": lambda: far("add", "int8", 240),
    "far_add_u8": lambda: far("add", "uint8", 240),
    "far_sub": lambda: far("sub", "int8", 240),
    "far_sub_u8": lambda: far("sub", "uint8", 240),
    "wrapped": lambda: wrapped(12),
    "mean_tied": lambda: tied("reduce_mean", "int8", 60),
    "mean_tied_u8": lambda: tied("reduce_mean", "uint8", 60),
    "sum_tied_u8": lambda: tied("reduce_sum", "uint8", 36),
}
"""Suites of cases, by the names of their files."""
