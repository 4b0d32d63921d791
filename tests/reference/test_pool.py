"""Pooling against onnxruntime, torch, and plain loops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from qir.errors import OpError
from qir.reference.pool import avg_pool2d, global_avg_pool, max_pool2d
from tests.reference.oracles import (
    Array,
    Exact,
    assert_near,
    assert_rounded_once,
    frozen,
    onnxruntime_runs,
)


@dataclass(frozen=True)
class Case:
    x: Array
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int, int, int]
    dilation: tuple[int, int]
    ceil: bool


def random_case(seed: int, *, dilated: bool, wild: bool = False) -> Case:
    """A case that onnxruntime takes; `wild` ones have pads that may exceed the kernel."""
    rng = np.random.default_rng(seed)
    kernel = rng.integers(1, 6, 2)
    limit = 7 if wild else np.tile(kernel, 2)
    pad = rng.integers(0, limit, 4)
    dilation = rng.integers(1, 4, 2) if dilated and seed % 2 else np.array([1, 1])
    reach = (kernel - 1) * dilation + 1
    size = np.maximum(reach - pad[:2] - pad[2:], 1) + rng.integers(0, 14, 2)
    x = rng.standard_normal((rng.integers(1, 3), rng.integers(1, 5), *size)).astype(np.float32)
    a, b, c, d, e, f, g, h, i, j = (
        int(v) for v in (*kernel, *rng.integers(1, 5, 2), *pad, *dilation)
    )
    return Case(x, (a, b), (c, d), (e, f, g, h), (i, j), bool(rng.integers(2)))


def counts(case: Case) -> tuple[int, int]:
    """How many windows fit, by the formula of ONNX's shape inference."""
    found = []
    for axis in (0, 1):
        size = case.x.shape[2 + axis]
        reach = (case.kernel[axis] - 1) * case.dilation[axis] + 1
        room = Fraction(size + case.pad[axis] + case.pad[2 + axis] - reach, case.stride[axis])
        count = (math.ceil(room) if case.ceil else math.floor(room)) + 1
        beyond = case.ceil and (count - 1) * case.stride[axis] >= size + case.pad[axis]
        found.append(count - beyond)
    return found[0], found[1]


def looped(case: Case, mean: bool, count_pad: bool) -> Exact:
    """The definition, one window at a time, over the elements that exist."""
    rows, columns = case.x.shape[2:]
    top, left, bottom, right = case.pad
    out = np.empty((*case.x.shape[:2], *counts(case)))
    for i, j in np.ndindex(*out.shape[2:]):
        row = i * case.stride[0] - top + np.arange(case.kernel[0]) * case.dilation[0]
        column = j * case.stride[1] - left + np.arange(case.kernel[1]) * case.dilation[1]
        held = case.x[:, :, row[(row >= 0) & (row < rows)]]
        held = held[..., column[(column >= 0) & (column < columns)]].astype(np.float64)
        if not mean:
            out[:, :, i, j] = held.max(axis=(2, 3), initial=-np.inf)
            continue
        share = held.shape[2] * held.shape[3]
        if count_pad:
            share = int((row < rows + bottom).sum() * (column < columns + right).sum())
        with np.errstate(invalid="ignore"):
            out[:, :, i, j] = held.sum(axis=(2, 3)) / np.float64(share)
    return out


def onnx_attrs(case: Case) -> dict[str, object]:
    return {
        "kernel_shape": case.kernel,
        "strides": case.stride,
        "pads": case.pad,
        "ceil_mode": int(case.ceil),
    }


def ours_max(case: Case, x: Array, layout: str = "NCHW") -> Array:
    return max_pool2d(
        frozen(x),
        kernel=case.kernel,
        stride=case.stride,
        pad=case.pad,
        dilation=case.dilation,
        ceil=case.ceil,
        layout=layout,
    )


def ours_mean(case: Case, x: Array, count_pad: bool, layout: str = "NCHW") -> Array:
    return avg_pool2d(
        frozen(x),
        kernel=case.kernel,
        stride=case.stride,
        pad=case.pad,
        ceil=case.ceil,
        count_pad=count_pad,
        layout=layout,
    )


