"""Recorded cases at the edges of what a kernel takes: pixels looked at alone, weights of equal
scales, factors that XNNPACK leaves to others, sums that leave 32 bits, means on ties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backends.tflite.models import CaseOperand, F, OpCase, Value
from tests.oracles.tflite_dynamic import REAL, bias, rows
from tests.oracles.tflite_operands import Suites, bounds, random_integers, seeds, window, zero_of


def pixels(count: int) -> Iterator[OpCase]:
    """Convolutions of floats: most by one tap, and every other by weights of equal scales."""
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
        given = {"x": CaseOperand(x), "w": CaseOperand(data, scale), "bias": bias(seed, out)}
        yield OpCase("conv2d", given, REAL, (images, *sizes, out), attrs)


def slopes(kind: str, count: int) -> Iterator[OpCase]:
    """leaky_relu by slopes on both sides of zero, and by some that XNNPACK does not take."""
    for _, seed in seeds(f"slope{kind}", count):
        low, high = bounds(kind)
        x = np.linspace(low, high, 256).astype(kind)[None]
        about = zero_of(seed, kind)
        into = 2.0 ** float(seed.uniform(-10, 3))
        alpha = float(seed.choice([-1, 1])) * 2.0 ** float(seed.uniform(-9, 2))
        made = CaseOperand(np.zeros(0, kind), 1.0, about)
        of = CaseOperand(x, float(F(into)), about)
        yield OpCase("leaky_relu", {"x": of}, made, x.shape, {"alpha": float(F(alpha))})


def far(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """Sums of operands one of whose scales is far below the result's; in most places of
    every other one the small operand is next to 0, and the sum on a tie or beside it."""
    for number, seed in seeds(f"far{op}{kind}", count):
        shape = (1, 24 + number * 11 % 71)
        one, two = float(F(2.0 ** -seed.uniform(8, 13))), float(F(seed.uniform(0.3, 1.5)))
        if number % 2 == 0:
            two = (0.5, 0.25)[number // 16 % 2]
            one = float(F(2.0 ** -int(seed.integers(17, 24)) * 1.3)) if number % 4 else two / 2**21
            one = one if number % 16 else 2.0**-10
        a, b = (
            CaseOperand(random_integers(seed, kind, *shape), s, zero_of(seed, kind))
            for s in (one, two)
        )
        if number % 2 == 0:
            near = np.clip(a.zero + 4 * seed.integers(-2, 2, shape) + 2, *bounds(kind))
            a = replace(a, data=np.where(seed.random(shape) < 0.9, near, a.data).astype(kind))
        held = {"a": a, "b": b} if number // 2 % 2 else {"a": b, "b": a}
        made = CaseOperand(np.zeros(0, kind), 1.0, zero_of(seed, kind))
        yield OpCase(op, held, made, shape, fed=("a", "b"))


def wide(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """Sums of an operand far below the result's scale and one far above it, which leave 16 bits."""
    low, high = bounds(kind)
    for number, seed in seeds(f"wide{kind}", count):
        shape, step = (1, 9 + number * 11 % 61), float(F(2.0 ** seed.uniform(-6, 3)))
        steps = (
            2.0 ** seed.uniform(5, 9) if number % 3 else float(seed.choice([128, 140, 200, 256]))
        )
        small = float(F(step * 2.0 ** -seed.uniform(10.1, 15)))
        about = [int(seed.choice([low, high, int(seed.integers(low, high))])) for _ in range(3)]
        a = CaseOperand(random_integers(seed, kind, *shape), small, about[0])
        b = CaseOperand(random_integers(seed, kind, *shape), float(F(step * steps)), about[1])
        held = {"a": a, "b": b} if number % 2 else {"a": b, "b": a}
        yield OpCase(
            op, held, CaseOperand(np.zeros(0, kind), step, about[2] | 1), shape, fed=("a", "b")
        )


