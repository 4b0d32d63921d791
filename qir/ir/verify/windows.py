"""Which taps of a window meet data, place by place: what is outside counts as zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.ir.dims import Dim

_PLACES = 1 << 12  # places along an axis that are looked at one by one

Rows = NDArray[np.int64]
"""One row for each set of taps that meet data together, 1 where a tap does."""


def gathered(size: Dim, kernel: int, stride: int, dilation: int, pad: tuple[int, int]) -> Rows:
    """Returns the taps of a convolution along one axis.

    Where some place sees the whole window, no other goes further, and its row is alone.
    """
    all_taps = np.ones((1, kernel), np.int64)
    if not isinstance(size, int):
        return all_taps
    span = (kernel - 1) * dilation
    count = (size + sum(pad) - span - 1) // stride + 1
    # The first window that begins on data.
    first_inner = -(-pad[0] // stride)
    if (
        (first_inner < count and first_inner * stride - pad[0] + span < size)
        or count > _PLACES
        or count < 1
    ):
        return all_taps
    positions = np.arange(count)[:, None] * stride - pad[0] + np.arange(kernel) * dilation
    return np.unique(((positions >= 0) & (positions < size)).astype(np.int64), axis=0)


def scattered(size: Dim, kernel: int, stride: int, dilation: int, pad: tuple[int, int]) -> Rows:
    """Lists the taps of a transposed convolution that reach one output index along an axis.

    `pad` is the padding before, and the padding after less the output padding.
    """
    offsets = np.arange(kernel) * dilation
    if not isinstance(size, int) or (size - 1) * stride + int(offsets[-1:].sum()) >= _PLACES:
        steps = np.unique(offsets % stride)  # far from the ends: those of one step of the stride
        rows: Rows = (offsets % stride == steps[:, None]).astype(np.int64)
        return rows
    count = (size - 1) * stride + (kernel - 1) * dilation + 1 - sum(pad)
    # Output index o is reached by tap k from data index (o + pad - k * dilation) / stride, if that
    # is a whole number.
    source = np.arange(max(count, 1))[:, None] + pad[0] - offsets
    hits = (source % stride == 0) & (source >= 0) & (source < size * stride)
    return np.unique(hits.astype(np.int64), axis=0)
