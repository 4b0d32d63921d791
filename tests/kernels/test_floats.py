"""Float32 kernels: sums in their documented order, and within a bound of float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir._kernels._cpu import UNARY

from .one import ISAS, one

F32 = np.float32
Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
BLOCK = 256
"""Values of a block of a sum, as sgemm.h has it."""


def normal(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.normal(size=shape).astype(F32)


def fma(a: float, b: float, c: float) -> float:
    """a * b + c of float32, rounded once."""
    product, addend = a * b, c
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    if error and not int(np.float64(total).view(np.int64)) & 1:
        total = math.nextafter(total, math.copysign(math.inf, error))
    return float(F32(total))


def added(a: Floats, b: Floats, bias: float | None) -> np.float32:
    """The sum of products in the documented order, number by number."""
    total = None
    for start in range(0, len(a), BLOCK):
        part = 0.0
        for left, right in zip(a[start:][:BLOCK].tolist(), b[start:][:BLOCK].tolist(), strict=True):
            part = fma(left, right, part)
        total = F32(part) if total is None else F32(total + F32(part))
    assert total is not None
    return total if bias is None else F32(total + F32(bias))


def require_near(got: Floats, wanted: Wide, sizes: Wide, count: int) -> None:
    """Within 4 * sqrt(n) * 2^-24 of the sum of the sizes of all terms."""
    room = 4 * math.sqrt(count + 1) * 2.0**-24 * sizes + 1e-37
    assert np.all(np.abs(got - wanted) <= room), np.max(np.abs(got - wanted) / room)


def everywhere(
    kind: str, inputs: list[Any], made: Sequence[int], /, *more: Any, **how: Any
) -> Floats:
    """The result on the best instruction set, which is that on every one, by any threads."""
    found = [
        one(kind, inputs, made, F32, *more, isa=isa, threads=threads, **how)
        for isa in ISAS
        for threads in (1, 2)
    ]
    assert len({y.tobytes() for y in found}) == 1
    result: Floats = found[0].astype(F32)
    return result


# -- products -------------------------------------------------------------------------------------

PRODUCTS = [
    (rows, k, n)
    for rows, k, n in [
        (1, 1, 1), (1, 7, 65), (2, 255, 16), (3, 256, 17), (5, 257, 63), (6, 512, 64), (7, 513, 65),
        (8, 30, 48), (9, 3, 33), (13, 700, 15), (95, 5, 80), (97, 20, 129), (200, 9, 7),
    ]
]  # fmt: skip
"""Sizes on either side of tiles, panels, blocks of rows and blocks of sums."""


@pytest.mark.parametrize("size", PRODUCTS, ids=str)
@pytest.mark.parametrize("bounded", [False, True])
def test_linear_adds_in_the_documented_order(size: tuple[int, int, int], bounded: bool) -> None:
    rows, k, n = size
    rng = np.random.default_rng([51, *size])
    x, w, bias = normal(rng, rows, k), normal(rng, n, k), normal(rng, n)
    ends: dict[str, float] = {"low": -0.5, "high": 6.0} if bounded else {}
    got = everywhere("float_linear", [x], (rows, n), w, bias, rows=rows, **ends)
    exact = x.astype(np.float64) @ w.astype(np.float64).T + bias
    sums = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64).T + np.abs(bias)
    if bounded:
        exact = np.clip(exact, -0.5, 6.0)
    require_near(got, exact, sums, k)
    for i, j in {(0, 0), (rows - 1, n - 1), (rows // 2, n // 3)}:
        wanted = added(x[i], w[j], float(bias[j]))
        assert got[i, j] == (np.clip(wanted, F32(-0.5), F32(6)) if bounded else wanted)


@pytest.mark.parametrize("size", PRODUCTS, ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_matmul_of_two_computed_operands(size: tuple[int, int, int], turned: bool) -> None:
    m, k, n = size
    rng = np.random.default_rng([52, *size])
    a, b = normal(rng, 3, m, k), normal(rng, 3, k, n)
    held = np.ascontiguousarray(b.swapaxes(1, 2)) if turned else b
    at = [np.arange(3, dtype=np.uint64) * np.uint64(by) for by in (m * k, k * n, m * n)]
    got = everywhere(
        "float_matmul", [a, held], (3, m, n), sizes=(m, k, n), a_at=at[0], b_at=at[1], y_at=at[2],
        a_row=k, b_steps=(1, k) if turned else (n, 1), y_row=n,
    )  # fmt: skip
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    require_near(got, wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b), k)
    assert got[2, m - 1, n - 1] == added(a[2, m - 1], b[2, :, n - 1], None)


# -- convolution ----------------------------------------------------------------------------------


def taps_of(x: Wide, k: tuple[int, int], how: dict[str, Any]) -> Wide:
    """What each tap sees: (n, channels, taps, height, width)."""
    top, left, bottom, right = how["pad"]
    framed = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    (sh, sw), (dh, dw) = how["stride"], how["dilation"]
    oh = (framed.shape[2] - dh * (k[0] - 1) - 1) // sh + 1
    ow = (framed.shape[3] - dw * (k[1] - 1) - 1) // sw + 1
    seen = [
        framed[:, :, i * dh :, j * dw :][:, :, : (oh - 1) * sh + 1 : sh, : (ow - 1) * sw + 1 : sw]
        for i in range(k[0])
        for j in range(k[1])
    ]
    return np.stack(seen, axis=2)


def convolved(x: Wide, w: Wide, how: dict[str, Any]) -> Wide:
    groups = how["groups"]
    seen = taps_of(x, w.shape[2:], how)
    n, c, taps, oh, ow = seen.shape
    parts = seen.reshape(n, groups, c // groups, taps, oh, ow)
    kernels = w.reshape(groups, len(w) // groups, c // groups, taps)
    out: Wide = np.einsum("ngcthw,goct->ngohw", parts, kernels).reshape(n, len(w), oh, ow)
    return out


def cases(seed: int, count: int) -> list[tuple[int, ...]]:
    """Random convolutions, after some that cross every size at which the kernels change."""
    fixed: list[tuple[int, ...]] = [
        # n, groups, channels and results of a group, h, w, kh, kw, sh, sw, dh, dw, pads
        (1, 1, 64, 70, 7, 7, 1, 1, 1, 1, 1, 1, 0),
        (2, 1, 30, 9, 9, 9, 3, 3, 1, 1, 1, 1, 1),
        (1, 1, 3, 8, 23, 30, 7, 7, 2, 2, 1, 1, 3),
        (1, 1, 2, 3, 20, 20, 17, 16, 1, 1, 1, 1, 0),
        (1, 2, 1, 1, 20, 20, 17, 16, 1, 1, 1, 1, 0),
        (2, 20, 1, 1, 7, 7, 3, 3, 1, 1, 1, 1, 1),
        (1, 5, 1, 2, 9, 40, 3, 3, 1, 1, 1, 1, 1),
        (1, 6, 1, 1, 33, 70, 5, 5, 2, 2, 1, 1, 2),
        (1, 3, 1, 1, 12, 130, 3, 3, 1, 3, 2, 2, 2),
        (1, 1, 5, 4, 6, 6, 2, 2, 5, 5, 1, 1, 0),
        (1, 1, 4, 300, 5, 5, 3, 3, 1, 1, 1, 1, 1),
        (2, 1, 270, 40, 7, 7, 1, 1, 1, 1, 1, 1, 0),
        (1, 2, 90, 33, 7, 7, 3, 3, 1, 1, 1, 1, 1),
        (1, 1, 20, 130, 1, 1, 1, 1, 1, 1, 1, 1, 0),
        (1, 4, 1, 1, 14, 14, 3, 3, 1, 1, 1, 1, 1),
        (1, 4, 1, 1, 5, 33, 3, 3, 1, 1, 1, 1, 1),
        (1, 4, 1, 1, 17, 65, 3, 3, 2, 2, 1, 1, 1),
        (1, 3, 1, 2, 11, 19, 5, 5, 1, 1, 1, 1, 2),
        (1, 3, 1, 1, 30, 31, 5, 5, 2, 2, 1, 1, 2),
        (1, 3, 1, 1, 3, 40, 3, 3, 1, 1, 1, 1, 1),
    ]
    rng = np.random.default_rng(seed)
    for _ in range(count):
        kernel, dilation = rng.integers(1, 5, 2), rng.integers(1, 3, 2)
        size = (kernel - 1) * dilation + rng.integers(1, 20, 2)
        groups = int(rng.choice([1, 1, 2, 7]))
        channels = 1 if groups == 7 else int(rng.integers(1, 40))
        fixed.append((
            int(rng.integers(1, 3)), groups, channels, int(rng.integers(1, 20)), *size, *kernel,
            *rng.integers(1, 4, 2), *dilation, int(rng.integers(0, 3)),
        ))  # fmt: skip
    return fixed


@pytest.mark.parametrize("case", cases(53, 25), ids=str)
def test_convolutions(case: tuple[int, ...]) -> None:
    n, groups, c, o, h, w, kh, kw, sh, sw, dh, dw, pad = (int(v) for v in case)
    rng = np.random.default_rng([54, *case])
    x, weight = normal(rng, n, groups * c, h, w), normal(rng, groups * o, c, kh, kw)
    bias = normal(rng, groups * o)
    how: dict[str, Any] = {
        "stride": (sh, sw), "dilation": (dh, dw), "pad": (pad, 0, pad, pad), "groups": groups,
    }  # fmt: skip
    exact = convolved(x.astype(np.float64), weight.astype(np.float64), how)
    sums = convolved(np.abs(x.astype(np.float64)), np.abs(weight.astype(np.float64)), how)
    shift = bias[:, None, None].astype(np.float64)
    more = {"shape": x.shape, "kernel": (groups * o, kh, kw), **how}
    got = everywhere("float_conv2d", [x, weight], exact.shape, bias, **more)
    require_near(got, exact + shift, sums + np.abs(shift), c * kh * kw)
    bare = everywhere("float_conv2d", [x, weight], exact.shape, None, **more)
    known = {"constant": weight.reshape(-1)}
    packed = everywhere("float_conv2d", [x, weight], exact.shape, bias, **more, **known)
    assert packed.tobytes() == got.tobytes()
    bounded = everywhere("float_conv2d", [x, weight], exact.shape, bias, low=0.0, **more, **known)
    assert np.array_equal(bounded, np.where(got < 0, F32(0), got))
    for image, channel, row, column in ((0, 0, 0, 0), tuple(size - 1 for size in exact.shape)):
        group = channel // o
        seen = taps_of(x.astype(np.float64), (kh, kw), how)[image, group * c : (group + 1) * c]
        line = seen[:, :, row, column].reshape(-1).astype(F32)
        assert bare[image, channel, row, column] == added(line, weight[channel].reshape(-1), None)


def test_a_batch_is_its_images_one_by_one() -> None:
    rng = np.random.default_rng(55)
    x, weight = normal(rng, 5, 12, 11, 9), normal(rng, 20, 12, 3, 3)
    more: dict[str, Any] = {"kernel": (20, 3, 3), "pad": (1, 1, 1, 1)}
    whole = one("float_conv2d", [x, weight], (5, 20, 11, 9), F32, None, shape=x.shape, **more)
    for i in range(5):
        single = one(
            "float_conv2d", [x[i : i + 1], weight], (1, 20, 11, 9), F32, None,
            shape=(1, 12, 11, 9), **more,
        )  # fmt: skip
        assert single.tobytes() == whole[i : i + 1].tobytes()


@pytest.mark.parametrize("count", [1, 63, 65])
def test_constants_of_another_size_than_the_weights_are_refused(count: int) -> None:
    x, weight = np.zeros((1, 8, 3, 3), F32), np.zeros((8, 8, 1, 1), F32)
    with pytest.raises(ValueError, match=f"constant has {count} numbers, not 64"):
        one("float_conv2d", [x, weight], (1, 8, 3, 3), F32, None, shape=x.shape, kernel=(8, 1, 1),
            constant=np.zeros(count, F32))  # fmt: skip


@pytest.mark.parametrize("groups", [1, 8])
def test_nan_and_infinity_go_where_numpy_has_them(groups: int) -> None:
    rng = np.random.default_rng(56)
    x, weight = normal(rng, 1, 8, 9, 9), normal(rng, 8, 8 // groups, 3, 3)
    x[0, 1, 3, 3], x[0, 2, 5, 5], x[0, 3, 0, 0] = np.nan, np.inf, -np.inf
    weight[4, 0, 1, 1] = np.inf
    how: dict[str, Any] = {
        "stride": (1, 1), "dilation": (1, 1), "pad": (1, 1, 1, 1), "groups": groups,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        wanted = convolved(x.astype(np.float64), weight.astype(np.float64), how)
    got = everywhere("float_conv2d", [x, weight], wanted.shape, None, shape=x.shape,
                     kernel=(8, 3, 3), **how)  # fmt: skip
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    infinite = np.isinf(wanted)
    assert infinite.any()
    assert np.array_equal(got[infinite], wanted[infinite].astype(F32))
    relu = everywhere("float_conv2d", [x, weight], wanted.shape, None, shape=x.shape,
                      kernel=(8, 3, 3), low=0.0, **how)  # fmt: skip
    if groups == 1:  # few pixels and known weights: vectors of channels
        corner = np.ascontiguousarray(x[:, :, 1:6, 1:6])
        wide = np.tile(weight, (5, 1, 1, 1))
        plain, packed = (
            everywhere("float_conv2d", [corner, wide], (1, 40, 5, 5), None, shape=corner.shape,
                       kernel=(40, 3, 3), constant=known, **how)
            for known in (None, wide.reshape(-1))
        )  # fmt: skip
        assert np.isnan(plain).any()
        assert np.array_equal(plain, packed, equal_nan=True)
    assert np.array_equal(np.isnan(relu), np.isnan(wanted))


# -- functions of each element --------------------------------------------------------------------

SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 3.4e38, -3.4e38, 1, -1], F32)


def exactly(op: str, x: Wide) -> Wide:
    def each(function: Any) -> Wide:
        return np.array([function(v) for v in x.tolist()])

    with np.errstate(all="ignore"):
        small = np.exp(-np.abs(x))
        logistic = np.where(x < 0, small, 1.0) / (1.0 + small)
        match op:
            case "bound":
                return np.where(x < -1.5, -1.5, np.where(x > 2.25, 2.25, x))
            case "sigmoid":
                return logistic
            case "tanh":
                return np.asarray(np.tanh(x))
            case "erf":
                return each(math.erf)
            case "gelu":
                return np.asarray(x * 0.5 * each(lambda v: math.erfc(-v * math.sqrt(0.5))))
            case "silu":
                return np.asarray(x * logistic)
            case "sqrt":
                return np.asarray(np.sqrt(x))
            case "square":
                return np.asarray(x * x)
            case "hard_sigmoid":
                return np.asarray(np.clip(0.2 * x + 0.5, 0, 1))
            case "hard_swish":
                return np.asarray(x * np.clip(x / 6 + 0.5, 0, 1))
            case "leaky_relu":
                return np.where(x < 0, 0.125 * x, x)
            case "abs":
                return np.asarray(np.abs(x))
    raise AssertionError(op)


@pytest.mark.parametrize("op", UNARY)
def test_functions_of_each_element(op: str) -> None:
    rng = np.random.default_rng(57)
    sizes = np.exp(rng.uniform(-12, 3, 3000)) * rng.choice([-1, 1], 3000)
    x = np.concatenate([SPECIAL, sizes.astype(F32), normal(rng, 6000), np.linspace(-14, 14, 4001)])
    x = x.astype(F32)
    ends = {
        "bound": {"a": -1.5, "b": 2.25},
        "hard_sigmoid": {"a": 0.2, "b": 0.5},
        "leaky_relu": {"a": 0.125},
    }
    got = everywhere("float_unary", [x], x.shape, op=op, size=x.size, **ends.get(op, {}))
    with np.errstate(all="ignore"):
        wanted = exactly(op, x.astype(np.float64)).astype(F32)
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    there = ~np.isnan(wanted)
    if op in ("bound", "sqrt", "square", "hard_sigmoid", "leaky_relu", "abs"):
        assert got[there].tobytes() == wanted[there].tobytes()
    else:
        near = (np.nextafter(wanted, F32(-np.inf)), np.nextafter(wanted, F32(np.inf)))
        off = there & ~((near[0] <= got) & (got <= near[1]))
        assert not off.any(), (x[off][:5], got[off][:5], wanted[off][:5])


# -- pools and means ------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_max_pools_let_nan_win_and_padding_lose(stride: int) -> None:
    rng = np.random.default_rng(58)
    x = normal(rng, 2, 3, 13, 37) - F32(5)
    x[0, 0, 4, 4] = np.nan
    how: dict[str, Any] = {"stride": (stride, stride), "pad": (1, 1, 1, 1), "dilation": (1, 1)}
    framed = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    wanted = taps_of(framed.astype(np.float64), (3, 3), how | {"pad": (0, 0, 0, 0)}).max(axis=2)
    made = wanted.shape
    got = everywhere(
        "float_max_pool2d", [x], made, shape=x.shape, kernel=(3, 3), out=made[2:], **how
    )
    assert np.array_equal(got, wanted.astype(F32), equal_nan=True)


@pytest.mark.parametrize("count_pad", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_average_pools(stride: int, count_pad: bool) -> None:
    x = normal(np.random.default_rng(60), 2, 3, 12, 37)
    how: dict[str, Any] = {"stride": (stride, stride), "pad": (1, 1, 1, 0), "dilation": (1, 1)}
    sums = taps_of(x.astype(np.float64), (3, 4), how).sum(axis=2)
    ones = np.ones_like(x, np.float64)
    count = 12.0 if count_pad else taps_of(ones, (3, 4), how).sum(axis=2)
    exact = sums / count
    del how["dilation"]
    got = everywhere(
        "float_avg_pool2d", [x], exact.shape, shape=x.shape, kernel=(3, 4), count_pad=count_pad,
        **how,
    )  # fmt: skip
    assert np.all(np.abs(got - exact) <= np.spacing(np.abs(exact).astype(F32)) * 0.5001 + 1e-45)


def test_batch_norm_is_rounded_once() -> None:
    rng = np.random.default_rng(61)
    x, numbers = normal(rng, 2, 5, 37), rng.normal(size=(5, 3))
    got = everywhere("float_batch_norm", [x], x.shape, outer=2, inner=37, numbers=numbers)
    mean, slope, shift = (row[:, None] for row in numbers.T)
    assert got.tobytes() == ((x.astype(np.float64) - mean) * slope + shift).astype(F32).tobytes()


@pytest.mark.parametrize("width", [1, 15, 16, 17, 49, 1000])
def test_means_are_rounded_once(width: int) -> None:
    x = normal(np.random.default_rng(59), 33, width)
    got = everywhere("float_mean", [x], (33,), rows=33, width=width)
    exact = np.array([math.fsum(row) / width for row in x.astype(np.float64).tolist()])
    assert np.all(np.abs(got - exact) <= np.spacing(np.abs(exact).astype(F32)) * 0.5001 + 1e-45)


def test_misfits_are_refused() -> None:
    x = np.zeros((1, 4, 5, 5), F32)
    with pytest.raises(ValueError, match="do not split into 3 groups"):
        one("float_conv2d", [x, x], (1,), F32, None, shape=x.shape, kernel=(3, 1, 1), groups=3)
    with pytest.raises(ValueError, match="no op 'sin' on a float"):
        one("float_unary", [x], (100,), F32, op="sin", size=100)
    with pytest.raises(ValueError, match="size of an image with its padding"):
        one("float_conv2d", [x, x], (1,), F32, None, shape=x.shape, kernel=(1, 1, 1),
            pad=(2**30, 0, 0, 0), stride=(2**30, 1))  # fmt: skip
    with pytest.raises(ValueError, match="are needed"):
        one("float_mean", [x], (1,), F32, rows=2, width=50)
