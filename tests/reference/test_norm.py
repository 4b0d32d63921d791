"""batch_norm and softmax against torch in float64 and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qir.errors import OpError
from qir.reference.norm import batch_norm, softmax
from tests.reference.oracles import Array, assert_near, assert_rounded_once, frozen
from tests.reference.oracles import onnxruntime_runs as run


def _normal(seed: int) -> tuple[Array, list[Array], float]:
    rng = np.random.default_rng(seed)
    shape = [int(n) for n in rng.integers(0 if seed % 9 == 0 else 1, 8, rng.integers(2, 6))]
    x: Array = (10 * rng.standard_normal(shape)).astype(np.float32)
    rows: list[Array] = [rng.standard_normal(shape[1]).astype(np.float32) for _ in range(3)]
    rows.append(rng.random(shape[1]).astype(np.float32))
    return x, rows, float(np.float32(rng.choice([1e-5, 1e-3, 0.0])))


@pytest.mark.parametrize("seed", range(40))
def test_batch_norm_rounds_torchs_float64_result_once(seed: int) -> None:
    x, rows, eps = _normal(seed)
    gamma, beta, mean, var = (torch.from_numpy(r.astype(np.float64)) for r in rows)
    wide = torch.from_numpy(x.astype(np.float64))
    if x.size:
        exact = torch.nn.functional.batch_norm(wide, mean, var, gamma, beta, False, 0, eps).numpy()
    else:
        exact = wide.numpy()
    got = batch_norm(frozen(x), *(frozen(r) for r in rows), eps=eps)
    spread = (1, -1) + (1,) * (x.ndim - 2)
    slope = (gamma / torch.sqrt(var + eps)).abs().numpy().reshape(spread)
    size = (np.abs(wide.numpy()) + np.abs(mean.numpy().reshape(spread))) * slope + np.abs(
        beta.numpy().reshape(spread)
    )
    assert_rounded_once(got, exact, size, f"seed {seed}")
    theirs = run("BatchNormalization", [x, *rows], epsilon=eps)
    assert_near(got, theirs, size, 8, f"seed {seed}")


@pytest.mark.parametrize("seed", range(6))
def test_batch_norm_on_another_axis_is_the_same_numbers_moved(seed: int) -> None:
    x, rows, eps = _normal(seed)
    expected = np.moveaxis(batch_norm(x, *rows, eps=eps), 1, -1)
    got = batch_norm(np.moveaxis(x, 1, -1), *rows, eps=eps, axis=-1)
    assert np.array_equal(got, expected), f"seed {seed}"


def test_batch_norm_of_a_negative_variance_is_nan_as_onnxruntimes() -> None:
    x, one = np.ones((1, 1, 2), np.float32), np.ones(1, np.float32)
    assert np.isnan(batch_norm(x, one, one, one, -one)).all()
    assert np.isnan(run("BatchNormalization", [x, one, one, one, -one])).all()


@pytest.mark.parametrize("seed", range(40))
def test_softmax_rounds_torchs_float64_result_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = [int(n) for n in rng.integers(0 if seed % 9 == 0 else 1, 9, rng.integers(1, 5))]
    axis = int(rng.integers(-len(shape), len(shape)))
    x = (rng.standard_normal(shape) * 20).astype(np.float32)
    exact = torch.softmax(torch.from_numpy(x.astype(np.float64)), axis).numpy()
    got = softmax(frozen(x), axis=axis)
    assert got.flags.c_contiguous
    assert_rounded_once(got, exact, exact, f"seed {seed}")
    assert_near(got, run("Softmax", [x], axis=axis), exact, 40, f"seed {seed}")


def test_softmax_of_special_rows_equals_onnxruntimes() -> None:
    inf, nan = np.inf, np.nan
    x = np.array(
        [[nan, 1, 2], [inf, 1, 2], [-inf] * 3, [-inf, 0, 0], [inf, inf, 0], [3e38, 3e38, -3e38]],
        np.float32,
    )
    assert np.array_equal(softmax(x), run("Softmax", [x]), equal_nan=True)


def test_normalization_says_what_does_not_fit() -> None:
    x, row = np.ones((1, 3, 2), np.float32), np.ones(3, np.float32)
    with pytest.raises(OpError, match=r"batch_norm: mean has \[2\], x has 3 channels"):
        batch_norm(x, row, row, row[:2], row)
    with pytest.raises(OpError, match="batch_norm: axis 3, but x has 3 axes"):
        batch_norm(x, row, row, row, row, axis=3)
    with pytest.raises(OpError, match="softmax: axis -4, but x has 3 axes"):
        softmax(x, axis=-4)
    with pytest.raises(OpError, match="softmax: x is u8, it takes floats"):
        softmax(x.astype(np.uint8))
    with pytest.raises(OpError, match="batch_norm: x is f32, var is f64"):
        batch_norm(x, row, row, row, row.astype(np.float64))
