"""Float values to integers, integers to floats, integers to integers and sums to integers, as the
fields of a rule say."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics import compiled, definition
from qir.numerics.affine import Affine
from qir.numerics.consistency import check
from qir.numerics.fields import Rule
from qir.numerics.maps import AnyMap, same_map
from qir.numerics.rounding import ROUNDINGS

Integers = NDArray[np.integer]
Floats = NDArray[np.floating]
F32: np.dtype[np.floating] = np.dtype(np.float32)
F64: np.dtype[np.floating] = np.dtype(np.float64)
_FRACTION = np.frompyfunc(Fraction, 1, 1)


# -- quantize and dequantize ----------------------------------------------------------------------


def quantize(x: NDArray[np.generic], to: AnyMap, rule: Rule) -> Integers:
    """Quantizes floats; the result of a float storage type has that type.

    Raises ProfileError for a field that cannot be executed yet, OpError for a NaN where the
    profile does not say what becomes of it, or numbers that do not fit the array.
    """
    x = np.asarray(x)
    to.check(x.shape)
    # The compiled loops give None for rare fields and short arrays, which the definition computes.
    integers = compiled.quantize(x, to, rule)
    if integers is None:
        return definition.quantize(x, to, rule)  # type: ignore[return-value]
    return integers


def dequantize(integers: NDArray[np.generic], of: AnyMap, rule: Rule) -> Floats:
    """Dequantizes integers to the type that they express.

    Raises ProfileError for a field that cannot be executed yet, OpError for numbers that do not
    fit the array.
    """
    integers = np.asarray(integers)
    of.check(integers.shape)
    floats = compiled.dequantize(integers, of, rule)
    return definition.dequantize(integers, of, rule) if floats is None else floats


def convert(integers: NDArray[np.generic], of: AnyMap, to: AnyMap, rule: Rule) -> Integers:
    """Requantizes: keeps the integers where both types agree, else dequantizes and quantizes.

    Raises as these two do.
    """
    integers = np.asarray(integers)
    of.check(integers.shape)
    if same_map(of, to):
        return integers  # type: ignore[return-value]
    # A table pays off only where there are more elements than entries.
    if integers.size > 2 << 8 * integers.itemsize and _is_elementwise(of, to):
        try:
            table = quantize(dequantize(_all_integers(of.carrier), of, rule), to, rule)
            return compiled.lookup(integers, table)  # type: ignore[return-value]
        except OpError:  # an integer that does not occur may have no float value, or none back
            pass
    return quantize(dequantize(integers, of, rule), to, rule)


def _is_elementwise(of: AnyMap, to: AnyMap) -> bool:
    """Returns whether equal quantized values become equal quantized values, wherever they stand."""
    is_per_tensor = all(n.size == 1 for m in (of, to) for n in m.numbers())
    return is_per_tensor and of.storage.bits <= 16


def _all_integers(carrier: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Returns every integer that a carrier of one byte or two can hold, in the order of its
    bits."""
    return np.arange(1 << 8 * carrier.itemsize).astype(f"u{carrier.itemsize}").view(carrier)


# -- requantize -----------------------------------------------------------------------------------


