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
# The coefficient of the cubic kernel. PyTorch takes -0.75, as OpenCV does; others, such as Pillow,
# take -0.5.
CUBIC = -0.75


def _windows_of_axes(
    op: str, sizes: Ints, kernel: Ints, stride: Ints, pad: Ints, dilation: Ints
) -> tuple[SlidingWindow, ...]:
    if len(kernel) != len(sizes) or not kernel:
        raise OpError(f"{op}: kernel {tuple(kernel)} for {len(sizes)} axes")
    windows = windows_along_axis(op, sizes, kernel, stride, pad, dilation)
    if not all(w.count for w in windows):
        raise OpError(f"{op}: no window of {tuple(kernel)} is in {tuple(sizes)}")
    return windows


def _tap_slices(along: Sequence[SlidingWindow], tap: Ints) -> tuple[slice, ...]:
    """Returns what one element of the kernel sees of all images and channels."""
    return (slice(None),) * 2 + tuple(w.tap(t) for w, t in zip(along, tap, strict=True))


def unfold(x: Array, *, kernel: Ints, stride: Ints, pad: Ints, dilation: Ints) -> Array:
    """Each window a column, zeros where it sees padding; OpError for misfits."""
    require_rank("unfold", "x", x, len(kernel) + 2)
    along = _windows_of_axes("unfold", x.shape[2:], kernel, stride, pad, dilation)
    # Padding is laid out as elements first, so that a tap is a plain strided slice everywhere.
    padded_x = pad_window(x, along, np.zeros((), x.dtype))
    counts, taps = tuple(w.count for w in along), list(np.ndindex(*kernel))
    out = np.empty((*x.shape[:2], len(taps), math.prod(counts)), x.dtype)
    for i, tap in enumerate(taps):
        elements = padded_x[_tap_slices(along, tap)]
        out[:, :, i] = elements.reshape(*x.shape[:2], math.prod(counts))
    return out.reshape(len(x), x.shape[1] * len(taps), math.prod(counts))


