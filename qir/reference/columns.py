"""Windows laid out as columns and put back, samples at given places, and matrices as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.ops.columns import MODES, PADDING_MODES
from qir.reference.operands import (
    Array,
    Float64Array,
    numeric_dtype,
    require_floats,
    require_rank,
    round_to_dtype,
    to_float64,
)
from qir.reference.windows import SlidingWindow, pad_window, windows_along_axis

Ints = Sequence[int]
CUBIC = -0.75


def _along(
    op: str, sizes: Ints, kernel: Ints, stride: Ints, pad: Ints, dilation: Ints
) -> tuple[SlidingWindow, ...]:
    if len(kernel) != len(sizes) or not kernel:
        raise OpError(f"{op}: kernel {tuple(kernel)} for {len(sizes)} axes")
    along = windows_along_axis(op, sizes, kernel, stride, pad, dilation)
    if not all(w.count for w in along):
        raise OpError(f"{op}: no window of {tuple(kernel)} is in {tuple(sizes)}")
    return along


def _places(along: Sequence[SlidingWindow], tap: Ints) -> tuple[slice, ...]:
    """Returns what one element of the kernel sees of all images and channels."""
    return (slice(None),) * 2 + tuple(w.tap(t) for w, t in zip(along, tap, strict=True))


def unfold(x: Array, *, kernel: Ints, stride: Ints, pad: Ints, dilation: Ints) -> Array:
    """Each window a column, zeros where it sees padding; OpError for misfits."""
    require_rank("unfold", "x", x, len(kernel) + 2)
    along = _along("unfold", x.shape[2:], kernel, stride, pad, dilation)
    ground = pad_window(x, along, np.zeros((), x.dtype))
    counts, taps = tuple(w.count for w in along), list(np.ndindex(*kernel))
    out = np.empty((*x.shape[:2], len(taps), math.prod(counts)), x.dtype)
    for i, tap in enumerate(taps):
        seen = ground[_places(along, tap)]
        out[:, :, i] = seen.reshape(*x.shape[:2], math.prod(counts))
    return out.reshape(len(x), x.shape[1] * len(taps), math.prod(counts))


@np.errstate(all="ignore")
def fold(x: Array, *, size: Ints, kernel: Ints, stride: Ints, pad: Ints, dilation: Ints) -> Array:
    """Columns added where unfold took them from; raises OpError for misfits."""
    numeric_dtype("fold", "x", x)
    require_rank("fold", "x", x, 3)
    along, area = _along("fold", size, kernel, stride, pad, dilation), math.prod(kernel)
    counts = tuple(w.count for w in along)
    if x.shape[1] % area or x.shape[2] != math.prod(counts):
        raise OpError(f"fold: x {list(x.shape)} is no {counts} windows of {tuple(kernel)}")
    parts = to_float64(x).reshape(len(x), x.shape[1] // area, area, *counts)
    spans = [max(w.span, w.before + w.size) for w in along]
    out = np.zeros((*parts.shape[:2], *spans), parts.dtype)
    for i, tap in enumerate(np.ndindex(*kernel)):
        at = _places(along, tap)
        out[at] = np.add(out[at], parts[:, :, i])
    inside = (slice(None),) * 2 + tuple(slice(w.before, w.before + w.size) for w in along)
    return np.ascontiguousarray(round_to_dtype(out[inside], x.dtype))


# -- samples ------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def grid_sample(
    x: Array,
    grid: Array,
    *,
    mode: str = "linear",
    outside: str = "zeros",
    align_corners: bool = False,
) -> Array:
    """x between its elements, where the grid says; OpError for misfits."""
    op, n = "grid_sample", x.ndim - 2
    require_floats(op, x=x, grid=grid)
    if n < 1 or grid.ndim != x.ndim or grid.shape[-1] != n or len(grid) != len(x):
        raise OpError(f"{op}: x {list(x.shape)} and grid {list(grid.shape)} do not fit")
    if mode not in MODES or outside not in PADDING_MODES or 0 in x.shape[2:]:
        raise OpError(f"{op}: mode {mode!r}, outside {outside!r}, x {list(x.shape)}")
    places = to_float64(grid).astype(np.float64, copy=False)
    held = to_float64(x).astype(np.float64, copy=False)
    axes = []
    for i, size in enumerate(x.shape[2:]):
        at = _unscaled(places[..., n - 1 - i], size, align_corners)
        if mode != "cubic":
            at = _kept(at, size, outside, align_corners)
        axes.append([_tap(t, size, outside, align_corners) for t in _taps(at, mode)])
    images = np.arange(len(x)).reshape(-1, *(1,) * (grid.ndim - 2))
    out = np.zeros((len(x), *grid.shape[1:-1], x.shape[1]))
    for combination in np.ndindex(*(len(a) for a in axes)):
        taps = [axes[i][k] for i, k in enumerate(combination)]
        share = np.ones(grid.shape[:-1])
        for _, part in taps:
            share = share * part
        seen = np.moveaxis(held, 1, -1)[(images, *(at for at, _ in taps))]
        out = out + np.where(share[..., None] == 0, 0.0, seen * share[..., None])
    return np.ascontiguousarray(round_to_dtype(np.moveaxis(out, -1, 1), x.dtype))


def _unscaled(at: Float64Array, size: int, corners: bool) -> Float64Array:
    """From -1..1 to the numbers of elements."""
    return (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2


def _kept(at: Float64Array, size: int, outside: str, corners: bool) -> Float64Array:
    """Places brought inside by the border, or by reflection; NaN counts as the lowest place."""
    if outside == "zeros":
        return at
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    if outside == "reflection":
        at = _reflected(at, low, high)
    at = np.where(at > 0, at, 0.0)
    return np.where(at < size - 1, at, size - 1.0)


def _reflected(at: Float64Array, low: float, high: float) -> Float64Array:
    if high <= low:
        return np.zeros_like(at)
    away = np.abs(at - low)
    extra, flips = np.fmod(away, high - low), np.floor(away / (high - low))
    return np.where(np.mod(flips, 2) == 0, low + extra, high - extra)


def _taps(at: Float64Array, mode: str) -> list[tuple[Float64Array, Float64Array]]:
    """Returns the whole places that each sample takes from along an axis, and how much of each."""
    if mode == "nearest":
        return [(np.rint(at), np.ones(at.shape))]
    base = np.floor(at)
    rest = at - base
    if mode == "linear":
        return [(base, 1 - rest), (base + 1, rest)]
    return [(base + i, _spline(np.abs(rest - i))) for i in range(-1, 3)]


def _spline(away: Float64Array) -> Float64Array:
    near = ((CUBIC + 2) * away - (CUBIC + 3)) * away * away + 1
    far = ((CUBIC * away - 5 * CUBIC) * away + 8 * CUBIC) * away - 4 * CUBIC
    return np.where(away <= 1, near, far)


def _tap(
    tap: tuple[Float64Array, Float64Array], size: int, outside: str, corners: bool
) -> tuple[NDArray[np.int64], Float64Array]:
    """Returns a place inside, with no share where it is not and zeros stand outside."""
    at, share = tap
    if outside != "zeros":
        at = _kept(at, size, outside, corners)
    inside = (at >= 0) & (at <= size - 1)
    place = np.where(inside, at, 0.0).astype(np.int64)
    return place, np.where(inside, share, 0.0)


@np.errstate(all="ignore")
def affine_grid(theta: Array, size: Array, *, align_corners: bool = False) -> Array:
    """Returns the places that each matrix maps an image of that size to; raises OpError for
    misfits."""
    require_floats("affine_grid", theta=theta)
    wanted = [int(s) for s in size.reshape(-1)]
    n = len(wanted) - 2
    if n < 1 or min(wanted) < 1 or theta.shape != (wanted[0], n, n + 1):
        raise OpError(f"affine_grid: theta {list(theta.shape)}, size {wanted}")
    axes = [_spread(s, align_corners) for s in wanted[2:]]
    places = [*np.meshgrid(*axes, indexing="ij")][::-1]
    matrix = to_float64(theta).astype(np.float64, copy=False)
    out = np.zeros((wanted[0], *wanted[2:], n))
    for i in range(n):
        for j, place in enumerate((*places, np.ones(wanted[2:]))):
            out[..., i] += matrix[:, i, j].reshape(-1, *(1,) * n) * place
    return round_to_dtype(out, theta.dtype)


def _spread(size: int, corners: bool) -> Float64Array:
    steps = np.arange(size, dtype=np.float64)
    if corners:
        return steps * 2 / (size - 1) - 1 if size > 1 else np.zeros(1)
    return (2 * steps + 1) / size - 1


# -- matrices -----------------------------------------------------------------------------------


def _eliminated(op: str, x: Array, beside: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Each matrix to the identity row by row, and what is next to it; its determinants."""
    require_floats(op, x=x)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise OpError(f"{op}: x has {list(x.shape)}, it takes square matrices")
    n = x.shape[-1]
    count = math.prod(x.shape[:-2])
    work = np.array(to_float64(x).astype(np.float64, copy=False)).reshape(count, n, n)
    rest = np.array(np.broadcast_to(beside, (len(work), *beside.shape)))
    sizes, every = np.ones(len(work)), np.arange(len(work))
    for i in range(n):
        best = i + np.argmax(np.abs(work[:, i:, i]), 1)
        sizes = np.where(best != i, -sizes, sizes)
        for held in (work, rest):
            held[every, i], held[every, best] = held[every, best], held[every, i].copy()
        pivot = work[:, i, i].copy()
        sizes = sizes * pivot
        whole = np.where(pivot == 0, 1.0, pivot)[:, None]
        for held in (rest, work):
            held[:, i] = held[:, i] / whole
        share = work[:, :, i].copy()
        share[:, i] = 0
        for held in (rest, work):
            held -= share[:, :, None] * held[:, None, i]
    return rest, sizes


@np.errstate(all="ignore")
def det(x: Array) -> Array:
    """Returns the determinant of each matrix, 1 of an empty one; raises OpError unless they are
    square."""
    n = x.shape[-1] if x.ndim else 0
    _, sizes = _eliminated("det", x, np.zeros((n, 0)))
    return round_to_dtype(sizes.reshape(x.shape[:-2]), x.dtype)


@np.errstate(all="ignore")
def inverse(x: Array) -> Array:
    """Returns the inverse of each matrix; raises OpError where there is none."""
    n = x.shape[-1] if x.ndim else 0
    made, sizes = _eliminated("inverse", x, np.eye(n))
    if (sizes == 0).any():
        raise OpError(f"inverse: matrix {int(np.argmax(sizes == 0))} has none")
    return round_to_dtype(made.reshape(x.shape), x.dtype)


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "unfold": unfold,
    "fold": fold,
    "grid_sample": grid_sample,
    "affine_grid": affine_grid,
    "det": det,
    "inverse": inverse,
}
