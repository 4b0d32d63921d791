"""What quantize, dequantize and requantize are, field by field of a rule: in NumPy.

`quantize.py` computes the same bytes faster where it can; this is what it answers to.
"""

from __future__ import annotations

from typing import TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.affine import Affine, Numbers
from qir.numerics.fields import Rule, refuse
from qir.numerics.maps import AnyMap, Map
from qir.numerics.rounding import (
    ROUNDINGS,
    high_multiply,
    narrowed,
    shift_right,
    shift_right_away,
    to_whole,
)
from qir.numerics.sense import check

Codes = NDArray[np.integer]
Reals = NDArray[np.floating]
_Kind = TypeVar("_Kind", bound=np.generic)
F32: np.dtype[np.floating] = np.dtype(np.float32)
F64: np.dtype[np.floating] = np.dtype(np.float64)


# -- reals to codes -------------------------------------------------------------------------------


def quantize(x: NDArray[np.generic], to: AnyMap, rule: Rule) -> NDArray[np.generic]:
    """Codes of real numbers.

    A real zero is added before rounding, wherever the rule has whole ones. Float codes are
    rounded to nearest even and saturate, infinities too. Of a table the nearest entry is taken,
    of two as near the one with the lower index; `round`, `clip` and `bounds` say nothing of it.
    """
    numbers = to.over(np.shape(x))
    q = rule.quantize
    check_quantize(to, rule)
    scaled, zero = _scaled(np.asarray(x), numbers, rule)
    nan = np.isnan(scaled)
    if isinstance(to, Map) and to.table is not None:
        return _nearest(scaled, nan, to.table, to, rule)
    if to.storage.is_float:
        return _saturated(scaled, nan, to, rule)
    low, high = to.storage.bounds if q.bounds == "storage" else (to.low, to.high)
    inside = q.zero == "before" or zero.dtype.kind == "f"
    with np.errstate(invalid="ignore"):
        if q.clip == "reals_first" and not inside:
            # low - zero and high - zero are whole: clipping before rounding is exact.
            scaled = np.clip(scaled, _real(low - zero, scaled), _real(high - zero, scaled))
        whole = ROUNDINGS[q.round](scaled).astype(F64)
    if not inside:
        whole = whole + zero
    codes = stored(np.where(nan, 0, whole), low, high, to.carrier)
    if not nan.any():
        return codes
    return np.where(nan, nan_codes(zero, low, high, to.carrier, rule), codes)


def check_quantize(to: AnyMap, rule: Rule) -> None:
    """ProfileError for a field that is not executed, or not with such codes."""
    q = rule.quantize
    real = to.zero.dtype.kind == "f"
    if q.zero == "pair":
        raise refuse(rule, "quantize.zero", q.zero)
    if q.by not in ("divide", "reciprocal"):
        raise refuse(rule, "quantize.by", q.by)
    if q.compute == "f16" or (q.compute == "f64_reciprocal" and q.by == "divide"):
        raise refuse(rule, "quantize.compute", q.compute)
    if q.levels:
        raise refuse(rule, "quantize.levels", dict(q.levels))
    if q.clip == "range_first" or (q.clip == "reals_first" and q.zero == "before" and not real):
        raise refuse(rule, "quantize.clip", q.clip)
    if to.storage.is_float and q.round != "even":
        raise refuse(rule, "quantize.round", f"{q.round} to {to.storage}")


def factor(scale: Reals, rule: Rule) -> Reals:
    """What reals are divided by or multiplied with, in the type that is computed in."""
    q = rule.quantize
    kind = F64 if q.compute == "f64" else F32
    with np.errstate(all="ignore"):
        if q.by == "divide":
            return scale.astype(kind)
        if q.compute == "f64_reciprocal":
            return np.asarray((1.0 / scale.astype(F64)).astype(F32))
        return np.asarray(kind.type(1) / scale.astype(kind))


def _scaled(
    x: NDArray[np.generic], numbers: Numbers, rule: Rule
) -> tuple[Reals, NDArray[np.generic]]:
    """x in units of the scale, with the zero point in it where that comes before rounding."""
    q = rule.quantize
    zero = numbers.zero
    if q.zero == "none":
        zero = np.zeros_like(zero)
    by = factor(numbers.scale, rule)
    with np.errstate(all="ignore"):
        values: Reals = x.astype(by.dtype)
        if numbers.plus is not None:
            values = values - numbers.plus.astype(by.dtype)
        out: Reals = values / by if q.by == "divide" else values * by
        if q.zero == "before" or zero.dtype.kind == "f":
            out = out + _real(zero, out)
    return out, zero


def _real(whole: NDArray[np.generic], like: Reals) -> Reals:
    return np.asarray(whole).astype(like.dtype)


