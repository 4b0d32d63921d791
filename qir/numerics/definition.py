"""What quantize, dequantize and requantize are, field by field of a rule: in NumPy.

`quantize.py` computes the same bytes faster where it can; this is what it answers to.
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
    TWICE,
    divide_whole,
    fma,
    high_multiply,
    narrowed,
    shift_right,
)
from qir.numerics.wide_integers import added, difference

Codes = NDArray[np.integer]
Reals = NDArray[np.floating]
_Kind = TypeVar("_Kind", bound=np.generic)
F32: np.dtype[np.floating] = np.dtype(np.float32)
F64: np.dtype[np.floating] = np.dtype(np.float64)
_ABOVE = np.frompyfunc(attrgetter("numerator"), 1, 1)
_BELOW = np.frompyfunc(attrgetter("denominator"), 1, 1)


# -- quantize -------------------------------------------------------------------------------------


def quantize(x: NDArray[np.generic], to: AnyMap, rule: Rule) -> NDArray[np.generic]:
    """Quantized values of float values.

    A float zero is added before rounding, wherever the rule has whole ones. Float quantized values
    saturate, infinities too. Of a table the nearest entry is taken, of two as near the one with the
    lower index; `round`, `sum`, `far`, `clip` and `bounds` say nothing of it.
    """
    numbers = to.over(np.shape(x))
    q = rule.quantize
    check(rule)
    scaled, zero = _scaled(np.asarray(x), numbers, to, rule)
    nan = np.isnan(scaled)
    if isinstance(to, Map) and to.table is not None:
        return _nearest(scaled, nan, to.table, to, rule)
    if to.storage.is_float:
        return _saturated(scaled, nan, to, rule)
    low, high = to.storage.bounds if q.bounds == "storage" else (to.low, to.high)
    inside = q.zero in ("before", "fused") or zero.dtype.kind == "f"
    with np.errstate(invalid="ignore", over="ignore"):
        if q.clip == "reals_first" and not inside and to.storage.bits <= 32:
            # low - zero and high - zero are whole: clipping before rounding is exact.
            scaled = np.clip(scaled, _real(low - zero, scaled), _real(high - zero, scaled))
        near = ROUNDINGS[q.round](scaled)
        if q.sum == "real" and not inside:
            near, inside = near + _real(zero, scaled), True
        whole = near.astype(F64)
    moved = np.zeros((), np.int64) if inside else zero
    if q.far in WRAPS:
        whole = _wrapped(_clipped_32(whole) if q.far == "clip_32" else whole, moved)
        moved = np.zeros((), np.int64)
        nan = nan & (q.nan != "far")
    codes = stored(np.where(nan, 0, whole), low, high, to.carrier, moved)
    if q.far in _UNHELD:
        codes = np.where(whole + moved.astype(F64) >= _UNHELD[q.far], to.carrier.type(low), codes)
    if not nan.any():
        return codes
    return np.where(nan, nan_codes(zero, low, high, to.carrier, rule), codes)


def _wrapped(whole: NDArray[np.float64], zero: NDArray[np.generic]) -> NDArray[np.float64]:
    """Whole numbers as 32 bits, the lowest of all where these do not hold them, and a zero point
    added in 32 bits, beyond whose ends it wraps."""
    held = np.where((whole >= -(2.0**31)) & (whole < 2.0**31), whole, -(2.0**31))
    return (held.astype(np.int64) + zero.astype(np.int64)).astype(np.int32).astype(np.float64)


def _clipped_32(whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whole numbers that end at the last float32 that 32 bits hold; a NaN is one above."""
    return np.where(whole < _LAST, whole, _LAST)


_LAST = 2.0**31 - 128
"""The greatest float32 below 2^31, where torch's vectors end."""
_WORD = 2**31
"""What 32 bits end before."""
_UNHELD = {"low_32": 2.0**31, "low_64": 2.0**63}
_KINDS: dict[str, np.dtype[np.floating]] = {"f64": F64, "f16": np.dtype(np.float16)}


def factor(scale: Reals, rule: Rule) -> Reals:
    """What float values are divided by or multiplied with, in the type that is computed in."""
    q = rule.quantize
    kind = _KINDS.get(q.compute, F32)
    with np.errstate(all="ignore"):
        if q.by in ("divide", "low_end"):
            return scale.astype(kind)
        if q.compute == "f64_reciprocal":
            return np.asarray((1.0 / scale.astype(F64)).astype(F32))
        return np.asarray(kind.type(1) / scale.astype(kind))


