"""Fixed-point functions of gemmlowp, which TensorFlow Lite's reference kernels use: exp,
reciprocal, softmax, l2_normalize, rsqrt.

A number is an integer in units of 2^(n - bits + 1), where n is the number of integer bits. Products
are doubled, and their upper half is rounded, ties up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.affine import Affine
from qir.numerics.fields import Rule
from qir.numerics.rounding import shift_right_away
from qir.profiles.methods import PluginMethod
from qir.reference.fixed_point import multiply_fixed_point, to_fixed_point
from qir.reference.method import Integers, float32, require_per_tensor, saturate

Whole = NDArray[np.int64]

_EXPONENTS = (
    (-2, 1672461947),
    (-1, 1302514674),
    (0, 790015084),
    (1, 290630308),
    (2, 39332535),
    (3, 720401),
    (4, 242),
)
"""e to minus 2^n as 32-bit fractions."""


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Arithmetic on fixed-point numbers of one width; sums wrap."""

    bits: int

    @property
    def max_fraction(self) -> int:
        """The greatest fraction."""
        return (1 << (self.bits - 1)) - 1

    def wrap(self, x: Whole) -> Whole:
        """Returns an integer wrapped to the width."""
        return np.asarray(x.astype(np.int16 if self.bits == 16 else np.int32).astype(np.int64))

    def constant(self, long: int) -> int:
        """Returns a 32-bit fraction rounded to this width."""
        return long if self.bits == 32 else (long + (1 << 15)) >> 16

    def multiply(self, a: Whole, b: Whole | int) -> Whole:
        """Returns the rounding, doubling high half of a product."""
        product = (a * b + (1 << (self.bits - 2))) >> (self.bits - 1)
        return np.asarray(np.minimum(product, self.max_fraction))

    def times_power_of_2(self, x: Whole, exponent: int) -> Whole:
        """Returns x * 2^by: rounded with ties away from zero, or saturated."""
        if exponent <= 0:
            return shift_right_rounding(x, np.array(-exponent))
        limit = (1 << (self.bits - 1 - exponent)) - 1
        shifted = np.where(x > limit, self.max_fraction, x << exponent)
        return np.where(x < -limit, -self.max_fraction - 1, shifted)

    def exp(self, x: Whole, n: int) -> Whole:
        """Returns e^x for x <= 0 with n integer bits."""
        point = self.bits - 1 - n
        quarter = 1 << (point - 2)
        # x = n/4 + rest with rest in [-1/4, 0): the series is for rest, the factors for the other
        # bits.
        remainder = (x & (quarter - 1)) - quarter
        other_bits = self.wrap(remainder - x)
        power = self._quarter(self.times_power_of_2(remainder, n))
        # One factor e^(-2^exponent) for each bit that is set.
        for exponent, factor in _EXPONENTS:
            if n > exponent:
                is_set = other_bits & (1 << (point + exponent)) != 0
                power = np.where(is_set, self.multiply(power, self.constant(factor)), power)
        return np.where(x == 0, self.max_fraction, power)

    def _quarter(self, x: Whole) -> Whole:
        """Returns e^x for -1/4 <= x < 0: four terms of the series about -1/8."""
        # e^(-1/8) in 31 bits; 715827883 is 1/3.
        middle = self.constant(1895147668)
        x = self.wrap(x + (1 << (self.bits - 4)))
        square = self.multiply(x, x)
        third, fourth = self.multiply(square, x), self.multiply(square, square)
        tail = self.multiply(
            self.wrap(self.times_power_of_2(fourth, -2) + third), self.constant(715827883)
        )
        tail = self.times_power_of_2(self.wrap(tail + square), -1)
        power = middle + self.multiply(self.wrap(x + tail), middle)
        return np.clip(power, -self.max_fraction - 1, self.max_fraction)

    def twice_inverse_of_1_plus(self, x: Whole) -> Whole:
        """Returns 2 / (1 + x) for a fraction x of 0 to 1, with two integer bits, by Newton's
        method."""
        half = (x + self.max_fraction + 1) >> 1
        inverse = self.wrap(
            # 48/17 - 32/17 * half: the usual start of Newton's division, then three steps.
            self.multiply(half, self.constant(-1010580540)) + self.constant(1515870810)
        )
        for _ in range(3):
            error = self.wrap((1 << (self.bits - 3)) - self.multiply(half, inverse))
            inverse = self.wrap(inverse + self.times_power_of_2(self.multiply(inverse, error), 2))
        return inverse

    def logistic(self, x: Whole, n: int) -> Whole:
        """Returns 1 / (1 + e^-x) of a number with n integer bits."""
        positive_half = self.times_power_of_2(
            self.twice_inverse_of_1_plus(self.exp(self.wrap(-np.abs(x)), n)), 1
        )
        value = np.where(x > 0, positive_half, self.max_fraction - positive_half)
        return np.where(x == 0, (self.max_fraction + 1) >> 1, value)

    def tanh(self, x: Whole, n: int) -> Whole:
        """Returns (1 - e^-2x) / (1 + e^-2x) of a number with n integer bits."""
        fraction = self.twice_inverse_of_1_plus(self.exp(self.wrap(-np.abs(x)), n + 1))
        value = self.times_power_of_2(self.wrap(fraction - (1 << (self.bits - 3))), 2)
        return np.where(x == 0, 0, np.where(x < 0, -value, value))


