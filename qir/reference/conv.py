"""Convolution.

Padding is zeros that take part: an infinite weight that meets it gives NaN, as in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from qir.errors import OpError
from qir.reference.operands import (
    Array,
    common_dtype,
    compute_dtype,
    require_rank,
    round_to_dtype,
    to_float64,
)
from qir.reference.product import product
from qir.reference.windows import (
    SlidingWindow,
    blocks,
    channels_first,
    padded,
    restore_layout,
    windows,
)

_COLUMNS = 1 << 22  # elements of an unfolded block: 32 MB of float64
_CACHED = 1 << 16  # elements of a depthwise block: the sums stay in the cache over all taps


@np.errstate(all="ignore")
def conv2d(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    stride: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    layout: str = "NCHW",
) -> Array:
    """2-d convolution with w [out, in / groups, height, width]; OpError for misfits."""
    common_dtype("conv2d", x=x, w=w, bias=bias)
    require_rank("conv2d", "x", x, 4)
    require_rank("conv2d", "w", w, 4)
    x = channels_first("conv2d", x, layout)
    _fit(x, w, bias, groups)
    kernel = (w.shape[2], w.shape[3])
    sizes = (x.shape[2], x.shape[3])
    height, width = windows("conv2d", sizes, kernel, stride, pad, dilation)
    out = np.empty((len(x), len(w), height.count, width.count), x.dtype)
    if out.size:
        bias64 = to_float64(np.zeros(len(w), x.dtype) if bias is None else bias.reshape(-1))
        # A depthwise convolution has one input channel a group: matrix products of depth one would
        # waste their set-up.
        convolve = _depthwise if w.shape[1] == 1 and groups > 1 else _dense
        convolve(x, to_float64(w), bias64[:, None, None], groups, height, width, out)
    return restore_layout(out, layout)


def _fit(x: Array, w: Array, bias: Array | None, groups: int) -> None:
    if groups < 1 or len(w) % groups:
        raise OpError(f"conv2d: {len(w)} output channels do not split into {groups} groups")
    if x.shape[1] != w.shape[1] * groups:
        expected = f"{w.shape[1]} x groups {groups}"
        raise OpError(f"conv2d: x has {x.shape[1]} channels, w wants {expected}")
    if bias is not None and bias.size != len(w):
        raise OpError(f"conv2d: bias has {bias.size} numbers, w makes {len(w)} channels")


def _dense(
    x: Array,
    w: Array,
    bias: Array,
    groups: int,
    height: SlidingWindow,
    width: SlidingWindow,
    out: Array,
) -> None:
    """Unfolds the windows into columns and multiplies, block by block."""
    depth = w[0].size
    kernels = w.reshape(groups, len(w) // groups, depth)
    line = groups * depth * width.count
    zero = np.zeros((), compute_dtype(x))
    for images in blocks(len(x), line * height.count, _COLUMNS):
        # A view [image, channel, row, column, tap row, tap column]: nothing is copied before
        # `columns`.
        windows_view = sliding_window_view(
            padded(x[images], height, width, zero),
            ((height.kernel - 1) * height.dilation + 1, (width.kernel - 1) * width.dilation + 1),
            axis=(2, 3),
        )[:, :, :: height.stride, :: width.stride, :: height.dilation, :: width.dilation]
        taps = windows_view.transpose(0, 1, 4, 5, 2, 3)
        # Blocks of lines bound the memory that unfolding takes.
        for lines in blocks(height.count, line * len(windows_view), _COLUMNS):
            block = taps[..., lines, :]
            columns = block.reshape(len(block), groups, depth, block.shape[-2] * width.count)
            target = out[images, :, lines]
            sums = product(kernels, columns).reshape(target.shape)
            target[...] = round_to_dtype(np.add(sums, bias), out.dtype)


def _depthwise(
    x: Array,
    w: Array,
    bias: Array,
    groups: int,
    height: SlidingWindow,
    width: SlidingWindow,
    out: Array,
) -> None:
    """Adds one tap of the kernel after the other, for a few channels at a time."""
    outputs_per_group = len(w) // groups
    kernels = w.reshape(groups, outputs_per_group, *w.shape[2:])
    shifts = bias.reshape(groups, outputs_per_group, 1, 1)
    out_by_group = out.reshape(len(x), groups, outputs_per_group, height.count, width.count)
    zero = np.zeros((), compute_dtype(x))
    area = outputs_per_group * height.count * width.count
    for images in blocks(len(x), area * groups, _CACHED):
        for some_groups in blocks(groups, area * (images.stop - images.start), _CACHED):
            padded_x = padded(x[images, some_groups], height, width, zero)
            sums = np.zeros(out_by_group[images, some_groups].shape, zero.dtype)
            # Each tap is one product of a shifted image with a number a channel.
            for i, j in np.ndindex(w.shape[2:]):
                tap = padded_x[:, :, None, height.tap(i), width.tap(j)]
                np.add(sums, np.multiply(tap, kernels[some_groups, :, i, j, None, None]), out=sums)
            out_by_group[images, some_groups] = round_to_dtype(
                np.add(sums, shifts[some_groups]), out.dtype
            )
