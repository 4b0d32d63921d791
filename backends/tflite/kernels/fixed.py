"""Fixed-point functions of TensorFlow Lite's reference kernels (gemmlowp), of 16 or 32 bits: exp,
reciprocal, and what is made of the two.

A number is a whole one in units of 2^(n - bits + 1), n the bits before its point. All that is
multiplied is doubled, cut to its upper half and rounded, halves up.
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
from qir.reference.fixed_point import multiplier, multiply_fixed_point
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
class Fractions:
    """Binary fractions of one width; sums wrap."""

    bits: int

    @property
    def one(self) -> int:
        """The greatest fraction."""
        return (1 << (self.bits - 1)) - 1

    def wrap(self, x: Whole) -> Whole:
        """Returns what the width holds of a number."""
        return np.asarray(x.astype(np.int16 if self.bits == 16 else np.int32).astype(np.int64))

    def constant(self, long: int) -> int:
        """Returns a 32-bit fraction in this width."""
        return long if self.bits == 32 else (long + (1 << 15)) >> 16

    def times(self, a: Whole, b: Whole | int) -> Whole:
        """Returns the rounding, doubling high half of a product."""
        made = (a * b + (1 << (self.bits - 2))) >> (self.bits - 1)
        return np.asarray(np.minimum(made, self.one))

    def power(self, x: Whole, by: int) -> Whole:
        """x * 2^by: halves away from zero, or with what saturates."""
        if by <= 0:
            return away(x, np.array(-by))
        end = (1 << (self.bits - 1 - by)) - 1
        made = np.where(x > end, self.one, x << by)
        return np.where(x < -end, -self.one - 1, made)

    def exp(self, x: Whole, n: int) -> Whole:
        """e^x for x of n bits before the point, none of them above zero."""
        point = self.bits - 1 - n
        quarter = 1 << (point - 2)
        rest = (x & (quarter - 1)) - quarter
        left = self.wrap(rest - x)
        made = self._quarter(self.power(rest, n))
        for exponent, factor in _EXPONENTS:
            if n > exponent:
                set_ = left & (1 << (point + exponent)) != 0
                made = np.where(set_, self.times(made, self.constant(factor)), made)
        return np.where(x == 0, self.one, made)

    def _quarter(self, x: Whole) -> Whole:
        """e^x for a fraction from -1/4 up to 0: four terms about -1/8."""
        middle = self.constant(1895147668)
        x = self.wrap(x + (1 << (self.bits - 4)))
        square = self.times(x, x)
        third, fourth = self.times(square, x), self.times(square, square)
        tail = self.times(self.wrap(self.power(fourth, -2) + third), self.constant(715827883))
        tail = self.power(self.wrap(tail + square), -1)
        made = middle + self.times(self.wrap(x + tail), middle)
        return np.clip(made, -self.one - 1, self.one)

    def newton(self, x: Whole) -> Whole:
        """2 / (1 + x) for a fraction from 0 to 1, with two bits before the point."""
        half = (x + self.one + 1) >> 1
        made = self.wrap(self.times(half, self.constant(-1010580540)) + self.constant(1515870810))
        for _ in range(3):
            off = self.wrap((1 << (self.bits - 3)) - self.times(half, made))
            made = self.wrap(made + self.power(self.times(made, off), 2))
        return made

    def logistic(self, x: Whole, n: int) -> Whole:
        """1 / (1 + e^-x) of a number with n bits before the point."""
        above = self.power(self.newton(self.exp(self.wrap(-np.abs(x)), n)), 1)
        made = np.where(x > 0, above, self.one - above)
        return np.where(x == 0, (self.one + 1) >> 1, made)

    def tanh(self, x: Whole, n: int) -> Whole:
        """(1 - e^-2x) / (1 + e^-2x) of a number with n bits before the point."""
        twice = self.newton(self.exp(self.wrap(-np.abs(x)), n + 1))
        made = self.power(self.wrap(twice - (1 << (self.bits - 3))), 2)
        return np.where(x == 0, 0, np.where(x < 0, -made, made))


SHORT, LONG = Fractions(16), Fractions(32)


def reciprocal(x: Whole, n: int) -> tuple[Whole, Whole]:
    """1 / x of a number above zero with n bits before the point, and how far above one x was."""
    room = 32 - bits_of(x)
    return LONG.power(LONG.newton((x << room) - (1 << 31)), 1), n - room


def away(x: Whole, by: Whole) -> Whole:
    """x / 2^by, halves away from zero."""
    return shift_right_away(x.astype(np.int32), np.asarray(by)).astype(np.int64)


def bits_of(x: Whole) -> Whole:
    """Returns how many bits a number above zero has."""
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)


# -- softmax --------------------------------------------------------------------------------------


def share_fixed(x: Integers, x_map: Affine, out: Affine, *, axis: int = -1) -> Integers:
    """Softmax: powers of five bits before the point, their sum with twelve, one quotient a row."""
    require_per_tensor("share_fixed", x_map, out)
    if x_map.storage.bits > 8:
        raise OpError("share_fixed: 8-bit integers; wider integers are not supported")
    codes = np.moveaxis(x.astype(np.int64), axis, -1)
    if not codes.size:
        return np.zeros(x.shape, out.carrier)
    q, shift = multiplier(min(float(float32(x_map.scale)) * 2.0**26, 2.0**31 - 1))
    least = -math.floor(31.0 * 2.0**26 / 2.0**shift)
    below = codes - codes.max(-1, keepdims=True)
    held = below >= least
    powers = LONG.exp(LONG.times(np.where(held, below, 0) << shift, q), 5)
    terms = np.where(held, powers, 0)
    total = LONG.wrap(LONG.power(terms, -12).sum(-1, keepdims=True))
    share, over = reciprocal(total, 12)
    if np.any(over > out.storage.bits):
        raise OpError("share_fixed: a row's powers sum to 512 or more, which ends its process")
    made = away(LONG.times(terms, share), over + 31 - out.storage.bits)
    whole = np.where(held, made, 0) + out.low
    return np.moveaxis(saturate(whole, out), -1, axis)


# -- to the unit circle ---------------------------------------------------------------------------


def _inverse_root(x: Whole) -> tuple[Whole, Whole]:
    """1 / sqrt(x) as a 31-bit number and an exponent, by five steps of Newton's from one."""
    value, down = x.copy(), np.full(x.shape, 11, np.int64)
    while (large := value >= 1 << 29).any():
        value, down = np.where(large, value // 4, value), down + large
    pairs = (32 - bits_of(np.maximum(value, 1)) - 1) // 2 - 1
    value, down = value << (2 * pairs), down - pairs
    half = LONG.power(value >> 1, -1)
    y = np.full(x.shape, 1 << 28, np.int64)
    for _ in range(5):
        cube = LONG.power(LONG.times(LONG.times(y, y), y), 6)
        y = LONG.power(LONG.wrap(LONG.times(y, 3 << 27) - LONG.times(half, cube)), 3)
    y = LONG.times(y, 1518500250)
    y, down = np.where(down < 0, y << np.maximum(-down, 0), y), np.maximum(down, 0)
    small = x <= 1
    return np.where(small, LONG.one, y), np.where(small, 0, -down)


def _by_each(x: Whole, q: Whole, exponent: Whole) -> Whole:
    """`scaled` with a multiplier for each number."""
    shifted = LONG.wrap(x << np.maximum(exponent, 0))
    product = shifted * q
    nudge = np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    high = product + nudge
    high = np.where(high >= 0, high >> 31, -(-high >> 31))
    return away(high, np.maximum(-exponent, 0))


def unit_fixed(x: Integers, x_map: Affine, out: Affine, *, axis: int = -1, p: int = 2) -> Integers:
    """Quantized values over the root of the sum of their squares, in steps of 1/128.

    Unsigned quantized values are multiplied by 128 before they are rounded, signed ones while.
    """
    require_per_tensor("unit_fixed", x_map, out)
    if p != 2 or float(out.scale) != 1 / 128:
        raise OpError("unit_fixed: p is 2, and the result's scale is 1/128")
    value = np.moveaxis(x.astype(np.int64) - int(x_map.zero), axis, -1)
    q, exponent = _inverse_root((value * value).sum(-1, keepdims=True))
    plain = out.storage.kind == "uint"
    made = _by_each(value << 7, q, exponent) if plain else _by_each(value, q, exponent + 7)
    return np.moveaxis(saturate(made + int(out.zero), out), -1, axis)


def fixed_inverse_root(x: Integers, x_map: Affine, out: Affine, *, rule: Rule) -> Integers:
    """1 / sqrt(q - z) with twenty more bits, by the multiplier of the scales; of zero the most."""
    require_per_tensor("fixed_inverse_root", x_map, out)
    value = x.astype(np.int64) - int(x_map.zero)
    if (value < 0).any():
        raise OpError("fixed_inverse_root: a value below the zero point has no square root")
    q, exponent = _inverse_root(np.maximum(value, 1))
    wide = _by_each(np.ones(value.shape, np.int64), q, exponent + 20)
    by = 1.0 / (float(np.sqrt(float32(x_map.scale))) * float(float32(out.scale)))
    factor, shift = multiplier(by)
    made = multiply_fixed_point(wide, factor, shift - 20, rule) + int(out.zero)
    return saturate(np.where(value == 0, out.high, made), out)


METHODS: Mapping[str, PluginMethod] = {
    "share_fixed": PluginMethod(share_fixed, ("softmax",), slots=("x",), attrs=("axis",)),
    "unit_fixed": PluginMethod(unit_fixed, ("lp_normalize",), slots=("x",), attrs=("axis", "p")),
    "fixed_inverse_root": PluginMethod(
        fixed_inverse_root, ("rsqrt",), reads=("requant",), slots=("x",)
    ),
}
"""The methods of this module, by the name that profiles use."""
