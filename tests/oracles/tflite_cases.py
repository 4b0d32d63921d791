"""The cases by which TensorFlow Lite's arithmetic is recorded, made from seeds: NumPy alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backends.tflite.models import Case as Case
from backends.tflite.models import F, Value
from backends.tflite.models import Operand as Operand
from tests.oracles.tflite_layers import LAYERS
from tests.oracles.tflite_operands import (
    ACTIVATIONS,
    Suites,
    beside,
    biased,
    bounds,
    codes,
    fitting,
    one_sided,
    operand,
    pair,
    result,
    scale_of,
    seeds,
    weights,
    window,
    zero_of,
)


def conv(kind: str, count: int, *, depth: bool) -> Iterator[Case]:
    """Convolutions with every stride, dilation and padding, channels 1..40."""
    for number, seed in seeds(f"{'dw' if depth else 'cv'}{kind}", count):
        same = bool(number % 2)
        kernel, stride = pair(seed, 1, 4), (1 + number % 2, 1 + number % 2)
        dilation = (1, 1) if max(stride) > 1 else pair(seed, 1, 3)
        size = pair(seed, 6, 10)
        into = int(seed.integers(1, 20 if kind == "int8" else 8))
        if long := kind == "int16" and number == 6 and not depth:
            into, kernel = 140, (3, 3)  # sums beyond 32 bits
        many = int(seed.integers(1, 3)) if depth else 1
        out = into * many if depth else int(seed.integers(1, 24))
        x = operand(seed, kind, number, 1, *size, into)
        w = weights(seed, number, (out, 1 if depth else into, *kernel), many=number % 4 != 1)
        x, w = (one_sided(x), one_sided(w)) if long else (x, w)
        terms = (1 if depth else into) * kernel[0] * kernel[1]
        b = biased(seed, x, w, out, 2000)
        sizes, pad = window(size, kernel, stride, dilation, same=same)
        attrs: dict[str, Value] = {
            "stride": stride,
            "pad": pad,
            "dilation": dilation,
            "layout": "NHWC",
        }
        attrs["groups"] = into if depth else 1
        if depth and into == 1:
            continue
        made = result(seed, kind, fitting(x, w, terms, number) * (40 if long else 1))
        act = ACTIVATIONS[number % 4]
        yield Case(
            "conv2d",
            {"x": x, "w": w, "bias": b},
            made,
            (1, *sizes, out),
            attrs,
            same=same,
            activation=act,
        )


def linear(kind: str, count: int) -> Iterator[Case]:
    """Fully connected layers of 1..70 inputs and outputs."""
    for number, seed in seeds(f"fc{kind}", count):
        into, out, rows = 1 + number * 7 % 70, 1 + number * 11 % 70, int(seed.integers(1, 6))
        if long := kind == "int16" and number == 6:
            into = 1600  # sums beyond 32 bits
        x = operand(seed, kind, number, rows, into)
        w = weights(seed, number, (out, into), many=number % 4 == 1)
        x, w = (one_sided(x), one_sided(w)) if long else (x, w)
        made = result(seed, kind, fitting(x, w, into, number) * (40 if long else 1))
        b = biased(seed, x, w, out, 2000)
        act = ACTIVATIONS[number % 4]
        yield Case("linear", {"x": x, "w": w, "bias": b}, made, (rows, out), activation=act)


def tied(op: str, kind: str, count: int) -> Iterator[Case]:
    """All codes times few weights: results on ties, and one float32 beside them.

    Every other case has scales of its own in each channel, some a neighbour of the tie's.
    """
    for number, seed in seeds(f"{op[:3]}tie{kind}", count):
        out, many = 16, number % 2 == 1
        low, high = bounds(kind)
        every = np.linspace(low, high, 256).round().astype(kind)
        x = Operand(
            every.reshape((1, 16, 16, 1) if op == "conv2d" else (256, 1)),
            scale_of(seed, 1),
            zero_of(seed, kind),
        )
        reach = (9, 31)[number // 2 % 2]
        w = seed.choice(np.arange(-reach, reach + 1, 2), out).astype(np.int8)
        base = F(seed.uniform(0.001, 0.01))
        scale = np.nextafter(base, F(seed.choice([0.0, 1.0]))) if number % 4 == 2 else base
        scales = np.where(
            np.arange(out) % 3, np.nextafter(base, seed.choice([F(0), F(1)], out)), base
        ).astype(F)
        of_w = Operand(
            w.reshape((out, 1, 1, 1) if op == "conv2d" else (out, 1)),
            scales if many else float(scale),
        )
        b = biased(seed, x, of_w, out, 4)
        step = (2, 4, 6, 10)[number % 4] * (256 if kind == "int16" else 1)
        made = result(
            seed, kind, float(F(F(x.step) * base * F(step / (128 if kind == "int16" else 1))))
        )
        attrs: dict[str, Value] = {}
        shape: tuple[int, ...] = (256, out)
        if op == "conv2d":
            attrs = {
                "stride": (1, 1),
                "pad": (0, 0, 0, 0),
                "dilation": (1, 1),
                "layout": "NHWC",
                "groups": 1,
            }
            shape = (1, 16, 16, out)
        yield Case(op, {"x": x, "w": of_w, "bias": b}, made, shape, attrs)


def pairs(op: str, kind: str, count: int) -> Iterator[Case]:
    """Two operands: 4,096 pairs of codes, or tensors of 1..70 numbers.

    Of every three results one lies on ties and one just beside them.
    """
    for number, seed in seeds(f"{op}{kind}", count):
        if number % 2 == 0:
            left = np.arange(-128, 128).astype(kind).repeat(16).reshape(1, -1)
            right = codes(seed, kind, *left.shape)
        else:
            length = 1 + number * 13 % 70
            left, right = codes(seed, kind, 3, length), codes(seed, kind, 3, length)
        near = number % 3 != 2
        scales = [scale_of(seed, 1), scale_of(seed, 1)]
        if near and op != "mul":
            scales[1] = float(F(scales[0]) * F((1.0, 2.0, 0.5)[number % 4 % 3]))
        a, b = (
            Operand(data, scale, zero_of(seed, kind))
            for data, scale in zip((left, right), scales, strict=True)
        )
        if op == "mul" and number % 4 < 2:
            few = np.clip(b.zero + seed.integers(-8, 8, right.shape) * 2 + 1, *bounds(kind))
            b = replace(b, data=few.astype(kind))
            wide = F(a.step) * F(b.step) * F((2, 4, 6, 10)[number // 4 % 4])
        elif op == "mul":
            wide = F(a.step) * F(b.step) * F((64, 128, 50, 100)[number // 4 % 4])
        else:
            wide = F(max(a.step, b.step) * (0.5, 1.0, 2.0)[number // 3 % 3])
        scale = (wide, beside(seed, wide), wide * F(seed.uniform(0.4, 1.6)))[number % 3]
        made = result(seed, kind, float(scale))
        act = ACTIVATIONS[number // 2 % 4]
        yield Case(op, {"a": a, "b": b}, made, left.shape, fed=("a", "b"), activation=act)


def every(op: str, kind: str, count: int, fixed: tuple[float, int] | None) -> Iterator[Case]:
    """One operand of all codes; of every three results one lies on ties, one just beside them."""
    for number, seed in seeds(f"{op}{kind}", count):
        low, high = bounds(kind)
        step = 1 if high - low < 256 else 61
        data = np.arange(low, high + 1, step).astype(kind).reshape(1, -1)
        x = Operand(data, scale_of(seed, number // 2), zero_of(seed, kind))
        ratio = F((0.5, 2.0, 1.0, 0.25, 1.5, 4.0)[number // 3 % 6])
        wanted = (F(x.step) * ratio, beside(seed, F(x.step) * ratio), seed.uniform(0.5, 2) * x.step)
        made = result(seed, kind, *(fixed or (float(wanted[number % 3]), zero_of(seed, kind))))
        attrs: dict[str, Value] = {}
        if op == "leaky_relu":
            attrs["alpha"] = float(F((0.1, 0.25, 0.3, 0.5)[number % 4]))
        yield Case(op, {"x": x}, made, data.shape, attrs)


def softmax(kind: str, count: int) -> Iterator[Case]:
    """Rows of 1..70 and longer."""
    for number, seed in seeds(f"softmax{kind}", count):
        length = (1 + number * 9 % 70, 300, 1000)[0 if number % 8 else 1 + number // 8 % 2]
        x = operand(seed, kind, number, 12, length)
        if number % 5 == 0:
            x = Operand(np.clip(x.data // 16, *bounds(kind)).astype(kind), x.scale, x.zero)
        fixed = (1 / 256, bounds(kind)[0])
        yield Case("softmax", {"x": x}, result(seed, kind, *fixed), x.data.shape, {"axis": -1})


def pool(op: str, kind: str, count: int) -> Iterator[Case]:
    """Windows of every size; one map for operand and result."""
    for number, seed in seeds(f"{op}{kind}", count):
        same = bool(number % 2)
        kernel, stride, size = pair(seed, 1, 5), pair(seed, 1, 3), pair(seed, 5, 10)
        x = operand(seed, kind, number, 1, *size, 1 + number * 5 % 40)
        sizes, pad = window(size, kernel, stride, (1, 1), same=same)
        attrs: dict[str, Value] = {"kernel": kernel, "stride": stride, "pad": pad, "layout": "NHWC"}
        if op == "avg_pool2d":
            attrs["count_pad"] = False
        made = Operand(np.zeros(0, kind), x.scale, x.zero)
        shape = (1, *sizes, x.data.shape[-1])
        yield Case(op, {"x": x}, made, shape, attrs, same=same, activation=ACTIVATIONS[number % 4])


def concat(kind: str, count: int) -> Iterator[Case]:
    """Two or three operands in the result's map."""
    for number, seed in seeds(f"concat{kind}", count):
        scale, zero = scale_of(seed, number), zero_of(seed, kind)
        parts = [codes(seed, kind, 2, int(seed.integers(1, 40))) for _ in range(2 + number % 2)]
        xs = {f"xs.{i}": Operand(p, scale, zero) for i, p in enumerate(parts)}
        shape = (2, sum(p.shape[1] for p in parts))
        made = Operand(np.zeros(0, kind), scale, zero)
        yield Case("concat", xs, made, shape, {"axis": 1}, fed=tuple(xs))