def in_codes(x: NDArray[np.generic], numbers: AffineParameters, to: AnyMap, rule: Rule) -> Reals:
    """Float values in units of the scale, or from the low end in units of a span; no zero point
    yet."""
    q = rule.quantize
    by = _encoding(numbers, to, rule)
    with np.errstate(all="ignore"):
        values: Reals = x.astype(by.dtype)
        if numbers.plus is not None and not _from_low(rule):
            values = values - numbers.plus.astype(by.dtype)
        if q.by == "low_end":
            return _above_low(values, by, numbers, to, rule)
        if q.clip == "range_first":
            values = _within(values, by, numbers, to, rule)
        if q.by == "divide":
            return np.asarray(values / by)
        if q.by == "span" and q.zero not in ("pair", "pair_once"):
            values = values - _far_ends(numbers, to, by.dtype)[0]
        return np.asarray(values * by)


def _above_low(
    values: Reals, by: Reals, numbers: AffineParameters, to: AnyMap, rule: Rule
) -> Reals:
    """Steps from what the lowest quantized value means, less those from there to the zero point."""
    ends = _far_ends(AffineParameters(numbers.scale, numbers.zero), to, by.dtype)
    if rule.quantize.clip == "range_first":
        values = np.clip(values, *ends)
    return np.asarray((values - ends[0]) / by - (_real(numbers.zero, by) - by.dtype.type(to.low)))


def _from_low(rule: Rule) -> bool:
    """Returns whether integers are counted from the low end of the range, which an offset moves
    along."""
    return rule.quantize.by == "span" or rule.quantize.zero in ("pair", "pair_once")


def _encoding(numbers: AffineParameters, to: AnyMap, rule: Rule) -> Reals:
    """The factor of the way float values are quantized."""
    q = rule.quantize
    if q.by in ("divide", "reciprocal", "low_end"):
        return factor(numbers.scale, rule)
    wide = F64 if q.compute == "f64_reciprocal" else _KINDS.get(q.compute, F32)
    level = _level(q.levels, to, rule)
    with np.errstate(all="ignore"):
        if q.by == "span":
            low, high = _far_ends(numbers, to, wide)
            steps = wide.type(level or to.high - to.low)
            found: Reals = np.asarray(steps / (high - low))
        else:
            found = _gain(numbers.scale, numbers.ends, to, rule, wide, level)
    return found.astype(F32) if q.compute == "f64_reciprocal" else found


def _far_ends(
    numbers: AffineParameters, to: AnyMap, kind: np.dtype[np.floating]
) -> tuple[Reals, Reals]:
    """Returns the range that is declared, else what the lowest and the highest quantized value
    mean."""
    if numbers.ends is not None:
        return numbers.ends.low.astype(kind), numbers.ends.high.astype(kind)
    scale, zero = numbers.scale.astype(kind), numbers.zero.astype(kind)
    low, high = ((_real(np.asarray(end), scale) - zero) * scale for end in (to.low, to.high))
    plus = scale.dtype.type(0) if numbers.plus is None else numbers.plus.astype(kind)
    return np.asarray(low + plus), np.asarray(high + plus)


def _within(values: Reals, by: Reals, numbers: AffineParameters, to: AnyMap, rule: Rule) -> Reals:
    """Float values cut at the ends of the range; of a gain, at what the ends of the integers mean
    by it."""
    q = rule.quantize
    if q.by == "gain" and not _from_low(rule):
        zero = numbers.zero.astype(by.dtype)
        least, most = (_real(np.asarray(end), by) - zero for end in (to.low, to.high))
        return np.asarray(np.clip(values, least / by, most / by))
    return np.asarray(np.clip(values, *_far_ends(numbers, to, by.dtype)))


def _level(levels: Levels, of: AnyMap, rule: Rule) -> float | None:
    """Returns the level of a quantized type, if one is named."""
    grain = "channel" if of.scale.size > 1 else "tensor"
    return level_of(levels, rule.choose.zero, of.storage, (of.low, of.high), grain)


