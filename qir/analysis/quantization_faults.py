"""Explains why a quantized tensor is noisy: one function for each cause.

A fault says which share of the noise its remedy removes. `measured` says that the share follows
from the measurements alone; otherwise it is an estimate, by the formula in the function's
docstring.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.calibration.rules import bin_midpoints, least_error, rounding_cost
from qir.calibration.summary import Summary

Float64Array = NDArray[np.float64]
"""Values of a tensor."""

OUTLIER = 4.0
"""A channel is an outlier from so many times the median channel on."""
CLIPPED = 0.3
"""Values beyond the range are a fault from this share of the noise on."""
WIDE = 0.5
"""A range is too wide where a narrower one has at most this share of its noise."""
SHIFTED = 0.2
"""A mean is shifted from this share of the noise on."""


@dataclass(frozen=True, slots=True)
class NoiseCause:
    """A cause of noise, what shows it, and the share of the noise that its remedy removes."""

    cause: str
    detail: str
    removed: float
    measured: bool = False


def outlier_channel(sizes: Float64Array, noise: Float64Array | None = None) -> NoiseCause | None:
    """One channel is far larger than the others, and all share one scale.

    `sizes` are the largest magnitudes of the channels, `noise` is that of each, the same for all
    unless given. With a scale for each channel, the error of rounding, step**2 / 12, falls by
    (size / largest)**2 in each, which is what is left.
    """
    live = sizes > 0
    if live.sum() < 2:
        return None
    most, middle = float(sizes.max()), float(np.median(sizes[live]))
    shares = np.ones(sizes.size) if noise is None else noise
    if most < OUTLIER * middle or not shares[live].sum() > 0:
        return None
    left = float((shares * np.square(sizes / most))[live].sum() / shares[live].sum())
    detail = f"channel {int(sizes.argmax())} reaches {most:.3g}, the median one {middle:.3g}"
    return NoiseCause("outlier channel", detail, 1 - left)


def clipped(
    noise: float, beyond: float, share: float, seen: float, covered: float
) -> NoiseCause | None:
    """Values are outside the range, and are clipped to its ends.

    `beyond` is the part of the noise of such values, `share` how many of all they are; `seen` is
    the width of the values, `covered` that of the range. A range that covers all has steps wider
    by seen / covered, and the noise of the other values grows by the square of that, for all.
    """
    if noise <= 0 or beyond < CLIPPED * noise or not 0 < covered < seen or share >= 1:
        return None
    left = (noise - beyond) / (1 - share) * (seen / covered) ** 2
    if left >= noise:
        return None
    detail = f"values span {seen:.3g}, the range {covered:.3g}: {beyond / noise:.0%} of its noise"
    return NoiseCause("clipped", detail, 1 - left / noise)


def wide_range(summary: Summary, low: float, high: float, levels: int) -> NoiseCause | None:
    """A few values far out make the steps of all others too wide.

    Compares the squared error of the range low to high on the tensor's histogram with that of the
    range of least error.
    """
    if not summary.finite or not low < high or levels < 2:
        return None
    values, weights = bin_midpoints(summary)
    symmetric = abs(low + high) < 0.02 * (high - low)
    best_range = least_error(summary, levels, symmetric, 2)
    now = rounding_cost(values, weights, low, high, levels, 2)
    narrow = min(0.0, float(best_range.low)), max(0.0, float(best_range.high))
    best = rounding_cost(values, weights, *narrow, levels, 2)
    narrower = narrow[1] - narrow[0] < high - low
    if not narrower or not 0 < now < np.inf or best > WIDE * now:
        return None
    detail = f"{narrow[0]:.3g} to {narrow[1]:.3g} would do, the range is {low:.3g} to {high:.3g}"
    return NoiseCause("wide range", detail, 1 - best / now)


def shifted_mean(errors: Float64Array, counts: Float64Array, noise: float) -> NoiseCause | None:
    """The errors of a channel have the same sign on average, which a bias can take away.

    `errors` are the sums of the errors of each channel, `counts` how many there are, `noise` the
    sum of all squared errors: without its mean m, a channel of n values has n * m**2 less.
    """
    is_counted = counts > 0
    shifts = np.square(errors[is_counted]) / counts[is_counted]
    if noise <= 0 or shifts.sum() < SHIFTED * noise:
        return None
    means = np.abs(errors[is_counted] / counts[is_counted])
    place = int(np.flatnonzero(is_counted)[means.argmax()])
    detail = f"channel {place} is off by {float(errors[place] / counts[place]):.3g} on average"
    return NoiseCause("shifted mean", detail, min(1.0, float(shifts.sum() / noise)), measured=True)


def dead_channel(low: Float64Array, high: Float64Array) -> NoiseCause | None:
    """Channels that hold one value alone on these data, such as zero after a relu."""
    dead = int((low == high).sum())
    if not dead:
        return None
    of = f"{dead} of {low.size} channels"
    return NoiseCause("dead channel", f"{of} {'is' if dead == 1 else 'are'} constant", 0.0, True)