def mean(kind: str, count: int) -> Iterator[Case]:
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
        yield Case("reduce_mean", {"x": x}, made, shape, {"axes": axes, "keep": keep})


def pad(kind: str, count: int) -> Iterator[Case]:
    """Zeros, as codes, around a tensor."""
    for number, seed in seeds(f"pad{kind}", count):
        x = operand(seed, kind, number, 1, *pair(seed, 2, 6), 5)
        pads = tuple(int(v) for v in (0, *seed.integers(0, 4, 3), 0, *seed.integers(0, 4, 3)))
        shape = tuple(n + pads[i] + pads[4 + i] for i, n in enumerate(x.data.shape))
        made = Operand(np.zeros(0, kind), x.scale, x.zero)
        yield Case("pad", {"x": x}, made, shape, {"pads": pads})


def resize(op: str, kind: str, count: int) -> Iterator[Case]:
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
        made = Operand(np.zeros(0, kind), x.scale, x.zero)
        yield Case(op, {"x": x}, made, (1, *sizes, x.data.shape[-1]), attrs)


def quantizes(kind: str, count: int) -> Iterator[Case]:
    """Reals beside ties and beyond the ends."""
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
        yield Case("quantize", {"x": Operand(data)}, made, data.shape)


def dequantizes(kind: str, count: int) -> Iterator[Case]:
    """All codes."""
    for case in every("dequantize", kind, count, None):
        yield Case("dequantize", case.operands, Operand(np.zeros(0, F)), case.shape)


