"""Rounding to whole numbers, and the fused multiply-add, exactly as hardware does them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


# These subtract trunc(x), which leaves an exact remainder; x - floor(x) would be rounded for small
# numbers below zero.


def _half_away(x: Floats) -> Floats:
    whole: Floats = np.trunc(x)
    return _step_up_or_down(whole, x - whole >= 0.5, x - whole <= -0.5)


def _half_up(x: Floats) -> Floats:
    whole: Floats = np.trunc(x)
    return _step_up_or_down(whole, x - whole >= 0.5, x - whole < -0.5)


def _half_added(x: Floats) -> Floats:
    # As in TensorFlow: x + 0.5 is rounded itself, so 0.49999997 becomes 1.
    return np.floor(x + x.dtype.type(0.5))


def _half_down(x: Floats) -> Floats:
    whole: Floats = np.trunc(x)
    return _step_up_or_down(whole, x - whole > 0.5, x - whole <= -0.5)


def _step_up_or_down(whole: Floats, up: NDArray[np.bool_], down: NDArray[np.bool_]) -> Floats:
    return np.asarray(whole + up.astype(whole.dtype) - down.astype(whole.dtype), whole.dtype)


def _away_from_zero(x: Floats) -> Floats:
    return np.asarray(np.where(x < 0, np.floor(x), np.ceil(x)), x.dtype)


ROUNDINGS: dict[str, Callable[[Floats], Floats]] = {
    "even": np.rint,
    "away": _half_away,  # halves away from zero
    "half_up": _half_up,  # halves towards plus infinity
    "half_added": _half_added,  # down, after a half was added and that sum rounded
    "half_down": _half_down,  # halves towards minus infinity
    "up": _away_from_zero,  # away from zero
    "down": np.trunc,
    "zero": np.trunc,  # towards zero, under both names
    "floor": np.floor,
    "ceil": np.ceil,
}
"""Rounding of finite float values by the names that profiles use; the dtype stays."""


def round_to_float_type(x: Floats, to: np.dtype[np.generic]) -> Floats:
    """x rounded once, to nearest even, to a float type.

    ml_dtypes goes from float64 to its types by way of float32, which alone would round twice.
    """
    if x.dtype == to:
        return x
    with np.errstate(all="ignore"):
        if x.dtype == np.float64 and to not in (np.float32, np.float16):
            return np.asarray(round_to_odd_float32(x.astype(np.float64)).astype(to))
        return np.asarray(x.astype(to))


def round_to_odd_float32(x: NDArray[np.float64]) -> NDArray[np.float32]:
    """float32 rounded to odd: rounding that again to a narrower type equals rounding x once."""
    rounded = np.atleast_1d(x.astype(np.float32))
    bits = rounded.view(np.uint32)
    # Towards zero first, then the last bit set wherever anything was lost.
    bits -= np.abs(rounded.astype(np.float64)) > np.abs(x)
    bits |= (rounded != x) & ~np.isnan(rounded)
    return rounded.reshape(x.shape)


def fma(
    a: NDArray[np.float32] | np.float32,
    b: NDArray[np.float32] | np.float32,
    c: NDArray[np.float32] | np.float32,
) -> NDArray[np.float32]:
    """a * b + c in float32 with one rounding.

    The product of two float32 is exact in float64. The sum is rounded there to odd, so that the
    second rounding, to float32, is the right one.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    # Knuth's two-sum: `error` is exactly what the float64 sum lost.
    addend_part = total - product
    error = (product - (total - addend_part)) + (addend - addend_part)
    even = (total.view(np.int64) & 1) == 0
    # Rounding to odd: an inexact even sum moves one step towards the lost part.
    needs_fix = (error != 0) & even & np.isfinite(total)
    odd = np.where(needs_fix, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)
    return odd.astype(np.float32)


def doubling_high_multiply(a: NDArray[np.int32], b: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns the saturating, rounding, doubling high half of a product (gemmlowp's first
    rounding)."""
    # gemmlowp's SaturatingRoundingDoublingHighMul: (-2^31)^2 alone overflows, and saturates.
    product = a.astype(np.int64) * b.astype(np.int64)
    nudged = product + np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    # C++ divides towards zero.
    high = np.where(nudged >= 0, nudged >> 31, -(-nudged >> 31))
    return np.minimum(high, np.iinfo(np.int32).max).astype(np.int32)


def shift_right_away(x: NDArray[np.int32], exponent: NDArray[np.integer]) -> NDArray[np.int32]:
    """Division by a power of two, halves away from zero (gemmlowp's second rounding)."""
    wide = x.astype(np.int64)
    mask = (np.int64(1) << exponent) - 1
    # gemmlowp's RoundingDivideByPOT; one more below zero sends ties away from zero.
    threshold = (mask >> 1) + (wide < 0)
    return ((wide >> exponent) + ((wide & mask) > threshold)).astype(np.int32)


def shift_right_up(x: NDArray[np.int32], exponent: NDArray[np.integer]) -> NDArray[np.int32]:
    """Division by a power of two, halves up (a vector's rounding shift)."""
    wide = x.astype(np.int64)
    half = (np.int64(1) << exponent) >> 1
    return np.asarray((wide + half) >> exponent).astype(np.int32)


SECOND_ROUNDINGS = {"double": shift_right_away, "double_up": shift_right_up}
"""The second step of what is rounded twice, by the names that profiles use."""


def shift_right(
    x: NDArray[np.int64], exponent: NDArray[np.int64], mode: str, offset: NDArray[np.int64]
) -> NDArray[np.int64]:
    """x / 2^exponent to whole numbers, rounded once: `even`, `away` or `half_up`.

    `offset` is added before rounding and taken off after: it decides which whole number of two as
    near is the even one, or is away from zero. x is below 2^62.
    """
    x, exponent = np.broadcast_arrays(x << np.maximum(-exponent, 0), np.maximum(exponent, 0))
    # NumPy does not define shifts by 64 bits and more; below 2^62 the result is 0 by then.
    right = np.minimum(exponent, 62)
    floor = x >> right
    remainder, half = x - (floor << right), (np.int64(1) << right) >> 1
    match mode:
        case "even":
            tie_goes_up = ((floor + offset) & 1) == 1
        case "away":
            tie_goes_up = floor + offset >= 0
        case _:
            tie_goes_up = np.ones(x.shape, np.bool_)
    rounds_up = (right > 0) & ((remainder > half) | ((remainder == half) & tie_goes_up))
    return np.where(exponent > 62, 0, floor + rounds_up)


def divide_integers(
    above: NDArray[np.object_], below: NDArray[np.object_], mode: str, offset: NDArray[np.object_]
) -> NDArray[np.object_]:
    """Quotients of whole numbers of any size as whole numbers, ties as in `shift_right`."""
    floor = above // below
    # Twice the remainder is compared with the divisor, so that nothing is halved inexactly.
    twice = 2 * (above - floor * below)
    match mode:
        case "even":
            tie_goes_up = (floor + offset) % 2 == 1
        case "away":
            tie_goes_up = floor + offset >= 0
        case _:
            tie_goes_up = np.ones(floor.shape, np.bool_)
    rounds_up = (twice > below) | ((twice == below) & tie_goes_up)
    return np.asarray(floor + rounds_up.astype(np.int64))
