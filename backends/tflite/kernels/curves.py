"""TensorFlow Lite's interpolated lookup tables: functions of 16-bit integers.

All is whole numbers but the making of the tables, in float64.
"""

from __future__ import annotations

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

from .fixed import SHORT

Whole = NDArray[np.int64]
Real64 = NDArray[np.float64]
_LOW, _HIGH = -(1 << 15), (1 << 15) - 1
_AWAY = ROUNDINGS["away"]


def _alone(name: str, x: Affine, out: Affine, scale: float) -> None:
    """Raises OpError for maps that the kernel does not take."""
    require_per_tensor(name, x, out)
    for of in (x, out):
        if of.storage.bits != 16 or int(of.zero):
            raise OpError(f"{name}: 16-bit integers around zero")
    if float(out.scale) != scale:
        raise OpError(f"{name}: the result's scale is {scale}")


# -- curves ---------------------------------------------------------------------------------------


@cache
def _logistic() -> Whole:
    """Returns the upper half of the logistic function in 16 bits, 24 places a unit, each number
    moved by half of what the middle between it and the next would be off."""
    places = np.arange(513, dtype=np.float64) / 48
    exact = 65536 / (1 + np.exp(-places))
    here, middle, after = exact[:-1:2], exact[1::2], exact[2::2]
    made = np.rint(here - ((here + after) / 2 - middle) / 2)
    made[-1] = 65535
    return made.astype(np.int64)


def _eighths(x: Integers, x_map: Affine) -> Whole:
    """Quantized values in units of 1 / 12288: by a shift where their scale is 2^-12 or 2^-11."""
    scale = float(float32(x_map.scale))
    if scale in (2.0**-12, 2.0**-11):
        return x.astype(np.int64) * (3 if scale == 2.0**-12 else 6)
    by, shift = scale * 4096.0 * 3.0, 0
    while by <= 32767.0 / 2.0 and shift <= 30:
        by, shift = by * 2.0, shift + 1
    half = 1 << (shift - 1) if shift else 0
    moved = (x.astype(np.int64) * int(by) + half).astype(np.int32).astype(np.int64)
    return np.asarray(moved >> shift)


def _between(places: Whole, bits: int) -> Whole:
    """Returns the table's value at places whose last bits are between two of its numbers."""
    table = _logistic()
    at = np.minimum(places >> bits, 254)
    rest = places & ((1 << bits) - 1)
    return np.asarray((table[at] << bits) + rest * (table[at + 1] - table[at]))


def logistic_between(x: Integers, x_map: Affine, out: Affine, *, newton: bool = False) -> Integers:
    """Sigmoid of 16-bit integers: between 256 numbers, rounded once.

    `newton`: where the scale is 2^-12, by powers of e and Newton's division in 16 bits.
    """
    _alone("logistic_between", x_map, out, 2.0**-15)
    if newton and float(x_map.scale) == 2.0**-12:
        return saturate(SHORT.logistic(x.astype(np.int64), 3), out)
    data = _eighths(x, x_map)
    places = np.abs(data)
    value = np.where(places >> 9 >= 255, 0x7FFF << 10, _between(places, 9))
    value = np.where(data >= 0, value + (1 << 9), (1 << 25) - value + (1 << 9) - 1)
    return saturate(value >> 10, out)


def tanh_between(x: Integers, x_map: Affine, out: Affine, *, newton: bool = False) -> Integers:
    """Tanh of 16-bit integers: twice the logistic function of the double, less one.

    `newton`: where the scale is 2^-12 or 2^-11, by powers of e and Newton's division in 16 bits.
    """
    _alone("tanh_between", x_map, out, 2.0**-15)
    if newton and float(x_map.scale) in (2.0**-12, 2.0**-11):
        twice = 0 if float(x_map.scale) == 2.0**-12 else 1
        return saturate(SHORT.tanh(SHORT.times_power_of_2(x.astype(np.int64), twice), 3), out)
    data = _eighths(x, x_map)
    places = np.abs(data)
    value = np.where(places >> 8 >= 255, 0xFFFF << 8, _between(places, 8))
    value = np.where(data >= 0, value - (1 << 23) + (1 << 7), -value + (1 << 23) + (1 << 7) - 1)
    return saturate(value >> 8, out)


# -- softmax --------------------------------------------------------------------------------------


