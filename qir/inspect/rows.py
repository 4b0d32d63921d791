"""The weights of a product as rows: one for each channel, of all numbers that one sum meets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.ir.ops.layers import LAYERS
from qir.ir.types import Array
from qir.ir.verify.accumulators import is_transposed_conv, summed_axes
from qir.ir.verify.step import Product

Integers = NDArray[np.int64]
SAME_SUMS = frozenset({"as_conv2d", "transposed"})
"""Methods that lay data and weights out for another op, whose sums are requantized by the rule."""
SUMMING = LAYERS
"""The ops whose quantized values are functions of their sums and channels."""


def channel_axis(made: Product) -> int:
    """Returns the axis of the weights that channels are along."""
    (rank, over) = made.step.call.types[made.slots[0]].rank, summed_axes(made)
    return next(i for i in range(rank) if i not in over)


def weight_rows(made: Product, weights: Array) -> Integers:
    """Returns the weights of each channel, less their zero points.

    Of transposed convolutions all channels of one place after those of another, that meets other
    taps: those it does not meet are 0.
    """
    axis, call = channel_axis(made), made.step.call
    zeros = np.asarray(made.w.zeros(), np.int64).reshape(-1)
    data = np.moveaxis(weights.data.astype(np.int64), axis, 0)
    data = data - zeros.reshape(-1, *(1,) * (data.ndim - 1))
    if not is_transposed_conv(call):
        return data.reshape(len(data), -1)
    groups, taps = _ints(call.attrs["groups"])[0], data.shape[2:]
    # The input channels come group by group, and each group makes channels of its own.
    parts = data.reshape(len(data), groups, -1, *taps).swapaxes(0, 1)
    by_channel = parts.reshape(len(data) * groups, -1, *taps)
    stride, dilation = _ints(call.attrs["stride"]), _ints(call.attrs["dilation"])
    masks = _taps_by_place(taps, stride, dilation)
    # A tap that no input meets adds nothing, whatever the data.
    return np.concatenate([(by_channel * mask).reshape(len(by_channel), -1) for mask in masks])


def has_misread_groups(made: Product, weights: Array) -> bool:
    """Returns whether weights are others where the channels of each group are taken for turned."""
    groups = _ints(made.step.call.attrs["groups"])[0]
    return bool(weights.data.shape[0] // groups != weights.data.shape[1])


def _taps_by_place(
    taps: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Iterator[NDArray[np.bool_]]:
    """Yields which taps each place meets, of as many kinds of places as there are steps."""
    for residue in itertools.product(*map(range, stride)):
        mask = np.ones(tuple(taps), bool)
        for axis, (n, s, d, r) in enumerate(zip(taps, stride, dilation, residue, strict=True)):
            # Input is spread out by the stride: only every so many places hold a number.
            reached = (np.arange(n) * d - r) % s == 0
            mask &= reached.reshape(-1, *(1,) * (len(taps) - 1 - axis))
        yield mask


def _ints(value: object) -> tuple[int, ...]:
    numbers = value if isinstance(value, tuple) else (value,)
    return tuple(int(v) for v in numbers)
