"""The ops that move elements, against onnxruntime on every type it takes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from qir.errors import OpError
from qir.reference.shape import concat, flatten, pad, reshape, transpose
from tests.reference.oracles import Array, frozen, onnxruntime_runs

KINDS = [np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_]


def _draw(seed: int, least: int = 1) -> tuple[np.random.Generator, Array]:
    rng = np.random.default_rng(seed)
    shape = rng.integers(least, 6, rng.integers(least, 5))
    values = rng.integers(0, 100, shape)
    return rng, frozen(values.astype(KINDS[seed % len(KINDS)]))


def _equal(got: Array, theirs: Array, seed: int) -> None:
    assert isinstance(got, np.ndarray)
    assert got.dtype == theirs.dtype, f"seed {seed}"
    assert got.shape == theirs.shape, f"seed {seed}: {got.shape}, expected {theirs.shape}"
    assert np.array_equal(got, theirs), f"seed {seed}"


@pytest.mark.parametrize("seed", range(60))
def test_reshape_equals_onnxruntimes(seed: int) -> None:
    rng, x = _draw(seed)
    parts = [int(n) for n in x.shape]
    while len(parts) > 1 and rng.random() < 0.5:
        at = int(rng.integers(len(parts) - 1))
        parts[at : at + 2] = [parts[at] * parts[at + 1]]
    for i in range(min(len(parts), x.ndim)):
        if parts[i] == x.shape[i] and rng.random() < 0.4:
            parts[i] = 0
    if rng.random() < 0.5:
        parts[int(rng.integers(len(parts)))] = -1
    shape = np.array(parts, np.int64)
    _equal(reshape(x, shape), onnxruntime_runs("Reshape", [x, shape]), seed)


@pytest.mark.parametrize(
    ("size", "shape", "allow_zero"),
    [
        ((0, 3), (-1, 3), False),
        ((0, 3), (3, 0), True),
        ((2, 0), (0, 4, 0), True),
        ((1, 1), (), False),
        ((), (1, 1), False),
        ((), (-1,), False),
        ((0, 3), (-1, 0), False),
        ((2, 3, 4), (0, -1), False),
    ],
)
def test_reshape_of_odd_sizes_equals_onnxruntimes(
    size: tuple[int, ...], shape: tuple[int, ...], allow_zero: bool
) -> None:
    x, wanted = np.ones(size, np.float32), np.array(shape, np.int64)
    theirs = onnxruntime_runs("Reshape", [x, wanted], allowzero=int(allow_zero))
    _equal(reshape(x, wanted, allow_zero=allow_zero), theirs, 0)


@pytest.mark.parametrize("seed", range(40))
def test_flatten_and_transpose_equal_onnxruntimes(seed: int) -> None:
    rng, x = _draw(seed, least=seed % 2)
    axis = int(rng.integers(-x.ndim, x.ndim + 1))
    _equal(flatten(x, axis=axis), onnxruntime_runs("Flatten", [x], axis=axis), seed)
    perm = [int(p) for p in rng.permutation(x.ndim)]
    if perm:
        _equal(transpose(x, perm=perm), onnxruntime_runs("Transpose", [x], perm=perm), seed)


@pytest.mark.parametrize("seed", range(40))
def test_concat_equals_onnxruntimes(seed: int) -> None:
    rng, x = _draw(seed)
    axis = int(rng.integers(-x.ndim, x.ndim))
    parts = [x]
    for _ in range(int(rng.integers(0, 4))):
        size = list(x.shape)
        size[axis] = int(rng.integers(0, 5))
        parts.append(rng.integers(0, 100, size).astype(x.dtype))
    got = concat(parts, axis=axis)
    _equal(got, onnxruntime_runs("Concat", parts, axis=axis), seed)
    assert not any(np.shares_memory(got, part) for part in parts)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("seed", range(40))
def test_pad_equals_onnxruntimes(seed: int, mode: str) -> None:
    rng, x = _draw(seed)
    before, after = [], []
    for size in x.shape:
        first = int(rng.integers(-1, 3)) if size > 2 else int(rng.integers(0, 3))
        kept = size + min(first, 0)
        last = int(rng.integers(-1, 3)) if kept > 1 else int(rng.integers(0, 3))
        kept += min(last, 0)
        most = kept - 1 if mode == "reflect" else 9
        before.append(min(first, most))
        after.append(min(last, most))
    pads = [*before, *after]
    value = float(rng.integers(0, 2))
    fill = np.array(value, x.dtype) if mode == "constant" else None
    theirs = onnxruntime_runs("Pad", [x, np.array(pads, np.int64), fill], mode=mode)
    _equal(pad(x, pads=pads, mode=mode, value=value), theirs, seed)


def test_pad_of_nothing_and_down_to_nothing() -> None:
    none = np.ones((0, 2), np.float32)
    assert np.array_equal(pad(none, pads=(1, 0, 1, 0), value=7), np.full((2, 2), 7, np.float32))
    assert pad(np.ones(3, np.int8), pads=(-1, -2)).shape == (0,)
    assert pad(np.array(3, np.float32), pads=()).shape == ()


def test_moving_keeps_types_that_numpy_does_not_know() -> None:
    x = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    assert transpose(x, perm=(1, 0)).dtype == ml_dtypes.bfloat16
    assert concat([x, x], axis=0).dtype == ml_dtypes.bfloat16
    assert pad(x, pads=(0, 1, 0, 1), value=0.5)[0, 0] == ml_dtypes.bfloat16(0.5)
    text = np.array([["a", "b"]], dtype=object)
    assert concat([text, text], axis=1).tolist() == [["a", "b", "a", "b"]]
    assert reshape(text, np.array([2, 1])).tolist() == [["a"], ["b"]]


def test_moves_say_what_does_not_fit() -> None:
    x = np.ones((2, 3), np.float32)
    for shape, words in (
        ((4,), r"x \[2, 3\] does not hold as many elements as \[4\]"),
        ((-1, 4), r"does not hold as many elements as \[1, 4\]"),
        ((-1, -1), r"shape \[-1, -1\] may leave one size open"),
        ((-2, 3), r"shape \[-2, 3\] may leave one size open"),
        ((2, 3, 0), r"shape \[2, 3, 0\] copies axis 2, x has 2 axes"),
    ):
        with pytest.raises(OpError, match=words):
            reshape(x, np.array(shape))
    with pytest.raises(OpError, match="leaves a size open next to one of 0"):
        reshape(x[:0], np.array([0, -1]))
    with pytest.raises(OpError, match=r"shape is float32\[2\], it takes one i64 row"):
        reshape(x, np.ones(2, np.float32))
    with pytest.raises(OpError, match="flatten: axis 3, but x has 2 axes"):
        flatten(x, axis=3)
    with pytest.raises(OpError, match=r"perm \(0, 0\) does not order the 2 axes"):
        transpose(x, perm=(0, 0))
    with pytest.raises(OpError, match="nothing to join"):
        concat([], axis=0)
    with pytest.raises(OpError, match=r"xs.0 \[2, 3\] and xs.1 \[2\] differ on more than axis 0"):
        concat([x, x[:, 0]], axis=0)
    with pytest.raises(OpError, match=r"xs.0 is f32, xs.1 is i8"):
        concat([x, x.astype(np.int8)], axis=0)
    with pytest.raises(OpError, match="mode 'mirror' is not"):
        pad(x, pads=(0, 0, 0, 0), mode="mirror")
    with pytest.raises(OpError, match="pads has 2 numbers, it takes 4"):
        pad(x, pads=(0, 0))
    with pytest.raises(OpError, match=r"pads -2, -1 take away more than axis 0 has, 2"):
        pad(x, pads=(-2, 0, -1, 0))
    with pytest.raises(OpError, match=r"axis 0 of 0 is too short for edge pads \(0, 1\)"):
        pad(x[:0], pads=(0, 0, 1, 0), mode="edge")
    with pytest.raises(OpError, match=r"value 0\.5 is no i8"):
        pad(x.astype(np.int8), pads=(0, 0, 0, 1), value=0.5)