@pytest.mark.parametrize("seed", range(80))
def test_max_pool_equals_onnxruntimes(seed: int) -> None:
    case = random_case(seed, dilated=True)
    attrs = onnx_attrs(case) | {"dilations": case.dilation}
    theirs = onnxruntime_runs("MaxPool", [case.x], **attrs)
    theirs[theirs == np.finfo(np.float32).min] = -np.inf  # its word for a window of padding alone
    assert np.array_equal(ours_max(case, case.x), theirs), f"seed {seed}"
    for kind in (np.int8, np.uint8):
        quantized = np.clip(case.x * 60, np.iinfo(kind).min, np.iinfo(kind).max).astype(kind)
        got = ours_max(case, quantized)
        assert got.dtype == kind
        expected = onnxruntime_runs("MaxPool", [quantized], **attrs)
        assert np.array_equal(got, expected), f"seed {seed}, {kind.__name__}"


@pytest.mark.parametrize("seed", range(40))
def test_max_pool_equals_a_plain_loop_for_any_pad_and_layout(seed: int) -> None:
    case = random_case(seed, dilated=True, wild=True)
    expected = looped(case, False, False)
    assert np.array_equal(ours_max(case, case.x), expected), f"seed {seed}"
    last = ours_max(case, case.x.transpose(0, 2, 3, 1), "NHWC")
    assert last.flags.c_contiguous
    assert np.array_equal(last, expected.transpose(0, 2, 3, 1)), f"seed {seed}, NHWC"


@pytest.mark.parametrize("count_pad", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_avg_pool_rounds_a_plain_mean_once(seed: int, count_pad: bool) -> None:
    case = random_case(seed, dilated=False, wild=seed % 3 == 0)
    exact = looped(case, True, count_pad)
    wide = Case(np.abs(case.x), *_rest(case))
    size = looped(wide, True, count_pad)
    got = ours_mean(case, case.x, count_pad)
    nothing = np.isnan(exact)
    assert np.array_equal(np.isnan(got), nothing), f"seed {seed}"
    assert_rounded_once(got[~nothing], exact[~nothing], size[~nothing], f"seed {seed}")
    last = ours_mean(case, case.x.transpose(0, 2, 3, 1), count_pad, "NHWC")
    assert np.array_equal(last, got.transpose(0, 2, 3, 1), equal_nan=True), f"seed {seed}, NHWC"


@pytest.mark.parametrize("count_pad", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_avg_pool_is_near_onnxruntimes(seed: int, count_pad: bool) -> None:
    case = random_case(seed, dilated=False)
    theirs = onnxruntime_runs(
        "AveragePool", [case.x], count_include_pad=int(count_pad), **onnx_attrs(case)
    )
    size = looped(Case(np.abs(case.x), *_rest(case)), True, count_pad)
    terms = case.kernel[0] * case.kernel[1]
    assert_near(ours_mean(case, case.x, count_pad), theirs, size, terms, f"seed {seed}")


def _rest(
    case: Case,
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int, int, int], tuple[int, int], bool]:
    return case.kernel, case.stride, case.pad, case.dilation, case.ceil


@pytest.mark.parametrize("ceil", [False, True])
def test_pools_equal_torchs_in_float64(ceil: bool) -> None:
    rng = np.random.default_rng(11)
    x = rng.standard_normal((2, 3, 17, 12))
    wide = torch.from_numpy(x)
    pool = torch.nn.functional
    most = pool.max_pool2d(wide, 3, 2, 1, 2, ceil)
    got = max_pool2d(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1), dilation=(2, 2), ceil=ceil)
    assert np.array_equal(got, most.numpy())
    for count_pad in (False, True):
        mean = pool.avg_pool2d(wide, (3, 2), 2, (1, 0), ceil, count_pad).numpy()
        got = avg_pool2d(
            x, kernel=(3, 2), stride=(2, 2), pad=(1, 0, 1, 0), ceil=ceil, count_pad=count_pad
        )
        assert np.allclose(got, mean, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("seed", range(30))
def test_global_avg_pool_rounds_the_mean_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 40, 4)
    x = rng.standard_normal(shape).astype(np.float32)
    exact = torch.from_numpy(x.astype(np.float64)).mean((2, 3), keepdim=True).numpy()
    size = np.abs(x.astype(np.float64)).mean((2, 3), keepdims=True)
    got = global_avg_pool(frozen(x))
    assert_rounded_once(got, exact, size, f"seed {seed}")
    terms = int(shape[2] * shape[3])
    assert_near(got, onnxruntime_runs("GlobalAveragePool", [x]), size, terms, f"seed {seed}")
    last = global_avg_pool(x.transpose(0, 2, 3, 1), layout="NHWC")
    assert last.shape == (shape[0], 1, 1, shape[1])
    assert_rounded_once(last, exact.transpose(0, 2, 3, 1), size.transpose(0, 2, 3, 1), "NHWC")


