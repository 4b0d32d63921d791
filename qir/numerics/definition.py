"""Defines quantize, dequantize and requantize in NumPy, field by field of a profile's rule.

`compiled.py` computes the same bytes with compiled loops; tests compare it with this module.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.affine import Affine, AffineParameters, DeclaredRange
from qir.numerics.consistency import WRAPS, check
from qir.numerics.fields import Levels, Rule, level_of
from qir.numerics.maps import AnyMap, Map
from qir.numerics.rounding import (
    ROUNDINGS,
    SECOND_ROUNDINGS,
    divide_integers,
    doubling_high_multiply,
    fma,
    round_to_float_type,
    shift_right,
)
from qir.numerics.wide_integers import add_saturating, subtract_rounding_once

Integers = NDArray[np.integer]
Floats = NDArray[np.floating]
_Kind = TypeVar("_Kind", bound=np.generic)
F32: np.dtype[np.floating] = np.dtype(np.float32)
F64: np.dtype[np.floating] = np.dtype(np.float64)
_NUMERATOR = np.frompyfunc(attrgetter("numerator"), 1, 1)
_DENOMINATOR = np.frompyfunc(attrgetter("denominator"), 1, 1)


# -- quantize -------------------------------------------------------------------------------------


def quantize(x: NDArray[np.generic], to: AnyMap, rule: Rule) -> NDArray[np.generic]:
    """Quantizes floats.

    A float zero is added before rounding, wherever the rule has whole ones. Float quantized values
    saturate, infinities too. Of a table the nearest entry is taken, of two as near the one with the
    lower index; `round`, `sum`, `far`, `clip` and `bounds` say nothing of it.
    """
    numbers = to.over(np.shape(x))
    q = rule.quantize
    check(rule)
    scaled, zero = _scale_input(np.asarray(x), numbers, to, rule)
    has_nan = bool((nan := np.isnan(scaled)).any())
    if isinstance(to, Map) and to.table is not None:
        return _to_table(scaled, nan, to.table, to, rule)
    if to.storage.is_float:
        return _to_float_storage(scaled, nan, to, rule)
    low, high = to.storage.bounds if q.bounds == "storage" else (to.low, to.high)
    adds_before = q.zero in ("before", "fused") or zero.dtype.kind == "f"
    with np.errstate(invalid="ignore", over="ignore"):
        if q.clip == "reals_first" and not adds_before and to.storage.bits <= 32:
            # low - zero and high - zero are whole: clipping before rounding is exact.
            scaled = np.clip(scaled, _as_float(low - zero, scaled), _as_float(high - zero, scaled))
        rounded = ROUNDINGS[q.round](scaled)
        if q.sum == "real" and not adds_before:
            rounded, adds_before = rounded + _as_float(zero, scaled), True
        integral = rounded.astype(F64)
    zero_after = np.zeros((), np.int64) if adds_before else zero
    if q.far in WRAPS:
        integral = _wrap_to_int32(
            _clip_below_2_31(integral) if q.far == "clip_32" else integral, zero_after
        )
        zero_after = np.zeros((), np.int64)
        has_nan = has_nan and q.nan != "far"
    whole = np.where(nan, 0, integral) if has_nan else integral
    integers = saturate(whole, low, high, to.carrier, zero_after)
    # x86 converts a float that is too large to INT_MIN, which then saturates to the low end.
    if q.far in _OVERFLOW_THRESHOLDS:
        integers = np.where(
            integral + zero_after.astype(F64) >= _OVERFLOW_THRESHOLDS[q.far],
            to.carrier.type(low),
            integers,
        )
    if not has_nan:
        return integers
    return np.where(nan, nan_results(zero, low, high, to.carrier, rule), integers)


def _wrap_to_int32(whole: NDArray[np.float64], zero: NDArray[np.generic]) -> NDArray[np.float64]:
    """Converts to int32, INT32_MIN on overflow as cvtps2dq does, and adds a zero point."""
    converted = np.where((whole >= -(2.0**31)) & (whole < 2.0**31), whole, -(2.0**31))
    return (converted.astype(np.int64) + zero.astype(np.int64)).astype(np.int32).astype(np.float64)


def _clip_below_2_31(whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """Clips to the greatest float32 below 2^31; a NaN becomes that too."""
    return np.where(whole < _MAX_F32_BELOW_2_31, whole, _MAX_F32_BELOW_2_31)


_MAX_F32_BELOW_2_31 = 2.0**31 - 128  # the greatest float32 below 2^31, where torch's vectors end
_INT32_END = 2**31
_OVERFLOW_THRESHOLDS = {"low_32": 2.0**31, "low_64": 2.0**63}
_COMPUTE_DTYPES: dict[str, np.dtype[np.floating]] = {"f64": F64, "f16": np.dtype(np.float16)}


def scale_factor(scale: Floats, rule: Rule) -> Floats:
    """Returns what floats are divided by or multiplied with, in the rule's compute type."""
    q = rule.quantize
    kind = _COMPUTE_DTYPES.get(q.compute, F32)
    with np.errstate(all="ignore"):
        if q.by in ("divide", "low_end"):
            return scale.astype(kind)
        if q.compute == "f64_reciprocal":
            return np.asarray((1.0 / scale.astype(F64)).astype(F32))
        return np.asarray(kind.type(1) / scale.astype(kind))