def _gain(
    scale: Reals,
    ends: DeclaredRange | None,
    of: AnyMap,
    rule: Rule,
    kind: np.dtype[np.floating],
    level: float | None,
) -> Reals:
    """Quantized values a float unit: a level over what the declared range reaches, else over level
    * scale.

    `level` None: the one that readers use, and 1 / scale where nothing names one.
    """
    read = _level(rule.choose.levels, of, rule)
    if ends is not None and ends.gain is not None:
        return ends.gain.astype(kind)
    if ends is not None and ends.level is not None:
        read = ends.level
    far = level or read
    if ends is not None and rule.choose.reach == "sides":
        return _by_sides(ends, of, kind)
    if ends is not None and far is not None:
        low, high = ends.low.astype(kind), ends.high.astype(kind)
        reach = {"max": np.maximum(low, high), "span": high - low}.get(
            rule.choose.reach, np.maximum(np.abs(low), np.abs(high))
        )
        return np.asarray(kind.type(far) / reach)
    if level is None or level == read:
        return np.asarray(kind.type(1) / scale.astype(kind))
    assert level is not None
    half = read or (of.high - of.low) / 2
    return np.asarray(kind.type(level) / (scale.astype(kind) * kind.type(half)))


def _by_sides(ends: DeclaredRange, of: AnyMap, kind: np.dtype[np.floating]) -> Reals:
    """Returns the gain by which neither side leaves the quantized values."""
    low, high = ends.low.astype(kind), ends.high.astype(kind)
    most = np.finfo(kind).max
    below = np.where(low * of.low > 0, kind.type(of.low) / low, most)
    above = np.where(high * of.high > 0, kind.type(of.high) / high, most)
    return np.asarray(np.minimum(below, above), kind)


def _scaled(
    x: NDArray[np.generic], numbers: AffineParameters, to: AnyMap, rule: Rule
) -> tuple[Reals, NDArray[np.generic]]:
    """x in units of the scale, with the zero point in it where that comes before rounding, and
    the zero point; of a span the low quantized value, of a pair that less the rounded low end."""
    q = rule.quantize
    zero = numbers.zero
    if q.zero == "fused":
        return _fused(x, numbers, to, rule), zero
    out = in_codes(x, numbers, to, rule)
    with np.errstate(all="ignore"):
        if q.zero == "pair_once":
            out = out - np.asarray(
                _far_ends(numbers, to, out.dtype)[0] * _encoding(numbers, to, rule)
            )
            zero = np.asarray(to.low, np.int64)
        elif q.zero == "pair":
            zero = _paired(out, numbers, to, rule)
        elif q.by == "span":
            zero = np.asarray(to.low, np.int64)
        if q.zero == "none" and q.by != "span":
            zero = np.zeros_like(zero)
        if q.zero == "before" or zero.dtype.kind == "f":
            out = out + _real(zero, out)
    return out, zero


def _fused(x: NDArray[np.generic], numbers: AffineParameters, to: AnyMap, rule: Rule) -> Reals:
    """x in units of the scale and the zero point, in one rounding."""
    with np.errstate(all="ignore"):
        values = x.astype(F32)
        if numbers.plus is not None:
            values = values - numbers.plus.astype(F32)
        parts = (values, _encoding(numbers, to, rule).astype(F32), numbers.zero.astype(F32))
        return fma(*np.broadcast_arrays(*parts))


def _paired(like: Reals, numbers: AffineParameters, to: AnyMap, rule: Rule) -> NDArray[np.int64]:
    """Returns the low quantized value, less the low end of the range rounded as floats are."""
    by = _encoding(numbers, to, rule)
    low = _far_ends(numbers, to, like.dtype)[0]
    steps = low / by if rule.quantize.by == "divide" else low * by
    whole = ROUNDINGS[rule.quantize.round](np.asarray(steps, like.dtype)).astype(F64)
    return np.asarray(to.low - np.nan_to_num(whole)).astype(np.int64)


def _real(whole: NDArray[np.generic], like: Reals) -> Reals:
    with np.errstate(over="ignore"):
        return np.asarray(whole).astype(like.dtype)


def stored(
    whole: NDArray[np.float64],
    low: int,
    high: int,
    carrier: np.dtype[np.generic],
    zero: NDArray[np.generic] | None = None,
) -> Codes:
    """Whole numbers in float64, and a zero point to them, as quantized values that saturate."""
    if zero is not None and carrier.itemsize == 8 and zero.any():
        return added(whole, zero, low, high, carrier)
    whole = whole if zero is None else np.asarray(np.add(whole, zero), F64)
    most = float(high)
    if int(most) <= high:
        return np.clip(whole, low, high).astype(carrier)
    # 2^63 - 1 and its like are between two float64.
    below = np.clip(whole, low, np.nextafter(most, 0)).astype(carrier)
    return np.where(whole >= most, carrier.type(high), below).astype(carrier)


