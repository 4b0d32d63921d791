"""Pooling.

max_pool2d lets NaN win (torch does; onnxruntime's answer depends on where in the window it
is). A window that sees padding alone gives -inf, for integers the least value, and as a mean
NaN. Windows that ceil mode lets reach beyond the padding count no element there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from qir.errors import OpError
from qir.ir.dtype import DType
from qir.reference.operands import (
    Array,
    Float64Array,
    numeric_dtype,
    require_floats,
    require_rank,
    round_to_dtype,
    to_float64,
)
from qir.reference.windows import (
    SlidingWindow,
    blocks,
    channels_first,
    padded,
    restore_layout,
    windows,
)

_MAX_BLOCK_ELEMENTS = 1 << 22


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
    """Returns the greatest element of each window; padding never wins. OpError for misfits."""
    kind = numeric_dtype("max_pool2d", "x", x)
    require_rank("max_pool2d", "x", x, 4)
    x = channels_first("max_pool2d", x, layout)
    sizes = (x.shape[2], x.shape[3])
    height, width = windows("max_pool2d", sizes, kernel, stride, pad, dilation, ceil=ceil)
    out = np.empty((*x.shape[:2], height.count, width.count), x.dtype)
    least = lowest_element(kind, x.dtype)
    if out.size:
        for images in blocks(len(x), x.shape[1] * height.span * width.span, _MAX_BLOCK_ELEMENTS):
            best = padded(x[images], height, width, least)
            # A window's maximum is taken along the height, then along the width: k + k taps, not k
            # * k.
            best = _window_max(best, height, -2)
            out[images] = _window_max(best, width, -1)
    return restore_layout(out, layout)


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
    """Returns the mean of each window, padding counted as zeros if so asked; raises OpError for
    misfits."""
    require_floats("avg_pool2d", x=x)
    require_rank("avg_pool2d", "x", x, 4)
    x = channels_first("avg_pool2d", x, layout)
    sizes = (x.shape[2], x.shape[3])
    height, width = windows("avg_pool2d", sizes, kernel, stride, pad, ceil=ceil)
    out = np.empty((*x.shape[:2], height.count, width.count), x.dtype)
    count = np.outer(counts(height, count_pad), counts(width, count_pad))
    if out.size:
        for images in blocks(len(x), x.shape[1] * height.span * width.span, _MAX_BLOCK_ELEMENTS):
            sums = padded(x[images], height, width, np.zeros(()))
            sums = _window_sum(_window_sum(sums, height, -2), width, -1)
            out[images] = round_to_dtype(np.divide(sums, count), x.dtype)
    return restore_layout(out, layout)


def _pooled_axes(op: str, x: Array, layout: str) -> tuple[int, ...]:
    """Returns the axes that a global pool takes together; raises OpError for misfits."""
    if layout not in ("NCHW", "NHWC"):
        raise OpError(f"{op}: layout {layout!r} is neither NCHW nor NHWC")
    if x.ndim < 3:
        raise OpError(f"{op}: x has {x.ndim} axes, it takes 3 or more")
    return tuple(range(2, x.ndim) if layout == "NCHW" else range(1, x.ndim - 1))


@np.errstate(all="ignore")
def global_avg_pool(x: Array, *, layout: str = "NCHW") -> Array:
    """Returns the mean over all but batch and channels, kept as axes of 1; NaN over nothing.

    OpError for misfits.
    """
    require_floats("global_avg_pool", x=x)
    axes = _pooled_axes("global_avg_pool", x, layout)
    count = np.float64(math.prod(x.shape[a] for a in axes))
    out = np.empty([1 if a in axes else d for a, d in enumerate(x.shape)], x.dtype)
    for images in blocks(len(x), x[0].size if len(x) else 0, _MAX_BLOCK_ELEMENTS):
        total = np.sum(np.ascontiguousarray(to_float64(x[images])), axis=axes, keepdims=True)
        out[images] = round_to_dtype(np.divide(total, count), x.dtype)
    return out


def lowest_element(kind: DType, carrier: np.dtype[np.generic]) -> Array:
    """Returns the least element of a type: what padding is, so that it never wins."""
    if kind.is_integer:
        return np.array(kind.bounds[0], carrier)
    lowest = np.array(-np.inf).astype(carrier)
    if lowest == lowest:
        return lowest
    # Some 8-bit floats have no infinity.
    return np.array(ml_dtypes.finfo(carrier).min, carrier)  # type: ignore[no-untyped-call]


def _window_max(x: Array, window: SlidingWindow, axis: int) -> Array:
    best = _take_tap(x, window.tap(0), axis)
    for index in range(1, window.kernel):
        tap = _take_tap(x, window.tap(index), axis)
        # Not np.maximum: which of +0.0 and -0.0 it keeps depends on the place in memory.
        best = np.where(np.greater(tap, best) | (tap != tap), tap, best)
    return best


def _window_sum(x: Array, window: SlidingWindow, axis: int) -> Float64Array:
    sums = np.zeros(_take_tap(x, window.tap(0), axis).shape)
    for index in range(window.kernel):
        np.add(sums, _take_tap(x, window.tap(index), axis), out=sums)
    return sums


def _take_tap(x: Array, places: slice, axis: int) -> Array:
    return x[..., places, :] if axis == -2 else x[..., places]


def counts(window: SlidingWindow, count_pad: bool) -> Float64Array:
    """Returns how many elements each window has a share of."""
    start = np.arange(window.count) * window.stride - window.before
    pad_start, pad_end = (-window.before, window.after) if count_pad else (0, 0)
    # Where padding counts, a window may still reach beyond it in ceil mode: that part never counts.
    end = np.minimum(start + window.kernel, window.size + pad_end)
    shared: Float64Array = np.maximum(end - np.maximum(start, pad_start), 0).astype(np.float64)
    return shared


def global_max_pool(x: Array, *, layout: str = "NCHW") -> Array:
    """Returns the greatest element over all but batch and channels; raises OpError for misfits."""
    kind = numeric_dtype("global_max_pool", "x", x)
    axes = _pooled_axes("global_max_pool", x, layout)
    kept_axes = tuple(a for a in range(x.ndim) if a not in axes)
    shape = [1 if a in axes else d for a, d in enumerate(x.shape)]
    flat = x.transpose(*kept_axes, *axes)
    flat = flat.reshape(*(x.shape[a] for a in kept_axes), math.prod(x.shape[a] for a in axes))
    if not flat.shape[-1]:
        return np.full(shape, lowest_element(kind, x.dtype), x.dtype)
    width = flat.shape[-1]
    best = _window_max(flat, SlidingWindow(width, width, 1, 1, 0, 0, 1), -1)
    return np.ascontiguousarray(best).reshape(shape)


@np.errstate(all="ignore")
def global_lp_pool(x: Array, *, p: int = 2, layout: str = "NCHW") -> Array:
    """Returns the p-th root of the sum of |x| to the p over all but batch and channels."""
    require_floats("global_lp_pool", x=x)
    axes = _pooled_axes("global_lp_pool", x, layout)
    if p < 1:
        raise OpError(f"global_lp_pool: p is {p}, it must be 1 or more")
    powers = np.ascontiguousarray(np.abs(to_float64(x).astype(np.float64, copy=False)) ** p)
    return round_to_dtype(np.sum(powers, axis=axes, keepdims=True) ** (1 / p), x.dtype)