def in_scale_units(
    x: NDArray[np.generic], numbers: AffineParameters, to: AnyMap, rule: Rule
) -> Floats:
    """Returns x / scale, or (x - low) * levels / span, before the zero point is added."""
    q = rule.quantize
    by = quantize_factor(numbers, to, rule)
    with np.errstate(all="ignore"):
        values: Floats = x.astype(by.dtype)
        if numbers.plus is not None and not _counts_from_low_end(rule):
            values = values - numbers.plus.astype(by.dtype)
        if q.by == "low_end":
            return _above_low(values, by, numbers, to, rule)
        if q.clip == "range_first":
            values = clip_range(values, by, numbers, to, rule)
        if q.by == "divide":
            return np.asarray(values / by)
        if q.by == "span" and q.zero not in ("pair", "pair_once"):
            values = values - _range_of(numbers, to, by.dtype)[0]
        return np.asarray(values * by)


def _above_low(x: Floats, by: Floats, numbers: AffineParameters, to: AnyMap, rule: Rule) -> Floats:
    """Returns (x - low end) / scale, minus the steps from the low end to the zero point."""
    ends = _range_of(AffineParameters(numbers.scale, numbers.zero), to, by.dtype)
    if rule.quantize.clip == "range_first":
        x = np.clip(x, *ends)
    return np.asarray((x - ends[0]) / by - (_as_float(numbers.zero, by) - by.dtype.type(to.low)))


def _counts_from_low_end(rule: Rule) -> bool:
    """Returns whether integers are counted from the low end, which includes the offset."""
    return rule.quantize.by == "span" or rule.quantize.zero in ("pair", "pair_once")


def quantize_factor(numbers: AffineParameters, to: AnyMap, rule: Rule) -> Floats:
    """Returns the scale, reciprocal or gain that the rule's `by` uses."""
    q = rule.quantize
    if q.by in ("divide", "reciprocal", "low_end"):
        return scale_factor(numbers.scale, rule)
    float_type = F64 if q.compute == "f64_reciprocal" else _COMPUTE_DTYPES.get(q.compute, F32)
    level = _level_for(q.levels, to, rule)
    with np.errstate(all="ignore"):
        if q.by == "span":
            low, high = _range_of(numbers, to, float_type)
            steps = float_type.type(level or to.high - to.low)
            factor: Floats = np.asarray(steps / (high - low))
        else:
            factor = _gain(numbers.scale, numbers.ends, to, rule, float_type, level)
    return factor.astype(F32) if q.compute == "f64_reciprocal" else factor