def nan_codes(
    zero: NDArray[np.generic], low: int, high: int, carrier: np.dtype[np.generic], rule: Rule
) -> Codes:
    """Returns what a NaN becomes, by the zero of its block; raises OpError where the profile does
    not say."""
    match rule.quantize.nan:
        case "low":
            return np.full(zero.shape, low, carrier)
        case "high":
            return np.full(zero.shape, high, carrier)
        case "zero" if zero.dtype.kind == "f":
            return stored(np.nan_to_num(np.rint(zero.astype(F64))), low, high, carrier)
        case "zero":
            return zero.astype(carrier)
        case "zero_code":
            return np.full(zero.shape, min(max(low, 0), high), carrier)
        case _:
            raise no_code(rule)


def no_code(rule: Rule) -> OpError:
    """Returns the error for a NaN where the profile does not say what becomes of it."""
    return OpError(f"NaN has no quantized value in profile {rule.profile or '(unnamed)'}")


def _saturated(
    scaled: Reals, nan: NDArray[np.bool_], to: AnyMap, rule: Rule
) -> NDArray[np.generic]:
    """Float quantized values: the nearest there is; NaN stays where the type has it."""
    info = ml_dtypes.finfo(to.carrier)  # type: ignore[no-untyped-call]
    low, high = float(info.min), float(info.max)
    if rule.quantize.round != "even":
        exponent = np.maximum(np.frexp(scaled.astype(F64))[1] - 1, int(info.minexp))
        step = np.ldexp(1.0, exponent - int(info.nmant))
        scaled = np.clip(scaled.astype(F64), low, high)
        scaled = np.asarray(ROUNDINGS[rule.quantize.round](scaled / step) * step)
    codes = narrowed(np.clip(scaled, low, high), to.carrier)
    if not nan.any() or np.isnan(np.asarray(np.nan).astype(to.carrier)):
        return codes
    if rule.quantize.nan == "unspecified":
        raise no_code(rule)
    met = {"low": low, "high": high}.get(rule.quantize.nan, 0.0)
    return np.where(nan, np.asarray(met, to.carrier), codes)


def _nearest(
    scaled: Reals, nan: NDArray[np.bool_], table: Reals, to: AnyMap, rule: Rule
) -> NDArray[np.generic]:
    """Returns the quantized value whose entry is nearest, the lower one of two."""
    middles, first = neighbours(table)
    wanted = scaled.astype(F64)
    if nan.any():
        if rule.quantize.nan == "unspecified":
            raise no_code(rule)
        met = {"low": -np.inf, "high": np.inf}.get(rule.quantize.nan, 0.0)
        wanted = np.where(nan, met, wanted)
    below, above = (first[np.searchsorted(middles, wanted, side)] for side in ("left", "right"))
    index = np.minimum(below, above)
    if nan.any() and rule.quantize.nan == "low":
        index = np.where(nan, 0, index)
    if nan.any() and rule.quantize.nan == "zero_code":
        index = np.where(nan, min(max(-to.low, 0), table.size - 1), index)
    return (index + to.low).astype(to.carrier)