def stored(whole: NDArray[np.float64], low: int, high: int, carrier: np.dtype[np.generic]) -> Codes:
    """Whole numbers in float64 as codes that saturate."""
    most = float(high)
    if int(most) <= high:
        return np.clip(whole, low, high).astype(carrier)
    # 2^63 - 1 and its like lie between two float64.
    below = np.clip(whole, low, np.nextafter(most, 0)).astype(carrier)
    return np.where(whole >= most, carrier.type(high), below).astype(carrier)


def nan_codes(
    zero: NDArray[np.generic], low: int, high: int, carrier: np.dtype[np.generic], rule: Rule
) -> Codes:
    """What a NaN becomes, by the zero of its block; OpError where the profile does not say."""
    match rule.quantize.nan:
        case "low":
            return np.full(zero.shape, low, carrier)
        case "zero" if zero.dtype.kind == "f":
            return stored(np.nan_to_num(np.rint(zero.astype(F64))), low, high, carrier)
        case "zero":
            return zero.astype(carrier)
        case _:
            raise no_code(rule)


def no_code(rule: Rule) -> OpError:
    """The error for a NaN where the profile does not say what becomes of it."""
    return OpError(f"NaN has no code in profile {rule.profile or '(unnamed)'}")


def _saturated(
    scaled: Reals, nan: NDArray[np.bool_], to: AnyMap, rule: Rule
) -> NDArray[np.generic]:
    """Float codes: the nearest there is; NaN stays where the type has it."""
    info = ml_dtypes.finfo(to.carrier)  # type: ignore[no-untyped-call]
    low, high = float(info.min), float(info.max)
    codes = narrowed(np.clip(scaled, low, high), to.carrier)
    if not nan.any() or np.isnan(np.asarray(np.nan).astype(to.carrier)):
        return codes
    if rule.quantize.nan == "unspecified":
        raise no_code(rule)
    return np.where(nan, np.asarray(low if rule.quantize.nan == "low" else 0.0, to.carrier), codes)


def _nearest(
    scaled: Reals, nan: NDArray[np.bool_], table: Reals, to: AnyMap, rule: Rule
) -> NDArray[np.generic]:
    """The code whose entry is nearest, the lower one of two."""
    middles, first = neighbours(table)
    wanted = scaled.astype(F64)
    if nan.any():
        if rule.quantize.nan == "unspecified":
            raise no_code(rule)
        wanted = np.where(nan, -np.inf if rule.quantize.nan == "low" else 0.0, wanted)
    below, above = (first[np.searchsorted(middles, wanted, side)] for side in ("left", "right"))
    index = np.minimum(below, above)
    if nan.any() and rule.quantize.nan == "low":
        index = np.where(nan, 0, index)
    return (index + to.low).astype(to.carrier)


