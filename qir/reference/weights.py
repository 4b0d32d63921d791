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
    if kernel.op not in INTEGER_SUM_LAYERS or kernel.rule.method is not None:
        return kernel, arrays
    traits = spec(kernel.op).traits
    slot = traits.weight or ""
    kind, data = kernel.types[slot], kernel.types[traits.data].quant
    if data is None or data.dynamic or not is_affine(data):
        return kernel, arrays
    if kind.quant is None:
        real = kind.dtype.is_float and kernel.rule.weights.given == "float"
        return _quantized(kernel, arrays, slot) if real else (kernel, arrays)
    if not is_affine(kind.quant) or kernel.rule.bias.overflow != "shrink_weights":
        return kernel, arrays
    return _shrink_weights(kernel, arrays, slot)


def _quantized(
    kernel: ProductKernel, arrays: Operands, slot: str
) -> tuple[ProductKernel, Operands]:
    """Returns the kernel with quantized values for its float weights."""
    data, rule = arrays[slot].astype(np.float32), kernel.rule
    axis = None
    if rule.weights.grain == "channel" and (find := spec(kernel.op).traits.weight_axis):
        axis = find(Call(kernel.op, kernel.types, kernel.attrs))
    rest = tuple(i for i in range(data.ndim) if i != axis)
    low, high = data.min(axis=rest, initial=0), data.max(axis=rest, initial=0)
    symmetric = rule.choose.zero == "none" or rule.choose.zero.startswith("fixed:")
    grain = "tensor" if axis is None else "channel"
    scale, zero = choose(low, high, I8, rule.choose, symmetric=symmetric, grain=grain, weight=True)
    of = affine(I8, np.asarray(scale), zero, axis=axis)
    of = replace(of, ends=_weight_ranges(low, high, of, rule, grain))
    if rule.bias.overflow == "shrink_weights":
        of = _with_bias_room(kernel, arrays, of)
    return _with_weights(kernel, arrays, slot, quantize(data, of, rule), of)


def _weight_ranges(low: Floats, high: Floats, of: Affine, rule: Rule, grain: str) -> DeclaredRange:
    """Returns the ranges of float weights; of zeros alone the one that their scale stands for."""
    level = level_of(rule.choose.levels, rule.choose.zero, of.storage, (of.low, of.high), grain)
    if level is None:
        return DeclaredRange(low, high)
    silent, reach = (low == 0) & (high == 0), of.scale.astype(F32) * np.float32(level)
    return DeclaredRange(np.where(silent, -reach, low), np.where(silent, reach, high))


def _with_weights(
    kernel: ProductKernel, arrays: Operands, slot: str, codes: Integers, of: Affine
) -> tuple[ProductKernel, Operands]:
    """Returns the kernel with these quantized values and their map."""
    kind = kernel.types[slot].with_element(uniform(of.storage, of.scale, of.zero, axis=of.axis))
    made = replace(kernel, types={**kernel.types, slot: kind}, maps={**kernel.maps, slot: of})
    return made, {**arrays, slot: codes}


def _shrink_weights(
    kernel: ProductKernel, arrays: Operands, slot: str
) -> tuple[ProductKernel, Operands]:
    """Returns the kernel with smaller weight integers where a bias would not fit next to their
    sums."""
    of = kernel.affine(slot)
    less = _with_bias_room(kernel, arrays, of)
    if less is of:
        return kernel, arrays
    share: Floats = gains(less, kernel.rule, F32) / gains(of, kernel.rule, F32)
    if share.ndim:
        share = replace(of, scale=share).along(arrays[slot].ndim)[0]
    codes = np.clip(np.rint(arrays[slot].astype(np.float32) * share), of.low, of.high)
    return _with_weights(kernel, arrays, slot, codes.astype(of.carrier), less)


def _with_bias_room(kernel: ProductKernel, arrays: Operands, of: Affine) -> Affine:
    """Returns the weights' quantized type with gains by which the bias takes at most half of 32
    bits.

    A kernel that quantizes float weights takes any gain for a channel of zeros alone: the largest
    that leaves that room, so that all of its bias is kept.
    """
    traits = spec(kernel.op).traits
    if traits.bias is None or traits.bias not in arrays:
        return of
    gain = gains(of, kernel.rule, F32)
    most = _max_gains(kernel, arrays[traits.bias], kernel.affine(traits.data), gain)
    if most is None:
        return of
    if most.size != gain.size:
        most = np.asarray(most.min(initial=np.inf))
    wanted = np.where(_zero_channels(kernel, arrays, of), np.float32(np.inf), gain)
    if not (most < wanted).any():
        return of
    held = np.asarray(np.minimum(wanted, most), np.float32)
    held = np.where(np.isinf(held), gain, held)
    ends = of.ends or DeclaredRange(
        np.full(held.shape, -np.inf, F32), np.full(held.shape, np.inf, F32)
    )
    return replace(of, scale=np.float32(1) / held, ends=replace(ends, gain=held))


def _zero_channels(kernel: ProductKernel, arrays: Operands, of: Affine) -> NDArray[np.bool_]:
    """Returns which channels of weights that the kernel is given as floats are zeros alone."""
    data = arrays[spec(kernel.op).traits.weight or ""]
    if kernel.rule.weights.given != "float" or of.axis is None:
        return np.zeros(np.shape(of.scale), bool)
    return np.asarray(~data.any(axis=tuple(i for i in range(data.ndim) if i != of.axis)))


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
            reals = np.abs(bias.astype(np.float32))
            found: Floats = _HALF_INT32 / reals / data
            return np.where(reals > 0, found, np.float32(np.inf))
        if kind.quant is None or rule.bias.domain != "rescaled_acc":
            return None
        of = kernel.affine(slot)
        reach = of.scale.astype(F32) * np.float32(of.high)
        if of.ends is not None:
            reach = np.maximum(np.abs(of.ends.low), np.abs(of.ends.high)).astype(F32)
        own = gains(of, rule, F32)
        share = (_HALF_INT32 / reach / own) * own / data / gain
        return np.asarray(gain * share, np.float32)
