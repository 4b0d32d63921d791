"""Pooling.

max_pool2d lets NaN win (torch does; onnxruntime's answer depends on where in the window it
lies). A window that sees padding alone gives -inf, for integers the least value, and as a mean
NaN. Windows that ceil mode lets reach beyond the padding count no element there.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from qir.errors import OpError
from qir.ir.dtype import DType
from qir.reference.operands import Array, Wide, element, floats, narrow, rank, wide
from qir.reference.windows import (
    Window,
    blocks,
    channels_back,
    channels_first,
    padded,
    windows,
)

_BLOCK = 1 << 22


def max_pool2d(
    x: Array,
    *,
    kernel: Sequence[int],
    stride: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil: bool = False,
    layout: str = "NCHW",
) -> Array:
    """The greatest element of each window; padding never wins. OpError for misfits."""
    kind = element("max_pool2d", "x", x)
    rank("max_pool2d", "x", x, 4)
    x = channels_first("max_pool2d", x, layout)
    sizes = (x.shape[2], x.shape[3])
    height, width = windows("max_pool2d", sizes, kernel, stride, pad, dilation, ceil=ceil)
    out = np.empty((*x.shape[:2], height.count, width.count), x.dtype)
    lowest = _lowest(kind, x.dtype)
    if out.size:
        for images in blocks(len(x), x.shape[1] * height.span * width.span, _BLOCK):
            best = padded(x[images], height, width, lowest)
            best = _greatest(best, height, -2)
            out[images] = _greatest(best, width, -1)
    return channels_back(out, layout)


@np.errstate(all="ignore")
def avg_pool2d(
    x: Array,
    *,
    kernel: Sequence[int],
    stride: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0, 0, 0),
    ceil: bool = False,
    count_pad: bool = False,
    layout: str = "NCHW",
) -> Array:
    """The mean of each window, padding counted as zeros if so asked; OpError for misfits."""
    floats("avg_pool2d", x=x)
    rank("avg_pool2d", "x", x, 4)
    x = channels_first("avg_pool2d", x, layout)
    sizes = (x.shape[2], x.shape[3])
    height, width = windows("avg_pool2d", sizes, kernel, stride, pad, ceil=ceil)
    out = np.empty((*x.shape[:2], height.count, width.count), x.dtype)
    count = np.outer(_counts(height, count_pad), _counts(width, count_pad))
    if out.size:
        for images in blocks(len(x), x.shape[1] * height.span * width.span, _BLOCK):
            sums = padded(x[images], height, width, np.zeros(()))
            sums = _total(_total(sums, height, -2), width, -1)
            out[images] = narrow(np.divide(sums, count), x.dtype)
    return channels_back(out, layout)


@np.errstate(all="ignore")
def global_avg_pool(x: Array, *, layout: str = "NCHW") -> Array:
    """The mean over height and width, kept as axes of 1; NaN over nothing. OpError for misfits."""
    floats("global_avg_pool", x=x)
    rank("global_avg_pool", "x", x, 4)
    x = channels_first("global_avg_pool", x, layout)
    count = np.float64(x.shape[2] * x.shape[3])
    out = np.empty((*x.shape[:2], 1, 1), x.dtype)
    for images in blocks(len(x), x[0].size if len(x) else 0, _BLOCK):
        total = np.sum(wide(x[images]), axis=(2, 3), keepdims=True)
        out[images] = narrow(np.divide(total, count), x.dtype)
    return channels_back(out, layout)


def _lowest(kind: DType, carrier: np.dtype[np.generic]) -> Array:
    if kind.is_integer:
        return np.array(kind.bounds[0], carrier)
    lowest = np.array(-np.inf).astype(carrier)
    if lowest == lowest:
        return lowest
    # Some 8-bit floats have no infinity.
    return np.array(ml_dtypes.finfo(carrier).min, carrier)  # type: ignore[no-untyped-call]


def _greatest(x: Array, window: Window, axis: int) -> Array:
    best = _at(x, window.tap(0), axis)
    for index in range(1, window.kernel):
        tap = _at(x, window.tap(index), axis)
        # Not np.maximum: which of +0.0 and -0.0 it keeps depends on the place in memory.
        best = np.where(np.greater(tap, best) | (tap != tap), tap, best)
    return best


def _total(x: Array, window: Window, axis: int) -> Wide:
    sums = np.zeros(_at(x, window.tap(0), axis).shape)
    for index in range(window.kernel):
        np.add(sums, _at(x, window.tap(index), axis), out=sums)
    return sums


def _at(x: Array, places: slice, axis: int) -> Array:
    return x[..., places, :] if axis == -2 else x[..., places]


def _counts(window: Window, count_pad: bool) -> Wide:
    """How many elements each window has a share of."""
    start = np.arange(window.count) * window.stride - window.before
    first, last = (-window.before, window.after) if count_pad else (0, 0)
    end = np.minimum(start + window.kernel, window.size + last)
    shared: Wide = np.maximum(end - np.maximum(start, first), 0).astype(np.float64)
    return shared


def global_max_pool(x: Array, *, layout: str = "NCHW") -> Array:
    """The greatest element over height and width; OpError unless x has 4 axes."""
    rank("global_max_pool", "x", x, 4)
    area = x.shape[2:] if layout == "NCHW" else x.shape[1:3]
    return max_pool2d(x, kernel=area, layout=layout)


@np.errstate(all="ignore")
def lp_pool2d(
    x: Array,
    *,
    kernel: Sequence[int],
    stride: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0, 0, 0),
    p: int = 2,
    layout: str = "NCHW",
) -> Array:
    """The p-th root of the sum of |x| to the p in each window; OpError for misfits."""
    floats("lp_pool2d", x=x)
    if p < 1:
        raise OpError(f"lp_pool2d: p is {p}, it must be 1 or more")
    powers = np.abs(wide(x).astype(np.float64, copy=False)) ** p
    mean = avg_pool2d(
        powers, kernel=kernel, stride=stride, pad=pad, count_pad=True, layout=layout
    ).astype(np.float64)
    return np.asarray(narrow((mean * (kernel[0] * kernel[1])) ** (1 / p), x.dtype))