def neighbours(table: Reals) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns the middles between the entries of a table as they rise, in float64, and each entry's
    index.

    Of equal entries the first counts.
    """
    values, first = np.unique(table.astype(F64), return_index=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return (values[:-1] + values[1:]) / 2, first


# -- dequantize -----------------------------------------------------------------------------------


def dequantize(codes: NDArray[np.generic], of: AnyMap, rule: Rule) -> Reals:
    """Dequantizes integers to the type that they express."""
    codes = np.asarray(codes)
    numbers = of.over(codes.shape)
    d = rule.dequantize
    kind = F64 if d.compute == "f64" else F32
    half = rule.params.round == "f16"
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        s = _packed(numbers.scale.astype(kind), half)
        plus = None if numbers.plus is None else numbers.plus.astype(kind)
        if d.by == "q*s+plus" and numbers.zero.any():
            plus = (0 if plus is None else plus) - numbers.zero.astype(kind) * s
            out = _values(codes, of, kind) * s
        elif d.by == "q*s-z*s":
            out = _values(codes, of, kind) * s - numbers.zero.astype(kind) * s
        elif d.by == "q/gain":
            gain = _gain(numbers.scale, numbers.ends, of, rule, kind, None)
            out = _centred(codes, of, numbers.zero, kind, rule) / _packed(gain, half)
        else:
            out = _centred(codes, of, numbers.zero, kind, rule) * s
        if plus is not None:
            out = out + _packed(np.asarray(plus, kind), half)
        return narrowed(np.asarray(out), result_of(of))


def _packed(numbers: Reals, half: bool) -> Reals:
    """Numbers as packing leaves them."""
    return numbers.astype(np.float16).astype(numbers.dtype) if half else numbers


def result_of(of: AnyMap) -> np.dtype[np.generic]:
    """Returns the NumPy type of the float values that quantized values mean."""
    return of.scale.dtype if of.express is None else of.express.carrier


def _values(codes: NDArray[np.generic], of: AnyMap, kind: np.dtype[np.floating]) -> Reals:
    """Returns what quantized values stand for before scale and zero."""
    if not isinstance(of, Map) or of.table is None:
        return codes.astype(kind)
    index = codes.astype(np.int64) - of.low
    if index.size and not 0 <= index.min() <= index.max() < of.table.size:
        wrong = index.max() if index.max() >= of.table.size else index.min()
        raise OpError(f"value {wrong + of.low} has no entry in a table of {of.table.size}")
    return of.table.astype(kind)[index]


def _centred(
    codes: NDArray[np.generic],
    of: AnyMap,
    zero: NDArray[np.generic],
    kind: np.dtype[np.floating],
    rule: Rule,
) -> Reals:
    """q - zero in one rounding, or of quantized values that are rounded first; what has no whole
    zero is only converted."""
    if zero.dtype.kind == "f" or rule.dequantize.codes == "real":
        return np.asarray(_values(codes, of, kind) - zero.astype(kind))
    if not zero.any():
        return _values(codes, of, kind)
    if of.storage.bits > 32:
        return difference(codes, zero, kind)
    return np.asarray((codes.astype(np.int64) - zero.astype(np.int64)).astype(kind))


# -- requantize -----------------------------------------------------------------------------------


def requantize(
    acc: NDArray[np.generic], factor: NDArray[np.generic], y: Affine, rule: Rule, *, axis: int = 1
) -> Codes:
    """Returns the quantized result of integer sums, bias included, by what `multiplier` gave."""
    r = rule.requant
    check(rule)
    m = shaped(factor, acc.ndim, axis)
    scale, zero = y.along(acc.ndim)
    if r.multiplier == "exact":
        return _exact(acc, m, zero, y, rule)
    real = m.astype(m.dtype if m.dtype.kind == "f" else F64)
    if r.multiplier in ("q31", "q15"):
        return _fixed_point(acc, real, zero.astype(np.int64), y, rule)
    with np.errstate(all="ignore"):
        scaled = np.asarray(acc.astype(real.dtype) * real)
        if r.multiplier == "divide":
            gain = gains(y, rule, scaled.dtype).reshape(scale.shape)
            scaled = in_steps(scaled, scale, gain, rule)
        return rounded(scaled, zero, y, rule)


def in_steps(reals: Reals, scale: Reals, gain: Reals, rule: Rule) -> Reals:
    """Float values in units of the result, in the type they have."""
    with np.errstate(all="ignore"):
        match rule.requant.order:
            case "gy/gx/gw" | "(x*w)*gy":
                return np.asarray(reals * gain.astype(reals.dtype))
            case "(x*w)*(1/y)" | "x*w*(1/y)":
                return np.asarray(reals * (reals.dtype.type(1) / scale.astype(reals.dtype)))
            case "x*w/y" if rule.requant.scales == "inverted":
                one = F32.type(1)
                return np.asarray(reals / (one / (one / scale.astype(F32))).astype(reals.dtype))
            case _:
                return np.asarray(reals / scale.astype(reals.dtype))


def rounded(scaled: Reals, zero: NDArray[np.generic], y: Affine, rule: Rule) -> Codes:
    """Quantized values of floats that are in units of the result."""
    r = rule.requant
    after = zero if r.zero == "after" else np.zeros_like(zero)
    with np.errstate(over="ignore", invalid="ignore"):
        if r.zero == "before":
            scaled = scaled + _real(zero, scaled)
        if r.clip == "reals" and y.storage.bits <= 32:
            scaled = np.clip(scaled, _real(y.low - after, scaled), _real(y.high - after, scaled))
        whole = ROUNDINGS[r.round](scaled).astype(F64)
    nan = np.isnan(whole)
    codes = stored(np.where(nan, 0, whole), y.low, y.high, y.carrier, after)
    # maxps and minps give their second operand for a NaN: the low end.
    return np.where(nan, y.carrier.type(y.low), codes) if nan.any() else codes


def shaped(factor: NDArray[_Kind], rank: int, axis: int) -> NDArray[_Kind]:
    """Returns one factor, one a channel, or one for each sum, to go with an array of that rank."""
    if factor.ndim == 0 or (factor.ndim == rank and rank > 1):
        return factor
    shape = [1] * rank
    shape[axis] = -1
    return factor.reshape(shape)


def mantissa(m: Reals) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Whole numbers below 2^31 and exponents: m is q * 2^(exponent - 31)."""
    fraction, exponent = np.frexp(m.astype(np.float64))
    q = np.floor(fraction * 2.0**31 + 0.5).astype(np.int64)
    over = q == 1 << 31
    return np.where(over, 1 << 30, q), exponent.astype(np.int64) + over


