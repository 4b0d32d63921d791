"""Range rules: choose the range that quantized values cover, from a tensor's statistics.

Each rule is a function of the summary, or of the log where the order of batches matters, so
another rule needs no other run. Ranges are within the extremes, but for `margin`; what becomes of
them is the business of `qir.numerics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from qir._kernels._statistics import BINS
from qir.calibration.record import Log
from qir.calibration.summary import Floats, Summary
from qir.errors import DataError, UsageError

Doubles = NDArray[np.float64]
T = TypeVar("T")

CANDIDATE_COUNT = 128  # ranges that the searching rules try, from full size down to 1/128

# A smaller range must be better by more than rounding, which differs between processors.
IMPROVEMENT_FACTOR = 1 - 1e-9


class Range(NamedTuple):
    """The least and the largest value to cover: no axes for a tensor, one for its channels."""

    low: Floats
    high: Floats


def minmax(summary: Summary) -> Range:
    """Returns all values that were seen, of each channel where the summary keeps channels.

    A channel without finite values gets the range 0 to 0. DataError when nothing finite was seen.
    """
    require_values(summary)
    if summary.axis is None:
        low, high = summary.extremes
        return Range(np.asarray(low), np.asarray(high))
    empty = summary.channel_low > summary.channel_high
    zero = np.float32(0)
    return Range(
        np.where(empty, zero, summary.channel_low), np.where(empty, zero, summary.channel_high)
    )


def margin(summary: Summary, share: float) -> Range:
    """Returns the extremes, each moved outwards by a share of their distance.

    An end of exactly 0 stays: it is the bound of a relu. UsageError for a negative share, and for
    channels.
    """
    require_histogram(summary, "margin")
    if share < 0:
        raise UsageError(f"margin {share:g}: give a share that is not negative")
    low, high = map(float, summary.extremes)
    # In float64 the sum cannot overflow; as float32 an end stops at the largest finite number.
    reach, most = share * (high - low), float(np.finfo(np.float32).max)
    ends = (max(low - reach, -most) if low else low, min(high + reach, most) if high else high)
    return Range(*(np.asarray(end, np.float32) for end in ends))


def percentile(summary: Summary, percent: float) -> Range:
    """Returns the middle `percent` of the values, half of the rest cut off at each end.

    Each end is the outer bound of the bin in which the value of that rank is, so it is at most
    one bin width outside of it. UsageError for a percentage outside of 0 to 100.
    """
    require_histogram(summary, "percentile")
    if not 0 < percent <= 100:
        raise UsageError(f"percentile {percent:g}: give more than 0 and at most 100, such as 99.99")
    # Fractions are exact, so the rank does not depend on how a percentage such as 99.9 is rounded.
    cut = math.floor((100 - Fraction(percent)) / 200 * (summary.finite - 1))
    reached = np.cumsum(summary.bins)
    first = int(np.searchsorted(reached, np.uint64(cut), side="right"))
    last = int(np.searchsorted(reached, np.uint64(summary.finite - 1 - cut), side="right"))
    return clip_to_extremes(summary, summary.edges[first], summary.edges[last + 1])


def mse(summary: Summary, levels: int = 256, symmetric: bool = False) -> Range:
    """Returns the range whose quantized values have the least mean squared error on the histogram.

    Every value of a bin counts as its middle, and zeros as zero. Ranges of the extremes' shape are
    tried from full size down, then each end alone, so the result is never worse than `minmax`.
    UsageError when there are fewer than two levels.
    """
    require_histogram(summary, "mse")
    return least_error(summary, levels, symmetric, 2)


def mae(summary: Summary, levels: int = 256, symmetric: bool = False) -> Range:
    """Returns the range whose integers have the least mean absolute error, found as `mse` finds its
    own."""
    require_histogram(summary, "mae")
    return least_error(summary, levels, symmetric, 1)


def sigma(summary: Summary, count: float) -> Range:
    """Returns the mean and so many standard deviations to both sides, no wider than what was seen.

    UsageError unless the count is positive and finite.
    """
    require_histogram(summary, "k-sigma")
    if not 0 < count < math.inf:
        raise UsageError(f"k-sigma {count:g}: give a positive number of standard deviations")
    reach = count * math.sqrt(summary.variance)
    return clip_to_extremes(summary, summary.mean - reach, summary.mean + reach)


def mean_extremes(log: Log) -> Range:
    """Returns the means of the batches' extremes; raises DataError when no batch had finite
    values."""
    require_log(log, "mean")
    low, high = (math.fsum(side.tolist()) / side.size for side in (log.low, log.high))
    return Range(np.asarray(low, np.float32), np.asarray(high, np.float32))


def median_extremes(log: Log) -> Range:
    """Returns the medians of the batches' extremes; raises DataError when no batch had finite
    values."""
    require_log(log, "median")
    low, high = (np.median(side.astype(np.float64)) for side in (log.low, log.high))
    return Range(np.asarray(low, np.float32), np.asarray(high, np.float32))


def least_error(summary: Summary, levels: int, symmetric: bool, power: int) -> Range:
    """Returns the range whose integers have the least error of that power; raises UsageError for
    under two levels."""
    require_levels(levels)
    values, weights = bin_midpoints(summary)
    low, high = min(0.0, summary.low), max(0.0, summary.high)
    # Ranges include 0, which every quantized type represents exactly.
    sizes = (np.arange(CANDIDATE_COUNT, 0, -1) / CANDIDATE_COUNT).tolist()

    def best(ranges: list[tuple[float, float]]) -> tuple[float, float]:
        return lowest_cost(ranges, lambda end: rounding_cost(values, weights, *end, levels, power))

    if symmetric:
        reach = max(-low, high)
        return clip_to_extremes(summary, *best([(-reach * s, reach * s) for s in sizes]))
    found = best([(low * s, high * s) for s in sizes])
    for _ in range(2):
        found = best([found, *((low * s, found[1]) for s in sizes)])
        found = best([found, *((found[0], high * s) for s in sizes)])
    return clip_to_extremes(summary, *found)


def entropy(summary: Summary, levels: int = 256, symmetric: bool = False) -> Range:
    """Returns the range whose quantized values keep the most information (least Kullback-Leibler
    divergence).

    Ranges of the extremes' shape are tried, from all bins down to as many as there are levels, then
    each end alone. The reference is the histogram with what is outside moved to its end bins; the
    candidate spreads the inner part of each level evenly over those of its bins that are in use.
    Zeros are left out: every range holds them exactly. UsageError for fewer than two levels.
    """
    require_histogram(summary, "entropy")
    require_levels(levels)
    line, below, width = histogram_from_zero(summary)
    above = line.size - below
    if symmetric:
        size = max(below, above)
        folded = np.zeros(size)
        folded[:above] += line[below:]
        folded[:below] += line[:below][::-1]
        # A folded bin holds values of both signs, for which each sign has half of the levels.
        line, below, above, levels = folded, 0, size, max(1, levels // 2)
    if not line.any() or line.size <= levels:
        return minmax(summary)
    shape = np.linspace(1.0, levels / line.size, CANDIDATE_COUNT).tolist()
    ends = [(math.ceil(below * s), math.ceil(above * s)) for s in shape]
    sizes = (np.arange(CANDIDATE_COUNT, -1, -1) / CANDIDATE_COUNT).tolist()

    @cache  # the second round asks again for most of what the first did
    def loss(end: tuple[int, int]) -> float:
        return kl_divergence(line, below - end[0], below + end[1], levels)

    def best(ranges: list[tuple[int, int]]) -> tuple[int, int]:
        return lowest_cost([end for end in ranges if sum(end) >= levels], loss)

    low, high = best(ends)
    if below and above:
        for _ in range(2):
            low, high = best([(low, high), *((math.ceil(below * s), high) for s in sizes)])
            low, high = best([(low, high), *((low, math.ceil(above * s)) for s in sizes)])
    return clip_to_extremes(summary, -(high if symmetric else low) * width, high * width)


def moving_average(log: Log, constant: float = 0.01) -> Range:
    """Averages that follow the extremes of each batch: `low += constant * (batch low - low)`.

    In float32 as torch's MovingAverageMinMaxObserver. UsageError when the constant is not in 0 to
    1, DataError when no batch had finite values.
    """
    if not 0 < constant <= 1:
        raise UsageError(f"moving average constant {constant:g}: give more than 0, at most 1")
    require_log(log, "average")
    step = np.float32(constant)
    low, high = log.low[0], log.high[0]
    for batch_low, batch_high in zip(log.low[1:], log.high[1:], strict=True):
        low += step * (batch_low - low)
        high += step * (batch_high - high)
    return Range(np.asarray(low), np.asarray(high))


def require_values(summary: Summary) -> None:
    """Raises DataError when nothing finite was seen."""
    if not summary.finite:
        raise DataError("no finite value was seen, so there is no range")


def require_log(log: Log, rule: str) -> None:
    """Raises DataError when no batch had finite values."""
    if not log.low.size:
        raise DataError(f"no batch with finite values for range rule {rule} to average over")


def require_histogram(summary: Summary, rule: str) -> None:
    """Raises DataError when nothing finite was seen, UsageError for channels: they have no
    histogram."""
    require_values(summary)
    if summary.axis is not None:
        raise UsageError(f"range rule {rule} is for whole tensors: use minmax for channels")


def require_levels(levels: int) -> None:
    """Raises UsageError when there are fewer than two levels."""
    if levels < 2:
        raise UsageError(f"{levels} levels cannot hold a range: give at least 2")


def lowest_cost(candidates: Sequence[T], cost: Callable[[T], float]) -> T:
    """Returns the candidate of the least cost, the first of those that cost as much."""
    found, lowest = candidates[0], cost(candidates[0])
    for candidate in candidates[1:]:
        if (value := cost(candidate)) < lowest * IMPROVEMENT_FACTOR:
            found, lowest = candidate, value
    return found


def clip_to_extremes(summary: Summary, low: float, high: float) -> Range:
    """Returns a range as float32, no wider than what was seen."""
    least, most = summary.extremes
    zero = np.float32(0)  # turns -0 into +0
    return Range(
        np.clip(np.asarray(low, np.float32), least, most) + zero,
        np.clip(np.asarray(high, np.float32), least, most) + zero,
    )


def bin_midpoints(summary: Summary) -> tuple[Doubles, Doubles]:
    """Returns the middle of each bin within the extremes, and its count; zeros by themselves at the
    end."""
    edges = np.clip(summary.edges, summary.low, summary.high)
    counts = summary.bins.astype(np.float64)
    if summary.zeros:
        # Every range holds zero exactly: counted at the middle of their bin, zeros would have an
        # error.
        counts[int(np.searchsorted(summary.edges, 0.0, side="right")) - 1] -= summary.zeros
    values = np.append((edges[:-1] + edges[1:]) / 2, 0.0)
    counts = np.append(counts, float(summary.zeros))
    return values[counts > 0], counts[counts > 0]


def histogram_from_zero(summary: Summary) -> tuple[Doubles, int, float]:
    """Counts without zeros in bins that reach zero, how many are below it, and their width."""
    exponent = summary.exponent
    place = np.rint(summary.edges[:-1] / math.ldexp(1.0, exponent)).astype(np.int64)
    while max(place[-1] + 1, 0) - min(place[0], 0) > BINS:  # values far from zero: wider bins
        place >>= 1
        exponent += 1
    below, above = int(max(0, -place[0])), int(max(0, place[-1] + 1))
    counts = summary.bins.astype(np.float64)
    line: Doubles = np.zeros(below + above)
    np.add.at(line, place + below, counts)
    if summary.zeros:
        line[below] -= summary.zeros
    return line, below, math.ldexp(1.0, exponent)


def rounding_cost(
    values: Doubles, weights: Doubles, low: float, high: float, levels: int, power: int
) -> float:
    """Returns what rounding to evenly spaced levels costs, zero among them; infinite for no
    range."""
    scale = (high - low) / (levels - 1)
    if not scale > 0:
        return math.inf
    quantized = np.rint(values / scale)
    lowest = np.rint(low / scale)
    dequantized = np.clip(quantized, lowest, lowest + levels - 1) * scale
    return float((weights * np.abs(values - dequantized) ** power).sum())


def kl_divergence(line: Doubles, start: int, stop: int, levels: int) -> float:
    """Returns how much the histogram loses when bins start to stop, at least as many as there are
    levels, are quantized to so many."""
    inner = line[start:stop]
    reference = inner.copy()
    # Clipped values are counted in the outermost bins, where they end up when quantized.
    reference[0] += line[:start].sum()
    reference[-1] += line[stop:].sum()
    # Bins are merged to as many groups as there are levels; each group spreads its mass over used
    # bins.
    first = -(-np.arange(levels) * inner.size // levels)
    used = reference > 0
    mass = np.add.reduceat(inner, first)  # counts, whose sums are exact in any order
    share = np.add.reduceat(used, first, dtype=np.float64)
    each = np.repeat(mass / np.maximum(share, 1), np.diff(first, append=inner.size))
    candidate = np.where(used, each, 0.0)
    total = candidate.sum()
    if not total:
        return math.inf
    # An end bin that only holds what was outside has no candidate: smooth it, as others do.
    p = reference[used] / reference.sum()
    q = np.maximum(candidate[used] / total, 1e-4 / inner.size)
    return float((p * np.log(p / q)).sum())
