"""Scaling of whole numbers by 31-bit fixed-point multipliers and a shift, as gemmlowp does."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from qir.numerics.fields import Rule
from qir.numerics.rounding import SECOND_ROUNDINGS, doubling_high_multiply

Int64Array = NDArray[np.int64]


def to_fixed_point(m: float) -> tuple[int, int]:
    """Returns a 31-bit whole number and an exponent: m is q * 2^(exponent - 31)."""
    if m == 0 or not math.isfinite(m):
        return 0, 0
    if m < 0:
        q, exponent = to_fixed_point(-m)
        return -q, exponent
    fraction, exponent = math.frexp(m)
    q = math.floor(fraction * 2.0**31 + 0.5)
    if q == 1 << 31:
        q, exponent = q // 2, exponent + 1
    return (0, 0) if exponent < -31 else (q, exponent)


def multiply_fixed_point(x: Int64Array, q: int, exponent: int, rule: Rule) -> Int64Array:
    """x * q * 2^(exponent - 31), 32-bit numbers that wrap, rounded twice or once; once by no
    exponent above 30."""
    if rule.requant.round not in SECOND_ROUNDINGS:
        if exponent > 30:
            q, exponent = (2**31 - 1 if q > 0 else 1 - 2**31), 30
        shift = 31 - exponent
        return np.asarray((x * q + (1 << (shift - 1))) >> shift)
    shifted = (x << max(exponent, 0)).astype(np.int32)
    high = doubling_high_multiply(shifted, np.array(q, np.int32))
    return SECOND_ROUNDINGS[rule.requant.round](high, np.array(max(-exponent, 0))).astype(np.int64)