def tiny(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """One operand whose steps are small beside the result's: most integers lie about a tie or zero,
    and of every fourth case most are cut off, at either end."""
    low, high = bounds(kind)
    for number, seed in seeds(f"tiny{kind}{op}", count):
        about, reach = int(seed.choice([low, high])), int(seed.integers(60, 250))
        ratio = 1 / (2 * reach) if number % 2 else 2.0 ** -seed.uniform(6, 18)
        data = np.arange(low, high + 1)[: 256 - number % 40]
        if number % 2:
            tie = about + (reach if about == low else -reach)
            near = np.clip(tie + seed.integers(-1, 2, data.size), low, high)
            data = np.where(seed.random(data.size) < 0.7, near, data)
        step = float(F(seed.uniform(0.01, 1))) if number % 3 else 1.0
        x = CaseOperand(data.astype(kind)[None], float(F(step * ratio)), about)
        if number % 4 == 0:
            x = replace(x, zero=zero_of(seed, kind))
        made = CaseOperand(np.zeros(0, kind), step, zero_of(seed, kind))
        if number % 4 == 2:
            x = replace(x, scale=float(F(step * 2.0 ** -seed.uniform(4, 7))))
            made = replace(made, zero=high if about == low else low + 1)
        yield OpCase(op, {"x": x}, made, x.data.shape)


def wrapped(count: int) -> Iterator[OpCase]:
    """Products of 16-bit integers whose results leave 32 bits."""
    for number, seed in seeds("wrapped", count):
        a = CaseOperand(random_integers(seed, "int16", 3, 60), 0.25)
        b = CaseOperand(random_integers(seed, "int16", 60, 7), 0.125)
        made = CaseOperand(np.zeros(0, "int16"), 2.0 ** -(2 + number % 6))
        yield OpCase("matmul", {"a": a, "b": b}, made, (3, 7), fed=("a", "b"))


def tied(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """Means and sums along some axes, with many results on ties."""
    for number, seed in seeds(f"tied{op}{kind}", count):
        size = (1, *(2 * int(n) for n in seed.integers(1, 4, 2)), 60)
        axes = ((1, 2), (1,), (2,))[number % 3]
        into = float(F(2.0 ** -int(seed.integers(3, 6)) * (1, 1.1)[number % 2]))
        x = CaseOperand(random_integers(seed, kind, *size), into, zero_of(seed, kind))
        ratio = (1, 0.5, 2 / 3, 1.3, 0.37, 0.5)[number % 6] * (1 if op == "reduce_mean" else 4)
        made = CaseOperand(np.zeros(0, kind), float(F(into * ratio)), zero_of(seed, kind))
        shape = tuple(1 if axis in axes else n for axis, n in enumerate(size))
        yield OpCase(op, {"x": x}, made, shape, {"axes": axes, "keep": True})


EDGES: Suites = {
    "pixels": lambda: pixels(24),
    "slopes": lambda: slopes("int8", 30),
    "slopes_u8": lambda: slopes("uint8", 30),
    "slopes_i16": lambda: slopes("int16", 12),
    "far_add": lambda: far("add", "int8", 240),
    "far_add_u8": lambda: far("add", "uint8", 240),
    "far_sub": lambda: far("sub", "int8", 240),
    "far_sub_u8": lambda: far("sub", "uint8", 240),
    "wide_add": lambda: wide("add", "int8", 60),
    "wide_add_u8": lambda: wide("add", "uint8", 60),
    "wide_sub": lambda: wide("sub", "int8", 60),
    "wide_sub_u8": lambda: wide("sub", "uint8", 60),
    "tiny_requantize": lambda: tiny("requantize", "int8", 60),
    "tiny_requantize_u8": lambda: tiny("requantize", "uint8", 60),
    "tiny_hard_swish": lambda: tiny("hard_swish", "int8", 60),
    "tiny_hard_swish_u8": lambda: tiny("hard_swish", "uint8", 60),
    "wrapped": lambda: wrapped(12),
    "mean_tied": lambda: tied("reduce_mean", "int8", 60),
    "mean_tied_u8": lambda: tied("reduce_mean", "uint8", 60),
    "sum_tied_u8": lambda: tied("reduce_sum", "uint8", 36),
}
"""Suites of cases, by the names of their files."""
