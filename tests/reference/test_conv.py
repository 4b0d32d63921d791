"""conv2d against torch in float64, onnxruntime in float32, and plain loops."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from qir.errors import OpError
from qir.reference.conv import conv2d
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
    w: Array
    bias: Array | None
    stride: tuple[int, int]
    pad: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    kernel = rng.integers(1, 6, 2)
    dilation = rng.integers(1, 3, 2) if seed % 3 else np.array([1, 1])
    pad = rng.integers(0, 8 if seed % 5 == 0 else 3, 4)
    reach = (kernel - 1) * dilation + 1
    least = np.maximum(reach - pad[:2] - pad[2:], 1)
    size = least + rng.integers(0, 12, 2)
    groups = int(rng.choice([1, 1, 2, 3, 6]))
    inner = 1 if seed % 4 == 0 else int(rng.integers(1, 8))
    outer = int(rng.integers(1, 5))
    w = rng.standard_normal((groups * outer, inner, *kernel)).astype(np.float32)
    x = rng.standard_normal((rng.integers(1, 4), groups * inner, *size)).astype(np.float32)
    bias = rng.standard_normal(groups * outer).astype(np.float32) if seed % 2 else None
    a, b = (int(v) for v in rng.integers(1, 4, 2))
    top, left, bottom, right = (int(v) for v in pad)
    spread = (int(dilation[0]), int(dilation[1]))
    return Case(x, w, bias, (a, b), (top, left, bottom, right), spread, groups)


def exact_sums(case: Case, magnitude: bool = False) -> Exact:
    """The convolution in float64, by torch; of absolute values if its magnitude is asked for."""

    def operand(v: Array) -> torch.Tensor:
        wide = v.astype(np.float64)
        return torch.from_numpy(np.abs(wide) if magnitude else wide)

    top, left, bottom, right = case.pad
    padded = torch.nn.functional.pad(operand(case.x), (left, right, top, bottom))
    sums = torch.nn.functional.conv2d(
        padded,
        operand(case.w),
        None if case.bias is None else operand(case.bias),
        case.stride,
        0,
        case.dilation,
        case.groups,
    )
    result: Exact = sums.numpy()
    return result


def ours(case: Case, layout: str = "NCHW") -> Array:
    x = case.x if layout == "NCHW" else np.ascontiguousarray(case.x.transpose(0, 2, 3, 1))
    return conv2d(
        frozen(x),
        frozen(case.w),
        None if case.bias is None else frozen(case.bias),
        stride=case.stride,
        pad=case.pad,
        dilation=case.dilation,
        groups=case.groups,
        layout=layout,
    )


@pytest.mark.parametrize("seed", range(80))
def test_conv2d_rounds_torchs_float64_sum_once(seed: int) -> None:
    case = random_case(seed)
    got = ours(case)
    assert got.dtype == np.float32
    assert got.flags.c_contiguous
    assert_rounded_once(got, exact_sums(case), exact_sums(case, True), f"seed {seed}")


@pytest.mark.parametrize("seed", range(80))
def test_conv2d_is_near_onnxruntimes_float32_sum(seed: int) -> None:
    case = random_case(seed)
    theirs = onnxruntime_runs(
        "Conv",
        [case.x, case.w, case.bias],
        strides=case.stride,
        pads=case.pad,
        dilations=case.dilation,
        group=case.groups,
    )
    terms = case.w[0].size + 1
    assert_near(ours(case), theirs, exact_sums(case, True), terms, f"seed {seed}")


@pytest.mark.parametrize("seed", range(0, 80, 4))
def test_conv2d_channels_last_is_the_same_numbers_moved(seed: int) -> None:
    case = random_case(seed)
    got = ours(case, "NHWC")
    assert got.flags.c_contiguous
    exact = exact_sums(case).transpose(0, 2, 3, 1)
    magnitude = exact_sums(case, True).transpose(0, 2, 3, 1)
    assert_rounded_once(got, exact, magnitude, f"seed {seed}")


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_conv2d_keeps_other_float_types(kind: type[np.floating]) -> None:
    for seed in range(8):
        case = random_case(seed)
        bias = None if case.bias is None else case.bias.astype(kind)
        case = Case(
            case.x.astype(kind),
            case.w.astype(kind),
            bias,
            case.stride,
            case.pad,
            case.dilation,
            case.groups,
        )
        got = ours(case)
        assert got.dtype == kind
        assert_rounded_once(got, exact_sums(case), exact_sums(case, True), f"seed {seed}")


def looped(x: NDArray[np.int64], w: NDArray[np.int64], case: Case) -> NDArray[np.int64]:
    """The definition, one product at a time, in Python's own integers."""
    top, left, bottom, right = case.pad
    images, _, rows, columns = x.shape
    outs, inner, high, wide = w.shape
    tall = (rows + top + bottom - (high - 1) * case.dilation[0] - 1) // case.stride[0] + 1
    long = (columns + left + right - (wide - 1) * case.dilation[1] - 1) // case.stride[1] + 1
    out = np.zeros((images, outs, tall, long), np.int64)
    for n, o, i, j in np.ndindex(*out.shape):
        first = o // (outs // case.groups) * inner
        for c, a, b in itertools.product(range(inner), range(high), range(wide)):
            row = i * case.stride[0] + a * case.dilation[0] - top
            column = j * case.stride[1] + b * case.dilation[1] - left
            if 0 <= row < rows and 0 <= column < columns:
                out[n, o, i, j] += x[n, first + c, row, column] * w[o, c, a, b]
    return out


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_conv2d_of_integers_is_the_wrapped_sum_of_a_plain_loop(seed: int) -> None:
    case = random_case(seed)
    rng = np.random.default_rng(seed)
    x = rng.integers(-128, 128, (1, *case.x.shape[1:]))
    w = rng.integers(-128, 128, case.w.shape)
    expected = looped(x, w, case)
    for kind in (np.int8, np.int32):
        narrow = Case(x.astype(kind), w.astype(kind), None, *_rest(case))
        assert np.array_equal(ours(narrow), expected.astype(kind)), f"seed {seed}, {kind}"
    real = Case(x.astype(np.float32), w.astype(np.float32), None, *_rest(case))
    assert np.array_equal(ours(real), expected.astype(np.float32)), f"seed {seed}, floats"


