"""TensorFlow Lite's interpolated lookup tables: functions of 16-bit integers.

All is whole numbers but the making of the tables, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.affine import Affine
from qir.numerics.fields import Rule
from qir.numerics.rounding import ROUNDINGS
from qir.profiles.methods import FLAG, PluginMethod
from qir.reference.fixed_point import multiply_fixed_point, to_fixed_point
from qir.reference.method import Integers, float32, require_per_tensor, saturate

from .fixed_point import SHORT

Whole = NDArray[np.int64]
Real64 = NDArray[np.float64]
_LOW, _HIGH = -(1 << 15), (1 << 15) - 1
_AWAY = ROUNDINGS["away"]


def _require_16_bit_types(name: str, x: Affine, out: Affine, scale: float) -> None:
    """Raises OpError for quantized types that the kernel does not support."""
    require_per_tensor(name, x, out)
    for affine in (x, out):
        if affine.storage.bits != 16 or int(affine.zero):
            raise OpError(f"{name}: 16-bit integers around zero")
    if float(out.scale) != scale:
        raise OpError(f"{name}: the result's scale is {scale}")


# -- curves ---------------------------------------------------------------------------------------


@cache
def _logistic_table() -> Whole:
    """Returns the upper half of the logistic function, sampled 24 times a unit, in 16 bits.

    Each entry is moved by half the error that interpolation makes at the middle of its interval.
    """
    positions = np.arange(513, dtype=np.float64) / 48
    values = 65536 / (1 + np.exp(-positions))
    samples, midpoints, next_samples = values[:-1:2], values[1::2], values[2::2]
    entries = np.rint(samples - ((samples + next_samples) / 2 - midpoints) / 2)
    entries[-1] = 65535
    return entries.astype(np.int64)


def _in_table_units(x: Integers, x_map: Affine) -> Whole:
    """Returns quantized values in units of 1 / 12288, by a shift where the scale is 2^-12 or
    2^-11."""
    scale = float(float32(x_map.scale))
    if scale in (2.0**-12, 2.0**-11):
        return x.astype(np.int64) * (3 if scale == 2.0**-12 else 6)
    # Other scales: a 15-bit multiplier and a shift, rounded half up, in int32 that wraps.
    multiplier, shift = scale * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and shift <= 30:
        multiplier, shift = multiplier * 2.0, shift + 1
    half = 1 << (shift - 1) if shift else 0
    product = (x.astype(np.int64) * int(multiplier) + half).astype(np.int32).astype(np.int64)
    return np.asarray(product >> shift)


def _interpolated_logistic(places: Whole, bits: int) -> Whole:
    """Returns the table's values at positions whose last bits are between two entries."""
    table = _logistic_table()
    index = np.minimum(places >> bits, 254)
    remainder = places & ((1 << bits) - 1)
    return np.asarray((table[index] << bits) + remainder * (table[index + 1] - table[index]))


def logistic_between(x: Integers, x_map: Affine, out: Affine, *, newton: bool = False) -> Integers:
    """Computes sigmoid of 16-bit integers, interpolated between 256 entries and rounded once.

    With `newton`, a scale of 2^-12 is computed by exponentials and Newton's division in 16 bits.
    """
    _require_16_bit_types("logistic_between", x_map, out, 2.0**-15)
    if newton and float(x_map.scale) == 2.0**-12:
        return saturate(SHORT.logistic(x.astype(np.int64), 3), out)
    data = _in_table_units(x, x_map)
    places = np.abs(data)
    # Beyond the table the function is saturated at 0x7FFF.
    value = np.where(places >> 9 >= 255, 0x7FFF << 10, _interpolated_logistic(places, 9))
    # 1 - f(-x) below zero; half a unit is added before the shift, so that the result is rounded.
    value = np.where(data >= 0, value + (1 << 9), (1 << 25) - value + (1 << 9) - 1)
    return saturate(value >> 10, out)


def tanh_between(x: Integers, x_map: Affine, out: Affine, *, newton: bool = False) -> Integers:
    """Computes tanh of 16-bit integers: 2 * logistic(2x) - 1.

    With `newton`, scales of 2^-12 and 2^-11 are computed by exponentials and Newton's division in
    16 bits.
    """
    _require_16_bit_types("tanh_between", x_map, out, 2.0**-15)
    if newton and float(x_map.scale) in (2.0**-12, 2.0**-11):
        twice = 0 if float(x_map.scale) == 2.0**-12 else 1
        return saturate(SHORT.tanh(SHORT.times_power_of_2(x.astype(np.int64), twice), 3), out)
    data = _in_table_units(x, x_map)
    places = np.abs(data)
    value = np.where(places >> 8 >= 255, 0xFFFF << 8, _interpolated_logistic(places, 8))
    value = np.where(data >= 0, value - (1 << 23) + (1 << 7), -value + (1 << 23) + (1 << 7) - 1)
    return saturate(value >> 8, out)


# -- softmax --------------------------------------------------------------------------------------


def _sample_with_correction(step: float, zero: int, function: Callable[[Real64], Real64]) -> Whole:
    """Returns 513 samples of a function of 16-bit integers.

    Each is moved by half the error that interpolation makes at the middle of its interval.
    """
    positions = step * (np.linspace(_LOW, _HIGH, 513) - zero)
    values = function(positions) * 32768.0
    midpoints = function((positions[:-1] + positions[1:]) / 2) * 32768.0
    rounded = _AWAY(values)
    error = _AWAY((values[1:] + rounded[:-1]) / 2) - _AWAY(midpoints)
    rounded[:-1] -= _AWAY(error / 2)
    return np.clip(rounded, _LOW, _HIGH).astype(np.int64)