def _range_of(
    numbers: AffineParameters, to: AnyMap, kind: np.dtype[np.floating]
) -> tuple[Floats, Floats]:
    """Returns the declared range, else the dequantized lowest and highest quantized values."""
    if numbers.ends is not None:
        return numbers.ends.low.astype(kind), numbers.ends.high.astype(kind)
    scale, zero = numbers.scale.astype(kind), numbers.zero.astype(kind)
    low, high = ((_as_float(np.asarray(end), scale) - zero) * scale for end in (to.low, to.high))
    plus = scale.dtype.type(0) if numbers.plus is None else numbers.plus.astype(kind)
    return np.asarray(low + plus), np.asarray(high + plus)


def clip_range(
    values: Floats, by: Floats, numbers: AffineParameters, to: AnyMap, rule: Rule
) -> Floats:
    """Clips floats to the range; by a gain, to the dequantized ends of the integers."""
    q = rule.quantize
    if q.by == "gain" and not _counts_from_low_end(rule):
        zero = numbers.zero.astype(by.dtype)
        least, greatest = (_as_float(np.asarray(end), by) - zero for end in (to.low, to.high))
        return np.asarray(np.clip(values, least / by, greatest / by))
    return np.asarray(np.clip(values, *_range_of(numbers, to, by.dtype)))


def _level_for(levels: Levels, of: AnyMap, rule: Rule) -> float | None:
    """Returns the level of a quantized type, if one is named."""
    granularity = "channel" if of.scale.size > 1 else "tensor"
    return level_of(levels, rule.choose.zero, of.storage, (of.low, of.high), granularity)


def _gain(
    scale: Floats,
    ends: DeclaredRange | None,
    of: AnyMap,
    rule: Rule,
    kind: np.dtype[np.floating],
    level: float | None,
) -> Floats:
    """Returns the gain: level / (reach of the declared range), else level / (level * scale).

    `level` None: the level of `choose`, and 1 / scale where the rule names none.
    """
    reader_level = _level_for(rule.choose.levels, of, rule)
    if ends is not None and ends.gain is not None:
        return ends.gain.astype(kind)
    if ends is not None and ends.level is not None:
        reader_level = ends.level
    level_used = level or reader_level
    if ends is not None and rule.choose.reach == "sides":
        return _gain_within_both_sides(ends, of, kind)
    if ends is not None and level_used is not None:
        low, high = ends.low.astype(kind), ends.high.astype(kind)
        reach = {"max": np.maximum(low, high), "span": high - low}.get(
            rule.choose.reach, np.maximum(np.abs(low), np.abs(high))
        )
        return np.asarray(kind.type(level_used) / reach)
    if level is None or level == reader_level:
        return np.asarray(kind.type(1) / scale.astype(kind))
    half = reader_level or (of.high - of.low) / 2
    return np.asarray(kind.type(level) / (scale.astype(kind) * kind.type(half)))


def _gain_within_both_sides(ends: DeclaredRange, of: AnyMap, kind: np.dtype[np.floating]) -> Floats:
    """Returns the largest gain with which both range ends stay within the integers."""
    low, high = ends.low.astype(kind), ends.high.astype(kind)
    largest = np.finfo(kind).max
    below = np.where(low * of.low > 0, kind.type(of.low) / low, largest)
    above = np.where(high * of.high > 0, kind.type(of.high) / high, largest)
    return np.asarray(np.minimum(below, above), kind)


def _scale_input(
    x: NDArray[np.generic], numbers: AffineParameters, to: AnyMap, rule: Rule
) -> tuple[Floats, NDArray[np.generic]]:
    """Returns x in units of the scale, and the zero point that is still to be added.

    A zero point that the rule adds before rounding is in x already.
    """
    q = rule.quantize
    zero = numbers.zero
    if q.zero == "fused":
        return _scale_fused(x, numbers, to, rule), zero
    out = in_scale_units(x, numbers, to, rule)
    with np.errstate(all="ignore"):
        if q.zero == "pair_once":
            out = out - np.asarray(
                _range_of(numbers, to, out.dtype)[0] * quantize_factor(numbers, to, rule)
            )
            zero = np.asarray(to.low, np.int64)
        elif q.zero == "pair":
            zero = _paired_zero(out, numbers, to, rule)
        elif q.by == "span":
            zero = np.asarray(to.low, np.int64)
        if q.zero == "none" and q.by != "span":
            zero = np.zeros_like(zero)
        if q.zero == "before" or zero.dtype.kind == "f":
            out = out + _as_float(zero, out)
    return out, zero


