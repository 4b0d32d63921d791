"""reduce_mean against torch in float64 and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qir.errors import OpError
from qir.reference.reduce import reduce_mean
from tests.reference.oracles import assert_near, assert_rounded_once, frozen, onnxruntime_runs


@pytest.mark.parametrize("seed", range(60))
def test_reduce_mean_rounds_once_and_is_near_onnxruntimes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 12, rng.integers(1, 5))
    x = (rng.standard_normal(shape) * 100).astype(np.float32)
    count = int(rng.integers(0 if seed % 3 else 1, x.ndim + 1))
    axes = [int(a) - x.ndim * int(rng.integers(2)) for a in rng.permutation(x.ndim)[:count]]
    keep = bool(rng.integers(2))
    over = tuple(axes) or tuple(range(x.ndim))
    wide = torch.from_numpy(x.astype(np.float64))
    exact, size = (v.mean(over, keepdim=keep).numpy() for v in (wide, wide.abs()))
    got = reduce_mean(frozen(x), axes=axes, keep=keep)
    assert isinstance(got, np.ndarray)
    assert_rounded_once(got, exact, size, f"seed {seed}")
    theirs = onnxruntime_runs("ReduceMean", [x, np.array(axes, np.int64)], keepdims=int(keep))
    assert_near(got, theirs, size, x.size, f"seed {seed}")
    for kind in (np.int32, np.int64):
        whole = x.astype(kind)
        theirs = onnxruntime_runs(
            "ReduceMean", [whole, np.array(axes, np.int64)], keepdims=int(keep)
        )
        assert np.array_equal(reduce_mean(whole, axes=axes, keep=keep), theirs), f"seed {seed}"


def test_reduce_mean_of_small_integers_does_not_wrap_its_sum() -> None:
    x = np.full((4, 50), 127, np.int8)
    x[1] = -128
    got = reduce_mean(x, axes=(1,), keep=False)
    assert got.dtype == np.int8
    assert got.tolist() == [127, -128, 127, 127]


def test_reduce_mean_of_nothing_is_nan_and_of_a_scalar_is_itself() -> None:
    assert np.isnan(reduce_mean(np.ones((2, 0), np.float32), axes=(1,))).all()
    assert reduce_mean(np.ones((0, 2), np.float32), axes=(1,)).shape == (0, 1)
    scalar = np.array(3, np.float64)
    got = reduce_mean(scalar)
    assert got.shape == ()
    assert got == 3
    assert not np.shares_memory(got, scalar)


def test_reduce_mean_says_what_does_not_fit() -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(OpError, match="axis 2, but x has 2 axes"):
        reduce_mean(x, axes=(2,))
    with pytest.raises(OpError, match=r"axes \(1, -1\) name one axis twice"):
        reduce_mean(x, axes=(1, -1))
    with pytest.raises(OpError, match=r"x \[2, 0\] has nothing to average on axes \(1,\)"):
        reduce_mean(np.ones((2, 0), np.int32), axes=(1,))
    with pytest.raises(OpError, match="x is bool"):
        reduce_mean(x > 0)
