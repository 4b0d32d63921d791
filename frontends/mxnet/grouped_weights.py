"""Weights of grouped convolutions, quantized as in MXNet's kernel.

They have several channels a group.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.node import Value
from qir.ir.types import Array, DeclaredBounds, TensorType, uniform

from .call import SymbolCall
from .ranges import I8, LEVELS, declared_range
from .results import Unsupported

_F = np.float32


def grouped_weights(
    call: SymbolCall, x: Value, w: Value, bias: Value | None, groups: Attr
) -> Value:
    """Returns the integers that MXNet makes of float weights; other weights as they are.

    A defect of MXNet: it passes oneDNN's reorder one scale a channel, and a mask that reads one a
    group. Channels of group 2 are therefore quantized by the scale of channel 2, and dequantized by
    their own.
    """
    assert isinstance(groups, int)
    channels = w.type.shape[0]
    # One scale a group is then one scale a layer or a channel: the defect has no effect.
    if groups == 1 or groups == channels:
        return w
    if w.constant is None:
        raise Unsupported("its weights are computed; only parameters are read there")
    data = w.constant.data.astype(_F)
    channels_per_group = len(data) // groups
    absmax = np.abs(data).reshape(len(data), -1).max(axis=1).astype(_F)
    if not absmax.all():
        raise Unsupported("its groups have several channels, and one of them holds zeros alone")
    if bias is not None and _reduces_scale_for_bias(x, absmax, bias):
        raise Unsupported("its groups have several channels, and a bias takes half of 32 bits")
    gains = (_F(LEVELS[I8]) / absmax)[np.arange(len(data)) // channels_per_group]
    integers = np.rint(data * gains.reshape(-1, *(1,) * (data.ndim - 1)))
    quant = uniform(I8, (absmax / _F(LEVELS[I8])).astype(_F), axis=0)
    declared = DeclaredBounds(Array.of(-absmax), Array.of(absmax), LEVELS[I8])
    quant = replace(quant, declared=declared)
    clipped = np.clip(integers, -128, 127).astype(np.int8)
    return call.reader.graph.constant(Array(clipped, TensorType(w.type.shape, quant), w.name))


def _reduces_scale_for_bias(x: Value, absmax: NDArray[np.float32], bias: Value) -> bool:
    """Returns whether MXNet would reduce the scale of the weights so that the bias fits 32 bits."""
    if bias.constant is None:
        raise Unsupported("its bias is computed; only parameters are read there")
    steps = LEVELS[I8] / absmax * (LEVELS[x.type.dtype] / max(map(abs, declared_range(x))))
    return bool((np.abs(bias.constant.data) * steps > 2**30 - 2**10).any())
