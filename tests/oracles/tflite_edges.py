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
    """Sums of operands one of whose scales is far below the result's; every other is of powers of
    two, and in half of its places the small one is 0, so that sums lie on ties."""
    for number, seed in seeds(f"far{op}{kind}", count):
        one, two = float(F(2.0 ** -seed.uniform(8, 13))), float(F(seed.uniform(0.3, 1.5)))
        if number % 2 == 0:
            one, two = 2.0 ** -(10 + number // 2 % 4), 0.5
        a, b = (Operand(codes(seed, kind, 1, 900), s, zero_of(seed, kind)) for s in (one, two))
        if number % 2 == 0:
            a = replace(a, data=np.where(seed.random((1, 900)) < 0.5, a.zero, a.data).astype(kind))
        held = {"a": a, "b": b} if number // 2 % 2 else {"a": b, "b": a}
        made = Operand(np.zeros(0, kind), 1.0, zero_of(seed, kind))
        yield Case(op, held, made, (1, 900), fed=("a", "b"))


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
    "far_add": lambda: far("add", "int8", 16),
    "far_sub_u8": lambda: far("sub", "uint8", 16),
    "wrapped": lambda: wrapped(12),
    "mean_tied": lambda: tied("reduce_mean", "int8", 60),
    "mean_tied_u8": lambda: tied("reduce_mean", "uint8", 60),
    "sum_tied_u8": lambda: tied("reduce_sum", "uint8", 36),
}
"""Suites of cases, by the names of their files."""
