"""Resizing: where each element of the result is in x, and what it takes from there.

Places are float32, each step of their formulas rounded, as onnxruntime has them: the scale is one
float32, i / scale and not i * (1 / scale). Interpolation works axis by axis in float64 and is
rounded once. What is outside repeats the edge, unless it is left out or extrapolated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.ops.resize import COORDINATES, MODES, POLICIES, ROUNDINGS, proportion, rounded, scaled
from qir.records import record
from qir.reference.moves import axes_of
from qir.reference.operands import Array, Float64Array, require_floats, round_to_dtype, to_float64

FloatList = Sequence[float]
Places = NDArray[np.int64]
Places32 = NDArray[np.float32]
float32 = np.float32
TIE_TOLERANCE = 1e-6  # what is no farther from a half counts as one, as in onnxruntime


@record
class AxisPlan:
    """How one axis is resized: `scale` is what its coordinates are divided by."""

    axis: int
    size: int
    made: int
    scale: np.float32
    start: np.float32
    end: np.float32

    @np.errstate(all="ignore")
    def coordinates(self, rule: str) -> Places32:
        """Returns where each element of the result is among those of x."""
        index, half = np.arange(self.made).astype(float32), float32(0.5)
        size, result_size, last_index = (
            float32(self.size),
            float32(self.made),
            float32(self.size) - float32(1),
        )
        match rule:
            case "asymmetric":
                places = index / self.scale
            case "tf_half_pixel_for_nn":
                places = (index + half) / self.scale
            case "half_pixel_symmetric":
                offset = size / float32(2) * (float32(1) - result_size / (self.scale * size))
                # In float64, and rounded to float32 with the other rules below.
                scaled_index = (index.astype(np.float64) + 0.5) / np.float64(self.scale)
                places = np.float64(offset) + scaled_index - 0.5
            case "align_corners" if self.made > 1:
                places = index * last_index / (result_size - float32(1))
            case "tf_crop_and_resize" if self.made > 1:
                cropped = index * (self.end - self.start) * last_index
                places = self.start * last_index + cropped / (result_size - float32(1))
            case "tf_crop_and_resize":
                places = index + 0.5 * np.float64(self.start + self.end) * np.float64(last_index)
            case "align_corners":
                places = index
            case "pytorch_half_pixel" if self.made == 1:
                places = index
            case _:
                places = (index + half) / self.scale - half
        return np.asarray(places, float32)


def resize_nearest(
    x: Array,
    sizes: Array | None = None,
    *,
    scales: FloatList = (),
    axes: Sequence[int] = (),
    coordinates: str = "half_pixel",
    policy: str = "stretch",
    roi: FloatList = (),
    extrapolation: float = 0.0,
    rounding: str = "round_prefer_floor",
) -> Array:
    """Each element the nearest of x; OpError for misfits."""
    op = "resize_nearest"
    if rounding not in ROUNDINGS:
        raise OpError(f"{op}: rounding {rounding!r} is none of {', '.join(ROUNDINGS)}")
    out, outside = x, np.zeros((1,) * x.ndim, np.bool_)
    for axis_plan in _plan(op, x, sizes, scales, axes, coordinates, policy, roi):
        coordinates_ = axis_plan.coordinates(coordinates)
        nearest = np.clip(_round_coordinates(coordinates_, rounding), 0, axis_plan.size - 1)
        out = np.take(out, nearest, axis_plan.axis)
        outside = outside | _outside(coordinates_, axis_plan, coordinates, x.ndim)
    return _fill_outside(out, outside, extrapolation)


_INDEX_SHIFTS = {
    ("asymmetric", "floor"): 0.0,
    ("half_pixel", "round_prefer_ceil"): 0.5,
    ("tf_half_pixel_for_nn", "floor"): 0.5,
    ("align_corners", "round_prefer_ceil"): 0.0,
}


def nearest_by_step(
    x: Array,
    sizes: Array | None = None,
    *,
    scales: FloatList = (),
    axes: Sequence[int] = (),
    coordinates: str = "half_pixel",
    policy: str = "stretch",
    roi: FloatList = (),
    extrapolation: float = 0.0,
    rounding: str = "round_prefer_floor",
) -> Array:
    """`resize_nearest` as torch and TensorFlow Lite have it: places are float32 products by a step.

    The step is the old size over the new one, each less one where corners align, or one over the
    scale as it is given. By other rules than theirs it is the op.
    """
    shift = _INDEX_SHIFTS.get((coordinates, rounding))
    if shift is None or policy != "stretch":
        return resize_nearest(
            x,
            sizes,
            scales=scales,
            axes=axes,
            coordinates=coordinates,
            policy=policy,
            roi=roi,
            extrapolation=extrapolation,
            rounding=rounding,
        )
    out, aligns_corners = x, coordinates == "align_corners"
    axis_list = axes_of("resize_nearest", axes, x.ndim) or tuple(range(x.ndim))
    for axis_plan in _plan("resize_nearest", x, sizes, scales, axes, coordinates, policy, roi):
        size, new_size = axis_plan.size, axis_plan.made
        if aligns_corners:
            step = float32(size - 1) / float32(max(new_size - 1, 1))
        else:
            step = (
                float32(1 / scales[axis_list.index(axis_plan.axis)])
                if scales
                else float32(size) / float32(max(new_size, 1))
            )
        places = (np.arange(new_size).astype(float32) + float32(shift)) * step
        nearest = np.floor(places.astype(np.float64) + 0.5) if aligns_corners else np.floor(places)
        out = np.take(out, np.minimum(nearest.astype(np.int64), size - 1), axis_plan.axis)
    return np.asarray(out, order="C")


def _round_coordinates(coordinates: Places32, rounding: str) -> Places:
    below = np.floor(coordinates)
    if rounding in ("floor", "ceil"):
        return np.asarray(below if rounding == "floor" else np.ceil(coordinates), np.int64)
    fraction = (coordinates - below).astype(np.float64) - 0.5
    is_tie = np.abs(fraction) <= TIE_TOLERANCE
    rounds_up = np.where(is_tie, rounding == "round_prefer_ceil", fraction > 0)
    return below.astype(np.int64) + rounds_up


@np.errstate(all="ignore")
def resize(
    x: Array,
    sizes: Array | None = None,
    *,
    scales: FloatList = (),
    axes: Sequence[int] = (),
    coordinates: str = "half_pixel",
    policy: str = "stretch",
    roi: FloatList = (),
    extrapolation: float = 0.0,
    mode: str = "linear",
    cubic_a: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
) -> Array:
    """Each element interpolated between those of x; OpError for misfits."""
    require_floats("resize", x=x)
    if mode not in MODES:
        raise OpError(f"resize: mode {mode!r} is none of {', '.join(MODES)}")
    out, outside = to_float64(x).astype(np.float64, copy=False), np.zeros((1,) * x.ndim, np.bool_)
    # Axis by axis in float64, and rounded once at the end.
    for axis_plan in _plan("resize", x, sizes, scales, axes, coordinates, policy, roi):
        # An axis of the same size stays as it is, though its scale may not be 1.
        if antialias and axis_plan.made == axis_plan.size and coordinates != "tf_crop_and_resize":
            continue
        coordinates_ = axis_plan.coordinates(coordinates)
        outside = outside | _outside(coordinates_, axis_plan, coordinates, x.ndim)
        # Antialiasing widens the filter where an axis shrinks, so that every element counts.
        stretch = min(float(axis_plan.scale), 1.0) if antialias else 1.0
        taps, weights = _taps_and_weights(coordinates_, mode, cubic_a, stretch)
        if exclude_outside:
            weights = np.where((taps >= 0) & (taps < axis_plan.size), weights, 0.0)
        # What is left of the weights is scaled to a sum of 1.
        if exclude_outside or antialias:
            weights = weights / weights.sum(1, keepdims=True)
        out = _interpolate(out, np.clip(taps, 0, axis_plan.size - 1), weights, axis_plan.axis)
    return _fill_outside(round_to_dtype(out, x.dtype), outside, extrapolation)


def _taps_and_weights(
    coordinates: Places32, mode: str, cubic_a: float, stretch: float
) -> tuple[Places, Float64Array]:
    """Returns the places that each element takes from and how much of each, wider by 1/stretch."""
    reach = 1 if mode == "linear" else 2
    first = int(np.floor(-reach / stretch)) + 1
    steps = np.arange(first, 2 - first, dtype=np.int64)
    base = np.floor(coordinates).astype(np.int64)
    fraction = coordinates.astype(np.float64) - base
    distance = np.abs((steps - fraction[:, None]) * stretch)
    weights = np.maximum(1 - distance, 0) if mode == "linear" else _spline(distance, cubic_a)
    return base[:, None] + steps, weights


def _spline(distance: Float64Array, a: float) -> Float64Array:
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _interpolate(x: Float64Array, taps: Places, weights: Float64Array, axis: int) -> Float64Array:
    shape = [1] * x.ndim
    shape[axis] = len(taps)
    out: Float64Array = np.zeros([len(taps) if a == axis else d for a, d in enumerate(x.shape)])
    for tap in range(taps.shape[1]):
        weight = weights[:, tap].reshape(shape)
        elements = np.take(x, taps[:, tap], axis)
        # Elements of weight 0 do not count, even if they are infinite or NaN.
        out += np.where(weight == 0, 0.0, elements * weight)
    return out


def _outside(coordinates: Places32, axis_plan: AxisPlan, rule: str, rank: int) -> NDArray[np.bool_]:
    """Returns which elements are outside x along an axis; only a crop has some that are not its
    edge."""
    out = (coordinates < 0) | (coordinates > axis_plan.size - 1)
    shape = [1] * rank
    shape[axis_plan.axis] = -1
    return (out & (rule == "tf_crop_and_resize")).reshape(shape)


def _fill_outside(out: Array, outside: NDArray[np.bool_], value: float) -> Array:
    if not outside.any():
        return np.asarray(out, order="C")
    filler = (
        round_to_dtype(np.array(value), out.dtype)
        if out.dtype.kind not in "iub"
        else np.array(value)
    )
    return np.where(outside, filler.astype(out.dtype), out)


def _plan(
    op: str,
    x: Array,
    sizes: Array | None,
    scales: FloatList,
    axes: Sequence[int],
    coordinates: str,
    policy: str,
    roi: FloatList,
) -> list[AxisPlan]:
    """Returns how each axis is resized, those that stay as they are left out; raises OpError for
    misfits.

    Where the whole result has the sizes of x, nothing is resized, whatever the scales.
    """
    axis_list = axes_of(op, axes, x.ndim) or tuple(range(x.ndim))
    if coordinates not in COORDINATES or policy not in POLICIES:
        raise OpError(f"{op}: coordinates {coordinates!r}, policy {policy!r}")
    if bool(scales) == (sizes is not None):
        raise OpError(f"{op}: it takes scales or sizes, one of the two")
    if coordinates == "tf_crop_and_resize" and not roi:
        raise OpError(f"{op}: tf_crop_and_resize needs a roi")
    if len(roi) not in (0, 2 * len(axis_list)):
        raise OpError(f"{op}: roi has {len(roi)} numbers, it takes {2 * len(axis_list)}")
    old_sizes = [x.shape[a] for a in axis_list]
    new_sizes, factors = _sizes_and_scales(op, old_sizes, sizes, scales, policy)
    is_crop = coordinates == "tf_crop_and_resize"
    # onnxruntime copies here, though scales that round to the old sizes would move the places.
    if new_sizes == old_sizes and not is_crop:
        return []
    out = []
    for i, axis in enumerate(axis_list):
        start, end = (
            (float32(roi[i]), float32(roi[i + len(axis_list)]))
            if is_crop
            else (float32(0), float32(1))
        )
        if not old_sizes[i] and new_sizes[i]:
            raise OpError(f"{op}: axis {axis} is empty, it cannot become {new_sizes[i]}")
        if factors[i] != 1 or is_crop:
            out.append(AxisPlan(axis, old_sizes[i], new_sizes[i], factors[i], start, end))
    return out


def _sizes_and_scales(
    op: str, old_sizes: list[int], sizes: Array | None, scales: FloatList, policy: str
) -> tuple[list[int], list[np.float32]]:
    """Returns the sizes of the result, and the scales."""
    if sizes is None:
        if len(scales) != len(old_sizes) or not all(0 < s < 2**31 for s in scales):
            raise OpError(f"{op}: scales {tuple(scales)} are no {len(old_sizes)} positive numbers")
        new_sizes = [scaled(h, s) for h, s in zip(old_sizes, scales, strict=True)]
        return new_sizes, [float32(s) for s in scales]
    target = [int(s) for s in sizes.reshape(-1)]
    if sizes.ndim != 1 or len(target) != len(old_sizes):
        raise OpError(f"{op}: {len(target)} sizes for {len(old_sizes)} axes")
    if min(target, default=1) < 1:
        raise OpError(f"{op}: sizes {target}: each must be 1 or more")
    # One factor for all axes: that of the axis which decides keeps the proportions.
    if policy != "stretch":
        if 0 in old_sizes:
            raise OpError(f"{op}: x has no elements, whose proportions could be kept")
        factor = proportion(policy, old_sizes, target)
        return [rounded(h, factor) for h in old_sizes], [factor] * len(old_sizes)
    return target, [float32(w) / float32(max(h, 1)) for w, h in zip(target, old_sizes, strict=True)]


STEPPED: Callable[..., Array] = nearest_by_step
FUNCTIONS: dict[str, Callable[..., Array]] = {"resize_nearest": resize_nearest, "resize": resize}


def resized(
    x: Array, sizes: Array | None, scales: Sequence[float], axes: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Returns the axes whose size changes, and what it becomes."""
    axis_list = [a % x.ndim for a in axes] or list(range(x.ndim))
    if sizes is not None:
        new_sizes = [int(n) for n in sizes.ravel()]
    else:
        new_sizes = [scaled(x.shape[a], s) for a, s in zip(axis_list, scales, strict=True)]
    if not axes:
        pairs = [(a, n) for a, n in zip(axis_list, new_sizes, strict=True) if n != x.shape[a]]
        axis_list, new_sizes = [a for a, _ in pairs], [n for _, n in pairs]
    return axis_list, new_sizes
