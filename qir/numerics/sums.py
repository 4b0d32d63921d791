"""Requantizes sums with a float bias or a summand, where one multiplier is not enough."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics import definition
from qir.numerics.affine import Affine
from qir.numerics.consistency import ONE_BY_ONE
from qir.numerics.definition import (
    F32,
    F64,
    Floats,
    Integers,
    broadcastable_factor,
    in_result_units,
)
from qir.numerics.fields import Rule
from qir.numerics.maps import Map
from qir.numerics.quantize import kernel_scales, multiplier
from qir.numerics.rounding import ROUNDINGS, fma
from qir.numerics.stages import SumStage, stage_function
from qir.records import record


@record(eq=False)
class Sum:
    """Integer sums with the quantized types of the operands and a bias not yet added."""

    acc: NDArray[np.generic]
    x: Affine
    w: Affine
    rule: Rule
    axis: int
    gain: float = 1.0
    steps: NDArray[np.generic] | None = None
    """A bias in units of the sums, to be added as floats."""
    share: Floats | None = None
    """What `steps` is multiplied with as it is added, in one rounding."""
    bias: Floats | None = None
    """A float bias."""

    @property
    def kind(self) -> np.dtype[np.floating]:
        """The type that is computed in."""
        return F64 if self.rule.requant.compute == "f64" else F32


@record(eq=False)
class AddedTensor:
    """Quantized values that are added in units of the result."""

    codes: NDArray[np.generic]
    of: Affine


def accumulator_unit(of: Sum) -> Floats:
    """Returns the float value of one accumulator step, shaped to broadcast over the sums."""
    unit = multiplier(of.x, of.w, None, of.rule, gain=of.gain)
    return broadcastable_factor(unit, of.acc.ndim, of.axis)


def _sums_as_floats(of: Sum, kind: np.dtype[np.floating]) -> Floats:
    sums = of.acc.astype(kind)
    if of.steps is None:
        return sums
    # The kernel adds the bias by a multiply-add, without rounding the product.
    if of.share is not None:
        return fma(*np.broadcast_arrays(of.steps.astype(F32), of.share.astype(F32), sums))
    return np.asarray(sums + of.steps.astype(kind))


def _dequantized_sums(of: Sum, sums: Floats) -> Floats:
    """Returns the dequantized sums without the bias."""
    if of.rule.requant.order not in ONE_BY_ONE:
        return np.asarray(sums * accumulator_unit(of))
    # The product x * w is not formed here: the kernel multiplies by one scale after the other.
    scales = (
        kernel_scales(m, of.rule, slot).astype(of.kind) for m, slot in ((of.x, "x"), (of.w, "w"))
    )
    x, w = (broadcastable_factor(np.asarray(s), of.acc.ndim, of.axis) for s in scales)
    return np.asarray((sums * (of.kind.type(of.gain) * x)) * w)


def dequantize_sum(of: Sum) -> Floats:
    """Returns the dequantized sums with their bias."""
    with np.errstate(all="ignore"):
        sums = _sums_as_floats(of, of.kind)
        if of.bias is None:
            return _dequantized_sums(of, sums)
        bias = of.bias.astype(of.kind)
        if of.rule.bias.by == "fma":
            return fma(*np.broadcast_arrays(sums, accumulator_unit(of), bias))
        return np.asarray(_dequantized_sums(of, sums) + bias)


def quantize_sum(of: Sum, y: Affine, flat: Affine, summand: AddedTensor | None = None) -> Integers:
    """Quantized values of the result; `flat` is its quantized type with scales shaped as the
    operands' are."""
    rule, rank = of.rule, of.acc.ndim
    if rule.requant.wide == "rescaled" and y.storage.bits >= 32 and of.w.scale.size > 1:
        return _quantize_by_largest_scale(of, y)
    if rule.requant.multiplier == "divide":
        return quantize_floats(dequantize_sum(of), y, rule)
    scale, zero = y.along(rank)
    m = broadcastable_factor(multiplier(of.x, of.w, flat, rule, gain=of.gain), rank, of.axis)
    gain = definition.gains(y, rule, of.kind).reshape(scale.shape)
    with np.errstate(all="ignore"):
        scaled: Floats = np.asarray(_sums_as_floats(of, m.dtype) * m)
        if of.bias is not None:
            offset = in_result_units(of.bias.astype(m.dtype), scale, gain, rule)
            scaled = scaled + offset
        if summand is not None:
            scaled = _add_summand(scaled, summand, scale, gain, rule)
    return definition.round_saturate(scaled, zero, y, rule)