def _scale_fused(
    x: NDArray[np.generic], numbers: AffineParameters, to: AnyMap, rule: Rule
) -> Floats:
    """Returns fma(x, factor, zero): scaled and shifted with one rounding."""
    with np.errstate(all="ignore"):
        values = x.astype(F32)
        if numbers.plus is not None:
            values = values - numbers.plus.astype(F32)
        parts = (values, quantize_factor(numbers, to, rule).astype(F32), numbers.zero.astype(F32))
        return fma(*np.broadcast_arrays(*parts))


def _paired_zero(
    like: Floats, numbers: AffineParameters, to: AnyMap, rule: Rule
) -> NDArray[np.int64]:
    """Returns qmin - round(low end / scale), the zero point that the rounded low end implies."""
    by = quantize_factor(numbers, to, rule)
    low = _range_of(numbers, to, like.dtype)[0]
    steps = low / by if rule.quantize.by == "divide" else low * by
    whole = ROUNDINGS[rule.quantize.round](np.asarray(steps, like.dtype)).astype(F64)
    return np.asarray(to.low - np.nan_to_num(whole)).astype(np.int64)


def _as_float(whole: NDArray[np.generic], like: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(whole).astype(like.dtype)


def saturate(
    whole: NDArray[np.float64],
    low: int,
    high: int,
    carrier: np.dtype[np.generic],
    zero: NDArray[np.generic] | None = None,
) -> Integers:
    """Adds a zero point to integral floats and saturates them to the storage type."""
    if zero is not None and carrier.itemsize == 8 and zero.any():
        return add_saturating(whole, zero, low, high, carrier)
    whole = whole if zero is None else np.asarray(np.add(whole, zero), F64)
    greatest = float(high)
    if int(greatest) <= high:
        return np.minimum(np.maximum(whole, low), high).astype(carrier)
    # 2^63 - 1 lies between two float64, and clipping to it would round up and overflow.
    below = np.clip(whole, low, np.nextafter(greatest, 0)).astype(carrier)
    return np.where(whole >= greatest, carrier.type(high), below).astype(carrier)


def nan_results(
    zero: NDArray[np.generic], low: int, high: int, carrier: np.dtype[np.generic], rule: Rule
) -> Integers:
    """Returns what a NaN becomes, one for each zero point; OpError if the rule does not say."""
    match rule.quantize.nan:
        case "low":
            return np.full(zero.shape, low, carrier)
        case "high":
            return np.full(zero.shape, high, carrier)
        case "zero" if zero.dtype.kind == "f":
            return saturate(np.nan_to_num(np.rint(zero.astype(F64))), low, high, carrier)
        case "zero":
            return zero.astype(carrier)
        case "zero_code":
            return np.full(zero.shape, min(max(low, 0), high), carrier)
        case _:
            raise nan_unspecified_error(rule)


def nan_unspecified_error(rule: Rule) -> OpError:
    """Returns the error for a NaN where the profile does not say what becomes of it."""
    return OpError(f"NaN has no quantized value in profile {rule.profile or '(unnamed)'}")


def _to_float_storage(
    scaled: Floats, nan: NDArray[np.bool_], to: AnyMap, rule: Rule
) -> NDArray[np.generic]:
    """Rounds to the nearest value of a float storage type; keeps NaN where the type has one."""
    info = ml_dtypes.finfo(to.carrier)  # type: ignore[no-untyped-call]
    low, high = float(info.min), float(info.max)
    if rule.quantize.round != "even":
        exponent = np.maximum(np.frexp(scaled.astype(F64))[1] - 1, int(info.minexp))
        step = np.ldexp(1.0, exponent - int(info.nmant))
        scaled = np.clip(scaled.astype(F64), low, high)
        scaled = np.asarray(ROUNDINGS[rule.quantize.round](scaled / step) * step)
    quantized = round_to_float_type(np.clip(scaled, low, high), to.carrier)
    if not nan.any() or np.isnan(np.asarray(np.nan).astype(to.carrier)):
        return quantized
    if rule.quantize.nan == "unspecified":
        raise nan_unspecified_error(rule)
    nan_value = {"low": low, "high": high}.get(rule.quantize.nan, 0.0)
    return np.where(nan, np.asarray(nan_value, to.carrier), quantized)


def _to_table(
    scaled: Floats, nan: NDArray[np.bool_], table: Floats, to: AnyMap, rule: Rule
) -> NDArray[np.generic]:
    """Returns the index of the nearest table entry, of two as near the lower index."""
    midpoints, first = table_midpoints(table)
    target = scaled.astype(F64)
    if nan.any():
        if rule.quantize.nan == "unspecified":
            raise nan_unspecified_error(rule)
        nan_value = {"low": -np.inf, "high": np.inf}.get(rule.quantize.nan, 0.0)
        target = np.where(nan, nan_value, target)
    below, above = (first[np.searchsorted(midpoints, target, side)] for side in ("left", "right"))
    index = np.minimum(below, above)
    if nan.any() and rule.quantize.nan == "low":
        index = np.where(nan, 0, index)
    if nan.any() and rule.quantize.nan == "zero_code":
        index = np.where(nan, min(max(-to.low, 0), table.size - 1), index)
    return (index + to.low).astype(to.carrier)


def table_midpoints(table: Floats) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns the midpoints of the sorted table, and the first index of each entry."""
    values, first = np.unique(table.astype(F64), return_index=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return (values[:-1] + values[1:]) / 2, first


# -- dequantize -----------------------------------------------------------------------------------


def dequantize(integers: NDArray[np.generic], of: AnyMap, rule: Rule) -> Floats:
    """Dequantizes integers to the type that they express."""
    integers = np.asarray(integers)
    numbers = of.over(integers.shape)
    d = rule.dequantize
    kind = F64 if d.compute == "f64" else F32
    half = rule.params.round == "f16"
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        s = _round_packed(numbers.scale.astype(kind), half)
        plus = None if numbers.plus is None else numbers.plus.astype(kind)
        if d.by == "q*s+plus" and numbers.zero.any():
            plus = (0 if plus is None else plus) - numbers.zero.astype(kind) * s
            out = _stored_values(integers, of, kind) * s
        elif d.by == "q*s-z*s":
            out = _stored_values(integers, of, kind) * s - numbers.zero.astype(kind) * s
        elif d.by == "q/gain":
            gain = _gain(numbers.scale, numbers.ends, of, rule, kind, None)
            out = _subtract_zero(integers, of, numbers.zero, kind, rule) / _round_packed(gain, half)
        else:
            out = _subtract_zero(integers, of, numbers.zero, kind, rule) * s
        if plus is not None:
            out = out + _round_packed(np.asarray(plus, kind), half)
        return round_to_float_type(np.asarray(out), express_dtype(of))


def _round_packed(numbers: Floats, packs_half: bool) -> Floats:
    """Rounds parameters to float16 where a kernel packs them so."""
    return numbers.astype(np.float16).astype(numbers.dtype) if packs_half else numbers


def express_dtype(of: AnyMap) -> np.dtype[np.generic]:
    """Returns the NumPy type of the float values that quantized values mean."""
    return of.scale.dtype if of.express is None else of.express.carrier


def _stored_values(
    integers: NDArray[np.generic], of: AnyMap, kind: np.dtype[np.floating]
) -> Floats:
    """Returns the table entries of integers, or the integers, as floats."""
    if not isinstance(of, Map) or of.table is None:
        return integers.astype(kind)
    index = integers.astype(np.int64) - of.low
    if index.size and not 0 <= index.min() <= index.max() < of.table.size:
        wrong = index.max() if index.max() >= of.table.size else index.min()
        raise OpError(f"value {wrong + of.low} has no entry in a table of {of.table.size}")
    return of.table.astype(kind)[index]


def _subtract_zero(
    integers: NDArray[np.generic],
    of: AnyMap,
    zero: NDArray[np.generic],
    kind: np.dtype[np.floating],
    rule: Rule,
) -> Floats:
    """Returns q - zero rounded once, or from values rounded first where `codes` is "real"."""
    if zero.dtype.kind == "f" or rule.dequantize.codes == "real":
        return np.asarray(_stored_values(integers, of, kind) - zero.astype(kind))
    if not zero.any():
        return _stored_values(integers, of, kind)
    if of.storage.bits > 32:
        return subtract_rounding_once(integers, zero, kind)
    return np.asarray((integers.astype(np.int64) - zero.astype(np.int64)).astype(kind))


# -- requantize -----------------------------------------------------------------------------------


def requantize(
    acc: NDArray[np.generic], factor: NDArray[np.generic], y: Affine, rule: Rule, *, axis: int = 1
) -> Integers:
    """Requantizes int32 sums, bias included, by the factor that `multiplier` returned."""
    r = rule.requant
    check(rule)
    m = broadcastable_factor(factor, acc.ndim, axis)
    scale, zero = y.along(acc.ndim)
    if r.multiplier == "exact":
        return _requantize_exact(acc, m, zero, y, rule)
    float_factor = m.astype(m.dtype if m.dtype.kind == "f" else F64)
    if r.multiplier in ("q31", "q15"):
        return _requantize_fixed_point(acc, float_factor, zero.astype(np.int64), y, rule)
    with np.errstate(all="ignore"):
        scaled = np.asarray(acc.astype(float_factor.dtype) * float_factor)
        if r.multiplier == "divide":
            gain = gains(y, rule, scaled.dtype).reshape(scale.shape)
            scaled = in_result_units(scaled, scale, gain, rule)
        return round_saturate(scaled, zero, y, rule)


def in_result_units(floats: Floats, scale: Floats, gain: Floats, rule: Rule) -> Floats:
    """Divides floats by the result's scale, in the order and way of the rule."""
    by, divides = result_factor(scale, gain, rule, floats.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(floats / by if divides else floats * by)


def result_factor(
    scale: Floats, gain: Floats, rule: Rule, kind: np.dtype[np.floating]
) -> tuple[Floats, bool]:
    """Returns what brings floats to the result's scale, and whether they are divided by it."""
    with np.errstate(all="ignore"):
        match rule.requant.order:
            case "gy/gx/gw" | "(x*w)*gy":
                return gain.astype(kind), False
            case "(x*w)*(1/y)" | "x*w*(1/y)":
                return np.asarray(kind.type(1) / scale.astype(kind)), False
            case "x*w/y" if rule.requant.scales == "inverted":
                one = F32.type(1)
                return (one / (one / scale.astype(F32))).astype(kind), True
            case _:
                return scale.astype(kind), True


def round_saturate(scaled: Floats, zero: NDArray[np.generic], y: Affine, rule: Rule) -> Integers:
    """Adds the zero point to floats in units of the result, rounds and saturates them."""
    r = rule.requant
    after = zero if r.zero == "after" else np.zeros_like(zero)
    with np.errstate(over="ignore", invalid="ignore"):
        if r.zero == "before":
            scaled = scaled + _as_float(zero, scaled)
        if r.clip == "reals" and y.storage.bits <= 32:
            scaled = np.clip(
                scaled, _as_float(y.low - after, scaled), _as_float(y.high - after, scaled)
            )
        integral = ROUNDINGS[r.round](scaled).astype(F64)
    nan = np.isnan(integral)
    quantized = saturate(np.where(nan, 0, integral), y.low, y.high, y.carrier, after)
    # maxps and minps give their second operand for a NaN: the low end.
    return np.where(nan, y.carrier.type(y.low), quantized) if nan.any() else quantized


def broadcastable_factor(factor: NDArray[_Kind], rank: int, axis: int) -> NDArray[_Kind]:
    """Reshapes a per-tensor, per-channel or per-sum factor to broadcast over that rank."""
    if factor.ndim == 0 or (factor.ndim == rank and rank > 1):
        return factor
    shape = [1] * rank
    shape[axis] = -1
    return factor.reshape(shape)


def fixed_point_multiplier(m: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns q and exponent with m = q * 2^(exponent - 31), as gemmlowp's QuantizeMultiplier."""
    fraction, exponent = np.frexp(m.astype(np.float64))
    q = np.floor(fraction * 2.0**31 + 0.5).astype(np.int64)
    rounds_up_to_one = q == 1 << 31
    return np.where(rounds_up_to_one, 1 << 30, q), exponent.astype(np.int64) + rounds_up_to_one


def _requantize_fixed_point(
    acc: NDArray[np.generic], m: Floats, zero: NDArray[np.int64], y: Affine, rule: Rule
) -> Integers:
    """Requantizes by gemmlowp's 31-bit multiplier, or TFLite's 15-bit one, and a shift."""
    r = rule.requant
    q, exponent = fixed_point_multiplier(m)
    sums = acc.astype(np.int64)
    if r.round in SECOND_ROUNDINGS:
        left, right = np.maximum(exponent, 0), np.maximum(-exponent, 0)
        shifted = (sums << left).astype(np.int32)
        whole = SECOND_ROUNDINGS[r.round](
            doubling_high_multiply(shifted, q.astype(np.int32)), right
        ).astype(np.int64)
    else:
        bits = 31
        if r.multiplier == "q15":
            bits, q = 15, np.where(q < 0x7FFF0000, (q + (1 << 15)) >> 16, 0x7FFF)
        if r.clip == "codes_32":
            q, exponent = np.where(exponent <= 30, q, _INT32_END - 1), np.minimum(exponent, 30)
        zero_inside = zero if r.zero == "before" else np.zeros((), np.int64)
        whole = shift_right(sums * q, bits - exponent, r.round, zero_inside)
        if r.multiplier == "q15":  # what is made is a number of 32 bits
            whole = whole.astype(np.int32).astype(np.int64)
    if r.clip == "codes_32":
        out = (np.clip(whole, -_INT32_END, _INT32_END - 1) + zero).astype(np.int32).astype(np.int64)
    else:
        out = whole + (0 if r.zero == "none" else zero)
    return np.asarray(np.clip(out, y.low, y.high).astype(y.carrier))


def _requantize_exact(
    acc: NDArray[np.generic],
    m: NDArray[np.generic],
    zero: NDArray[np.integer],
    y: Affine,
    rule: Rule,
) -> Integers:
    """Requantizes as in exact arithmetic: float64, and fractions where that is near a tie."""
    r = rule.requant
    with np.errstate(all="ignore"):
        scaled = np.asarray(acc.astype(F64) * m.astype(F64))
    zeros = np.broadcast_to(zero, scaled.shape)
    zero_after = zeros if r.zero != "none" else np.zeros_like(zeros)
    whole = np.rint(scaled)
    is_near_tie = np.abs(np.abs(scaled - np.trunc(scaled)) - 0.5) <= np.abs(scaled) * 2.0**-49
    is_near_tie &= (scaled + zero_after > y.low - 1.0) & (scaled + zero_after < y.high + 1.0)
    if is_near_tie.any():
        zero_inside = (zeros if r.zero == "before" else np.zeros_like(zeros))[is_near_tie]
        above, below = (
            np.broadcast_to(part(m), scaled.shape)[is_near_tie]
            for part in (_NUMERATOR, _DENOMINATOR)
        )
        sums = acc[is_near_tie].astype(np.int64).astype(object)
        quotients = divide_integers(above * sums, below, r.round, zero_inside.astype(object))
        whole[is_near_tie] = quotients.astype(F64)
    return saturate(whole, y.low, y.high, y.carrier, zero_after)


def gains(of: AnyMap, rule: Rule, kind: np.dtype[np.floating]) -> Floats:
    """Returns 1 / scale as kernels that carry ranges compute it, in the shape of the scales."""
    with np.errstate(all="ignore"):
        return _gain(of.scale, of.ends, of, rule, kind, None)