def _rest(
    case: Case,
) -> tuple[tuple[int, int], tuple[int, int, int, int], tuple[int, int], int]:
    return case.stride, case.pad, case.dilation, case.groups


def test_conv2d_of_a_batch_past_the_block_limit_equals_its_images() -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(-9, 9, (3, 64, 96, 96)).astype(np.float32)
    w = rng.integers(-9, 9, (8, 64, 3, 3)).astype(np.float32)
    whole = conv2d(x, w, pad=(1, 1, 1, 1))
    exact = torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1)
    assert np.array_equal(whole, exact.numpy())


def test_conv2d_of_empty_operands_has_the_right_shape() -> None:
    w = np.ones((4, 3, 2, 2), np.float32)
    assert conv2d(np.ones((0, 3, 5, 5), np.float32), w).shape == (0, 4, 4, 4)
    assert conv2d(np.ones((1, 3, 5, 5), np.float32), w[:0]).shape == (1, 0, 4, 4)
    assert conv2d(np.ones((1, 3, 1, 5), np.float32), w).shape == (1, 4, 0, 4)
    flat = conv2d(np.ones((1, 3, 0, 5), np.float32), w, pad=(1, 0, 1, 0))
    assert np.array_equal(flat, np.zeros((1, 4, 1, 4), np.float32))
    bias = np.arange(4, dtype=np.float32)
    none = conv2d(np.ones((1, 0, 3, 3), np.float32), w[:, :0], bias)
    assert np.array_equal(none, np.broadcast_to(bias[:, None, None], (1, 4, 2, 2)))


def test_conv2d_lets_nan_and_infinity_through_as_onnxruntime_does() -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    x[0, 0, 1, 1], x[0, 0, 3, 3] = np.nan, np.inf
    for fill in (1.0, np.inf):
        w = np.full((1, 1, 3, 3), fill, np.float32)
        theirs = onnxruntime_runs("Conv", [x, w], pads=[1, 1, 1, 1])
        assert np.array_equal(conv2d(x, w, pad=(1, 1, 1, 1)), theirs, equal_nan=True)


def test_a_float32_result_beyond_its_range_is_infinite_without_a_warning() -> None:
    huge = np.full((1, 1, 1, 1), 3e38, np.float32)
    assert conv2d(huge, huge)[0, 0, 0, 0] == np.inf


def test_a_224_pixel_mobile_network_takes_a_few_seconds() -> None:
    rng = np.random.default_rng(0)
    x: Array = rng.standard_normal((1, 3, 224, 224)).astype(np.float32)
    plan = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)]
    plan += [(6, 160, 3, 2), (6, 320, 1, 1)]
    start = time.perf_counter()
    x = _layer(rng, x, 32, 3, 2)
    for grow, outs, times, first in plan:
        for i in range(times):
            inner = x.shape[1] * grow
            x = _layer(rng, x, inner, 1, 1)
            x = _layer(rng, x, inner, 3, first if i == 0 else 1, inner)
            x = _layer(rng, x, outs, 1, 1)
    x = _layer(rng, x, 1280, 1, 1)
    taken = time.perf_counter() - start
    assert x.shape == (1, 1280, 7, 7)
    assert taken < 8, f"the convolutions alone took {taken:.1f} s"


def _layer(
    rng: np.random.Generator, x: Array, outs: int, kernel: int, stride: int, groups: int = 1
) -> Array:
    shape = (outs, x.shape[1] // groups, kernel, kernel)
    w = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
    pad = (kernel // 2,) * 4
    return conv2d(x, w, stride=(stride, stride), pad=pad, groups=groups)


def test_conv2d_says_what_does_not_fit() -> None:
    x, w = np.ones((1, 3, 8, 8), np.float32), np.ones((8, 4, 3, 3), np.float32)
    with pytest.raises(OpError, match="x has 3 channels, w wants 4 x groups 1"):
        conv2d(x, w)
    with pytest.raises(OpError, match="8 output channels do not split into 3 groups"):
        conv2d(x, w, groups=3)
    w = w[:, :3]
    with pytest.raises(OpError, match="bias has 7 numbers, w makes 8 channels"):
        conv2d(x, w, np.ones(7, np.float32))
    with pytest.raises(OpError, match="x is f32, w is f16"):
        conv2d(x, w.astype(np.float16))
    with pytest.raises(OpError, match="x has 3 axes, it takes 4"):
        conv2d(x[0], w)
    with pytest.raises(OpError, match=r"pad is \(-1, 0, 0, 0\), each must be 0 or more"):
        conv2d(x, w, pad=(-1, 0, 0, 0))
    with pytest.raises(OpError, match="stride has 1 numbers, it takes 2"):
        conv2d(x, w, stride=(1,))
    with pytest.raises(OpError, match=r"a window of 13 is larger than the width, 8 \+ pad"):
        conv2d(x, w, dilation=(1, 6))
    with pytest.raises(OpError, match="layout 'CHWN' is neither"):
        conv2d(x, w, layout="CHWN")
    with pytest.raises(OpError, match="x is bool, it takes floats or integers"):
        conv2d(x > 0, w > 0)