@np.errstate(all="ignore")
def fold(x: Array, *, size: Ints, kernel: Ints, stride: Ints, pad: Ints, dilation: Ints) -> Array:
    """Columns added where unfold took them from; raises OpError for misfits."""
    numeric_dtype("fold", "x", x)
    require_rank("fold", "x", x, 3)
    windows, area = _windows_of_axes("fold", size, kernel, stride, pad, dilation), math.prod(kernel)
    counts = tuple(w.count for w in windows)
    if x.shape[1] % area or x.shape[2] != math.prod(counts):
        raise OpError(f"fold: x {list(x.shape)} is no {counts} windows of {tuple(kernel)}")
    # Overlapping windows add up: in float64 with one rounding at the end the order of taps does not
    # show.
    parts = to_float64(x).reshape(len(x), x.shape[1] // area, area, *counts)
    # Windows may end before the image does; the result still has all of its elements.
    spans = [max(w.span, w.before + w.size) for w in windows]
    out = np.zeros((*parts.shape[:2], *spans), parts.dtype)
    for i, tap in enumerate(np.ndindex(*kernel)):
        target = _tap_slices(windows, tap)
        out[target] = np.add(out[target], parts[:, :, i])
    inside = (slice(None),) * 2 + tuple(slice(w.before, w.before + w.size) for w in windows)
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
    op, spatial = "grid_sample", x.ndim - 2
    require_floats(op, x=x, grid=grid)
    if spatial < 1 or grid.ndim != x.ndim or grid.shape[-1] != spatial or len(grid) != len(x):
        raise OpError(f"{op}: x {list(x.shape)} and grid {list(grid.shape)} do not fit")
    if mode not in MODES or outside not in PADDING_MODES or 0 in x.shape[2:]:
        raise OpError(f"{op}: mode {mode!r}, outside {outside!r}, x {list(x.shape)}")
    places = to_float64(grid).astype(np.float64, copy=False)
    float64_x = to_float64(x).astype(np.float64, copy=False)
    axes = []
    for i, size in enumerate(x.shape[2:]):
        # The grid's last axis names x, then y, then z: the innermost axis first.
        coordinates = _to_element_coordinates(places[..., spatial - 1 - i], size, align_corners)
        # Cubic interpolation brings each of its four taps inside instead, as torch's grid_sample
        # does.
        if mode != "cubic":
            coordinates = _bring_inside(coordinates, size, outside, align_corners)
        axes.append(
            [
                _clamp_tap(t, size, outside, align_corners)
                for t in _interpolation_taps(coordinates, mode)
            ]
        )
    images = np.arange(len(x)).reshape(-1, *(1,) * (grid.ndim - 2))
    out = np.zeros((len(x), *grid.shape[1:-1], x.shape[1]))
    for combination in np.ndindex(*(len(a) for a in axes)):
        taps = [axes[i][k] for i, k in enumerate(combination)]
        weight = np.ones(grid.shape[:-1])
        for _, factor in taps:
            weight = weight * factor
        samples = np.moveaxis(float64_x, 1, -1)[(images, *(coordinates for coordinates, _ in taps))]
        # Outside elements have weight 0; 0 times an infinite or NaN element must not count.
        out = out + np.where(weight[..., None] == 0, 0.0, samples * weight[..., None])
    return np.ascontiguousarray(round_to_dtype(np.moveaxis(out, -1, 1), x.dtype))


def _to_element_coordinates(at: Float64Array, size: int, corners: bool) -> Float64Array:
    """From -1..1 to the numbers of elements."""
    return (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2


def _bring_inside(
    coordinates: Float64Array, size: int, outside: str, corners: bool
) -> Float64Array:
    """Places brought inside by the border, or by reflection; NaN counts as the lowest place."""
    # Samples outside are taken out by `_clamp_tap`, by weight 0: moving them would change the
    # weights of those that are half inside.
    if outside == "zeros":
        return coordinates
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    if outside == "reflection":
        coordinates = _reflect(coordinates, low, high)
    # Comparisons written so that NaN fails them: torch, too, sends NaN to the first element.
    coordinates = np.where(coordinates > 0, coordinates, 0.0)
    return np.where(coordinates < size - 1, coordinates, size - 1.0)


def _reflect(coordinates: Float64Array, low: float, high: float) -> Float64Array:
    # An axis of one element has nothing to reflect at.
    if high <= low:
        return np.zeros_like(coordinates)
    distance = np.abs(coordinates - low)
    remainder, flips = np.fmod(distance, high - low), np.floor(distance / (high - low))
    return np.where(np.mod(flips, 2) == 0, low + remainder, high - remainder)


def _interpolation_taps(
    coordinates: Float64Array, mode: str
) -> list[tuple[Float64Array, Float64Array]]:
    """Returns the whole places that each sample takes from along an axis, and how much of each."""
    if mode == "nearest":
        return [(np.rint(coordinates), np.ones(coordinates.shape))]
    base = np.floor(coordinates)
    fraction = coordinates - base
    if mode == "linear":
        return [(base, 1 - fraction), (base + 1, fraction)]
    # Cubic: the two neighbours on each side.
    return [(base + i, _spline(np.abs(fraction - i))) for i in range(-1, 3)]


def _spline(distance: Float64Array) -> Float64Array:
    near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance * distance + 1
    far = ((CUBIC * distance - 5 * CUBIC) * distance + 8 * CUBIC) * distance - 4 * CUBIC
    return np.where(distance <= 1, near, far)


def _clamp_tap(
    tap: tuple[Float64Array, Float64Array], size: int, outside: str, corners: bool
) -> tuple[NDArray[np.int64], Float64Array]:
    """Returns a place inside, with no share where it is not and zeros stand outside."""
    coordinates, weight = tap
    if outside != "zeros":
        coordinates = _bring_inside(coordinates, size, outside, corners)
    inside = (coordinates >= 0) & (coordinates <= size - 1)
    # An index must be valid even where its weight is 0, as NumPy gathers all of them.
    place = np.where(inside, coordinates, 0.0).astype(np.int64)
    return place, np.where(inside, weight, 0.0)


@np.errstate(all="ignore")
def affine_grid(theta: Array, size: Array, *, align_corners: bool = False) -> Array:
    """Returns the places that each matrix maps an image of that size to; raises OpError for
    misfits."""
    require_floats("affine_grid", theta=theta)
    target = [int(s) for s in size.reshape(-1)]
    spatial = len(target) - 2
    if spatial < 1 or min(target) < 1 or theta.shape != (target[0], spatial, spatial + 1):
        raise OpError(f"affine_grid: theta {list(theta.shape)}, size {target}")
    axes = [_axis_coordinates(s, align_corners) for s in target[2:]]
    # The matrix speaks of x, y, z; axes of an image are z, y, x.
    places = [*np.meshgrid(*axes, indexing="ij")][::-1]
    matrix = to_float64(theta).astype(np.float64, copy=False)
    out = np.zeros((target[0], *target[2:], spatial))
    for i in range(spatial):
        for j, place in enumerate((*places, np.ones(target[2:]))):
            out[..., i] += matrix[:, i, j].reshape(-1, *(1,) * spatial) * place
    return round_to_dtype(out, theta.dtype)


def _axis_coordinates(size: int, corners: bool) -> Float64Array:
    steps = np.arange(size, dtype=np.float64)
    if corners:
        # With corners aligned, one element alone would be at -1 and 1 at once: torch puts it in the
        # middle.
        return steps * 2 / (size - 1) - 1 if size > 1 else np.zeros(1)
    return (2 * steps + 1) / size - 1


# -- matrices -----------------------------------------------------------------------------------


def _eliminate(op: str, x: Array, right_side: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Solves each matrix for the right side by elimination; returns the determinants too."""
    require_floats(op, x=x)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise OpError(f"{op}: x has {list(x.shape)}, it takes square matrices")
    order = x.shape[-1]
    count = math.prod(x.shape[:-2])
    work = np.array(to_float64(x).astype(np.float64, copy=False)).reshape(count, order, order)
    # `det` gives a right side of no columns: the same steps then cost nothing more.
    solution = np.array(np.broadcast_to(right_side, (len(work), *right_side.shape)))
    determinants, matrices = np.ones(len(work)), np.arange(len(work))
    for i in range(order):
        # Partial pivoting: the largest remaining entry of the column is swapped to the diagonal.
        pivot_rows = i + np.argmax(np.abs(work[:, i:, i]), 1)
        determinants = np.where(pivot_rows != i, -determinants, determinants)
        for array in (work, solution):
            array[matrices, i], array[matrices, pivot_rows] = (
                array[matrices, pivot_rows],
                array[matrices, i].copy(),
            )
        pivot = work[:, i, i].copy()
        determinants = determinants * pivot
        # A singular matrix has determinant 0; `inverse` refuses it.
        divisor = np.where(pivot == 0, 1.0, pivot)[:, None]
        for array in (solution, work):
            array[:, i] = array[:, i] / divisor
        # Gauss-Jordan: entries above the diagonal are cleared as well, so there is no substitution
        # after.
        factors = work[:, :, i].copy()
        factors[:, i] = 0
        for array in (solution, work):
            array -= factors[:, :, None] * array[:, None, i]
    return solution, determinants


@np.errstate(all="ignore")
def det(x: Array) -> Array:
    """Returns the determinant of each matrix, 1 of an empty one; raises OpError unless they are
    square."""
    n = x.shape[-1] if x.ndim else 0
    _, sizes = _eliminate("det", x, np.zeros((n, 0)))
    return round_to_dtype(sizes.reshape(x.shape[:-2]), x.dtype)


@np.errstate(all="ignore")
def inverse(x: Array) -> Array:
    """Returns the inverse of each matrix; raises OpError where there is none."""
    n = x.shape[-1] if x.ndim else 0
    solution, determinants = _eliminate("inverse", x, np.eye(n))
    if (determinants == 0).any():
        raise OpError(f"inverse: matrix {int(np.argmax(determinants == 0))} has none")
    return round_to_dtype(solution.reshape(x.shape), x.dtype)


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "unfold": unfold,
    "fold": fold,
    "grid_sample": grid_sample,
    "affine_grid": affine_grid,
    "det": det,
    "inverse": inverse,
}
