"""Pooling along any number of axes, to sizes that are given, and back.

NaN wins as a greatest element; a window that sees padding alone gives what max_pool2d and
avg_pool2d give there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.reference.operands import (
    Array,
    Float64Array,
    numeric_dtype,
    require_floats,
    require_rank,
    round_to_dtype,
    to_float64,
)
from qir.reference.pool import counts, lowest_element
from qir.reference.windows import (
    SlidingWindow,
    channels_first,
    pad_window,
    restore_layout,
    windows_along_axis,
)

Ints = Sequence[int]
Places = NDArray[np.int64]


def _max_pool(n: int) -> Callable[..., Array]:
    op = f"max_pool{n}d"

    def run(
        x: Array,
        *,
        kernel: Ints,
        stride: Ints = (1,) * n,
        pad: Ints = (0,) * 2 * n,
        dilation: Ints = (1,) * n,
        ceil: bool = False,
    ) -> Array:
        kind = numeric_dtype(op, "x", x)
        require_rank(op, "x", x, n + 2)
        windows = windows_along_axis(op, x.shape[2:], kernel, stride, pad, dilation, ceil=ceil)
        if not all(w.count for w in windows):
            return np.empty((*x.shape[:2], *(w.count for w in windows)), x.dtype)
        best = pad_window(x, windows, lowest_element(kind, x.dtype))
        for i, window in enumerate(windows):
            best = _window_max(best, window, i + 2)
        return np.ascontiguousarray(best)

    return run


def _window_max(x: Array, window: SlidingWindow, axis: int) -> Array:
    best = _take_axis(x, window.tap(0), axis)
    for index in range(1, window.kernel):
        tap = _take_axis(x, window.tap(index), axis)
        # NaN wins over all numbers and stays: nothing is greater than it.
        best = np.where(np.greater(tap, best) | (tap != tap), tap, best)
    return best


def _take_axis(x: Array, places: slice, axis: int) -> Array:
    return x[(slice(None),) * axis + (places,)]


def _window_sums(x: Float64Array, windows: Sequence[SlidingWindow]) -> Float64Array:
    """Returns the sum of each window, axis by axis and tap by tap."""
    partial_sums = pad_window(x, windows, np.zeros(()))
    for i, window in enumerate(windows):
        total = np.zeros(_take_axis(partial_sums, window.tap(0), i + 2).shape)
        for index in range(window.kernel):
            np.add(total, _take_axis(partial_sums, window.tap(index), i + 2), out=total)
        partial_sums = total
    return partial_sums.astype(np.float64, copy=False)


def _avg_pool(n: int) -> Callable[..., Array]:
    op = f"avg_pool{n}d"

    @np.errstate(all="ignore")
    def run(
        x: Array,
        *,
        kernel: Ints,
        stride: Ints = (1,) * n,
        pad: Ints = (0,) * 2 * n,
        ceil: bool = False,
        count_pad: bool = False,
    ) -> Array:
        require_floats(op, x=x)
        require_rank(op, "x", x, n + 2)
        windows = windows_along_axis(op, x.shape[2:], kernel, stride, pad, (1,) * n, ceil=ceil)
        if not all(w.count for w in windows):
            return np.empty((*x.shape[:2], *(w.count for w in windows)), x.dtype)
        sums = _window_sums(to_float64(x).astype(np.float64, copy=False), windows)
        for i, window in enumerate(windows):
            shared = counts(window, count_pad)
            sums = sums / shared.reshape(-1, *(1,) * (n - 1 - i))
        return round_to_dtype(sums, x.dtype)

    return run


def _lp_pool(n: int) -> Callable[..., Array]:
    op = f"lp_pool{n}d"

    @np.errstate(all="ignore")
    def run(
        x: Array,
        *,
        kernel: Ints,
        stride: Ints = (1,) * n,
        pad: Ints = (0,) * 2 * n,
        p: int = 2,
        dilation: Ints = (1,) * n,
        ceil: bool = False,
        layout: str = "NCHW",
    ) -> Array:
        require_floats(op, x=x)
        if p < 1:
            raise OpError(f"{op}: p is {p}, it must be 1 or more")
        require_rank(op, "x", x, n + 2)
        if n == 2:
            x = channels_first(op, x, layout)
        windows = windows_along_axis(op, x.shape[2:], kernel, stride, pad, dilation, ceil=ceil)
        if not all(w.count for w in windows):
            result = np.empty((*x.shape[:2], *(w.count for w in windows)), x.dtype)
        else:
            powers = np.abs(to_float64(x).astype(np.float64, copy=False)) ** p
            result = round_to_dtype(_window_sums(powers, windows) ** (1 / p), x.dtype)
        return restore_layout(result, layout if n == 2 else "NCHW")

    return run


def max_pool_places(
    x: Array,
    *,
    kernel: Ints,
    stride: Ints,
    pad: Ints,
    dilation: Ints,
    ceil: bool = False,
    counted: str = "tensor",
) -> tuple[Array, Array]:
    """Returns the greatest element of each window and the number of its first place; raises OpError
    for misfits.

    A window that sees padding alone has place -1.
    """
    op, spatial = "max_pool_places", len(kernel)
    kind = numeric_dtype(op, "x", x)
    require_rank(op, "x", x, spatial + 2)
    windows = windows_along_axis(op, x.shape[2:], kernel, stride, pad, dilation, ceil=ceil)
    counts = tuple(w.count for w in windows)
    best = np.full((*x.shape[:2], *counts), lowest_element(kind, x.dtype), x.dtype)
    best_places = np.full(best.shape, -1, np.int64)
    padded_x = pad_window(x, windows, lowest_element(kind, x.dtype))
    # Places are counted in a plane and shifted to the tensor at the end; padding has place -1.
    plane = np.arange(math.prod(x.shape[2:]), dtype=np.int64).reshape(1, 1, *x.shape[2:])
    places = pad_window(plane, windows, np.array(-1))
    for tap in np.ndindex(*(w.kernel for w in windows)) if best.size else ():
        tap_slices = (slice(None),) * 2 + tuple(w.tap(t) for w, t in zip(windows, tap, strict=True))
        elements, element_places = (
            padded_x[tap_slices],
            np.broadcast_to(places[tap_slices], best_places.shape),
        )
        # NaN wins over numbers, and the first of several wins.
        is_greater = np.greater(elements, best) | ((elements != elements) & (best == best))
        # A place of -1 is padding, which never wins.
        wins = np.greater_equal(element_places, 0) & ((best_places < 0) | is_greater)
        best, best_places = (
            np.where(wins, elements, best),
            np.where(wins, element_places, best_places).astype(np.int64),
        )
    return best, np.where(
        best_places < 0, best_places, best_places + _plane_offsets(op, x.shape, counted)
    )


def _plane_offsets(op: str, shape: tuple[int, ...], counted: str) -> Places:
    """Returns what makes a place in a plane a place in the tensor, or zeros if planes are
    counted."""
    if counted not in ("tensor", "plane"):
        raise OpError(f"{op}: counted {counted!r} is neither tensor nor plane")
    size = math.prod(shape[2:]) if counted == "tensor" else 0
    starts = np.arange(shape[0] * shape[1], dtype=np.int64) * size
    return starts.reshape(*shape[:2], *(1,) * (len(shape) - 2))


def max_unpool(x: Array, places: Array, *, size: Ints, counted: str = "tensor") -> Array:
    """Zeros with each element of x at its place; raises OpError for a place that is not there."""
    op = "max_unpool"
    numeric_dtype(op, "x", x)
    if (
        not size
        or x.ndim != len(size) + 2
        or places.shape != x.shape
        or places.dtype.kind not in "iu"
    ):
        raise OpError(f"{op}: x {list(x.shape)}, places {list(places.shape)}, size {tuple(size)}")
    shape = (*x.shape[:2], *size)
    # Places within planes become places within the tensor, so that one assignment puts all
    # elements.
    positions = places.astype(np.int64)
    positions = positions + (
        _plane_offsets(op, shape, "tensor") - _plane_offsets(op, shape, counted)
    )
    limit = math.prod(size if counted == "plane" else shape)
    low, high = (int(places.min()), int(places.max())) if places.size else (0, -1)
    if low < 0 or high >= limit:
        raise OpError(f"{op}: a place of {low}..{high} among {limit}")
    out = np.zeros(math.prod(shape), x.dtype)
    out[positions.reshape(-1)] = x.reshape(-1)
    return out.reshape(shape)


def _adaptive_windows(size: int, parts: int) -> list[slice]:
    """Returns the windows that divide an axis, from floor(i size / parts) to ceil((i + 1) size /
    parts)."""
    return [slice(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]


def _windows_per_axis(op: str, x: Array, size: Ints) -> list[list[slice]]:
    if x.ndim != len(size) + 2 or not size or min(size) < -1:
        raise OpError(f"{op}: x {list(x.shape)} cannot become {tuple(size)}")
    # -1 leaves an axis as it is.
    target = [x_size if s == -1 else s for s, x_size in zip(size, x.shape[2:], strict=True)]
    if any(s and not x_size for s, x_size in zip(target, x.shape[2:], strict=True)):
        raise OpError(f"{op}: x {list(x.shape)} has nothing to take {tuple(size)} from")
    return [_adaptive_windows(x_size, s) for s, x_size in zip(target, x.shape[2:], strict=True)]


def _concat_or_empty(parts: Sequence[Array], axis: int, empty: Array) -> Array:
    return np.concatenate(list(parts), axis) if parts else _take_axis(empty, slice(0), axis)


@np.errstate(all="ignore")
def adaptive_avg_pool(x: Array, *, size: Ints) -> Array:
    """Returns the mean of windows that divide each axis into `size` parts; raises OpError for
    misfits."""
    require_floats("adaptive_avg_pool", x=x)
    reduced: Array = np.ascontiguousarray(to_float64(x))
    for axis, windows in enumerate(_windows_per_axis("adaptive_avg_pool", x, size), 2):
        sums = [
            np.sum(_take_axis(reduced, c, axis), axis, np.float64, keepdims=True) for c in windows
        ]
        means = [s / (c.stop - c.start) for s, c in zip(sums, windows, strict=True)]
        reduced = _concat_or_empty(means, axis, reduced)
    return round_to_dtype(np.ascontiguousarray(reduced), x.dtype)


def adaptive_max_pool(x: Array, *, size: Ints) -> Array:
    """Returns the greatest element of windows that divide each axis into `size` parts."""
    numeric_dtype("adaptive_max_pool", "x", x)
    reduced = x
    for axis, windows in enumerate(_windows_per_axis("adaptive_max_pool", x, size), 2):
        maxima = [
            _window_max(_take_axis(reduced, c, axis), _global_window(c.stop - c.start), axis)
            for c in windows
        ]
        reduced = _concat_or_empty(maxima, axis, reduced)
    return np.ascontiguousarray(reduced)


def _global_window(size: int) -> SlidingWindow:
    return SlidingWindow(size, size, 1, 1, 0, 0, 1)


FUNCTIONS: dict[str, Callable[..., Array | tuple[Array, ...]]] = {
    **{f"max_pool{n}d": _max_pool(n) for n in (1, 3)},
    **{f"avg_pool{n}d": _avg_pool(n) for n in (1, 3)},
    **{f"lp_pool{n}d": _lp_pool(n) for n in (1, 2, 3)},
    "max_pool_places": max_pool_places,
    "max_unpool": max_unpool,
    "adaptive_avg_pool": adaptive_avg_pool,
    "adaptive_max_pool": adaptive_max_pool,
}