def _interpolate(x: Whole, table: Whole) -> Whole:
    # The upper 9 bits select the entry, the lower 7 interpolate, rounded by adding 64.
    index, remainder = 256 + (x >> 7), x & 0x7F
    return np.asarray(table[index] + ((table[index + 1] - table[index]) * remainder + 64 >> 7))


@cache
def _softmax_tables() -> tuple[Whole, Whole]:
    """Returns exp over [-10, 0], and 1 / (1 + x) over [0, 1]."""
    return (
        _sample_with_correction(10.0 / 65535, _HIGH, np.exp),
        _sample_with_correction(1.0 / 65535, _LOW, lambda x: 1 / (1 + x)),
    )


def share_between(
    x: Integers, x_map: Affine, out: Affine, *, rule: Rule, axis: int = -1
) -> Integers:
    """Computes softmax of 16-bit integers by interpolated tables of exp and of the reciprocal."""
    _require_16_bit_types("share_between", x_map, out, 2.0**-15)
    powers, quotients = _softmax_tables()
    integers = np.moveaxis(x.astype(np.int64), axis, -1)
    if not integers.size:
        return np.zeros(x.shape, out.carrier)
    q, exponent = to_fixed_point(float(float32(x_map.scale)) / (10.0 / 65535.0))
    exponents = multiply_fixed_point(integers - integers.max(-1, keepdims=True), q, exponent, rule)
    terms = _interpolate(np.clip(exponents + _HIGH, _LOW, _HIGH), powers)
    total = terms.sum(-1, keepdims=True)
    # The sum as 1 + x with x in [0, 1): shift out the leading zeros, then subtract 1.
    bits = np.frexp(total.astype(np.float64))[1].astype(np.int64)
    leading_zeros = 32 - bits
    fraction = ((total << (leading_zeros - 1)) + (1 << 13)) >> 14
    inverse = _interpolate(np.clip(fraction - 3 * (1 << 15), _LOW, _HIGH), quotients)
    shift = 31 - leading_zeros
    quotient = (terms * inverse + (np.int64(1) << (shift - 1))) >> shift
    return np.moveaxis(saturate(np.clip(quotient, 0, _HIGH), out), -1, axis)


# -- sums, choices and slopes ---------------------------------------------------------------------


def fixed_total(
    x: Integers,
    x_map: Affine,
    out: Affine,
    *,
    rule: Rule,
    axes: Sequence[int] = (),
    keep: bool = True,
) -> Integers:
    """Returns the sum of q - z by the multiplier of the scales' quotient."""
    reduced_axes = tuple(a % x.ndim for a in axes) or tuple(range(x.ndim))
    count = math.prod(x.shape[a] for a in reduced_axes)
    sums = x.astype(np.int64).sum(reduced_axes, keepdims=keep)
    return fixed_total_of_sums(sums, count, x_map, out, rule=rule)


def fixed_total_of_sums(
    sums: Whole, count: int, x_map: Affine, out: Affine, *, rule: Rule
) -> Integers:
    """Returns sums of raw integers in the result's type; see `fixed_total`."""
    require_per_tensor("fixed_total", x_map, out)
    multiplier = to_fixed_point(float(x_map.scale) / float(out.scale))
    total = multiply_fixed_point(sums - count * int(x_map.zero), *multiplier, rule)
    return saturate(total + int(out.zero), out)


def fixed_slope(
    x: Integers, slope: Integers, x_map: Affine, slope_map: Affine, out: Affine, *, rule: Rule
) -> Integers:
    """Prelu: by one multiplier from zero up, the product of both integers by another below."""
    require_per_tensor("fixed_slope", x_map, slope_map, out)
    value = x.astype(np.int64) - int(x_map.zero)
    product = value * (slope.astype(np.int64) - int(slope_map.zero))
    positive_factor = float(float32(x_map.scale) / float32(out.scale))
    negative_factor = float(
        float32(float32(x_map.scale) * float32(slope_map.scale)) / float32(out.scale)
    )
    above = multiply_fixed_point(value, *to_fixed_point(positive_factor), rule)
    below = multiply_fixed_point(product, *to_fixed_point(negative_factor), rule)
    return saturate(np.where(value >= 0, above, below) + int(out.zero), out)


METHODS: Mapping[str, PluginMethod] = {
    "fixed_total": PluginMethod(
        fixed_total,
        ("reduce_sum",),
        reads=("requant",),
        slots=("x",),
        attrs=("axes", "keep"),
        of_sums=fixed_total_of_sums,
    ),
    "fixed_slope": PluginMethod(
        fixed_slope, ("prelu",), reads=("requant",), slots=("x", "slope"), pointwise=True
    ),
    "logistic_between": PluginMethod(
        logistic_between, ("sigmoid",), slots=("x",), params={"newton": FLAG}
    ),
    "tanh_between": PluginMethod(tanh_between, ("tanh",), slots=("x",), params={"newton": FLAG}),
    "share_between": PluginMethod(
        share_between, ("softmax",), reads=("requant",), slots=("x",), attrs=("axis",)
    ),
}
"""The methods of this module, by the name that profiles use."""