def multiplier(
    x: Affine, w: Affine, y: Affine | None, rule: Rule, *, gain: float = 1.0
) -> NDArray[np.floating]:
    """Returns what a sum of integer products is multiplied with, one number or one a channel.

    `y` None: to floats, as where the rule divides float values by the result's scale after. `gain`
    is an op's own factor (gemm's alpha), which is multiplied in first. A multiplier that is exact
    comes as fractions. Raises ProfileError for fields that do not go together.
    """
    check(rule)
    r = rule.requant
    if r.multiplier == "exact" and y is not None:
        return _exact_multiplier(x, w, y, gain)
    # TensorFlow Lite's GetQuantizedConvolutionMultipler multiplies the two scales in float32 and
    # divides in float64: the product then stands for both.
    if r.unit == "f32":
        with np.errstate(all="ignore"):
            unit = x.scale.astype(F32) * w.scale.astype(F32)
        x, w = replace(x, scale=np.ones((), F32), axis=None), replace(w, scale=unit)
    float_type = F64 if r.compute == "f64" else F32
    if y is None or r.multiplier == "divide":
        return _accumulator_unit(x, w, rule, float_type, gain)
    sx, sw = (kernel_scales(of, rule, slot).astype(float_type) for of, slot in ((x, "x"), (w, "w")))
    # The order of these operations decides the last bit of the multiplier, and with it ties.
    sx, sy = _apply_gain(sx, gain), y.scale.astype(float_type)
    with np.errstate(all="ignore"):
        match r.order:
            case "(x*w)/y":
                factor = (sx * sw) / sy
            case "x*(w/y)":
                factor = sx * (sw / sy)
            case "(x*w)*(1/y)":
                factor = (sx * sw) * (float_type.type(1) / sy)
            case _:
                gx, gw, gy = (definition.gains(of, rule, float_type) for of in (x, w, y))
                factor = _apply_gain(gy, gain) / gx / gw
    return np.asarray(factor.astype(np.float32 if r.multiplier == "f32" else np.float64))


def _accumulator_unit(
    x: Affine, w: Affine, rule: Rule, kind: np.dtype[np.floating], gain: float
) -> NDArray[np.floating]:
    """Returns what one step of a sum means."""
    with np.errstate(all="ignore"):
        if rule.requant.order == "gy/gx/gw":
            gx, gw = (definition.gains(of, rule, kind) for of in (x, w))
            return np.asarray(_apply_gain(np.asarray(kind.type(1) / gx), gain) / gw)
        sx, sw = (kernel_scales(of, rule, slot).astype(kind) for of, slot in ((x, "x"), (w, "w")))
        return np.asarray(_apply_gain(sx, gain) * sw)


def kernel_scales(of: Affine, rule: Rule, slot: str) -> NDArray[np.floating]:
    """Returns the scales of the data, `x`, or of the weights, as a kernel keeps them."""
    scale_form = rule.requant.scales
    if scale_form == "given" or (scale_form == "x_inverted" and slot != "x"):
        return of.scale
    # torch's oneDNN kernels keep 1 / scale and invert it again, which is not always the scale that
    # was given.
    one = np.float32(1)
    with np.errstate(all="ignore"):
        inverse = (of.scale.dtype.type(1) / of.scale).astype(np.float32)
        return np.asarray(one / inverse)


def _apply_gain(values: NDArray[np.floating], gain: float) -> NDArray[np.floating]:
    if gain == 1.0:
        return values
    return np.asarray(values.dtype.type(np.float32(gain)) * values, values.dtype)


def _exact_multiplier(x: Affine, w: Affine, y: Affine, gain: float) -> NDArray[np.floating]:
    """Scales' exact quotients; raises OpError for scales that have none."""
    scales = np.broadcast_arrays(x.scale, w.scale, y.scale)
    if not all(np.isfinite(s).all() for s in scales) or not scales[2].all():
        raise OpError("an exact multiplier needs scales that are finite, and the result's not 0")
    a, b, c = (_FRACTION(np.asarray(s, np.float64)) for s in scales)
    return np.asarray(Fraction(float(np.float32(gain))) * a * b / c)


def quantize_bias(
    bias: NDArray[np.generic], x: Affine, w: Affine, rule: Rule
) -> NDArray[np.signedinteger]:
    """Returns a float bias in units of the accumulator: round(bias / (scale_x * scale_w)).

    The unit is the float32 product of the two scales, as files store it; by gains it is
    round(bias * (gain_x * gain_w)). Quantized values have 64 bits where sums do, else 32. Raises
    OpError for a bias that is no number in that unit, that is clipped to more bits than its
    quantized values have and does not fit them, or that does not fit 64.
    """
    b = rule.bias
    kind = F64 if b.compute == "f64" else F32
    with np.errstate(all="ignore"):
        return _round_bias(
            _bias_in_accumulator_units(np.asarray(bias).astype(kind), x, w, rule), rule
        )


