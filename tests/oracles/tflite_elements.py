"""Recorded cases of elements one by one and of what is made of several: sums, pools, curves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backends.tflite.models import CaseOperand, F, OpCase, Value
from tests.oracles.tflite_operands import (
    ACTIVATIONS,
    HALVES,
    Suites,
    beside,
    bounds,
    operand,
    pair,
    random_integers,
    result,
    scale_of,
    seeds,
    window,
    zero_of,
)


def pairs(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """Two operands: 4,096 pairs of integers, or tensors of 1..70 numbers.

    Of every three results one lies on ties and one just beside them.
    """
    for number, seed in seeds(f"{op}{kind}", count):
        if number % 2 == 0:
            left = np.arange(-128, 128).astype(kind).repeat(16).reshape(1, -1)
            right = random_integers(seed, kind, *left.shape)
        else:
            length = 1 + number * 13 % 70
            left, right = (
                random_integers(seed, kind, 3, length),
                random_integers(seed, kind, 3, length),
            )
        near, half = number % 3 != 2, (1.5, 0.75, 0.5)[number // 3 % 3]
        scales = [scale_of(seed, 1), scale_of(seed, 1)]
        if near and op != "mul":
            scales[1] = float(F(scales[0]) * F((1.0, 2.0, 0.5)[number % 4 % 3]))
        a, b = (
            CaseOperand(data, scale, zero_of(seed, kind))
            for data, scale in zip((left, right), scales, strict=True)
        )
        if op == "mul" and near:
            few = np.clip(b.zero + seed.choice([-3, -1, 1, 3], right.shape), *bounds(kind))
            b = replace(b, data=few.astype(kind))
            wide = F(a.step) * F(b.step) / F((0.5, 0.75, 1.5)[number // 3 % 3])
        elif op == "mul":
            wide = F(a.step) * F(b.step) * F((64, 128, 50, 100)[number // 4 % 4])
        else:
            wide = F(F(min(a.step, b.step)) / F(half))
            wide = wide if near else F(max(a.step, b.step) * (0.5, 1.0, 2.0)[number // 3 % 3])
        scale = (wide, beside(seed, wide), wide * F(seed.uniform(0.4, 1.6)))[number % 3]
        made = result(seed, kind, float(scale))
        act = ACTIVATIONS[number // 6 % 4]
        yield OpCase(op, {"a": a, "b": b}, made, left.shape, fed=("a", "b"), activation=act)


def every(op: str, kind: str, count: int, fixed: tuple[float, int] | None) -> Iterator[OpCase]:
    """One operand of all integers; of every three results one lies on ties, one just beside
    them."""
    for number, seed in seeds(f"{op}{kind}", count):
        low, high = bounds(kind)
        step = 1 if high - low < 256 else 61
        data = np.arange(low, high + 1, step).astype(kind).reshape(1, -1)
        x = CaseOperand(data, scale_of(seed, number // 2), zero_of(seed, kind))
        ratio = F(F(x.step) / F(HALVES[number // 3 % 6]))
        wanted = (ratio, beside(seed, ratio), seed.uniform(0.3, 2) * x.step)
        made = result(seed, kind, *(fixed or (float(wanted[number % 3]), zero_of(seed, kind))))
        attrs: dict[str, Value] = {}
        if op == "leaky_relu":
            attrs["alpha"] = float(F((0.1, 1.5, 2.5, 0.5)[number % 4]))
        yield OpCase(op, {"x": x}, made, data.shape, attrs)


def softmax(kind: str, count: int) -> Iterator[OpCase]:
    """Rows of 1..70 and longer."""
    for number, seed in seeds(f"softmax{kind}", count):
        length = (1 + number * 9 % 70, 300, 1000)[0 if number % 8 else 1 + number // 8 % 2]
        x = operand(seed, kind, number, 12, length)
        if number % 5 == 0:
            x = CaseOperand(np.clip(x.data // 16, *bounds(kind)).astype(kind), x.scale, x.zero)
        fixed = (1 / 256, bounds(kind)[0])
        yield OpCase("softmax", {"x": x}, result(seed, kind, *fixed), x.data.shape, {"axis": -1})


def pool(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """Windows of every size; one map for operand and result."""
    for number, seed in seeds(f"{op}{kind}", count):
        same = bool(number % 2)
        kernel, stride, size = pair(seed, 1, 5), pair(seed, 1, 3), pair(seed, 5, 10)
        x = operand(seed, kind, number, 1, *size, 1 + number * 5 % 40)
        sizes, pad = window(size, kernel, stride, (1, 1), same=same)
        attrs: dict[str, Value] = {"kernel": kernel, "stride": stride, "pad": pad, "layout": "NHWC"}
        if op == "avg_pool2d":
            attrs["count_pad"] = False
        made = CaseOperand(np.zeros(0, kind), x.scale, x.zero)
        shape = (1, *sizes, x.data.shape[-1])
        yield OpCase(
            op, {"x": x}, made, shape, attrs, same=same, activation=ACTIVATIONS[number % 4]
        )


def concat(kind: str, count: int) -> Iterator[OpCase]:
    """Two or three operands in the result's map."""
    for number, seed in seeds(f"concat{kind}", count):
        scale, zero = scale_of(seed, number), zero_of(seed, kind)
        parts = [
            random_integers(seed, kind, 2, int(seed.integers(1, 40))) for _ in range(2 + number % 2)
        ]
        xs = {f"xs.{i}": CaseOperand(p, scale, zero) for i, p in enumerate(parts)}
        shape = (2, sum(p.shape[1] for p in parts))
        made = CaseOperand(np.zeros(0, kind), scale, zero)
        yield OpCase("concat", xs, made, shape, {"axis": 1}, fed=tuple(xs))


