"""Recorded cases where whole vectors and what is left over beside them are rounded differently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backends.tflite.models import F, OpCase, Value
from tests.oracles.tflite_more import nibbles
from tests.oracles.tflite_operands import (
    Suites,
    biased,
    bounds,
    fitting,
    operand,
    pair,
    result,
    seeds,
    unsigned,
    weights,
)
from tests.oracles.tflite_products import conv, linear, tied


def recoded(kind: str, to: str) -> Iterator[OpCase]:
    """Integers of each length from 1 to 70 as integers of another kind, three of four with ties."""
    for number, seed in seeds(f"tail{kind}{to}", 70):
        x = operand(seed, kind, 0, 1, 1 + number)
        ratio = F((0.25, 0.5, 0.125, 0.3)[number % 4])
        low, high = bounds(to)
        zero = (high - 20 if number // 4 % 2 else low + 20) | 1
        made = result(seed, to, float(F(x.step) / ratio), zero)
        yield OpCase("requantize", {"x": x}, made, x.data.shape)


def spread(kind: str, count: int) -> Iterator[OpCase]:
    """Transposed convolutions padded SAME whose stride exceeds their kernel, 1..40 channels; two of
    three have sums on ties."""
    for number, seed in seeds(f"spread{kind}", count):
        into, out = 1 + number * 3 % 7, 1 + number * 7 % 40
        kernel, size = pair(seed, 1, 3), pair(seed, 2, 5)
        stride = (kernel[0] + 1 + number % 2, kernel[1] + number // 2 % 2)
        x = operand(seed, kind, number, 1, into, *size)
        w = weights(seed, number, (into, out, *kernel), many=False)
        w = replace(w, data=(np.clip(w.data.astype(np.int64), -9, 9) | 1).astype(np.int8))
        if kind == "uint8":
            w = unsigned(seed, w)
        elif number % 4 == 3:
            each = (w.step * 2.0 ** -seed.integers(0, 3, out).astype(F)).astype(F)
            w = replace(w, scale=each, axis=1)
        sizes = tuple(n * s for n, s in zip(size, stride, strict=True))
        more = tuple(s - k for s, k in zip(stride, kernel, strict=True))
        attrs: dict[str, Value] = {"stride": stride, "pad": (0, 0, 0, 0), "output_pad": more}
        unit = float(F(x.step) * F(np.max(np.asarray(w.scale))))
        step = unit * 8 if number % 3 else fitting(x, w, into, number) / 8
        given = {"x": x, "w": w, "bias": biased(seed, x, w, out, 20)}
        made = result(seed, kind, step)
        yield OpCase("conv_transpose2d", given, made, (1, out, *sizes), attrs, same=True)


def even(cases: Iterator[OpCase]) -> Iterator[OpCase]:
    """The same layers with one more number a row, which counts for nothing."""
    for case in cases:
        x, w = case.operands["x"], case.operands["w"]
        more = {
            "x": replace(x, data=np.concatenate([x.data, x.data[:, :1]], 1)),
            "w": replace(w, data=np.concatenate([w.data, 0 * w.data[:, :1]], 1)),
        }
        if w.data.shape[1] % 2 and w.data.size > 1:
            yield replace(case, operands={**case.operands, **more})


def alone(cases: Iterator[OpCase], channels: int) -> Iterator[OpCase]:
    """Convolutions of one channel by one tap, each of the first results of a channel of its own."""
    for case in cases:
        x, w, bias = (case.operands[slot] for slot in ("x", "w", "bias"))
        scale = w.scale if isinstance(w.scale, float | None) else w.scale[:channels]
        unit = bias.scale if isinstance(bias.scale, float | None) else bias.scale[:channels]
        held = {
            "x": replace(x, data=np.repeat(x.data, channels, 3)),
            "w": replace(w, data=w.data[:channels], scale=scale),
            "bias": replace(bias, data=bias.data[:channels], scale=unit),
        }
        attrs = {**case.attrs, "groups": channels}
        yield replace(case, operands=held, shape=(*case.shape[:3], channels), attrs=attrs)


ACTIVATIONS: Suites = {
    "tails_u8_i8": lambda: recoded("uint8", "int8"),
    "tails_i8_u8": lambda: recoded("int8", "uint8"),
    "spread": lambda: spread("int8", 40),
    "spread_u8": lambda: spread("uint8", 24),
    "linear_i4_even": lambda: even(nibbles(linear("int8", 48))),
    "linear_i4_even_ties": lambda: even(nibbles(tied("linear", "int8", 8))),
    "depthwise_i4": lambda: nibbles(conv("int8", 40, depth=True)),
    "depthwise_i4_ties": lambda: alone(nibbles(tied("conv2d", "int8", 8)), 13),
    "conv_i4_int16": lambda: nibbles(conv("int16", 16, depth=False)),
    "conv_i4_int16_ties": lambda: nibbles(tied("conv2d", "int16", 8)),
    "linear_i4_int16": lambda: nibbles(linear("int16", 24)),
    "linear_i4_int16_ties": lambda: nibbles(tied("linear", "int16", 8)),
}
"""Suites of cases, by the names of their files."""
