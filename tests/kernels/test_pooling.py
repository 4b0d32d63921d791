"""Maxima, averages and softmax of integers."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from . import formulas
from .one import BOUNDS, CODES, ISAS, one, random_integers

F32 = np.float32


def geometries(seed: int, count: int) -> list[tuple[tuple[int, ...], ...]]:
    """Random (shape, kernel, stride, pad) with padding smaller than the window."""
    rng = np.random.default_rng(seed)
    found: list[tuple[tuple[int, ...], ...]] = []
    while len(found) < count:
        n, h, w, c = (int(v) for v in rng.integers((1, 1, 1, 1), (3, 9, 9, 140)))
        kernel = tuple(int(v) for v in rng.integers(1, 5, 2))
        stride = tuple(int(v) for v in rng.integers(1, 4, 2))
        pad = tuple(int(rng.integers(0, kernel[i % 2])) for i in range(4))
        if h + pad[0] + pad[2] >= kernel[0] and w + pad[1] + pad[3] >= kernel[1]:
            found.append(((n, h, w, c), kernel, stride, pad))
    return found


def size_of(
    shape: Sequence[int], kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int]
) -> tuple[int, int]:
    h, w = ((shape[1 + i] + pad[i] + pad[i + 2] - kernel[i]) // stride[i] + 1 for i in range(2))
    return h, w


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_max_pool_takes_the_largest_code_of_what_there_is(isa: str, kind: str) -> None:
    for seed, (shape, kernel, stride, pad) in enumerate(geometries(1, 40)):
        x = random_integers(np.random.default_rng(seed), kind, shape)
        out = size_of(shape, kernel, stride, pad)
        expected = np.zeros((shape[0], *out, shape[3]), CODES[kind])
        for oy, ox, window in formulas.windows(shape[1:3], out, kernel, stride, pad):
            expected[:, oy, ox] = np.max([x[:, i, j] for i, j in window], axis=0)
        got = one(
            "max_pool2d",
            [x],
            expected.shape,
            CODES[kind],
            isa=isa,
            threads=2,
            shape=shape,
            kernel=kernel,
            stride=stride,
            pad=pad,
            x_type=kind,
        )
        assert np.array_equal(got, expected), (seed, shape, kernel, stride, pad)


def test_max_pool_dilates_and_counts_windows_as_told() -> None:
    x = random_integers(np.random.default_rng(3), "u8", (1, 8, 8, 5))
    expected = np.zeros((1, 4, 4, 5), np.uint8)
    for oy, ox, window in formulas.windows((8, 8), (4, 4), (3, 2), (2, 2), (1, 0, 1, 0), (2, 3)):
        expected[:, oy, ox] = np.max([x[:, i, j] for i, j in window], axis=0)
    got = one(
        "max_pool2d",
        [x],
        expected.shape,
        np.uint8,
        shape=x.shape,
        kernel=(3, 2),
        stride=(2, 2),
        pad=(1, 0, 1, 0),
        dilation=(2, 3),
        out=(4, 4),
    )
    assert np.array_equal(got, expected)


def average(
    x: NDArray[np.generic], window: list[tuple[int, int]], count: int, scale: float, zero: int
) -> formulas.Floats:
    """The mean of some pixels, added one by one."""
    total = np.zeros(x[:, 0, 0].shape, F32)
    for i, j in window:
        total = total + (x[:, i, j].astype(np.int32) - zero).astype(F32) * F32(scale)
    return total / F32(count)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("count_pad", [False, True])
def test_avg_pool_adds_reals_in_the_order_of_the_window(
    isa: str, kind: str, count_pad: bool
) -> None:
    for seed, (shape, kernel, stride, pad) in enumerate(geometries(2, 30)):
        rng = np.random.default_rng(seed)
        x = random_integers(rng, kind, shape)
        x_zero, y_zero = (int(v) for v in random_integers(rng, kind, (2,)))
        x_scale, y_scale = ((0.0371, 0.0299), (0.5, 0.25), (1e5, 0.001))[seed % 3]
        out = size_of(shape, kernel, stride, pad)
        expected = np.zeros((shape[0], *out, shape[3]), CODES[kind])
        for oy, ox, window in formulas.windows(shape[1:3], out, kernel, stride, pad):
            count = math.prod(kernel) if count_pad else len(window)
            mean = average(x, window, count, x_scale, x_zero)
            real = mean / F32(y_scale) + F32(y_zero)
            expected[:, oy, ox] = formulas.converted(real, *BOUNDS[kind])
        got = one(
            "avg_pool2d",
            [x],
            expected.shape,
            CODES[kind],
            isa=isa,
            threads=2,
            shape=shape,
            kernel=kernel,
            stride=stride,
            pad=pad,
            count_pad=count_pad,
            x_scale=x_scale,
            x_zero=x_zero,
            y_scale=y_scale,
            y_zero=y_zero,
            x_type=kind,
            y_type=kind,
        )
        assert np.array_equal(got, expected), (seed, shape, kernel, stride, pad)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_global_avg_pool_sums_exactly(isa: str, kind: str) -> None:
    rng = np.random.default_rng(12)
    for c in [*range(1, 71), 200]:
        n, h, w = (int(v) for v in rng.integers(1, 9, 3))
        x = random_integers(rng, kind, (n, h, w, c), ends=bool(c % 3 == 0))
        x_zero, y_zero = (int(v) for v in random_integers(rng, kind, (2,)))
        x_scale, y_scale = (0.5, 0.125) if c % 2 else (0.0371, 0.0299)
        total = x.astype(np.int64).sum(axis=(1, 2)) - x_zero * h * w
        real = total.astype(F32) * (F32(x_scale) / (F32(y_scale) * F32(h * w)))
        got = one(
            "global_avg_pool",
            [x],
            (n, c),
            CODES[kind],
            isa=isa,
            threads=2,
            shape=x.shape,
            x_scale=x_scale,
            x_zero=x_zero,
            y_scale=y_scale,
            y_zero=y_zero,
            x_type=kind,
            y_type=kind,
        )
        assert np.array_equal(got, formulas.rounded(real, y_zero, *BOUNDS[kind])), c


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("by_table", [False, True])
def test_a_mean_of_reals_is_rounded_once(isa: str, kind: str, by_table: bool) -> None:
    rng = np.random.default_rng(14)
    zero, scale = BOUNDS[kind][0] + 77, F32(0.0371)
    every = np.arange(256, dtype=np.uint8).view(CODES[kind]).astype(np.int32)
    table = (every - zero).astype(F32) * scale
    table = table * F32(0.7) + F32(2) if by_table else table
    options = {"table": table} if by_table else {"x_scale": scale, "x_zero": zero, "x_type": kind}
    for inner in (1, 2, 16, 63, 64, 65, 130):
        for rows in (1, 7, 16, 49, 1000):
            x = random_integers(rng, kind, (3, rows, inner))
            floats = table[x.view(np.uint8)]
            total = [[math.fsum(column) for column in block.T.tolist()] for block in floats]
            wanted = (np.array(total) / rows).astype(F32)
            got = one("mean", [x], (3, inner), F32, isa=isa, threads=2, shape=x.shape, **options)
            assert np.array_equal(got, wanted), (rows, inner)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("wide", [False, True])
def test_softmax_is_a_table_and_one_division(isa: str, kind: str, wide: bool) -> None:
    rng = np.random.default_rng(13)
    zero = BOUNDS[kind][0]
    for width in [*range(2, 71), 1000]:
        x = random_integers(rng, kind, (21, width))
        scale = F32(rng.uniform(0.01, 0.3))
        shift = max(0.0, float(np.log(np.finfo(F32).max / F32(width))) - 5) / float(scale)
        table = np.exp((np.arange(256) - 255 + shift) * float(scale)).astype(F32)
        v = table[x.astype(np.int64) - x.max(axis=1, keepdims=True) + 255]
        total = np.zeros((21, 1), F32)
        for i in range(width):
            total = total + v[:, i : i + 1]
        real = np.float64 if wide else F32
        share = v.astype(real) * real(256) / total.astype(real)
        expected = formulas.rounded(share, zero, *BOUNDS[kind])
        got = one(
            "softmax",
            [x],
            x.shape,
            CODES[kind],
            rows=21,
            width=width,
            x_scale=scale,
            y_scale=1 / 256,
            y_zero=zero,
            x_type=kind,
            y_type=kind,
            isa=isa,
            threads=2,
            wide=wide,
        )
        assert np.array_equal(got, expected), width
