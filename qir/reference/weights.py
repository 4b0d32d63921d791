"""Weights that a kernel is given as floats, or that leave no room for a bias."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import I8
from qir.ir.ops import Call, spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.ir.types import uniform
from qir.numerics import Affine, affine, choose, quantize
from qir.numerics.affine import DeclaredRange
from qir.numerics.definition import F32, gains
from qir.numerics.fields import Rule, level_of
from qir.reference.products import ProductKernel, is_affine
from qir.reference.table import Operands

Integers = NDArray[np.generic]
Floats = NDArray[np.floating]
_HALF_INT32 = np.float32(2**31 // 2)
"""Half of what 32 bits hold, which a bias may take."""


def quantize_weights(kernel: ProductKernel, arrays: Operands) -> tuple[ProductKernel, Operands]:
    """Returns the quantized kernel: float weights quantized as the profile says, with room for the
    bias.

    What is given quantized values that leave room, or float data, is left as it is.
    """
    # A method computes the whole op, its weights included.
    if kernel.op not in INTEGER_SUM_LAYERS or kernel.rule.method is not None:
        return kernel, arrays
    traits = spec(kernel.op).traits
    slot = traits.weight or ""
    kind, data = kernel.types[slot], kernel.types[traits.data].quant
    if data is None or data.dynamic or not is_affine(data):
        return kernel, arrays
    if kind.quant is None:
        takes_floats = kind.dtype.is_float and kernel.rule.weights.given == "float"
        return _quantize_float_weights(kernel, arrays, slot) if takes_floats else (kernel, arrays)
    if not is_affine(kind.quant) or kernel.rule.bias.overflow != "shrink_weights":
        return kernel, arrays
    return _shrink_weights(kernel, arrays, slot)


def _quantize_float_weights(
    kernel: ProductKernel, arrays: Operands, slot: str
) -> tuple[ProductKernel, Operands]:
    """Returns the kernel with quantized values for its float weights."""
    data, rule = arrays[slot].astype(np.float32), kernel.rule
    axis = None
    if rule.weights.grain == "channel" and (weight_axis := spec(kernel.op).traits.weight_axis):
        axis = weight_axis(Call(kernel.op, kernel.types, kernel.attrs))
    reduced_axes = tuple(i for i in range(data.ndim) if i != axis)
    low, high = data.min(axis=reduced_axes, initial=0), data.max(axis=reduced_axes, initial=0)
    symmetric = rule.choose.zero == "none" or rule.choose.zero.startswith("fixed:")
    granularity = "tensor" if axis is None else "channel"
    scale, zero = choose(
        low, high, I8, rule.choose, symmetric=symmetric, grain=granularity, weight=True
    )
    mapping = affine(I8, np.asarray(scale), zero, axis=axis)
    mapping = replace(mapping, ends=_weight_ranges(low, high, mapping, rule, granularity))
    if rule.bias.overflow == "shrink_weights":
        mapping = _with_bias_room(kernel, arrays, mapping)
    return _with_weights(kernel, arrays, slot, quantize(data, mapping, rule), mapping)


def _weight_ranges(
    low: Floats, high: Floats, mapping: Affine, rule: Rule, granularity: str
) -> DeclaredRange:
    """Returns the ranges of float weights; of zeros alone the one that their scale stands for."""
    level = level_of(
        rule.choose.levels,
        rule.choose.zero,
        mapping.storage,
        (mapping.low, mapping.high),
        granularity,
    )
    if level is None:
        return DeclaredRange(low, high)
    is_zero, range_end = (low == 0) & (high == 0), mapping.scale.astype(F32) * np.float32(level)
    return DeclaredRange(np.where(is_zero, -range_end, low), np.where(is_zero, range_end, high))


def _with_weights(
    kernel: ProductKernel, arrays: Operands, slot: str, quantized: Integers, mapping: Affine
) -> tuple[ProductKernel, Operands]:
    """Returns the kernel with these quantized values and their map."""
    kind = kernel.types[slot].with_element(
        uniform(mapping.storage, mapping.scale, mapping.zero, axis=mapping.axis)
    )
    new_kernel = replace(
        kernel, types={**kernel.types, slot: kind}, maps={**kernel.maps, slot: mapping}
    )
    return new_kernel, {**arrays, slot: quantized}


def _shrink_weights(
    kernel: ProductKernel, arrays: Operands, slot: str
) -> tuple[ProductKernel, Operands]:
    """Returns the kernel with smaller weight integers where a bias would not fit next to their
    sums."""
    mapping = kernel.affine(slot)
    smaller = _with_bias_room(kernel, arrays, mapping)
    if smaller is mapping:
        return kernel, arrays
    ratio: Floats = gains(smaller, kernel.rule, F32) / gains(mapping, kernel.rule, F32)
    if ratio.ndim:
        ratio = replace(mapping, scale=ratio).along(arrays[slot].ndim)[0]
    quantized = np.clip(np.rint(arrays[slot].astype(np.float32) * ratio), mapping.low, mapping.high)
    return _with_weights(kernel, arrays, slot, quantized.astype(mapping.carrier), smaller)


def _with_bias_room(kernel: ProductKernel, arrays: Operands, mapping: Affine) -> Affine:
    """Returns the weights' quantized type with gains by which the bias takes at most half of 32
    bits.

    A kernel that quantizes float weights takes any gain for a channel of zeros alone: the largest
    that leaves that room, so that all of its bias is kept.
    """
    traits = spec(kernel.op).traits
    if traits.bias is None or traits.bias not in arrays:
        return mapping
    gain = gains(mapping, kernel.rule, F32)
    max_gain = _max_gains(kernel, arrays[traits.bias], kernel.affine(traits.data), gain)
    if max_gain is None:
        return mapping
    # One scale for all channels: the tightest bias decides.
    if max_gain.size != gain.size:
        max_gain = np.asarray(max_gain.min(initial=np.inf))
    wanted_gain = np.where(_zero_channels(kernel, arrays, mapping), np.float32(np.inf), gain)
    if not (max_gain < wanted_gain).any():
        return mapping
    gain_used = np.asarray(np.minimum(wanted_gain, max_gain), np.float32)
    # Still infinite: a channel of zeros whose bias is 0 as well, for which any gain is as good.
    gain_used = np.where(np.isinf(gain_used), gain, gain_used)
    # A type without a declared range gets infinite ends, for only its gain is known.
    ends = mapping.ends or DeclaredRange(
        np.full(gain_used.shape, -np.inf, F32), np.full(gain_used.shape, np.inf, F32)
    )
    return replace(mapping, scale=np.float32(1) / gain_used, ends=replace(ends, gain=gain_used))


def _zero_channels(kernel: ProductKernel, arrays: Operands, mapping: Affine) -> NDArray[np.bool_]:
    """Returns which channels of weights that the kernel is given as floats are zeros alone."""
    data = arrays[spec(kernel.op).traits.weight or ""]
    if kernel.rule.weights.given != "float" or mapping.axis is None:
        return np.zeros(np.shape(mapping.scale), bool)
    return np.asarray(~data.any(axis=tuple(i for i in range(data.ndim) if i != mapping.axis)))


def _max_gains(kernel: ProductKernel, bias: Integers, x: Affine, gain: Floats) -> Floats | None:
    """Returns the largest gains of weights next to which a bias fits; None where it needs no room.

    Of a bias in quantized values it is a share of the gain that there is, each step rounded as
    MXNet does.
    """
    slot = spec(kernel.op).traits.bias or ""
    kind, rule = kernel.types[slot], kernel.rule
    data = gains(x, rule, F32)
    with np.errstate(all="ignore"):
        if kind.quant is None and kind.dtype.is_float:
            magnitude = np.abs(bias.astype(np.float32))
            limit: Floats = _HALF_INT32 / magnitude / data
            # A bias of 0 needs no room.
            return np.where(magnitude > 0, limit, np.float32(np.inf))
        if kind.quant is None or rule.bias.domain != "rescaled_acc":
            return None
        bias_map = kernel.affine(slot)
        range_end = bias_map.scale.astype(F32) * np.float32(bias_map.high)
        if bias_map.ends is not None:
            range_end = np.maximum(np.abs(bias_map.ends.low), np.abs(bias_map.ends.high)).astype(
                F32
            )
        bias_gain = gains(bias_map, rule, F32)
        # The two factors of `bias_gain` do not cancel in float32: MXNet computes both.
        ratio = (_HALF_INT32 / range_end / bias_gain) * bias_gain / data / gain
        return np.asarray(gain * ratio, np.float32)