def requantize_bias(
    bias: NDArray[np.generic], of: Affine, x: Affine, w: Affine, rule: Rule
) -> NDArray[np.signedinteger]:
    """Requantizes a bias with a scale of its own to units of the accumulator.

    round(code * (scale_b / (scale_x * scale_w))), by gains round(code * (gain_x * gain_w /
    gain_b)). Raises as `quantize_bias`.
    """
    float_type = F64 if rule.bias.compute == "f64" else F32
    with np.errstate(all="ignore"):
        if rule.requant.order == "gy/gx/gw":
            gx, gw, gb = (definition.gains(m, rule, float_type) for m in (x, w, of))
            ratio = gx * gw / gb
        else:
            ratio = of.scale.astype(float_type) / (
                x.scale.astype(float_type) * w.scale.astype(float_type)
            )
        centered = (bias.astype(np.int64) - of.zero).astype(float_type)
        return _round_bias(np.asarray(centered * ratio), rule)


def _bias_in_accumulator_units(
    bias: NDArray[np.floating], x: Affine, w: Affine, rule: Rule
) -> NDArray[np.floating]:
    if rule.requant.order == "gy/gx/gw":
        gx, gw = (definition.gains(of, rule, bias.dtype) for of in (x, w))
        return np.asarray(bias * (gx * gw))
    # Files store this product as the scale of an int32 bias, so it is float32 whatever the rule
    # computes in.
    unit = x.scale.astype(np.float32) * w.scale.astype(np.float32)
    if rule.bias.unit == "reciprocal":
        return np.asarray(bias * (bias.dtype.type(1) / unit.astype(bias.dtype)))
    return np.asarray(bias / unit.astype(bias.dtype))


def _round_bias(steps: NDArray[np.floating], rule: Rule) -> NDArray[np.signedinteger]:
    """Float values as whole numbers, as `round` and `overflow` of a bias say."""
    b = rule.bias
    integral = ROUNDINGS[b.round](steps).astype(F64)
    # Clipping comes before the check for finite numbers: it turns infinities into an end, and
    # leaves NaN to be refused.
    is_clipped = b.overflow.startswith("clip:")
    if is_clipped:
        half = 2.0 ** (int(b.overflow[5:]) - 1)
        integral = np.clip(integral, -half, half - 1)
    if not np.isfinite(integral).all():
        raise OpError("a bias is no number in units of the accumulator; its scale is out of range")
    if rule.acc.type == "i64":
        if np.any(np.abs(integral) >= 2.0**63):
            raise OpError(
                "a bias does not fit 64 bits in units of the accumulator; raise weight scales"
            )
        return integral.astype(np.int64)
    if not is_clipped:
        # Wraps as a conversion to 32 bits does.
        return np.mod(integral, 2.0**32).astype(np.int64).astype(np.int32)
    if not np.all((integral >= -(2.0**31)) & (integral < 2.0**31)):
        raise OpError(
            "a bias does not fit 32 bits in units of the accumulator; raise weight scales"
        )
    return integral.astype(np.int32)


def requantize(
    acc: NDArray[np.generic],
    factor: NDArray[np.floating],
    y: Affine,
    rule: Rule,
    *,
    axis: int = 1,
) -> Integers:
    """Returns the quantized result of integer sums, bias included, by what `multiplier` gave.

    `axis` is where `factor` is if it has more than one number. Raises ProfileError for fields
    that do not go together.
    """
    integers = compiled.requantize(acc, factor, y, rule, axis)
    return definition.requantize(acc, factor, y, rule, axis=axis) if integers is None else integers


def scale_sum(
    acc: NDArray[np.integer], factor: NDArray[np.floating], *, axis: int = 1
) -> NDArray[np.float32]:
    """Returns the float result of a sum that is not quantized: float32(sum) * factor."""
    return acc.astype(np.float32) * definition.broadcastable_factor(factor, acc.ndim, axis).astype(
        np.float32
    )