SUITES: Suites = {
    "conv": lambda: conv("int8", 48, depth=False),
    "depthwise": lambda: conv("int8", 48, depth=True),
    "linear": lambda: linear("int8", 48),
    "conv16": lambda: conv("int16", 24, depth=False),
    "depthwise16": lambda: conv("int16", 24, depth=True),
    "linear16": lambda: linear("int16", 24),
    "conv_ties": lambda: tied("conv2d", "int8", 16),
    "linear_ties": lambda: tied("linear", "int8", 16),
    "conv16_ties": lambda: tied("conv2d", "int16", 8),
    "linear16_ties": lambda: tied("linear", "int16", 8),
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
    "quantize": lambda: quantizes("int8", 24),
    "requantize": lambda: every("requantize", "int8", 48, None),
    "dequantize": lambda: dequantizes("int8", 12),
}


def others(kind: str, zero: int, mark: str) -> Suites:
    """Suites of another kind of codes, of whose ops that take it; `zero` is sigmoid's."""
    found: Suites = {
        "add": lambda: pairs("add", kind, 30),
        "sub": lambda: pairs("sub", kind, 30),
        "mul": lambda: pairs("mul", kind, 12),
        "avg_pool": lambda: pool("avg_pool2d", kind, 16),
        "max_pool": lambda: pool("max_pool2d", kind, 8),
        "concat": lambda: concat(kind, 8),
        "leaky_relu": lambda: every("leaky_relu", kind, 18, None),
        "mean": lambda: mean(kind, 40),
        "pad": lambda: pad(kind, 8),
        "resize_nearest": lambda: resize("resize_nearest", kind, 12),
        "quantize": lambda: quantizes(kind, 8),
        "requantize": lambda: every("requantize", kind, 18, None),
        "dequantize": lambda: dequantizes(kind, 6),
    }
    if kind == "int16":
        found["resize"] = lambda: resize("resize", kind, 12)
    else:
        found["hard_swish"] = lambda: every("hard_swish", kind, 18, None)
        found["sigmoid"] = lambda: every("sigmoid", kind, 12, (1 / 256, zero))
        found["tanh"] = lambda: every("tanh", kind, 12, (1 / 128, 128))
        found["softmax"] = lambda: softmax(kind, 16)
    return {f"{name}{mark}": suite for name, suite in found.items()}


SUITES |= others("int16", 0, "16") | others("uint8", 0, "_u8") | LAYERS
"""Every suite of cases, by the name of its file."""


def digest(cases: list[Case]) -> str:
    """One hash of many cases."""
    return hashlib.sha256("".join(case.digest() for case in cases).encode()).hexdigest()[:32]
