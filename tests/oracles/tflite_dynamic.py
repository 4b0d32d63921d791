"""Recorded cases of layers of real data and weights of few bits, as converters write them for
dynamic ranges: data become integers row by row, or image by image, while a layer runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backends.tflite.models import Array, CaseOperand, F, OpCase, Value
from tests.oracles.tflite_operands import Seed, Suites, pair, seeds, window

REAL = CaseOperand(np.zeros(0, F))


def rows(seed: Seed, number: int, count: int, size: int) -> Array:
    """Floats a row; of every three cases two have rows of which half lies on ties between integers,
    from -127 to 127 or from -128 to 127."""
    floats = seed.standard_normal((count, size)) * seed.uniform(0.3, 3, (count, 1))
    if number % 3 < 2:
        half = seed.integers(-254, 255, (count, size))
        half[:, :2] = [[-254, 254], [-256, 254]][number % 3][:size]
        floats = half * 2.0 ** -seed.integers(3, 8, (count, 1))
    if number % 7 == 3:
        floats = np.abs(floats) + 0.5  # zero lies at an end
    if number % 11 == 5:
        floats[0] = 0
    return floats.astype(F)


def weights(
    seed: Seed, shape: tuple[int, ...], bits: int, *, many: bool, axis: int = 0
) -> CaseOperand:
    """Integers about zero with one scale, or one a channel."""
    end = 127 if bits == 8 else 7
    scale = seed.uniform(0.002, 0.03, shape[axis]).astype(F)
    data = seed.integers(-end, end + 1, shape).astype(np.int8)
    return CaseOperand(data, scale if many else float(scale[0]), axis=axis, bits=bits)


def bias(seed: Seed, count: int) -> CaseOperand:
    """Floats."""
    return CaseOperand(seed.standard_normal(count).astype(F))


def linear(bits: int, count: int, *, span: bool = True) -> Iterator[OpCase]:
    """Fully connected layers of 1..70 inputs."""
    for number, seed in seeds(f"dynfc{bits}", count):
        into, out, many = 1 + number % 70, 2 + number * 11 % 23, number % 2 == number // 70 % 2
        x = CaseOperand(rows(seed, number, 1 + number % 4, into))
        w = weights(seed, (out, into), bits, many=many)
        given = {"x": x, "w": w} | ({"bias": bias(seed, out)} if number % 5 else {})
        yield OpCase("linear", given, REAL, (len(x.data), out), {"asymmetric": span})


def one_result(count: int) -> Iterator[OpCase]:
    """Fully connected layers of one row of four-bit weights, with one scale, of 1..140 inputs."""
    for number, seed in seeds("dynone", count):
        into = 1 + number % 140
        x = CaseOperand(rows(seed, number, 1 + number * 5 % 9, into))
        given = {"x": x, "w": weights(seed, (1, into), 4, many=False)}
        if number % 3:
            given["bias"] = bias(seed, 1)
        yield OpCase("linear", given, REAL, (len(x.data), 1), {"asymmetric": True})


def blocks(count: int) -> Iterator[OpCase]:
    """Fully connected layers whose four-bit weights have a float16 scale in blocks of terms."""
    for number, seed in seeds("dynblocks", count):
        size, out = 32 * (1 + number % 4), 2 + number * 11 % 23
        into = size * (1 + number % 5)
        x = CaseOperand(rows(seed, number, 1 + number % 4, into))
        scale = seed.uniform(0.002, 0.03, (out, into // size)).astype(np.float16).astype(F)
        w = CaseOperand(seed.integers(-8, 8, (out, into)).astype(np.int8), scale, bits=4)
        given = {"x": x, "w": w} | ({"bias": bias(seed, out)} if number % 5 else {})
        yield OpCase("linear", given, REAL, (len(x.data), out), {"asymmetric": True})


def conv(bits: int, count: int, *, depth: bool) -> Iterator[OpCase]:
    """Convolutions, some of one channel alone; by channels always with a scale each."""
    for number, seed in seeds(f"dynconv{bits}{depth}", count):
        same, kernel = bool(number % 2), pair(seed, 1, 4)
        stride: tuple[int, int] = (1 + number % 2,) * 2
        size, into = pair(seed, 4, 7), 2 + number * 5 % 12
        more = 1 + number // 2 % 2
        out = into * more if depth else 1 + number * 7 % 19
        x = rows(seed, number, 1 + number % 2, size[0] * size[1] * into)
        w = weights(seed, (out, 1 if depth else into, *kernel), bits, many=depth or number % 3 > 0)
        sizes, around = window(size, kernel, stride, (1, 1), same=same)
        attrs: dict[str, Value] = {
            "stride": stride,
            "pad": around,
            "dilation": (1, 1),
            "layout": "NHWC",
            "groups": into if depth else 1,
        }
        given = {"x": CaseOperand(x.reshape(-1, *size, into)), "w": w, "bias": bias(seed, out)}
        yield OpCase("conv2d", given, REAL, (len(x), *sizes, out), attrs, same=same)


def products(count: int, *, span: bool = True) -> Iterator[OpCase]:
    """Products of real data and a constant of one scale, alone or in batches."""
    for number, seed in seeds("dynbmm", count):
        batch, many, into, out = (
            1 + number % 3,
            1 + number % 5,
            1 + number % 70,
            1 + number * 7 % 20,
        )
        x = rows(seed, number, batch * many, into)
        before = (batch,) if number % 2 else ()
        x = x.reshape(*before, -1, into) if before else x[:many]
        w = weights(seed, (*before, into, out), 8, many=False)
        made = (*before, many, out)
        attrs: dict[str, Value] = {"asymmetric": span}
        yield OpCase("matmul", {"a": CaseOperand(x), "b": w}, REAL, made, attrs, fed=("a",))


DYNAMIC: Suites = {
    "dynamic_linear": lambda: linear(8, 140),
    "dynamic_linear_i4": lambda: linear(4, 140),
    "dynamic_linear_one": lambda: one_result(280),
    "dynamic_linear_blocks": lambda: blocks(60),
    "dynamic_conv": lambda: conv(8, 24, depth=False),
    "dynamic_conv_i4": lambda: conv(4, 12, depth=False),
    "dynamic_depthwise": lambda: conv(8, 24, depth=True),
    "dynamic_matmul": lambda: products(70),
    "reach_linear": lambda: linear(8, 70, span=False),
    "reach_linear_i4": lambda: linear(4, 48, span=False),
    "reach_matmul": lambda: products(35, span=False),
}
"""Suites of cases, by the names of their files; of `reach` files ask for integers about zero."""
WITHOUT_DELEGATE = ("reach_linear_i4",)
"""Suites of which the delegate's profiles say nothing: some layers it leaves to kernels that do as
such files ask, which is no word of these profiles."""