def test_max_pool_lets_nan_win_and_infinity_through_as_torch_does() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((1, 2, 9, 9)).astype(np.float32)
    x[0, 0, rng.integers(0, 9, 6), rng.integers(0, 9, 6)] = np.nan
    x[0, 1, :4], x[0, 1, 5, 5] = -np.inf, np.inf
    theirs = torch.nn.functional.max_pool2d(torch.from_numpy(x), 3, 1, 1).numpy()
    got = max_pool2d(x, kernel=(3, 3), pad=(1, 1, 1, 1))
    assert np.isnan(got).any()
    assert np.array_equal(got, theirs, equal_nan=True)


def test_max_pool_of_a_float_without_infinity_ignores_its_padding() -> None:
    x = np.full((1, 1, 2, 2), -448, ml_dtypes.float8_e4m3fn)
    got = max_pool2d(x, kernel=(2, 2), pad=(1, 1, 1, 1))
    assert np.array_equal(got.astype(np.float32), np.full((1, 1, 3, 3), -448, np.float32))


def test_max_pool_copies_even_where_it_changes_nothing() -> None:
    x = np.ones((1, 1, 3, 3), np.float32)
    assert not np.shares_memory(max_pool2d(x, kernel=(1, 1)), x)
    assert not np.shares_memory(avg_pool2d(x, kernel=(1, 1)), x)
    assert not np.shares_memory(global_avg_pool(x[..., :1, :1]), x)


def test_pools_of_nothing() -> None:
    none = np.ones((0, 3, 5, 5), np.float32)
    assert max_pool2d(none, kernel=(2, 2)).shape == (0, 3, 4, 4)
    assert avg_pool2d(none, kernel=(2, 2)).shape == (0, 3, 4, 4)
    assert global_avg_pool(none).shape == (0, 3, 1, 1)
    flat = np.ones((1, 2, 0, 4), np.float32)
    assert np.isnan(global_avg_pool(flat)).all()
    assert (max_pool2d(flat, kernel=(1, 1), pad=(1, 0, 1, 0)) == -np.inf).all()
    assert np.isnan(avg_pool2d(flat, kernel=(1, 1), pad=(1, 0, 1, 0))).all()
    counted = avg_pool2d(flat, kernel=(1, 1), pad=(1, 0, 1, 0), count_pad=True)
    assert np.array_equal(counted, np.zeros((1, 2, 2, 4), np.float32))


def test_pools_say_what_does_not_fit() -> None:
    x = np.ones((1, 1, 4, 4), np.float32)
    with pytest.raises(
        OpError, match=r"a window of 6 is larger than the height, 4 \+ pad \(0, 0\)"
    ):
        max_pool2d(x, kernel=(6, 1))
    with pytest.raises(OpError, match=r"kernel is \(0, 2\), each must be 1 or more"):
        avg_pool2d(x, kernel=(0, 2))
    with pytest.raises(OpError, match="avg_pool2d: x is i8, it takes floats"):
        avg_pool2d(x.astype(np.int8), kernel=(2, 2))
    with pytest.raises(OpError, match="global_avg_pool: x has 2 axes, it takes 3"):
        global_avg_pool(x[0, 0])
    with pytest.raises(OpError, match="layout 'CHW'"):
        max_pool2d(x, kernel=(2, 2), layout="CHW")