def mean(kind: str, count: int) -> Iterator[OpCase]:
    """Means over one axis, over height and width, and over all but the first."""
    for number, seed in seeds(f"mean{kind}", count):
        axes = ((1, 2), (3,), (1, 2, 3), (1,))[number % 4]
        batch, most = (24, 5) if len(axes) > 1 else (2, 9)
        x = operand(seed, kind, number, batch, *pair(seed, 2, most), 1 + number * 5 % 40)
        keep = number % 3 != 1
        size = x.data.shape
        shape = tuple(1 if i in axes else n for i, n in enumerate(size) if keep or i not in axes)
        ratio = (1.0, 1.0, 0.25, seed.uniform(0.1, 0.6))[number // 4 % 4]
        zero = x.zero if number // 4 % 4 == 0 else zero_of(seed, kind)
        made = result(seed, kind, x.step * float(ratio), zero)
        yield OpCase("reduce_mean", {"x": x}, made, shape, {"axes": axes, "keep": keep})


def pad(kind: str, count: int) -> Iterator[OpCase]:
    """Zeros, as integers, around a tensor."""
    for number, seed in seeds(f"pad{kind}", count):
        x = operand(seed, kind, number, 1, *pair(seed, 2, 6), 5)
        pads = tuple(int(v) for v in (0, *seed.integers(0, 4, 3), 0, *seed.integers(0, 4, 3)))
        shape = tuple(n + pads[i] + pads[4 + i] for i, n in enumerate(x.data.shape))
        made = CaseOperand(np.zeros(0, kind), x.scale, x.zero)
        yield OpCase("pad", {"x": x}, made, shape, {"pads": pads})


def resize(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """Larger and smaller images, by the three ways to say where an element lies."""
    for number, seed in seeds(f"{op}{kind}", count):
        size = pair(seed, 2, 9)
        sizes = (size[0] * 2, size[1] * 2) if number % 2 else pair(seed, 2, 14)
        x = operand(seed, kind, number, 1, *size, 1 + number * 5 % 24)
        how = ("asymmetric", "half_pixel", "align_corners")[number % 3]
        attrs: dict[str, Value] = {"axes": (1, 2), "coordinates": how}
        if op == "resize":
            attrs["mode"] = "linear"
        else:
            attrs["rounding"] = {"asymmetric": "floor", "half_pixel": "round_prefer_ceil"}.get(
                how, "round_prefer_ceil"
            )
        made = CaseOperand(np.zeros(0, kind), x.scale, x.zero)
        yield OpCase(op, {"x": x}, made, (1, *sizes, x.data.shape[-1]), attrs)


def lines(count: int) -> Iterator[OpCase]:
    """Long lines to the nearest: places by a step are now and then others than over a scale."""
    for number, seed in seeds("resize_nearest_lines", count):
        size, to = int(seed.integers(2, 70)), int(seed.integers(1, 110))
        x = operand(seed, "int8", number, 1, 2, size, 1)
        how = ("asymmetric", "half_pixel", "align_corners")[number % 3]
        rounding = "floor" if how == "asymmetric" else "round_prefer_ceil"
        attrs: dict[str, Value] = {"axes": (1, 2), "coordinates": how, "rounding": rounding}
        made = CaseOperand(np.zeros(0, "int8"), x.scale, x.zero)
        yield OpCase("resize_nearest", {"x": x}, made, (1, 3, to, 1), attrs)


def quantizes(kind: str, count: int) -> Iterator[OpCase]:
    """Floats beside ties and beyond the ends."""
    for number, seed in seeds(f"quantize{kind}", count):
        made = result(seed, kind, scale_of(seed, number))
        low, high = bounds(kind)
        reach = (high - low) * 0.6
        steps = (
            seed.uniform(-reach, reach, (3, 500))
            if number % 2
            else np.floor(seed.uniform(-reach, reach, (3, 500))) + 0.5
        )
        data = (steps * made.step).astype(F)
        yield OpCase("quantize", {"x": CaseOperand(data)}, made, data.shape)


def dequantizes(kind: str, count: int) -> Iterator[OpCase]:
    """All integers."""
    for case in every("dequantize", kind, count, None):
        yield OpCase("dequantize", case.operands, CaseOperand(np.zeros(0, F)), case.shape)


def curves(op: str, count: int) -> Iterator[OpCase]:
    """Sigmoid and tanh of 16-bit integers from end to end, also at scales that are powers of
    two."""
    for number, seed in seeds(f"{op}16", count):
        low, high = bounds("int16")
        data = np.arange(low + number, high + 1, 13).astype("int16").reshape(1, -1)
        scale = 2.0 ** -(8 + number // 2) if number % 2 else float(F(seed.uniform(1e-4, 1e-2)))
        x = CaseOperand(data, scale)
        yield OpCase(op, {"x": x}, result(seed, "int16", 2.0**-15, 0), data.shape)


def softmax16(count: int) -> Iterator[OpCase]:
    """Softmax of 16-bit integers."""
    for number, seed in seeds("softmax16", count):
        length = (1 + number * 9 % 70, 300)[number % 8 == 7]
        data = np.floor_divide(
            random_integers(seed, "int16", 12, length).astype(np.int64), (1, 8, 60)[number % 3]
        )
        x = CaseOperand(data.astype("int16"), scale_of(seed, number, 1e-4, 1e-2))
        made = result(seed, "int16", 2.0**-15, 0)
        yield OpCase("softmax", {"x": x}, made, data.shape, {"axis": -1})


def sums(kind: str, count: int) -> Iterator[OpCase]:
    """Sums over one axis, over height and width, and over all but the first."""
    for number, seed in seeds(f"sum{kind}", count):
        axes = ((1, 2), (3,), (1, 2, 3), (1,))[number % 4]
        batch, most = (24, 5) if len(axes) > 1 else (2, 9)
        x = operand(seed, kind, number, batch, *pair(seed, 2, most), 1 + number * 5 % 40)
        keep, size = number % 3 != 1, x.data.shape
        shape = tuple(1 if i in axes else n for i, n in enumerate(size) if keep or i not in axes)
        root = math.sqrt(math.prod(size[a] for a in axes))
        ratio = (2.0, 4 / 3, root, root * seed.uniform(0.4, 2))[number // 4 % 4]
        made = result(seed, kind, x.step * float(ratio))
        yield OpCase("reduce_sum", {"x": x}, made, shape, {"axes": axes, "keep": keep})


def choices(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """The greater or the less of two, one of them broadcast or not."""
    for number, seed in seeds(f"{op}{kind}", count):
        a = operand(seed, kind, number, 2, 5, 1 + number * 13 % 70)
        shape = a.data.shape
        b = CaseOperand(
            random_integers(seed, kind, *(shape if number % 2 else shape[-1:])), a.scale, a.zero
        )
        made = CaseOperand(np.zeros(0, kind), a.scale, a.zero)
        yield OpCase(op, {"xs.0": a, "xs.1": b}, made, shape, fed=("xs.0", "xs.1"))


def slopes(kind: str, count: int) -> Iterator[OpCase]:
    """A slope a channel below zero; of every three results one lies on ties, one just beside."""
    for number, seed in seeds(f"prelu{kind}", count):
        low, high = bounds(kind)
        every = np.arange(low, high + 1).astype(kind).reshape(1, 16, 16, 1)
        channels = 1 + number * 3 % 8
        x = CaseOperand(np.repeat(every, channels, 3), scale_of(seed, 1), zero_of(seed, kind))
        slope = operand(seed, kind, number, 1, 1, channels)
        if number % 3 < 2:
            few = np.clip(slope.zero + seed.choice([-3, -1, 1, 3], channels), low, high)
            slope = replace(slope, data=few.astype(kind).reshape(1, 1, -1), scale=0.5)
        ratio = F(x.step / HALVES[number // 3 % 6])
        wanted = (ratio, beside(seed, ratio), x.step * seed.uniform(0.5, 2))
        made = result(seed, kind, float(wanted[number % 3]))
        yield OpCase("prelu", {"x": x, "slope": slope}, made, x.data.shape)


ELEMENTS: Suites = {
    "add": lambda: pairs("add", "int8", 30),
    "sub": lambda: pairs("sub", "int8", 30),
    "mul": lambda: pairs("mul", "int8", 30),
    "avg_pool": lambda: pool("avg_pool2d", "int8", 40),
    "max_pool": lambda: pool("max_pool2d", "int8", 16),
    "concat": lambda: concat("int8", 12),
    "softmax": lambda: softmax("int8", 40),
    "sigmoid": lambda: every("sigmoid", "int8", 24, (1 / 256, -128)),
    "tanh": lambda: every("tanh", "int8", 24, (1 / 128, 0)),
    "hard_swish": lambda: every("hard_swish", "int8", 48, None),
    "leaky_relu": lambda: every("leaky_relu", "int8", 48, None),
    "mean": lambda: mean("int8", 80),
    "pad": lambda: pad("int8", 12),
    "resize": lambda: resize("resize", "int8", 36),
    "resize_nearest": lambda: resize("resize_nearest", "int8", 36),
    "resize_nearest_lines": lambda: lines(120),
    "quantize": lambda: quantizes("int8", 24),
    "requantize": lambda: every("requantize", "int8", 48, None),
    "dequantize": lambda: dequantizes("int8", 12),
    "sigmoid16": lambda: curves("sigmoid", 12),
    "tanh16": lambda: curves("tanh", 12),
    "softmax16": lambda: softmax16(16),
    "sum_u8": lambda: sums("uint8", 20),
    "max": lambda: choices("max", "int8", 8),
    "min_u8": lambda: choices("min", "uint8", 8),
    "max16": lambda: choices("max", "int16", 8),
    "min": lambda: choices("min", "int8", 8),
    "prelu": lambda: slopes("int8", 18),
    "prelu_u8": lambda: slopes("uint8", 9),
}


def others(kind: str, zero: int, mark: str) -> Suites:
    """Suites of another kind of integers, of whose ops that take it; `zero` is sigmoid's."""
    found: Suites = {
        "add": lambda: pairs("add", kind, 30),
        "sub": lambda: pairs("sub", kind, 30),
        "mul": lambda: pairs("mul", kind, 30),
        "avg_pool": lambda: pool("avg_pool2d", kind, 16),
        "max_pool": lambda: pool("max_pool2d", kind, 8),
        "concat": lambda: concat(kind, 8),
        "leaky_relu": lambda: every("leaky_relu", kind, 36, None),
        "mean": lambda: mean(kind, 40),
        "pad": lambda: pad(kind, 8),
        "resize_nearest": lambda: resize("resize_nearest", kind, 12),
        "quantize": lambda: quantizes(kind, 8),
        "requantize": lambda: every("requantize", kind, 18, None),
        "dequantize": lambda: dequantizes(kind, 6),
    }
    found["resize"] = lambda: resize("resize", kind, 12)
    if kind != "int16":
        found["hard_swish"] = lambda: every("hard_swish", kind, 18, None)
        found["sigmoid"] = lambda: every("sigmoid", kind, 12, (1 / 256, zero))
        found["tanh"] = lambda: every("tanh", kind, 12, (1 / 128, 128))
        found["softmax"] = lambda: softmax(kind, 16)
    return {f"{name}{mark}": suite for name, suite in found.items()}


ELEMENTS |= others("int16", 0, "16") | others("uint8", 0, "_u8")
"""Suites of cases, by the names of their files."""
