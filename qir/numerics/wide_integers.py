"""Sums and differences of quantized values of 64 bits, which neither int64 nor float64 holds.

A number is high * 2^32 + low, with low from 0 to before 2^32.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_TWO_32 = 1 << 32
Integers = NDArray[np.int64]
SplitIntegers: TypeAlias = tuple[Integers, Integers]


def integer_zeros(zeros: NDArray[np.generic]) -> NDArray[np.int64] | NDArray[np.uint64]:
    """Whole zero points as int64; as uint64 where one needs it."""
    if zeros.dtype == np.uint64 and zeros.size and zeros.max() >= 1 << 63:
        return zeros.astype(np.uint64)
    return zeros.astype(np.int64)


def _split_integers(whole: NDArray[np.generic]) -> SplitIntegers:
    """Integers of any type as two halves."""
    kind = np.uint64 if whole.dtype == np.uint64 else np.int64
    wide = whole.astype(kind)
    low = wide & kind(_TWO_32 - 1)
    return (wide >> kind(32)).astype(np.int64), low.astype(np.int64)


def _split_floats(whole: NDArray[np.float64]) -> SplitIntegers:
    """Splits whole floats into two halves; those beyond 2^66 become 2^66."""
    # 2^66 is beyond every 64-bit end even after a zero point is added, and its halves still fit
    # int64.
    near = np.clip(whole, -(2.0**66), 2.0**66)
    high = np.floor(near / _TWO_32)
    return high.astype(np.int64), (near - high * _TWO_32).astype(np.int64)


def add_saturating(
    whole: NDArray[np.float64],
    zero: NDArray[np.generic],
    low: int,
    high: int,
    carrier: np.dtype[np.generic],
) -> NDArray[np.integer]:
    """whole + zero exactly, as quantized values of 64 bits that saturate."""
    high_sum, low_sum = (
        a + b for a, b in zip(_split_floats(whole), _split_integers(zero), strict=True)
    )
    above, below = high_sum + (low_sum >> 32), low_sum & (_TWO_32 - 1)
    integers = (above.astype(np.uint64) << np.uint64(32)) | below.astype(np.uint64)
    # Halves compare as numbers do: the upper ones first, the lower ones where these are equal.
    for end, beyond in ((low, np.less), (high, np.greater)):
        far, near = end >> 32, end & (_TWO_32 - 1)
        past = beyond(above, far) | ((above == far) & beyond(below, near))
        integers = np.where(past, np.uint64(end % (1 << 64)), integers)
    return integers.astype(carrier)


def subtract_rounding_once(
    integers: NDArray[np.generic], zero: NDArray[np.generic], kind: np.dtype[np.floating]
) -> NDArray[np.floating]:
    """quantized values - zero, rounded once."""
    (high, low), (zero_high, zero_low) = _split_integers(integers), _split_integers(zero)
    above = (high - zero_high).astype(np.float64) * _TWO_32
    below = (low - zero_low).astype(np.float64)
    near = np.asarray(above + below)
    if kind == np.float64:
        return near
    # Rounded to odd, so that rounding again is rounding once.
    lost = below - (near - above)
    even = (near.reshape(-1).view(np.int64).reshape(near.shape) & 1) == 0
    odd = np.nextafter(near, np.where(lost > 0, np.inf, -np.inf))
    return np.where((lost != 0) & even, odd, near).astype(kind)