def _fixed_point(
    acc: NDArray[np.generic], m: Reals, zero: NDArray[np.int64], y: Affine, rule: Rule
) -> Codes:
    """gemmlowp's multiplier of 31 bits, or TFLite's of 15, and a shift; rounded twice or once."""
    r = rule.requant
    q, exponent = mantissa(m)
    sums = acc.astype(np.int64)
    if r.round in TWICE:
        left, right = np.maximum(exponent, 0), np.maximum(-exponent, 0)
        moved = (sums << left).astype(np.int32)
        whole = TWICE[r.round](high_multiply(moved, q.astype(np.int32)), right).astype(np.int64)
    else:
        bits = 31
        if r.multiplier == "q15":
            bits, q = 15, np.where(q < 0x7FFF0000, (q + (1 << 15)) >> 16, 0x7FFF)
        if r.clip == "codes_32":
            q, exponent = np.where(exponent <= 30, q, _WORD - 1), np.minimum(exponent, 30)
        inside = zero if r.zero == "before" else np.zeros((), np.int64)
        whole = shift_right(sums * q, bits - exponent, r.round, inside)
        if r.multiplier == "q15":  # what is made is a number of 32 bits
            whole = whole.astype(np.int32).astype(np.int64)
    if r.clip == "codes_32":
        total = (np.clip(whole, -_WORD, _WORD - 1) + zero).astype(np.int32).astype(np.int64)
    else:
        total = whole + (0 if r.zero == "none" else zero)
    return np.asarray(np.clip(total, y.low, y.high).astype(y.carrier))


def _exact(
    acc: NDArray[np.generic],
    m: NDArray[np.generic],
    zero: NDArray[np.integer],
    y: Affine,
    rule: Rule,
) -> Codes:
    """Quantized values as if numbers had no end of digits: float64, and fractions where that is
    near a tie."""
    r = rule.requant
    with np.errstate(all="ignore"):
        scaled = np.asarray(acc.astype(F64) * m.astype(F64))
    zeros = np.broadcast_to(zero, scaled.shape)
    moved = zeros if r.zero != "none" else np.zeros_like(zeros)
    whole = np.rint(scaled)
    near = np.abs(np.abs(scaled - np.trunc(scaled)) - 0.5) <= np.abs(scaled) * 2.0**-49
    near &= (scaled + moved > y.low - 1.0) & (scaled + moved < y.high + 1.0)
    if near.any():
        inside = (zeros if r.zero == "before" else np.zeros_like(zeros))[near]
        above, below = (np.broadcast_to(part(m), scaled.shape)[near] for part in (_ABOVE, _BELOW))
        sums = acc[near].astype(np.int64).astype(object)
        found = divide_whole(above * sums, below, r.round, inside.astype(object))
        whole[near] = found.astype(F64)
    return stored(whole, y.low, y.high, y.carrier, moved)


def gains(of: AnyMap, rule: Rule, kind: np.dtype[np.floating]) -> Reals:
    """Quantized values a float unit, as readers have it, in the shape of the scales."""
    with np.errstate(all="ignore"):
        return _gain(of.scale, of.ends, of, rule, kind, None)
