"""The one rounding of a result, for the types that NumPy and ml_dtypes round twice."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from qir.reference.operands import round_to_dtype

KINDS = [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, np.float16]


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_beside_a_tie_goes_to_its_own_side(kind: type[np.generic]) -> None:
    size = np.dtype(kind).itemsize
    every = np.arange(1 << (8 * size)).astype(f"u{size}").view(kind)
    with np.errstate(invalid="ignore"):  # among all integers are signalling NaNs
        values = np.unique(every.astype(np.float64))
    values = values[np.isfinite(values)]
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2
    for sign in (-1, 1):
        beside = np.nextafter(middle, sign * np.inf)
        got = round_to_dtype(beside, np.dtype(kind)).astype(np.float64)
        assert np.array_equal(got, low if sign < 0 else high)
    at = round_to_dtype(middle, np.dtype(kind))
    assert np.isin(at.astype(np.float64), values).all()
    assert not (at.view(f"u{size}") & 1).any(), "a tie goes to the even code"


@pytest.mark.parametrize("kind", KINDS)
def test_special_values_survive_rounding(kind: type[np.generic]) -> None:
    y = np.array([np.nan, 0.0, -0.0, 1.0, 1e-320])
    got = round_to_dtype(y, np.dtype(kind)).astype(np.float64)
    assert np.array_equal(got, [np.nan, 0, 0, 1, 0], equal_nan=True)
    assert np.signbit(got).tolist()[1:] == [False, True, False, False]
    if kind is not ml_dtypes.float8_e4m3fn:  # which has no infinity
        ends = round_to_dtype(np.array([np.inf, -np.inf, 1e300]), np.dtype(kind)).astype(np.float64)
        assert ends.tolist() == [np.inf, -np.inf, np.inf]
    assert round_to_dtype(np.array(1.0), np.dtype(kind)).shape == ()
    assert round_to_dtype(np.zeros((0, 3)), np.dtype(kind)).shape == (0, 3)