SHORT, LONG = FixedPoint(16), FixedPoint(32)


def reciprocal(x: Whole, n: int) -> tuple[Whole, Whole]:
    """Returns 1 / x of a positive number with n integer bits, and the exponent by which x
    exceeded 1."""
    # Shift the leading one to the top, so that the rest is the fraction of 1 + x.
    leading_zeros = 32 - bit_length(x)
    return LONG.times_power_of_2(
        LONG.twice_inverse_of_1_plus((x << leading_zeros) - (1 << 31)), 1
    ), n - leading_zeros


def shift_right_rounding(x: Whole, by: Whole) -> Whole:
    """Returns x / 2^by, ties away from zero."""
    return shift_right_away(x.astype(np.int32), np.asarray(by)).astype(np.int64)


def bit_length(x: Whole) -> Whole:
    """Returns how many bits a positive number has."""
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)


# -- softmax --------------------------------------------------------------------------------------


def softmax_fixed_point(x: Integers, x_map: Affine, out: Affine, *, axis: int = -1) -> Integers:
    """Computes softmax: exponentials with five integer bits, their sum with twelve, one quotient
    a row."""
    require_per_tensor("share_fixed", x_map, out)
    if x_map.storage.bits > 8:
        raise OpError("share_fixed: 8-bit integers; wider integers are not supported")
    integers = np.moveaxis(x.astype(np.int64), axis, -1)
    if not integers.size:
        return np.zeros(x.shape, out.carrier)
    q, shift = to_fixed_point(min(float(float32(x_map.scale)) * 2.0**26, 2.0**31 - 1))
    # Differences below this have exponentials that five integer bits hold as zero.
    lowest = -math.floor(31.0 * 2.0**26 / 2.0**shift)
    differences = integers - integers.max(-1, keepdims=True)
    is_significant = differences >= lowest
    powers = LONG.exp(LONG.multiply(np.where(is_significant, differences, 0) << shift, q), 5)
    terms = np.where(is_significant, powers, 0)
    total = LONG.wrap(LONG.times_power_of_2(terms, -12).sum(-1, keepdims=True))
    inverse_sum, exponent = reciprocal(total, 12)
    if np.any(exponent > out.storage.bits):
        raise OpError("share_fixed: a row's powers sum to 512 or more, which ends its process")
    quotients = shift_right_rounding(
        LONG.multiply(terms, inverse_sum), exponent + 31 - out.storage.bits
    )
    shifted = np.where(is_significant, quotients, 0) + out.low
    return np.moveaxis(saturate(shifted, out), -1, axis)


# -- l2_normalize and rsqrt ------------------------------------------------------------------------


