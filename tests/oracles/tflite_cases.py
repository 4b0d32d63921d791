"""The cases by which TensorFlow Lite's arithmetic is recorded, made from seeds: NumPy alone."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from backends.tflite.models import Array, F, Value
from backends.tflite.models import Case as Case
from backends.tflite.models import Operand as Operand

Seed = np.random.Generator


def bounds(kind: str) -> tuple[int, int]:
    """The least and the greatest code."""
    info = np.iinfo(kind)
    return int(info.min), int(info.max)


def codes(seed: Seed, kind: str, *shape: int) -> Array:
    """Codes of all values, extremes among them."""
    low, high = bounds(kind)
    made = seed.integers(low, high + 1, shape)
    ends = seed.random(shape) < 0.05
    return np.where(ends, seed.choice([low, high], shape), made).astype(kind)


def scale_of(seed: Seed, number: int, least: float = 0.002, most: float = 0.2) -> float:
    """Every third one a power of two, where ties lie."""
    if number % 3 == 0:
        return float(2.0 ** -int(seed.integers(3, 8)))
    return float(F(seed.uniform(least, most)))


def zero_of(seed: Seed, kind: str) -> int:
    """An odd zero point; 16-bit codes have none."""
    if kind == "int16":
        return 0
    low, high = bounds(kind)
    return int(seed.integers(low // 2, high // 2)) * 2 + 1


def operand(seed: Seed, kind: str, number: int, *shape: int) -> Operand:
    """Codes and a map."""
    return Operand(codes(seed, kind, *shape), scale_of(seed, number), zero_of(seed, kind))


def result(seed: Seed, kind: str, scale: float, zero: int | None = None) -> Operand:
    """A map for the result."""
    empty = np.zeros(0, kind)
    return Operand(empty, float(F(scale)), zero_of(seed, kind) if zero is None else zero)


def seeds(op: str, count: int) -> Iterator[tuple[int, Seed]]:
    """As many random generators, each with its number."""
    name = int.from_bytes(op.encode()[:8].ljust(8), "little")
    for number in range(count):
        yield number, np.random.default_rng((name, number))


def same_pad(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int, int]:
    """The result's size and what is put before and after, as `SAME` has it."""
    out = -(-size // stride)
    reach = (kernel - 1) * dilation + 1
    total = max(0, (out - 1) * stride + reach - size)
    return out, total // 2, total - total // 2


def window(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    *,
    same: bool,
) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """The result's sizes and the padding, top left bottom right."""
    if not same:
        found = [
            (s - (k - 1) * d - 1) // t + 1
            for s, k, t, d in zip(size, kernel, stride, dilation, strict=True)
        ]
        return (found[0], found[1]), (0, 0, 0, 0)
    (h, top, bottom), (w, left, right) = (
        same_pad(*sizes) for sizes in zip(size, kernel, stride, dilation, strict=True)
    )
    return (h, w), (top, left, bottom, right)


ACTIVATIONS = ("", "relu", "", "relu6")


def pair(seed: Seed, low: int, high: int) -> tuple[int, int]:
    """Two whole numbers."""
    return int(seed.integers(low, high)), int(seed.integers(low, high))


def weights(seed: Seed, number: int, shape: tuple[int, ...], *, many: bool) -> Operand:
    """Weights with one scale, or one a channel."""
    data = seed.integers(-127, 128, shape).astype(np.int8)
    if number % 3 == 0:
        return Operand(
            data,
            (2.0 ** -seed.integers(4, 8, shape[0] if many else ())).astype(F) if many else 2.0**-6,
        )
    scale = seed.uniform(0.001, 0.02, shape[0]).astype(F)
    return Operand(data, scale if many else float(scale[0]))


def biased(seed: Seed, x: Operand, w: Operand, count: int, reach: int) -> Operand:
    """A bias in units of the accumulator."""
    kind = "int64" if x.data.dtype == np.int16 else "int32"
    unit = np.asarray(F(x.step)) * np.asarray(w.scale, F)
    data = seed.integers(-reach, reach + 1, count).astype(kind)
    return Operand(data, unit if np.ndim(unit) else float(unit))


def fitting(x: Operand, w: Operand, terms: int, number: int) -> float:
    """A scale at which some results saturate; a power of two with those of the operands."""
    low, high = bounds(str(x.data.dtype))
    spread = (high - low) / 3.4 * 73 * math.sqrt(terms)
    unit = x.step * float(np.mean(np.asarray(w.scale)))
    scale = spread * unit / ((high - low) / 2.6)
    return 2.0 ** round(math.log2(scale)) if number % 3 == 0 else scale


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


def one_sided(of: Operand) -> Operand:
    """The same with codes of the upper half alone."""
    low, high = bounds(str(of.data.dtype))
    return replace(
        of,
        data=np.maximum(np.abs(of.data.astype(np.int32)), high // 2)
        .clip(low, high)
        .astype(of.data.dtype),
    )


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


def beside(seed: Seed, x: np.float32) -> np.float32:
    """A number near another, up to a few thousandths of a thousandth off."""
    return F(x * F(1 + float(seed.choice([-1, 1])) * 2.0 ** -float(seed.integers(12, 24))))


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


Suites = dict[str, Callable[[], Iterator[Case]]]

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


SUITES |= others("int16", 0, "16") | others("uint8", 0, "_u8")
"""Every suite of cases, by the name of its file."""


def digest(cases: list[Case]) -> str:
    """One hash of many cases."""
    return hashlib.sha256("".join(case.digest() for case in cases).encode()).hexdigest()[:32]