def _add_summand(
    scaled: Floats, summand: AddedTensor, scale: Floats, gain: Floats, rule: Rule
) -> Floats:
    """Sums and a summand in units of the result, by the ratio of scales, or of gains."""
    kind = scaled.dtype
    summand_scale, zero = summand.of.along(summand.codes.ndim)
    steps = (summand.codes.astype(np.int64) - zero).astype(kind)
    # Gains are rounded when they are made, so that their ratio may be another float than that of
    # scales.
    if rule.requant.order == "gy/gx/gw":
        ratio: Floats = gain / definition.gains(summand.of, rule, gain.dtype).reshape(
            summand_scale.shape
        )
    else:
        ratio = in_result_units(summand_scale.astype(kind), scale, gain, rule)
    return stage_function(SumStage, rule.stage.sum).add(scaled, steps, ratio.astype(kind))


def quantize_floats(values: Floats, y: Affine, rule: Rule) -> Integers:
    """Quantized values of floats as a kernel's last step makes them."""
    kind = F64 if rule.requant.compute == "f64" else F32
    scale, zero = y.along(values.ndim)
    gain = definition.gains(y, rule, kind).reshape(scale.shape)
    scaled = in_result_units(values.astype(kind), scale, gain, rule)
    return definition.round_saturate(scaled, zero, y, rule)


def data_offset_term(weights: NDArray[np.generic], x: Affine, w: Affine) -> Floats:
    """Returns what integer sums lack whose quantized type has an offset: the low end times the sum
    of the weights.

    In float32 by the ends of the declared ranges; `weights` are the sums of an output each.
    """
    assert x.ends is not None
    if x.storage.bounds[0] < 0:
        raise OpError(f"no kernel takes {x.storage} with an offset; u8 it can be")
    low, high = F32.type(x.ends.low), F32.type(x.ends.high)
    # 255 steps of u8 data by 127 of i8 weights: a step of the sums is the ranges' product by this.
    levels = F32.type((2**x.storage.bits - 1) * w.storage.bounds[1])
    weight_range = (w.scale * F32.type(w.storage.bounds[1])).astype(F32)
    if w.ends is not None:
        weight_range = np.maximum(np.abs(w.ends.low), np.abs(w.ends.high)).astype(F32)
    with np.errstate(all="ignore"):
        span = high - low
        steps = F32.type(2**x.storage.bits - 1) * low / span
        return np.asarray((weights.astype(F32) * steps) / (levels / (span * weight_range)), F32)


def quantize_by_range(values: Floats, y: Map, rule: Rule) -> Integers:
    """Quantized values of floats between the ends of a declared range: one multiply-add, from the
    low end."""
    if y.ends is None or y.ends.low.size > 1:
        raise OpError("a range is to give the quantization parameters; the type declares none")
    if y.storage.bounds[0] < 0:
        raise OpError(f"no kernel makes {y.storage} of the ends of a range; u8 it can be")
    low, high = F32.type(y.ends.low), F32.type(y.ends.high)
    levels = F32.type(2**y.storage.bits - 1)
    with np.errstate(all="ignore"):
        gain, low_term = levels / (high - low), (-low * levels) / (high - low)
        # TensorFlow's oneDNN kernels have the gain and the low end, in steps, as one multiply-add.
        scaled = fma(*np.broadcast_arrays(values.astype(F32), gain, low_term))
    lowest = np.asarray(y.storage.bounds[0], np.int64)
    integral = np.clip(ROUNDINGS[rule.requant.round](scaled).astype(np.float64), 0, float(levels))
    return np.asarray(integral.astype(np.int64) + lowest).astype(y.carrier)


def _quantize_by_largest_scale(of: Sum, y: Affine) -> Integers:
    """Sums of many scales brought to the largest, whatever scale the result declares."""
    step = of.w.scale.astype(of.kind)
    ratio = broadcastable_factor(np.asarray(step / step.max()), of.acc.ndim, of.axis)
    zero = np.zeros((), np.int64)
    return definition.round_saturate(
        np.asarray(_sums_as_floats(of, of.kind) * ratio), zero, y, of.rule
    )