def neighbours(table: Reals) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The middles between the entries of a table as they rise, in float64, and each entry's index.

    Of equal entries the first counts.
    """
    values, first = np.unique(table.astype(F64), return_index=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return (values[:-1] + values[1:]) / 2, first


# -- codes to reals -------------------------------------------------------------------------------


def dequantize(codes: NDArray[np.generic], of: AnyMap, rule: Rule) -> Reals:
    """The real numbers that codes mean, in the type they express."""
    codes = np.asarray(codes)
    numbers = of.over(codes.shape)
    check_dequantize(of, rule)
    d = rule.dequantize
    kind = F64 if d.compute == "f64" else F32
    s = numbers.scale.astype(kind)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if d.by == "q*s-z*s":
            out = _values(codes, of, kind) * s - numbers.zero.astype(kind) * s
        else:
            out = _centred(codes, of, numbers.zero, kind) * s
        if numbers.plus is not None:
            out = out + numbers.plus.astype(kind)
        return narrowed(np.asarray(out), result_of(of))


def check_dequantize(of: AnyMap, rule: Rule) -> None:
    """ProfileError for a field that is not executed, or not with such codes."""
    by = rule.dequantize.by
    if by == "q/gain" or (by == "q*s+plus" and of.zero.any()):
        raise refuse(rule, "dequantize.by", by)


def result_of(of: AnyMap) -> np.dtype[np.generic]:
    """The NumPy type of the reals that codes mean."""
    return of.scale.dtype if of.express is None else of.express.carrier


def _values(codes: NDArray[np.generic], of: AnyMap, kind: np.dtype[np.floating]) -> Reals:
    """What codes stand for before scale and zero."""
    if not isinstance(of, Map) or of.table is None:
        return codes.astype(kind)
    index = codes.astype(np.int64) - of.low
    if index.size and not 0 <= index.min() <= index.max() < of.table.size:
        wrong = index.max() if index.max() >= of.table.size else index.min()
        raise OpError(f"code {wrong + of.low} has no entry in a table of {of.table.size}")
    return of.table.astype(kind)[index]


def _centred(
    codes: NDArray[np.generic],
    of: AnyMap,
    zero: NDArray[np.generic],
    kind: np.dtype[np.floating],
) -> Reals:
    """code - zero in one rounding; what has no whole zero is only converted."""
    if zero.dtype.kind == "f":
        return np.asarray(_values(codes, of, kind) - zero.astype(kind))
    if not zero.any():
        return _values(codes, of, kind)
    if of.storage.bits == 64:
        return np.asarray(codes.astype(F64) - zero, kind)
    return np.asarray((codes.astype(np.int64) - zero.astype(np.int64)).astype(kind))


# -- sums to codes --------------------------------------------------------------------------------


def requantize(
    acc: NDArray[np.generic], factor: NDArray[np.generic], y: Affine, rule: Rule, *, axis: int = 1
) -> Codes:
    """Codes of the result from sums, bias included, and what `multiplier` gave."""
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
    """Reals in units of the result, in the type they have."""
    with np.errstate(all="ignore"):
        match rule.requant.order:
            case "gy/gx/gw":
                return np.asarray(reals * gain.astype(reals.dtype))
            case "(x*w)*(1/y)":
                return np.asarray(reals * (reals.dtype.type(1) / scale.astype(reals.dtype)))
            case _:
                return np.asarray(reals / scale.astype(reals.dtype))


def rounded(scaled: Reals, zero: NDArray[np.generic], y: Affine, rule: Rule) -> Codes:
    """Codes of reals that are in units of the result."""
    r = rule.requant
    after = zero if r.zero == "after" else np.zeros_like(zero)
    with np.errstate(over="ignore", invalid="ignore"):
        if r.zero == "before":
            scaled = scaled + _real(zero, scaled)
        if r.clip == "reals":
            scaled = np.clip(scaled, _real(y.low - after, scaled), _real(y.high - after, scaled))
        whole = ROUNDINGS[r.round](scaled).astype(F64) + after
    # maxps and minps give their second operand for a NaN: the low end.
    return stored(np.where(np.isnan(whole), y.low, whole), y.low, y.high, y.carrier)


def shaped(factor: NDArray[_Kind], rank: int, axis: int) -> NDArray[_Kind]:
    """One factor, one a channel, or one for each sum, to go with an array of that rank."""
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
    if r.round == "double":
        left, right = np.maximum(exponent, 0), np.maximum(-exponent, 0)
        moved = (sums << left).astype(np.int32)
        whole = shift_right_away(high_multiply(moved, q.astype(np.int32)), right).astype(np.int64)
    else:
        bits = 31
        if r.multiplier == "q15":
            bits, q = 15, np.where(q < 0x7FFF0000, (q + (1 << 15)) >> 16, 0x7FFF)
        inside = zero if r.zero == "before" else np.zeros((), np.int64)
        whole = shift_right(sums * q, bits - exponent, r.round, inside)
    total = whole + (0 if r.zero == "none" else zero)
    return np.asarray(np.clip(total, y.low, y.high).astype(y.carrier))


def _exact(
    acc: NDArray[np.generic],
    m: NDArray[np.generic],
    zero: NDArray[np.integer],
    y: Affine,
    rule: Rule,
) -> Codes:
    """Codes as if numbers had no end of digits: float64, and fractions where that is near a tie."""
    r = rule.requant
    with np.errstate(all="ignore"):
        scaled = np.asarray(acc.astype(F64) * m.astype(F64))
    zeros = np.broadcast_to(zero, scaled.shape)
    added = zeros if r.zero != "none" else np.zeros_like(zeros)
    whole = np.rint(scaled)
    near = np.abs(np.abs(scaled - np.trunc(scaled)) - 0.5) <= np.abs(scaled) * 2.0**-49
    near &= (scaled + added > y.low - 1.0) & (scaled + added < y.high + 1.0)
    if near.any():
        inside = (zeros if r.zero == "before" else np.zeros_like(zeros))[near]
        number = np.broadcast_to(np.arange(m.size).reshape(m.shape), scaled.shape)[near]
        keys = np.stack([acc[near].astype(np.int64), number, inside])
        each, back = np.unique(keys, axis=1, return_inverse=True)
        listed = m.reshape(-1)
        found = [to_whole(listed[n] * int(a), r.round, int(z)) for a, n, z in each.T]
        whole[near] = np.array(found, F64)[back.reshape(-1)]
    return stored(whole + added, y.low, y.high, y.carrier)


def gains(of: AnyMap, rule: Rule, kind: np.dtype[np.floating]) -> Reals:
    """Codes a real unit: 1 / scale, in the shape of the scales."""
    with np.errstate(all="ignore"):
        return np.asarray(kind.type(1) / of.scale.astype(kind))
