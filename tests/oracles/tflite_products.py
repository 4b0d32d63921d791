"""Recorded cases of sums of products: convolutions, transposed ones, fully connected layers and
products of two tensors, of integers of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backends.tflite.models import CaseOperand, F, OpCase, Value
from tests.oracles.tflite_operands import (
    ACTIVATIONS,
    Seed,
    Suites,
    biased,
    bounds,
    fitting,
    one_sided,
    operand,
    pair,
    result,
    scale_of,
    seeds,
    sparse,
    unsigned,
    weights,
    window,
    zero_of,
)


def conv(kind: str, count: int, *, depth: bool) -> Iterator[OpCase]:
    """Convolutions with every stride, dilation and padding, channels 1..40; every third one has
    many sums on ties.

    Unsigned integers have unsigned weights of one scale.
    """
    for number, seed in seeds(f"{'dw' if depth else 'cv'}{kind}", count):
        same = bool(number % 2)
        kernel, stride = pair(seed, 1, 4), (1 + number % 2, 1 + number % 2)
        dilation = (1, 1) if max(stride) > 1 else pair(seed, 1, 3)
        size = pair(seed, 6, 10)
        into = int(seed.integers(1, 8 if kind == "int16" else 20))
        if long := kind == "int16" and number == 6 and not depth:
            into, kernel = 140, (3, 3)  # sums beyond 32 bits
        many = int(seed.integers(1, 3)) if depth else 1
        out = into * many if depth else int(seed.integers(1, 24))
        x = operand(seed, kind, number, 1, *size, into)
        w = weights(seed, number, (out, 1 if depth else into, *kernel), many=number % 4 != 1)
        x, w = (one_sided(x), one_sided(w)) if long else (x, w)
        tied = sparse(seed, w, x.step, kind) if number % 3 == 1 else None
        w = tied[0] if tied else w
        w = unsigned(seed, w) if kind == "uint8" else w
        terms = (1 if depth else into) * kernel[0] * kernel[1]
        b = biased(seed, x, w, out, 60 if tied else 2000)
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
        fit = fitting(x, w, terms, number) * (40 if long else 1)
        made = tied[1] if tied else result(seed, kind, fit)
        act = ACTIVATIONS[number % 4]
        yield OpCase(
            "conv2d",
            {"x": x, "w": w, "bias": b},
            made,
            (1, *sizes, out),
            attrs,
            same=same,
            activation=act,
        )


def linear(kind: str, count: int) -> Iterator[OpCase]:
    """Fully connected layers of 1..70 inputs and outputs; every third has many sums on ties."""
    for number, seed in seeds(f"fc{kind}", count):
        into, out, rows = 1 + number * 29 % 70, 1 + number * 11 % 70, int(seed.integers(1, 6))
        if long := kind == "int16" and number == 6:
            into = 1600  # sums beyond 32 bits
        x = operand(seed, kind, number, rows, into)
        w = weights(seed, number, (out, into), many=number % 4 == 1)
        x, w = (one_sided(x), one_sided(w)) if long else (x, w)
        tied = sparse(seed, w, x.step, kind) if number % 3 == 1 else None
        w = tied[0] if tied else w
        w = unsigned(seed, w) if kind == "uint8" else w
        fit = fitting(x, w, into, number) * (40 if long else 1)
        made = tied[1] if tied else result(seed, kind, fit)
        b = biased(seed, x, w, out, 60 if tied else 2000)
        act = ACTIVATIONS[number % 4]
        yield OpCase("linear", {"x": x, "w": w, "bias": b}, made, (rows, out), activation=act)


def long_sums(count: int) -> Iterator[OpCase]:
    """Fully connected layers of 8-bit integers whose sums 32 bits do not hold."""
    for number, seed in seeds("longsum", count):
        size = 150000 + number * 1000
        x = one_sided(operand(seed, "int8", 1, 2, size))
        x = replace(x, zero=-127)
        w = one_sided(weights(seed, 1, (3, size), many=False))
        made = result(seed, "int8", x.step * w.step * 2.0**25)
        yield OpCase("linear", {"x": x, "w": w, "bias": biased(seed, x, w, 3, 2000)}, made, (2, 3))


def tied(op: str, kind: str, count: int) -> Iterator[OpCase]:
    """All integers times few weights: results on ties, and one float32 beside them.

    Of every eight cases four have multipliers of which no binary fraction is the value.
    Every other case has scales of its own in each channel, some a neighbour of the tie's.
    """
    for number, seed in seeds(f"{op[:3]}{op[4:5]}tie{kind}", count):
        out, many = 16, number % 2 == 1 and kind != "uint8" and op != "matmul"
        many = many and (kind != "int16" or number == 3)
        low, high = bounds(kind)
        every = np.linspace(low, high, 256).round().astype(kind)
        wide = kind == "int16"
        exact = number // 4 % 2 == 1 or (wide and number % 4 != 2)
        step = 2.0 ** -int(seed.integers(3, 8)) if exact else scale_of(seed, 1)
        x = CaseOperand(every.reshape(_DATA.get(op, (256, 1))), step, zero_of(seed, kind))
        reach = (9, 31)[number // 2 % 2]
        base = F(seed.uniform(0.001, 0.01))
        base = F(round(float(base) * 2**20) / 2**20) if exact else base
        beside = number % 4 == 2 or (number % 2 == 1 and not many and not wide)
        scale = np.nextafter(base, F(seed.choice([0.0, 1.0]))) if beside else base
        scales = np.where(
            np.arange(out) % 3, np.nextafter(base, seed.choice([F(0), F(1)], out)), base
        ).astype(F)
        w = few(seed, kind if op == "matmul" else "int8", out, reach, float(scale))
        w = unsigned(seed, w) if kind == "uint8" and op != "matmul" else w
        w = replace(w, data=w.data.reshape(_WEIGHTS[op]))
        if many:
            w = replace(w, scale=scales, axis=1 if op == "conv_transpose2d" else 0)
        step = (6, 10, 14, 22)[number % 4] if exact else (2, 4, 6, 10)[number % 4]
        step = (2, 3, 5, 6)[number % 4] * 256 if wide else step
        unit = F(F(x.step) * base)
        made = result(seed, kind, float(F(unit * F(step / (128 if kind == "int16" else 1)))))
        if op == "matmul":
            zero = 0 if kind == "int16" or number % 4 < 2 else zero_of(seed, kind) // 2 | 1
            w = replace(w, data=(w.data.astype(np.int64) + zero).astype(kind), zero=zero)
            given = {"a": x, "b": w}
            yield OpCase(op, given, made, (256, out), fed=("a", "b"))
            continue
        given = {"x": x, "w": w, "bias": biased(seed, x, w, out, 4)}
        yield OpCase(op, given, made, _RESULTS.get(op, (256, out)), _ATTRS.get(op, {}))


def few(seed: Seed, kind: str, count: int, reach: int, scale: float) -> CaseOperand:
    """Odd integers about zero, as far as `reach`."""
    steps = seed.choice(np.arange(-reach, reach + 1, 2), count)
    return CaseOperand(steps.astype(kind), scale)


_DATA = {"conv2d": (1, 16, 16, 1), "conv_transpose2d": (1, 1, 16, 16)}
_WEIGHTS = {
    "conv2d": (16, 1, 1, 1),
    "conv_transpose2d": (1, 16, 1, 1),
    "linear": (16, 1),
    "matmul": (1, 16),
}
_RESULTS = {"conv2d": (1, 16, 16, 16), "conv_transpose2d": (1, 16, 16, 16)}
_ATTRS: dict[str, dict[str, Value]] = {
    "conv2d": {
        "stride": (1, 1),
        "pad": (0, 0, 0, 0),
        "dilation": (1, 1),
        "layout": "NHWC",
        "groups": 1,
    },
    "conv_transpose2d": {"stride": (1, 1), "pad": (0, 0, 0, 0), "output_pad": (0, 0)},
}


def transposed(kind: str, count: int) -> Iterator[OpCase]:
    """Transposed convolutions, padded or not, strides above kernels among them."""
    for number, seed in seeds(f"tc{kind}", count):
        into, out = int(seed.integers(1, 20)), int(seed.integers(1, 16))
        kernel, stride, size = pair(seed, 1, 5), pair(seed, 1, 4), pair(seed, 2, 7)
        if long := kind == "int16" and number == 6:
            into, kernel, stride = 1500, (1, 1), (1, 1)  # sums beyond 32 bits
        x = operand(seed, kind, number, 1, into, *size)
        w = weights(seed, number, (into, out, *kernel), many=False)
        x, w = (one_sided(x), one_sided(w)) if long else (x, w)
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
        made = result(seed, kind, fitting(x, w, terms, number) * (40 if long else 1))
        shape = (1, out, *sizes)
        given = {"x": x, "w": w, "bias": b}
        yield OpCase("conv_transpose2d", given, made, shape, attrs, same=same)


def products(kind: str, count: int) -> Iterator[OpCase]:
    """Products of two tensors, in batches."""
    for number, seed in seeds(f"bmm{kind}", count):
        rows, into, out = int(seed.integers(1, 9)), 1 + number * 29 % 70, int(seed.integers(1, 40))
        a = operand(seed, kind, number, 2, rows, into)
        b = operand(seed, kind, number, 2, into, out)
        made = result(seed, kind, fitting(a, b, into, number))
        yield OpCase("matmul", {"a": a, "b": b}, made, (2, rows, out), fed=("a", "b"))


PRODUCTS: Suites = {
    "conv": lambda: conv("int8", 48, depth=False),
    "depthwise": lambda: conv("int8", 48, depth=True),
    "linear": lambda: linear("int8", 70),
    "conv16": lambda: conv("int16", 24, depth=False),
    "depthwise16": lambda: conv("int16", 24, depth=True),
    "linear16": lambda: linear("int16", 70),
    "conv_u8": lambda: conv("uint8", 24, depth=False),
    "depthwise_u8": lambda: conv("uint8", 24, depth=True),
    "linear_u8": lambda: linear("uint8", 70),
    "transposed": lambda: transposed("int8", 24),
    "transposed16": lambda: transposed("int16", 12),
    "transposed_u8": lambda: transposed("uint8", 24),
    "matmul": lambda: products("int8", 70),
    "matmul16": lambda: products("int16", 12),
    "linear_long": lambda: long_sums(4),
    "conv_ties": lambda: tied("conv2d", "int8", 16),
    "conv_u8_ties": lambda: tied("conv2d", "uint8", 8),
    "conv16_ties": lambda: tied("conv2d", "int16", 8),
    "linear_ties": lambda: tied("linear", "int8", 16),
    "linear_u8_ties": lambda: tied("linear", "uint8", 8),
    "linear16_ties": lambda: tied("linear", "int16", 8),
    "transposed_ties": lambda: tied("conv_transpose2d", "int8", 8),
    "transposed_u8_ties": lambda: tied("conv_transpose2d", "uint8", 8),
    "transposed16_ties": lambda: tied("conv_transpose2d", "int16", 8),
    "matmul_ties": lambda: tied("matmul", "int8", 8),
    "matmul16_ties": lambda: tied("matmul", "int16", 12),
}
"""Suites of cases, by the names of their files."""