def _inverse_root(x: Whole) -> tuple[Whole, Whole]:
    """Returns 1 / sqrt(x) as a 31-bit number and an exponent, by five steps of Newton's method."""
    value, exponent = x.copy(), np.full(x.shape, 11, np.int64)
    while (too_large := value >= 1 << 29).any():
        value, exponent = np.where(too_large, value // 4, value), exponent + too_large
    shift_pairs = (32 - bit_length(np.maximum(value, 1)) - 1) // 2 - 1
    value, exponent = value << (2 * shift_pairs), exponent - shift_pairs
    half = LONG.times_power_of_2(value >> 1, -1)
    y = np.full(x.shape, 1 << 28, np.int64)
    for _ in range(5):
        cube = LONG.times_power_of_2(LONG.multiply(LONG.multiply(y, y), y), 6)
        y = LONG.times_power_of_2(
            LONG.wrap(LONG.multiply(y, 3 << 27) - LONG.multiply(half, cube)), 3
        )
    # 1518500250 is 1 / sqrt(2) in 31 bits.
    y = LONG.multiply(y, 1518500250)
    y, exponent = np.where(exponent < 0, y << np.maximum(-exponent, 0), y), np.maximum(exponent, 0)
    is_at_most_1 = x <= 1
    return np.where(is_at_most_1, LONG.max_fraction, y), np.where(is_at_most_1, 0, -exponent)


def _scaled_elementwise(x: Whole, q: Whole, exponent: Whole) -> Whole:
    """Returns x * q * 2^(exponent - 31), rounded, with a multiplier for each number."""
    shifted = LONG.wrap(x << np.maximum(exponent, 0))
    product = shifted * q
    nudge = np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    rounded = product + nudge
    rounded = np.where(rounded >= 0, rounded >> 31, -(-rounded >> 31))
    return shift_right_rounding(rounded, np.maximum(-exponent, 0))


def l2_normalize_fixed_point(
    x: Integers, x_map: Affine, out: Affine, *, axis: int = -1, p: int = 2
) -> Integers:
    """Computes integers over the root of the sum of their squares, in steps of 1/128.

    Unsigned integers are multiplied by 128 before they are rounded, signed ones in the same step.
    """
    require_per_tensor("unit_fixed", x_map, out)
    if p != 2 or float(out.scale) != 1 / 128:
        raise OpError("unit_fixed: p is 2, and the result's scale is 1/128")
    value = np.moveaxis(x.astype(np.int64) - int(x_map.zero), axis, -1)
    q, exponent = _inverse_root((value * value).sum(-1, keepdims=True))
    is_unsigned = out.storage.kind == "uint"
    result = (
        _scaled_elementwise(value << 7, q, exponent)
        if is_unsigned
        else _scaled_elementwise(value, q, exponent + 7)
    )
    return np.moveaxis(saturate(result + int(out.zero), out), -1, axis)


def rsqrt_fixed_point(x: Integers, x_map: Affine, out: Affine, *, rule: Rule) -> Integers:
    """Computes 1 / sqrt(q - z) with twenty more bits, by the multiplier of the scales; of zero
    it is the maximum."""
    require_per_tensor("fixed_inverse_root", x_map, out)
    value = x.astype(np.int64) - int(x_map.zero)
    if (value < 0).any():
        raise OpError("fixed_inverse_root: a value below the zero point has no square root")
    q, exponent = _inverse_root(np.maximum(value, 1))
    inverse_roots = _scaled_elementwise(np.ones(value.shape, np.int64), q, exponent + 20)
    ratio = 1.0 / (float(np.sqrt(float32(x_map.scale))) * float(float32(out.scale)))
    factor, shift = to_fixed_point(ratio)
    result = multiply_fixed_point(inverse_roots, factor, shift - 20, rule) + int(out.zero)
    return saturate(np.where(value == 0, out.high, result), out)


METHODS: Mapping[str, PluginMethod] = {
    "share_fixed": PluginMethod(softmax_fixed_point, ("softmax",), slots=("x",), attrs=("axis",)),
    "unit_fixed": PluginMethod(
        l2_normalize_fixed_point, ("lp_normalize",), slots=("x",), attrs=("axis", "p")
    ),
    "fixed_inverse_root": PluginMethod(
        rsqrt_fixed_point, ("rsqrt",), reads=("requant",), slots=("x",), pointwise=True
    ),
}
"""The methods of this module, by the name that profiles use."""
