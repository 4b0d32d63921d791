"""Reals to codes, codes to reals, codes to codes and sums to codes, as the fields of a rule say."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics import compiled, definition
from qir.numerics.affine import Affine
from qir.numerics.fields import Rule, refuse
from qir.numerics.maps import AnyMap, same_map
from qir.numerics.rounding import ROUNDINGS

Codes = NDArray[np.integer]
Reals = NDArray[np.floating]
F32: np.dtype[np.floating] = np.dtype(np.float32)
F64: np.dtype[np.floating] = np.dtype(np.float64)


# -- reals and codes ------------------------------------------------------------------------------


def quantize(x: NDArray[np.generic], to: AnyMap, rule: Rule) -> Codes:
    """Codes of real numbers; float codes come in their own type.

    Raises ProfileError for a field that cannot be executed yet, OpError for a NaN where the
    profile does not say what becomes of it, or numbers that do not fit the array.
    """
    x = np.asarray(x)
    to.check(x.shape)
    definition.check_quantize(to, rule)
    codes = compiled.quantize(x, to, rule)
    if codes is None:
        return definition.quantize(x, to, rule)  # type: ignore[return-value]
    return codes


def dequantize(codes: NDArray[np.generic], of: AnyMap, rule: Rule) -> Reals:
    """The real numbers that codes mean, in the type they express.

    Raises ProfileError for a field that cannot be executed yet, OpError for numbers that do not
    fit the array.
    """
    codes = np.asarray(codes)
    of.check(codes.shape)
    definition.check_dequantize(of, rule)
    reals = compiled.dequantize(codes, of, rule)
    return definition.dequantize(codes, of, rule) if reals is None else reals


def convert(codes: NDArray[np.generic], of: AnyMap, to: AnyMap, rule: Rule) -> Codes:
    """The codes in another map that mean the same reals: kept where the maps agree, else
    dequantized and quantized.

    Raises as these two do.
    """
    codes = np.asarray(codes)
    of.check(codes.shape)
    if same_map(of, to):
        return codes  # type: ignore[return-value]
    if codes.size > 2 << 8 * codes.itemsize and _by_table(of, to):
        try:
            table = quantize(dequantize(_every(of.carrier), of, rule), to, rule)
            return compiled.looked_up(codes, table)  # type: ignore[return-value]
        except OpError:  # a code that does not occur may have no real, or one that has no code
            pass
    return quantize(dequantize(codes, of, rule), to, rule)


def _by_table(of: AnyMap, to: AnyMap) -> bool:
    """Whether equal codes become equal codes, wherever they stand."""
    one = all(n.size == 1 for m in (of, to) for n in m.numbers())
    return one and of.storage.bits <= 16


def _every(carrier: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Every code that a carrier of one byte or two can hold, in the order of its bits."""
    return np.arange(1 << 8 * carrier.itemsize).astype(f"u{carrier.itemsize}").view(carrier)


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
    definition.check_beside(rule)
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
    definition.check_requant(rule)
    codes = compiled.requantize(acc, factor, y, rule, axis)
    return definition.requantize(acc, factor, y, rule, axis=axis) if codes is None else codes


def scale_sum(
    acc: NDArray[np.int32], factor: NDArray[np.floating], *, axis: int = 1
) -> NDArray[np.float32]:
    """The real result of a sum that is not stored as codes: float32(sum) * factor."""
    return acc.astype(np.float32) * definition.shaped(factor, acc.ndim, axis).astype(np.float32)
