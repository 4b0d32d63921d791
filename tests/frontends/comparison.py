"""Compares results of QIR with those of a framework."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


def difference(actual: Array, expected: Array, tolerance: float) -> str:
    """Returns how two results differ; empty where they agree.

    Integers and booleans must be equal, floats within `tolerance` times the absolute maximum.
    """
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return (
            f"{actual.dtype}{actual.shape}, the framework returns {expected.dtype}{expected.shape}"
        )
    if not np.issubdtype(expected.dtype, np.floating):
        return "" if np.array_equal(actual, expected) else "other integers"
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    # Infinities are equal only to themselves, and their difference is NaN.
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return ""
    error = float(np.abs(np.where(same, 0, a - b)).max())
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=1e-30))
    if error <= tolerance * largest:
        return ""
    return f"off by {error:.3g} where the largest is {largest:.3g}"