def _sampled(step: float, zero: int, function: Callable[[Real64], Real64]) -> Whole:
    """513 numbers of a function of 16-bit integers, each moved by half of what its middle
    is off."""
    ends = step * (np.linspace(_LOW, _HIGH, 513) - zero)
    exact = function(ends) * 32768.0
    middle = function((ends[:-1] + ends[1:]) / 2) * 32768.0
    first = _AWAY(exact)
    off = _AWAY((exact[1:] + first[:-1]) / 2) - _AWAY(middle)
    first[:-1] -= _AWAY(off / 2)
    return np.clip(first, _LOW, _HIGH).astype(np.int64)


def _looked_up(x: Whole, table: Whole) -> Whole:
    at, rest = 256 + (x >> 7), x & 0x7F
    return np.asarray(table[at] + ((table[at + 1] - table[at]) * rest + 64 >> 7))


@cache
def _tables() -> tuple[Whole, Whole]:
    """exp over [-10, 0], and 1 / (1 + x) over [0, 1]."""
    return (
        _sampled(10.0 / 65535, _HIGH, np.exp),
        _sampled(1.0 / 65535, _LOW, lambda x: 1 / (1 + x)),
    )


def share_between(
    x: Integers, x_map: Affine, out: Affine, *, rule: Rule, axis: int = -1
) -> Integers:
    """Softmax of 16-bit integers: exponents and the quotient of a row between numbers of tables."""
    _alone("share_between", x_map, out, 2.0**-15)
    powers, quotients = _tables()
    codes = np.moveaxis(x.astype(np.int64), axis, -1)
    if not codes.size:
        return np.zeros(x.shape, out.carrier)
    q, exponent = to_fixed_point(float(float32(x_map.scale)) / (10.0 / 65535.0))
    below = multiply_fixed_point(codes - codes.max(-1, keepdims=True), q, exponent, rule)
    terms = _looked_up(np.clip(below + _HIGH, _LOW, _HIGH), powers)
    total = terms.sum(-1, keepdims=True)
    bits = np.frexp(total.astype(np.float64))[1].astype(np.int64)
    room = 32 - bits
    share = ((total << (room - 1)) + (1 << 13)) >> 14
    inverse = _looked_up(np.clip(share - 3 * (1 << 15), _LOW, _HIGH), quotients)
    down = 31 - room
    whole = (terms * inverse + (np.int64(1) << (down - 1))) >> down
    return np.moveaxis(saturate(np.clip(whole, 0, _HIGH), out), -1, axis)


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
    require_per_tensor("fixed_total", x_map, out)
    value = x.astype(np.int64) - int(x_map.zero)
    over = tuple(a % x.ndim for a in axes) or tuple(range(x.ndim))
    total = value.sum(over, keepdims=keep)
    by = to_fixed_point(float(x_map.scale) / float(out.scale))
    return saturate(multiply_fixed_point(total, *by, rule) + int(out.zero), out)


def fixed_slope(
    x: Integers, slope: Integers, x_map: Affine, slope_map: Affine, out: Affine, *, rule: Rule
) -> Integers:
    """Prelu: by one multiplier from zero up, the product of both integers by another below."""
    require_per_tensor("fixed_slope", x_map, slope_map, out)
    value = x.astype(np.int64) - int(x_map.zero)
    product = value * (slope.astype(np.int64) - int(slope_map.zero))
    up = float(float32(x_map.scale) / float32(out.scale))
    down = float(float32(float32(x_map.scale) * float32(slope_map.scale)) / float32(out.scale))
    above = multiply_fixed_point(value, *to_fixed_point(up), rule)
    below = multiply_fixed_point(product, *to_fixed_point(down), rule)
    return saturate(np.where(value >= 0, above, below) + int(out.zero), out)


METHODS: Mapping[str, PluginMethod] = {
    "fixed_total": PluginMethod(
        fixed_total, ("reduce_sum",), reads=("requant",), slots=("x",), attrs=("axes", "keep")
    ),
    "fixed_slope": PluginMethod(fixed_slope, ("prelu",), reads=("requant",), slots=("x", "slope")),
    "logistic_between": PluginMethod(
        logistic_between, ("sigmoid",), slots=("x",), params={"newton": FLAG}
    ),
    "tanh_between": PluginMethod(tanh_between, ("tanh",), slots=("x",), params={"newton": FLAG}),
    "share_between": PluginMethod(
        share_between, ("softmax",), reads=("requant",), slots=("x",), attrs=("axis",)
    ),
}
"""The methods of this module, by the name that profiles use."""
