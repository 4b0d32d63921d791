"""Finds float weights from which MXNet's kernels compute the integers of a model again.

`_sg_mkldnn_conv`, and `_sg_mkldnn_fully_connected` by channel, quantize float weights themselves
when a model is loaded: one scale a channel, 127.5 over the largest weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import I8, U8
from qir.ir.types import Array, DeclaredBounds, QuantType

_F = np.float32
_INT8_DIVISOR = _F(127.5)
RANGE_DIVISORS = {I8: 127.5, U8: 255.5}
"""What the larger end of a range is divided by to get the scale, by storage."""
Floats = NDArray[np.float32]
Integers = NDArray[np.int8]


@dataclass(frozen=True)
class FloatWeights:
    """Float weights, and how far MXNet's integers for them are from the graph's."""

    reals: Floats
    moved: int
    """How many integers differ."""
    steps: int
    """By how much at most."""
    scales: int
    """How many channels get another scale."""


def float_weights(integers: Integers, kind: QuantType) -> FloatWeights:
    """Returns float weights; the largest of each channel has the range of its type.

    The integer that MXNet computes for that end, 127 or -128 except for rounding, becomes that end.
    """
    rows = integers.reshape(len(integers), -1)
    maxima = _channel_maxima(kind, len(rows))
    floats: Floats = rows.astype(_F) * (maxima / _INT8_DIVISOR).astype(_F)[:, None]
    # Integers that mean the largest weight get that float itself, so that MXNet finds the same
    # range.
    for distance in (maxima, -maxima):
        end_integers, _ = quantize_as_mxnet(distance[:, None])
        floats = np.where((rows == end_integers) & (rows != 0), distance[:, None], floats).astype(
            _F
        )
    # Quantize again as MXNet will, and count what differs.
    requantized, found_maxima = quantize_as_mxnet(floats)
    distance = np.abs(requantized.astype(np.int32) - rows.astype(np.int32))
    return FloatWeights(
        floats.reshape(integers.shape),
        int((distance > 0).sum()),
        int(distance.max(initial=0)),
        int(((found_maxima != maxima) & (rows != 0).any(axis=1)).sum()),
    )


def float_bias(integers: NDArray[np.int32], data: QuantType, kind: QuantType) -> tuple[Floats, int]:
    """Returns a float bias, and how many of its integers MXNet rounds to another one.

    Its unit is the product of the scales of data and weights.
    """
    gain = _data_gain(data) * (_INT8_DIVISOR / _channel_maxima(kind, len(integers))).astype(_F)
    floats = (integers.astype(np.float64) / gain.astype(np.float64)).astype(_F)
    return floats, int((np.rint(floats * gain).astype(np.int64) != integers).sum())


def _data_gain(data: QuantType) -> np.float32:
    level = _INT8_DIVISOR if data.low < 0 else _F(255.5)
    if (declared := declared_range(data)) is None:
        return _F(1) / _F(data.scales())
    low, high = (_float_list(end) for end in (declared.low, declared.high))
    return _F(level / max(abs(low[0]), abs(high[0])))


def quantize_as_mxnet(floats: Floats) -> tuple[Integers, Floats]:
    """Returns the integers that MXNet computes for rows of weights, and the largest weight of
    each row."""
    maxima = np.abs(floats).max(axis=1, initial=0).astype(_F)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rounded = np.rint(floats * (_INT8_DIVISOR / maxima)[:, None])
    return np.clip(np.nan_to_num(rounded), -128, 127).astype(np.int8), maxima


def declared_range(kind: QuantType) -> DeclaredBounds | None:
    """Returns the range that a type declares; None for one that has another number of steps.

    Such are TensorFlow's, whose ranges have 127 and 255 steps.
    """
    declared = kind.declared
    return (
        declared
        if declared is not None and declared.level in (None, RANGE_DIVISORS.get(kind.storage))
        else None
    )


def _channel_maxima(kind: QuantType, rows: int) -> Floats:
    """Returns what 127.5 steps of each channel mean: the declared range, where there is one."""
    if (declared := declared_range(kind)) is not None:
        low, high = (_float_list(end) for end in (declared.low, declared.high))
        return np.broadcast_to(np.maximum(np.abs(low), np.abs(high)), (rows,)).astype(_F)
    scales = np.asarray(kind.scales(), _F).reshape(-1)
    return np.broadcast_to(scales * _INT8_DIVISOR, (rows,)).astype(_F)


def _float_list(end: Any) -> Floats:
    return np.asarray(end.data if isinstance(end, Array) else end, _F).reshape(-1)
