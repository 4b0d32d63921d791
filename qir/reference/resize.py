"""Resizing: where each element of the result is in x, and what it takes from there.

Places are float32, each step of their formulas rounded, as onnxruntime has them: the scale is one
float32, i / scale and not i * (1 / scale). Interpolation works axis by axis in float64 and is
rounded once. What is outside repeats the edge, unless it is left out or extrapolated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.ops.resize import COORDINATES, MODES, POLICIES, ROUNDINGS, proportion, rounded, scaled
from qir.reference.moves import axes_of
from qir.reference.operands import Array, Float64Array, require_floats, round_to_dtype, to_float64

Reals = Sequence[float]
Places = NDArray[np.int64]
Places32 = NDArray[np.float32]
float32 = np.float32
HALVES = 1e-6  # what is no farther from a half counts as one, as in onnxruntime


@dataclass(frozen=True, slots=True)
class Along:
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
        number, half = np.arange(self.made).astype(float32), float32(0.5)
        size, made, last = float32(self.size), float32(self.made), float32(self.size) - float32(1)
        match rule:
            case "asymmetric":
                places = number / self.scale
            case "tf_half_pixel_for_nn":
                places = (number + half) / self.scale
            case "half_pixel_symmetric":
                beside = size / float32(2) * (float32(1) - made / (self.scale * size))
                moved = (number.astype(np.float64) + 0.5) / np.float64(self.scale)
                places = np.float64(beside) + moved - 0.5
            case "align_corners" if self.made > 1:
                places = number * last / (made - float32(1))
            case "tf_crop_and_resize" if self.made > 1:
                span = number * (self.end - self.start) * last
                places = self.start * last + span / (made - float32(1))
            case "tf_crop_and_resize":
                places = number + 0.5 * np.float64(self.start + self.end) * np.float64(last)
            case "align_corners":
                places = number
            case "pytorch_half_pixel" if self.made == 1:
                places = number
            case _:
                places = (number + half) / self.scale - half
        return np.asarray(places, float32)


def resize_nearest(
    x: Array,
    sizes: Array | None = None,
    *,
    scales: Reals = (),
    axes: Sequence[int] = (),
    coordinates: str = "half_pixel",
    policy: str = "stretch",
    roi: Reals = (),
    extrapolation: float = 0.0,
    rounding: str = "round_prefer_floor",
) -> Array:
    """Each element the nearest of x; OpError for misfits."""
    op = "resize_nearest"
    if rounding not in ROUNDINGS:
        raise OpError(f"{op}: rounding {rounding!r} is none of {', '.join(ROUNDINGS)}")
    out, outside = x, np.zeros((1,) * x.ndim, np.bool_)
    for along in _plan(op, x, sizes, scales, axes, coordinates, policy, roi):
        at = along.coordinates(coordinates)
        near = np.clip(_whole(at, rounding), 0, along.size - 1)
        out = np.take(out, near, along.axis)
        outside = outside | _beyond(at, along, coordinates, x.ndim)
    return _extrapolated(out, outside, extrapolation)


_AHEAD = {
    ("asymmetric", "floor"): 0.0,
    ("half_pixel", "round_prefer_ceil"): 0.5,
    ("tf_half_pixel_for_nn", "floor"): 0.5,
    ("align_corners", "round_prefer_ceil"): 0.0,
}


def nearest_by_step(
    x: Array,
    sizes: Array | None = None,
    *,
    scales: Reals = (),
    axes: Sequence[int] = (),
    coordinates: str = "half_pixel",
    policy: str = "stretch",
    roi: Reals = (),
    extrapolation: float = 0.0,
    rounding: str = "round_prefer_floor",
) -> Array:
    """`resize_nearest` as torch and TensorFlow Lite have it: places are float32 products by a step.

    The step is the old size over the new one, each less one where corners align, or one over the
    scale as it is given. By other rules than theirs it is the op.
    """
    ahead = _AHEAD.get((coordinates, rounding))
    if ahead is None or policy != "stretch":
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
    out, corners = x, coordinates == "align_corners"
    over = axes_of("resize_nearest", axes, x.ndim) or tuple(range(x.ndim))
    for along in _plan("resize_nearest", x, sizes, scales, axes, coordinates, policy, roi):
        size, made = along.size, along.made
        if corners:
            step = float32(size - 1) / float32(max(made - 1, 1))
        else:
            step = (
                float32(1 / scales[over.index(along.axis)])
                if scales
                else float32(size) / float32(max(made, 1))
            )
        places = (np.arange(made).astype(float32) + float32(ahead)) * step
        near = np.floor(places.astype(np.float64) + 0.5) if corners else np.floor(places)
        out = np.take(out, np.minimum(near.astype(np.int64), size - 1), along.axis)
    return np.asarray(out, order="C")


def _whole(at: Places32, rounding: str) -> Places:
    below = np.floor(at)
    if rounding in ("floor", "ceil"):
        return np.asarray(below if rounding == "floor" else np.ceil(at), np.int64)
    rest = (at - below).astype(np.float64) - 0.5
    tied = np.abs(rest) <= HALVES
    up = np.where(tied, rounding == "round_prefer_ceil", rest > 0)
    return below.astype(np.int64) + up


@np.errstate(all="ignore")
def resize(
    x: Array,
    sizes: Array | None = None,
    *,
    scales: Reals = (),
    axes: Sequence[int] = (),
    coordinates: str = "half_pixel",
    policy: str = "stretch",
    roi: Reals = (),
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
    for along in _plan("resize", x, sizes, scales, axes, coordinates, policy, roi):
        if antialias and along.made == along.size and coordinates != "tf_crop_and_resize":
            continue
        at = along.coordinates(coordinates)
        outside = outside | _beyond(at, along, coordinates, x.ndim)
        stretch = min(float(along.scale), 1.0) if antialias else 1.0
        taps, shares = _shares(at, mode, cubic_a, stretch)
        if exclude_outside:
            shares = np.where((taps >= 0) & (taps < along.size), shares, 0.0)
        if exclude_outside or antialias:
            shares = shares / shares.sum(1, keepdims=True)
        out = _mixed(out, np.clip(taps, 0, along.size - 1), shares, along.axis)
    return _extrapolated(round_to_dtype(out, x.dtype), outside, extrapolation)


def _shares(at: Places32, mode: str, a: float, stretch: float) -> tuple[Places, Float64Array]:
    """Returns the places that each element takes from and how much of each, wider by 1/stretch."""
    reach = 1 if mode == "linear" else 2
    first = int(np.floor(-reach / stretch)) + 1
    steps = np.arange(first, 2 - first, dtype=np.int64)
    base = np.floor(at).astype(np.int64)
    rest = at.astype(np.float64) - base
    away = np.abs((steps - rest[:, None]) * stretch)
    shares = np.maximum(1 - away, 0) if mode == "linear" else _spline(away, a)
    return base[:, None] + steps, shares


def _spline(away: Float64Array, a: float) -> Float64Array:
    near = ((a + 2) * away - (a + 3)) * away * away + 1
    far = ((a * away - 5 * a) * away + 8 * a) * away - 4 * a
    return np.where(away <= 1, near, np.where(away < 2, far, 0.0))


def _mixed(x: Float64Array, taps: Places, shares: Float64Array, axis: int) -> Float64Array:
    shape = [1] * x.ndim
    shape[axis] = len(taps)
    out: Float64Array = np.zeros([len(taps) if a == axis else d for a, d in enumerate(x.shape)])
    for tap in range(taps.shape[1]):
        share = shares[:, tap].reshape(shape)
        part = np.take(x, taps[:, tap], axis)
        out += np.where(share == 0, 0.0, part * share)
    return out


def _beyond(at: Places32, along: Along, rule: str, rank: int) -> NDArray[np.bool_]:
    """Returns which elements are outside x along an axis; only a crop has some that are not its
    edge."""
    out = (at < 0) | (at > along.size - 1)
    shape = [1] * rank
    shape[along.axis] = -1
    return (out & (rule == "tf_crop_and_resize")).reshape(shape)


def _extrapolated(out: Array, outside: NDArray[np.bool_], value: float) -> Array:
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
    scales: Reals,
    axes: Sequence[int],
    coordinates: str,
    policy: str,
    roi: Reals,
) -> list[Along]:
    """Returns how each axis is resized, those that stay as they are left out; raises OpError for
    misfits.

    Where the whole result has the sizes of x, nothing is resized, whatever the scales.
    """
    along = axes_of(op, axes, x.ndim) or tuple(range(x.ndim))
    if coordinates not in COORDINATES or policy not in POLICIES:
        raise OpError(f"{op}: coordinates {coordinates!r}, policy {policy!r}")
    if bool(scales) == (sizes is not None):
        raise OpError(f"{op}: it takes scales or sizes, one of the two")
    if coordinates == "tf_crop_and_resize" and not roi:
        raise OpError(f"{op}: tf_crop_and_resize needs a roi")
    if len(roi) not in (0, 2 * len(along)):
        raise OpError(f"{op}: roi has {len(roi)} numbers, it takes {2 * len(along)}")
    held = [x.shape[a] for a in along]
    made, steps = _made(op, held, sizes, scales, policy)
    crop = coordinates == "tf_crop_and_resize"
    if made == held and not crop:
        return []
    out = []
    for i, axis in enumerate(along):
        start, end = (
            (float32(roi[i]), float32(roi[i + len(along)])) if crop else (float32(0), float32(1))
        )
        if not held[i] and made[i]:
            raise OpError(f"{op}: axis {axis} is empty, it cannot become {made[i]}")
        if steps[i] != 1 or crop:
            out.append(Along(axis, held[i], made[i], steps[i], start, end))
    return out


def _made(
    op: str, held: list[int], sizes: Array | None, scales: Reals, policy: str
) -> tuple[list[int], list[np.float32]]:
    """Returns the sizes of the result, and the scales."""
    if sizes is None:
        if len(scales) != len(held) or not all(0 < s < 2**31 for s in scales):
            raise OpError(f"{op}: scales {tuple(scales)} are no {len(held)} positive numbers")
        made = [scaled(h, s) for h, s in zip(held, scales, strict=True)]
        return made, [float32(s) for s in scales]
    wanted = [int(s) for s in sizes.reshape(-1)]
    if sizes.ndim != 1 or len(wanted) != len(held):
        raise OpError(f"{op}: {len(wanted)} sizes for {len(held)} axes")
    if min(wanted, default=1) < 1:
        raise OpError(f"{op}: sizes {wanted}: each must be 1 or more")
    if policy != "stretch":
        if 0 in held:
            raise OpError(f"{op}: x has no elements, whose proportions could be kept")
        each = proportion(policy, held, wanted)
        return [rounded(h, each) for h in held], [each] * len(held)
    return wanted, [float32(w) / float32(max(h, 1)) for w, h in zip(wanted, held, strict=True)]


STEPPED: Callable[..., Array] = nearest_by_step
FUNCTIONS: dict[str, Callable[..., Array]] = {"resize_nearest": resize_nearest, "resize": resize}


def resized(
    x: Array, sizes: Array | None, scales: Sequence[float], axes: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Returns the axes whose size changes, and what it becomes."""
    over = [a % x.ndim for a in axes] or list(range(x.ndim))
    if sizes is not None:
        made = [int(n) for n in sizes.ravel()]
    else:
        made = [scaled(x.shape[a], s) for a, s in zip(over, scales, strict=True)]
    if not axes:
        pairs = [(a, n) for a, n in zip(over, made, strict=True) if n != x.shape[a]]
        over, made = [a for a, _ in pairs], [n for _, n in pairs]
    return over, made
