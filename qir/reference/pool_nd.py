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


def _max(n: int) -> Callable[..., Array]:
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
        along = windows_along_axis(op, x.shape[2:], kernel, stride, pad, dilation, ceil=ceil)
        if not all(w.count for w in along):
            return np.empty((*x.shape[:2], *(w.count for w in along)), x.dtype)
        best = pad_window(x, along, lowest_element(kind, x.dtype))
        for i, each in enumerate(along):
            best = _greatest(best, each, i + 2)
        return np.ascontiguousarray(best)

    return run


def _greatest(x: Array, along: SlidingWindow, axis: int) -> Array:
    best = _at(x, along.tap(0), axis)
    for index in range(1, along.kernel):
        tap = _at(x, along.tap(index), axis)
        best = np.where(np.greater(tap, best) | (tap != tap), tap, best)
    return best


def _at(x: Array, places: slice, axis: int) -> Array:
    return x[(slice(None),) * axis + (places,)]


def _sums(x: Float64Array, along: Sequence[SlidingWindow]) -> Float64Array:
    """Returns the sum of each window, axis by axis and tap by tap."""
    held = pad_window(x, along, np.zeros(()))
    for i, each in enumerate(along):
        total = np.zeros(_at(held, each.tap(0), i + 2).shape)
        for index in range(each.kernel):
            np.add(total, _at(held, each.tap(index), i + 2), out=total)
        held = total
    return held.astype(np.float64, copy=False)


def _mean(n: int) -> Callable[..., Array]:
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
        along = windows_along_axis(op, x.shape[2:], kernel, stride, pad, (1,) * n, ceil=ceil)
        if not all(w.count for w in along):
            return np.empty((*x.shape[:2], *(w.count for w in along)), x.dtype)
        sums = _sums(to_float64(x).astype(np.float64, copy=False), along)
        for i, each in enumerate(along):
            shared = counts(each, count_pad)
            sums = sums / shared.reshape(-1, *(1,) * (n - 1 - i))
        return round_to_dtype(sums, x.dtype)

    return run


def _norm(n: int) -> Callable[..., Array]:
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
        along = windows_along_axis(op, x.shape[2:], kernel, stride, pad, dilation, ceil=ceil)
        if not all(w.count for w in along):
            made = np.empty((*x.shape[:2], *(w.count for w in along)), x.dtype)
        else:
            powers = np.abs(to_float64(x).astype(np.float64, copy=False)) ** p
            made = round_to_dtype(_sums(powers, along) ** (1 / p), x.dtype)
        return restore_layout(made, layout if n == 2 else "NCHW")

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
    op, n = "max_pool_places", len(kernel)
    kind = numeric_dtype(op, "x", x)
    require_rank(op, "x", x, n + 2)
    along = windows_along_axis(op, x.shape[2:], kernel, stride, pad, dilation, ceil=ceil)
    counts = tuple(w.count for w in along)
    best = np.full((*x.shape[:2], *counts), lowest_element(kind, x.dtype), x.dtype)
    at = np.full(best.shape, -1, np.int64)
    ground = pad_window(x, along, lowest_element(kind, x.dtype))
    plane = np.arange(math.prod(x.shape[2:]), dtype=np.int64).reshape(1, 1, *x.shape[2:])
    places = pad_window(plane, along, np.array(-1))
    for tap in np.ndindex(*(w.kernel for w in along)) if best.size else ():
        seen_at = (slice(None),) * 2 + tuple(w.tap(t) for w, t in zip(along, tap, strict=True))
        seen, place = ground[seen_at], np.broadcast_to(places[seen_at], at.shape)
        better = np.greater(seen, best) | ((seen != seen) & (best == best))
        wins = np.greater_equal(place, 0) & ((at < 0) | better)
        best, at = np.where(wins, seen, best), np.where(wins, place, at).astype(np.int64)
    return best, np.where(at < 0, at, at + _planes(op, x.shape, counted))


def _planes(op: str, shape: tuple[int, ...], counted: str) -> Places:
    """What is added to a place in a plane to make it a place as it is counted."""
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
    at = places.astype(np.int64)
    at = at + (_planes(op, shape, "tensor") - _planes(op, shape, counted))
    limit = math.prod(size if counted == "plane" else shape)
    low, high = (int(places.min()), int(places.max())) if places.size else (0, -1)
    if low < 0 or high >= limit:
        raise OpError(f"{op}: a place of {low}..{high} among {limit}")
    out = np.zeros(math.prod(shape), x.dtype)
    out[at.reshape(-1)] = x.reshape(-1)
    return out.reshape(shape)


def _parts(size: int, parts: int) -> list[slice]:
    """Returns the windows that divide an axis, from floor(i size / parts) to ceil((i + 1) size /
    parts)."""
    return [slice(i * size // parts, -(-(i + 1) * size // parts)) for i in range(parts)]


def _adapted(op: str, x: Array, size: Ints) -> list[list[slice]]:
    if x.ndim != len(size) + 2 or not size or min(size) < -1:
        raise OpError(f"{op}: x {list(x.shape)} cannot become {tuple(size)}")
    wanted = [held if s == -1 else s for s, held in zip(size, x.shape[2:], strict=True)]
    if any(s and not held for s, held in zip(wanted, x.shape[2:], strict=True)):
        raise OpError(f"{op}: x {list(x.shape)} has nothing to take {tuple(size)} from")
    return [_parts(held, s) for s, held in zip(wanted, x.shape[2:], strict=True)]


def _joined(parts: Sequence[Array], axis: int, empty: Array) -> Array:
    return np.concatenate(list(parts), axis) if parts else _at(empty, slice(0), axis)


@np.errstate(all="ignore")
def adaptive_avg_pool(x: Array, *, size: Ints) -> Array:
    """Returns the mean of windows that divide each axis into `size` parts; raises OpError for
    misfits."""
    require_floats("adaptive_avg_pool", x=x)
    held: Array = np.ascontiguousarray(to_float64(x))
    for axis, cuts in enumerate(_adapted("adaptive_avg_pool", x, size), 2):
        sums = [np.sum(_at(held, c, axis), axis, np.float64, keepdims=True) for c in cuts]
        means = [s / (c.stop - c.start) for s, c in zip(sums, cuts, strict=True)]
        held = _joined(means, axis, held)
    return round_to_dtype(np.ascontiguousarray(held), x.dtype)


def adaptive_max_pool(x: Array, *, size: Ints) -> Array:
    """Returns the greatest element of windows that divide each axis into `size` parts."""
    numeric_dtype("adaptive_max_pool", "x", x)
    held = x
    for axis, cuts in enumerate(_adapted("adaptive_max_pool", x, size), 2):
        tops = [_greatest(_at(held, c, axis), _single(c.stop - c.start), axis) for c in cuts]
        held = _joined(tops, axis, held)
    return np.ascontiguousarray(held)


def _single(size: int) -> SlidingWindow:
    return SlidingWindow(size, size, 1, 1, 0, 0, 1)


FUNCTIONS: dict[str, Callable[..., Array | tuple[Array, ...]]] = {
    **{f"max_pool{n}d": _max(n) for n in (1, 3)},
    **{f"avg_pool{n}d": _mean(n) for n in (1, 3)},
    **{f"lp_pool{n}d": _norm(n) for n in (1, 2, 3)},
    "max_pool_places": max_pool_places,
    "max_unpool": max_unpool,
    "adaptive_avg_pool": adaptive_avg_pool,
    "adaptive_max_pool": adaptive_max_pool,
}
