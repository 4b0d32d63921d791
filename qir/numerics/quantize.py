"""Reals to codes, codes to reals, and sums to codes, as the fields of a rule say."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError, ProfileError
from qir.numerics.affine import Affine
from qir.numerics.fields import Rule, refuse
from qir.numerics.rounding import ROUNDINGS, high_multiply, shift_right_away

Codes = NDArray[np.integer]
Reals = NDArray[np.floating]
F32: np.dtype[np.floating] = np.dtype(np.float32)
F64: np.dtype[np.floating] = np.dtype(np.float64)


# -- reals to codes -------------------------------------------------------------------------------


def quantize(x: NDArray[np.generic], to: Affine, rule: Rule) -> Codes:
    """Codes of real numbers.

    Raises ProfileError for a field that cannot be executed yet, OpError for a NaN where the
    profile does not say what becomes of it.
    """
    to.check(np.shape(x))
    q = rule.quantize
    scaled, zero = _scaled(np.asarray(x), to, rule)
    low, high = to.storage.bounds if q.bounds == "storage" else (to.low, to.high)
    nan = np.isnan(scaled)
    if q.clip == "range_first" or (q.clip == "reals_first" and q.zero == "before"):
        raise refuse(rule, "quantize.clip", q.clip)
    with np.errstate(invalid="ignore"):
        if q.clip == "reals_first":
            # low - zero and high - zero are whole: clipping before rounding is exact.
            scaled = np.clip(scaled, _real(low - zero, scaled), _real(high - zero, scaled))
        whole = ROUNDINGS[q.round](scaled)
    if q.zero != "before":
        whole = whole + zero
    codes = np.clip(np.where(nan, 0, whole), low, high).astype(to.carrier)
    return _nan_codes(codes, nan, zero, low, rule) if nan.any() else codes


def _scaled(x: NDArray[np.generic], to: Affine, rule: Rule) -> tuple[Reals, NDArray[np.integer]]:
    """x in units of the scale, with the zero point in it where that comes before rounding."""
    q = rule.quantize
    scale, zero = to.along(x.ndim)
    if q.zero == "pair" or q.by not in ("divide", "reciprocal"):
        field, value = ("quantize.zero", q.zero) if q.zero == "pair" else ("quantize.by", q.by)
        raise refuse(rule, field, value)
    if q.compute == "f16" or (q.compute == "f64_reciprocal" and q.by == "divide"):
        raise refuse(rule, "quantize.compute", q.compute)
    if q.levels:
        raise refuse(rule, "quantize.levels", dict(q.levels))
    if q.zero == "none":
        zero = np.zeros_like(zero)
    kind = F64 if q.compute == "f64" else F32
    with np.errstate(all="ignore"):
        values: Reals = x.astype(kind)
        if q.by == "divide":
            out: Reals = values / scale.astype(kind)
        elif q.compute == "f64_reciprocal":
            out = values * (1.0 / scale.astype(np.float64)).astype(np.float32)
        else:
            out = values * (kind.type(1) / scale.astype(kind))
        if q.zero == "before":
            out = out + _real(zero, out)
    return out, zero


def _real(whole: NDArray[np.integer], like: Reals) -> Reals:
    return np.asarray(whole).astype(like.dtype)


def _nan_codes(
    codes: Codes, nan: NDArray[np.bool_], zero: NDArray[np.integer], low: int, rule: Rule
) -> Codes:
    match rule.quantize.nan:
        case "low":
            filled = np.where(nan, low, codes)
        case "zero":
            filled = np.where(nan, zero, codes)
        case _:
            raise OpError(f"NaN has no code in profile {rule.profile or '(unnamed)'}")
    return filled.astype(codes.dtype)


# -- codes to reals -------------------------------------------------------------------------------


def dequantize(codes: NDArray[np.generic], of: Affine, rule: Rule) -> Reals:
    """The real numbers that codes mean, in the scale's own type.

    Raises ProfileError for a field that cannot be executed yet.
    """
    of.check(np.shape(codes))
    d = rule.dequantize
    scale, zero = of.along(np.ndim(codes))
    result = scale.dtype
    kind = F64 if d.compute == "f64" else F32
    s = scale.astype(kind)
    with np.errstate(over="ignore", invalid="ignore"):
        if d.by == "(q-z)*s":
            out = (np.asarray(codes).astype(np.int64) - zero).astype(kind) * s
        elif d.by == "q*s-z*s":
            out = np.asarray(codes).astype(kind) * s - zero.astype(kind) * s
        else:
            raise refuse(rule, "dequantize.by", d.by)
        return np.asarray(out, result)


# -- sums to codes --------------------------------------------------------------------------------


def multiplier(
    x: Affine, w: Affine, y: Affine | None, rule: Rule, *, gain: float = 1.0
) -> NDArray[np.floating]:
    """What a sum of code products is multiplied with, one number or one a channel.

    `y` None: to reals (scale_x * scale_w). `gain` is an op's own factor (gemm's alpha), which is
    multiplied in first. Raises ProfileError for a field that cannot be executed yet.
    """
    r = rule.requant
    if r.multiplier not in ("f32", "f64", "q31"):
        raise refuse(rule, "requant.multiplier", r.multiplier)
    _check_beside(rule)
    kind = F64 if r.compute == "f64" else F32
    sx, sw = x.scale.astype(kind), w.scale.astype(kind)
    if gain != 1.0:
        sx = np.asarray(kind.type(np.float32(gain)) * sx, kind)
    if y is None:
        return np.asarray(sx * sw, kind)
    sy = y.scale.astype(kind)
    with np.errstate(all="ignore"):
        match r.order:
            case "(x*w)/y":
                found = (sx * sw) / sy
            case "x*(w/y)":
                found = sx * (sw / sy)
            case "(x*w)*(1/y)":
                found = (sx * sw) * (kind.type(1) / sy)
            case _:
                raise refuse(rule, "requant.order", r.order)
    return np.asarray(found.astype(np.float32) if r.multiplier == "f32" else found)


def bias_codes(bias: NDArray[np.generic], x: Affine, w: Affine, rule: Rule) -> NDArray[np.int32]:
    """A real bias in units of the accumulator: round(bias / (scale_x * scale_w)).

    The unit is the float32 product of the two scales, as files store it. Raises ProfileError for a
    field that cannot be executed yet, and OpError for a bias that is no number in that unit, or
    that is clipped to more than 32 bits and does not fit them.
    """
    b = rule.bias
    if b.domain not in ("given_acc", "rounded_acc"):
        raise refuse(rule, "bias.domain", b.domain)
    kind = F64 if b.compute == "f64" else F32
    unit = (x.scale.astype(np.float32) * w.scale.astype(np.float32)).astype(kind)
    with np.errstate(all="ignore"):
        whole = ROUNDINGS[b.round](np.asarray(bias).astype(kind) / unit).astype(F64)
    if b.overflow.startswith("clip:"):
        half = 2.0 ** (int(b.overflow[5:]) - 1)
        whole = np.clip(whole, -half, half - 1)
    elif b.overflow != "wrap":
        raise refuse(rule, "bias.overflow", b.overflow)
    if not np.isfinite(whole).all():
        raise OpError("a bias is no number in units of the accumulator; its scale is out of range")
    if b.overflow == "wrap":
        return np.mod(whole, 2.0**32).astype(np.int64).astype(np.int32)
    if not np.all((whole >= -(2.0**31)) & (whole < 2.0**31)):
        raise OpError(
            "a bias does not fit 32 bits in units of the accumulator; raise weight scales"
        )
    return whole.astype(np.int32)


def requantize(
    acc: NDArray[np.int32],
    factor: NDArray[np.floating],
    y: Affine,
    rule: Rule,
    *,
    axis: int = 1,
) -> Codes:
    """Codes of the result from 32-bit sums, bias included, and what `multiplier` gave.

    `axis` is where `factor` lies if it has more than one number. Raises ProfileError for a field
    that cannot be executed yet.
    """
    r = rule.requant
    _check_requant(rule)
    m = _shaped(factor, acc.ndim, axis)
    zero = y.along(acc.ndim)[1]
    if r.multiplier == "q31":
        return _fixed_point(acc, m, y, rule)
    before = _real(zero, m) if r.zero == "before" else m.dtype.type(0)
    after = zero if r.zero == "after" else np.zeros_like(zero)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = acc.astype(m.dtype) * m
        if r.zero == "before":
            scaled = scaled + before
        if r.clip == "reals":
            scaled = np.clip(scaled, _real(y.low - after, m), _real(y.high - after, m))
        whole = ROUNDINGS[r.round](scaled) + after
    # maxps and minps give their second operand for a NaN: the low end.
    return np.clip(np.where(np.isnan(whole), y.low, whole), y.low, y.high).astype(y.carrier)


def scale_sum(
    acc: NDArray[np.int32], factor: NDArray[np.floating], *, axis: int = 1
) -> NDArray[np.float32]:
    """The real result of a sum that is not stored as codes: float32(sum) * factor."""
    return acc.astype(np.float32) * _shaped(factor, acc.ndim, axis).astype(np.float32)


def _check_requant(rule: Rule) -> None:
    r = rule.requant
    can = {
        "multiplier": ("f32", "f64", "q31"),
        "input": ("acc_plus_bias",),
        "wide": ("plain",),
        "round": ("half_up", "double") if r.multiplier == "q31" else ("even", "away", "half_up"),
    }
    _check_beside(rule)
    for field, values in can.items():
        if getattr(r, field) not in values:
            raise refuse(rule, f"requant.{field}", getattr(r, field))


_BESIDE: dict[str, dict[str, tuple[str, ...]]] = {
    "f64": {"compute": ("f64",)},
    "q31": {
        "compute": ("f64",),
        "round": ("half_up", "double"),
        "zero": ("after", "none"),
        "clip": ("codes",),
    },
}
"""What stands beside a multiplier where it is executed."""


def _check_beside(rule: Rule) -> None:
    """ProfileError for a multiplier that is not executed with the fields beside it."""
    beside = _BESIDE.get(rule.requant.multiplier, {})
    amiss = [f for f, can in beside.items() if getattr(rule.requant, f) not in can]
    if amiss:
        wanted = ", ".join(f"{f} = {' or '.join(map(repr, can))}" for f, can in beside.items())
        raise ProfileError(
            f"profile {rule.profile or '(unnamed)'}: requant.multiplier = "
            f"{rule.requant.multiplier!r} is executed with {wanted}; "
            f"{amiss[0]} is {getattr(rule.requant, amiss[0])!r}"
        )


def _shaped(factor: NDArray[np.floating], rank: int, axis: int) -> NDArray[np.floating]:
    if factor.ndim == 0:
        return factor
    shape = [1] * rank
    shape[axis] = -1
    return factor.reshape(shape)


def _fixed_point(acc: NDArray[np.int32], m: Reals, y: Affine, rule: Rule) -> Codes:
    """gemmlowp's: a 31-bit multiplier and a shift, rounded twice or once."""
    fraction, exponent = np.frexp(m.astype(np.float64))
    q = np.floor(fraction * 2.0**31 + 0.5).astype(np.int64)
    exponent = exponent + (q == 1 << 31)
    q = np.where(q == 1 << 31, 1 << 30, q)
    if rule.requant.round == "double":
        left = np.maximum(exponent, 0).astype(np.int64)
        right = np.maximum(-exponent, 0).astype(np.int64)
        shifted = (acc.astype(np.int64) << left).astype(np.int32)
        whole = shift_right_away(high_multiply(shifted, q.astype(np.int32)), right).astype(np.int64)
    else:
        shift = (31 - exponent).astype(np.int64)
        whole = (acc.astype(np.int64) * q + (np.int64(1) << (shift - 1))) >> shift
    zero = y.along(acc.ndim)[1]
    total = whole + (zero if rule.requant.zero == "after" else 0)
    return np.clip(total, y.low, y.high).astype(y.carrier)
