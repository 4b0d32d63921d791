"""Recorded cases of layers and curves beyond the first: transposed convolutions, products of two
tensors, sums, choices, and convolutions of unsigned codes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backends.tflite.models import Case, F, Operand, Value
from tests.oracles.tflite_operands import (
    ACTIVATIONS,
    Seed,
    Suites,
    beside,
    biased,
    bounds,
    codes,
    fitting,
    operand,
    pair,
    result,
    scale_of,
    seeds,
    weights,
    window,
    zero_of,
)


def curves(op: str, count: int) -> Iterator[Case]:
    """Sigmoid and tanh of 16-bit codes from end to end, also at scales that are powers of two."""
    for number, seed in seeds(f"{op}16", count):
        low, high = bounds("int16")
        data = np.arange(low + number, high + 1, 13).astype("int16").reshape(1, -1)
        scale = 2.0 ** -(8 + number) if number % 2 else float(F(seed.uniform(1e-4, 1e-2)))
        x = Operand(data, scale)
        yield Case(op, {"x": x}, result(seed, "int16", 2.0**-15, 0), data.shape)


def softmax(count: int) -> Iterator[Case]:
    """Softmax of 16-bit codes."""
    for number, seed in seeds("softmax16", count):
        length = (1 + number * 9 % 70, 300)[number % 8 == 7]
        data = np.floor_divide(
            codes(seed, "int16", 12, length).astype(np.int64), (1, 8, 60)[number % 3]
        )
        x = Operand(data.astype("int16"), scale_of(seed, number, 1e-4, 1e-2))
        made = result(seed, "int16", 2.0**-15, 0)
        yield Case("softmax", {"x": x}, made, data.shape, {"axis": -1})


def transposed(kind: str, count: int) -> Iterator[Case]:
    """Transposed convolutions, padded or not, strides above kernels among them."""
    for number, seed in seeds(f"tc{kind}", count):
        into, out = int(seed.integers(1, 20)), int(seed.integers(1, 16))
        kernel, stride, size = pair(seed, 1, 5), pair(seed, 1, 4), pair(seed, 2, 7)
        x = operand(seed, kind, number, 1, into, *size)
        w = weights(seed, number, (into, out, *kernel), many=False)
        if kind == "uint8":
            w = unsigned(seed, w)
        elif number % 3 != 1:
            each = (w.step * 2.0 ** -seed.integers(0, 3, out).astype(F)).astype(F)
            w = replace(w, scale=each, axis=1)
        b = biased(seed, x, w, out, 2000)
        same = number % 2 == 1
        if same:
            sizes = tuple(n * s for n, s in zip(size, stride, strict=True))
            total = [max(k - s, 0) for k, s in zip(kernel, stride, strict=True)]
            more = tuple(max(s - k, 0) for k, s in zip(kernel, stride, strict=True))
        else:
            sizes = tuple((n - 1) * s + k for n, s, k in zip(size, stride, kernel, strict=True))
            total, more = [0, 0], (0, 0)
        pad = (*(t // 2 for t in total), *(t - t // 2 for t in total))
        attrs: dict[str, Value] = {"stride": stride, "pad": pad, "output_pad": more}
        terms = max(1, into * kernel[0] * kernel[1] // (stride[0] * stride[1]))
        made = result(seed, kind, fitting(x, w, terms, number))
        shape = (1, out, *sizes)
        given = {"x": x, "w": w, "bias": b}
        yield Case("conv_transpose2d", given, made, shape, attrs, same=same)


def unsigned(seed: Seed, w: Operand) -> Operand:
    """Weights as unsigned codes of one scale with a zero point."""
    zero = int(seed.integers(50, 100)) * 2 + 1
    data = np.clip(w.data.astype(np.int32) + zero, 0, 255).astype(np.uint8)
    return Operand(data, float(np.ravel(np.asarray(w.scale))[0]), zero)


def old_conv(count: int, *, depth: bool) -> Iterator[Case]:
    """Convolutions of unsigned codes with unsigned weights."""
    for number, seed in seeds(f"{'dw' if depth else 'cv'}u8", count):
        same, stride = bool(number % 2), (1 + number % 2, 1 + number % 2)
        kernel = (3, 3) if number % 2 else pair(seed, 1, 4)
        size, into = pair(seed, 6, 9), int(seed.integers(2, 16))
        out = into if depth else int(seed.integers(1, 20))
        x = operand(seed, "uint8", number, 1, *size, into)
        w = unsigned(seed, weights(seed, number, (out, 1 if depth else into, *kernel), many=False))
        b = biased(seed, x, w, out, 2000)
        sizes, pad = window(size, kernel, stride, (1, 1), same=same)
        attrs: dict[str, Value] = {"stride": stride, "pad": pad, "dilation": (1, 1)}
        attrs |= {"layout": "NHWC", "groups": into if depth else 1}
        terms = (1 if depth else into) * kernel[0] * kernel[1]
        made = result(seed, "uint8", fitting(x, w, terms, number))
        act, shape = ACTIVATIONS[number % 4], (1, *sizes, out)
        given = {"x": x, "w": w, "bias": b}
        yield Case("conv2d", given, made, shape, attrs, same=same, activation=act)


def old_linear(count: int) -> Iterator[Case]:
    """Fully connected layers of unsigned codes."""
    for number, seed in seeds("fcu8", count):
        into, out, rows = 1 + number * 7 % 70, 1 + number * 11 % 70, int(seed.integers(1, 6))
        x = operand(seed, "uint8", number, rows, into)
        w = unsigned(seed, weights(seed, number, (out, into), many=False))
        b = biased(seed, x, w, out, 2000)
        made = result(seed, "uint8", fitting(x, w, into, number))
        act = ACTIVATIONS[number % 4]
        yield Case("linear", {"x": x, "w": w, "bias": b}, made, (rows, out), activation=act)


def products(kind: str, count: int) -> Iterator[Case]:
    """Products of two tensors, in batches."""
    for number, seed in seeds(f"bmm{kind}", count):
        rows, into, out = int(seed.integers(1, 9)), 1 + number * 7 % 70, int(seed.integers(1, 40))
        a = operand(seed, kind, number, 2, rows, into)
        b = operand(seed, kind, number, 2, into, out)
        made = result(seed, kind, fitting(a, b, into, number))
        yield Case("matmul", {"a": a, "b": b}, made, (2, rows, out), fed=("a", "b"))


def sums(kind: str, count: int) -> Iterator[Case]:
    """Sums over one axis, over height and width, and over all but the first."""
    for number, seed in seeds(f"sum{kind}", count):
        axes = ((1, 2), (3,), (1, 2, 3), (1,))[number % 4]
        batch, most = (24, 5) if len(axes) > 1 else (2, 9)
        x = operand(seed, kind, number, batch, *pair(seed, 2, most), 1 + number * 5 % 40)
        keep, size = number % 3 != 1, x.data.shape
        shape = tuple(1 if i in axes else n for i, n in enumerate(size) if keep or i not in axes)
        root = math.sqrt(math.prod(size[a] for a in axes))
        ratio = (2.0, 4.0, root, root * seed.uniform(0.4, 2))[number // 4 % 4]
        made = result(seed, kind, x.step * float(ratio))
        yield Case("reduce_sum", {"x": x}, made, shape, {"axes": axes, "keep": keep})


def choices(op: str, kind: str, count: int) -> Iterator[Case]:
    """The greater or the less of two, one of them broadcast or not."""
    for number, seed in seeds(f"{op}{kind}", count):
        a = operand(seed, kind, number, 2, 5, 1 + number * 13 % 70)
        shape = a.data.shape
        b = Operand(codes(seed, kind, *(shape if number % 2 else shape[-1:])), a.scale, a.zero)
        made = Operand(np.zeros(0, kind), a.scale, a.zero)
        yield Case(op, {"xs.0": a, "xs.1": b}, made, shape, fed=("xs.0", "xs.1"))


def slopes(kind: str, count: int) -> Iterator[Case]:
    """A slope a channel below zero; of every three results one lies on ties, one just beside."""
    for number, seed in seeds(f"prelu{kind}", count):
        low, high = bounds(kind)
        every = np.arange(low, high + 1).astype(kind).reshape(1, 16, 16, 1)
        channels = 1 + number * 3 % 8
        x = Operand(np.repeat(every, channels, 3), scale_of(seed, 1), zero_of(seed, kind))
        slope = operand(seed, kind, number, 1, 1, channels)
        ratio = F(x.step * (0.5, 2.0, 1.0, 4.0)[number // 3 % 4])
        wanted = (ratio, beside(seed, ratio), x.step * seed.uniform(0.5, 2))
        made = result(seed, kind, float(wanted[number % 3]))
        yield Case("prelu", {"x": x, "slope": slope}, made, x.data.shape)


LAYERS: Suites = {
    "sigmoid16": lambda: curves("sigmoid", 8),
    "tanh16": lambda: curves("tanh", 8),
    "softmax16": lambda: softmax(16),
    "transposed": lambda: transposed("int8", 24),
    "transposed16": lambda: transposed("int16", 12),
    "transposed_u8": lambda: transposed("uint8", 12),
    "conv_u8": lambda: old_conv(24, depth=False),
    "depthwise_u8": lambda: old_conv(24, depth=True),
    "linear_u8": lambda: old_linear(24),
    "matmul": lambda: products("int8", 24),
    "matmul16": lambda: products("int16", 12),
    "sum_u8": lambda: sums("uint8", 20),
    "max": lambda: choices("max", "int8", 8),
    "min_u8": lambda: choices("min", "uint8", 8),
    "max16": lambda: choices("max", "int16", 8),
    "min": lambda: choices("min", "int8", 8),
    "prelu": lambda: slopes("int8", 18),
    "prelu_u8": lambda: slopes("uint8", 9),
}
"""Suites of cases, by the names of their files."""
