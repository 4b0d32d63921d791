"""Resizing: where each element of the result lies in x, and what it takes from there.

Coordinates are exact fractions of sizes and scales. Interpolation works axis by axis in float64
and is rounded once. What lies outside repeats the edge, unless it is left out or extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.ops.resize import COORDINATES, MODES, POLICIES, ROUNDINGS, proportion, rounded, scaled
from qir.reference.moves import axes_of
from qir.reference.operands import Array, Wide, floats, narrow, wide

Reals = Sequence[float]
Places = NDArray[np.int64]
ZERO, ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True, slots=True)
class Along:
    """How one axis is resized: `scale` is what its coordinates are divided by."""

    axis: int
    size: int
    made: int
    scale: Fraction
    start: Fraction
    end: Fraction

    def coordinates(self, rule: str) -> list[Fraction]:
        """Where each element of the result lies among those of x."""
        half, last = Fraction(1, 2), self.size - 1
        first, step = -half, 1 / self.scale
        match rule:
            case "half_pixel" | "pytorch_half_pixel":
                first = half * step - half
                if rule == "pytorch_half_pixel" and self.made == 1:
                    first = Fraction(0)
            case "half_pixel_symmetric":
                beside = Fraction(self.size, 2) * (1 - self.made / (self.size * self.scale))
                first = beside + half * step - half
            case "align_corners":
                first, step = Fraction(0), Fraction(last, max(self.made - 1, 1))
            case "asymmetric":
                first = Fraction(0)
            case "tf_half_pixel_for_nn":
                first = half * step
            case _ if self.made == 1:
                first = half * (self.start + self.end) * last
            case _:
                first, step = self.start * last, (self.end - self.start) * last / (self.made - 1)
        return [first + i * step for i in range(self.made)]


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
        near = [min(max(_whole(c, rounding), 0), along.size - 1) for c in at]
        out = np.take(out, np.array(near, np.int64), along.axis)
        outside = outside | _beyond(at, along, coordinates, x.ndim)
    return _extrapolated(out, outside, extrapolation)


def _whole(at: Fraction, rounding: str) -> int:
    match rounding:
        case "floor":
            return math.floor(at)
        case "ceil":
            return math.ceil(at)
        case "round_prefer_ceil":
            return math.floor(at + Fraction(1, 2))
    return math.ceil(at - Fraction(1, 2))


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
    floats("resize", x=x)
    if mode not in MODES:
        raise OpError(f"resize: mode {mode!r} is none of {', '.join(MODES)}")
    out, outside = wide(x).astype(np.float64, copy=False), np.zeros((1,) * x.ndim, np.bool_)
    for along in _plan("resize", x, sizes, scales, axes, coordinates, policy, roi):
        at = along.coordinates(coordinates)
        outside = outside | _beyond(at, along, coordinates, x.ndim)
        stretch = min(float(along.scale), 1.0) if antialias else 1.0
        taps, shares = _shares(at, mode, cubic_a, stretch)
        if exclude_outside:
            shares = np.where((taps >= 0) & (taps < along.size), shares, 0.0)
        if exclude_outside or antialias:
            shares = shares / shares.sum(1, keepdims=True)
        out = _mixed(out, np.clip(taps, 0, along.size - 1), shares, along.axis)
    return _extrapolated(narrow(out, x.dtype), outside, extrapolation)


def _shares(at: list[Fraction], mode: str, a: float, stretch: float) -> tuple[Places, Wide]:
    """The places that each element takes from and how much of each, wider by 1/stretch."""
    reach = 1 if mode == "linear" else 2
    first = int(np.floor(-reach / stretch)) + 1
    steps = np.arange(first, 2 - first, dtype=np.int64)
    base = np.array([math.floor(c) for c in at], np.int64)
    rest = np.array([float(c - math.floor(c)) for c in at], np.float64)
    away = np.abs((steps - rest[:, None]) * stretch)
    shares = np.maximum(1 - away, 0) if mode == "linear" else _spline(away, a)
    return base[:, None] + steps, shares


def _spline(away: Wide, a: float) -> Wide:
    near = ((a + 2) * away - (a + 3)) * away * away + 1
    far = ((a * away - 5 * a) * away + 8 * a) * away - 4 * a
    return np.where(away <= 1, near, np.where(away < 2, far, 0.0))


def _mixed(x: Wide, taps: Places, shares: Wide, axis: int) -> Wide:
    shape = [1] * x.ndim
    shape[axis] = len(taps)
    out: Wide = np.zeros([len(taps) if a == axis else d for a, d in enumerate(x.shape)])
    for tap in range(taps.shape[1]):
        share = shares[:, tap].reshape(shape)
        part = np.take(x, taps[:, tap], axis)
        out += np.where(share == 0, 0.0, part * share)
    return out


def _beyond(at: list[Fraction], along: Along, rule: str, rank: int) -> NDArray[np.bool_]:
    """Which elements lie outside x along an axis; only a crop has some that are not its edge."""
    out = np.array([not 0 <= c <= along.size - 1 for c in at], np.bool_)
    shape = [1] * rank
    shape[along.axis] = -1
    return (out & (rule == "tf_crop_and_resize")).reshape(shape)


def _extrapolated(out: Array, outside: NDArray[np.bool_], value: float) -> Array:
    if not outside.any():
        return np.asarray(out, order="C")
    filler = narrow(np.array(value), out.dtype) if out.dtype.kind not in "iub" else np.array(value)
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
    """How each axis is resized, those that stay as they are left out; OpError for misfits."""
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
    out = []
    for i, axis in enumerate(along):
        start, end = (Fraction(roi[i]), Fraction(roi[i + len(along)])) if roi else (ZERO, ONE)
        if not held[i] and made[i]:
            raise OpError(f"{op}: axis {axis} is empty, it cannot become {made[i]}")
        if steps[i] != 1 or coordinates == "tf_crop_and_resize":
            out.append(Along(axis, held[i], made[i], steps[i], start, end))
    return out


def _made(
    op: str, held: list[int], sizes: Array | None, scales: Reals, policy: str
) -> tuple[list[int], list[Fraction]]:
    """The sizes of the result, and the exact scales."""
    if sizes is None:
        if len(scales) != len(held) or not all(0 < s < 2**31 for s in scales):
            raise OpError(f"{op}: scales {tuple(scales)} are no {len(held)} positive numbers")
        made = [scaled(h, s) for h, s in zip(held, scales, strict=True)]
        return made, [Fraction(s) for s in scales]
    wanted = [int(s) for s in sizes.reshape(-1)]
    if sizes.ndim != 1 or len(wanted) != len(held) or min(wanted, default=1) < 1:
        raise OpError(f"{op}: sizes {wanted} for {len(held)} axes, each must be 1 or more")
    if policy != "stretch":
        if 0 in held:
            raise OpError(f"{op}: x has no elements, whose proportions could be kept")
        each = proportion(policy, held, wanted)
        return [rounded(each * h) for h in held], [each] * len(held)
    return wanted, [Fraction(w, max(h, 1)) for w, h in zip(wanted, held, strict=True)]


FUNCTIONS: dict[str, Callable[..., Array]] = {"resize_nearest": resize_nearest, "resize": resize}
