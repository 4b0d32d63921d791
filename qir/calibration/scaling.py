"""Statistics of tensors whose channels were divided by constants, derived from those before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qir._kernels._statistics import SUM_BITS, Tally
from qir.calibration.record import Key
from qir.calibration.statistics import Statistics
from qir.calibration.summary import SQUARE_BITS, Floats, Summary, to_fixed_point

Doubles = NDArray[np.float64]


class Scaled(NamedTuple):
    """A tensor, and what each index of an axis of it was divided by."""

    tensor: str
    axis: int
    scale: Doubles


def with_scaled(statistics: Statistics, tensors: Mapping[str, Scaled]) -> Statistics:
    """Returns the statistics, and those of scaled tensors under their new ids.

    Extremes, and sums by channel, are exact up to rounding. Of a tensor whose channels were not
    kept apart, extremes are those that the least scale gives. The histogram of a whole tensor keeps
    its shape between zero and each extreme, and so does the log of batches.
    """
    found: dict[Key, tuple[Summary, Key]] = {}
    for name, each in tensors.items():
        by_channel = statistics.get(Key(each.tensor, each.axis))
        per_tensor = statistics.get(Key(each.tensor))
        # With NaN or infinities the scaled extremes and sums would not be those of the values.
        if per_tensor is None or not per_tensor.finite or per_tensor.finite != per_tensor.count:
            continue
        if by_channel is None:
            # The least divisor gives the widest range, so no value can be beyond it.
            ratio = float(1 / each.scale.min())
            low, high = (np.float32(end * ratio) for end in (per_tensor.low, per_tensor.high))
            found[Key(name)] = _stretched(per_tensor, low, high), Key(each.tensor)
            continue
        # Adding +0.0 turns -0.0 into 0.0; summaries hold no negative zero.
        lows, highs = (
            (np.asarray(side, np.float64) / each.scale).astype(np.float32) + np.float32(0)
            for side in (by_channel.channel_low, by_channel.channel_high)
        )
        sums = by_channel.channel_totals
        if sums:
            sums = tuple(
                to_fixed_point(s / 2.0**SUM_BITS / c, SUM_BITS)
                for s, c in zip(sums, each.scale.tolist(), strict=True)
            )
        low, high = lows.min(), highs.max()
        summary = _stretched(per_tensor, low, high)
        channels = Summary.restore(
            each.axis,
            summary.counts(),
            summary.extremes,
            summary.bins,
            (summary.total, summary.total_squares),
            (lows, highs),
            sums,
        )
        found[Key(name)] = summary, Key(each.tensor)
        found[Key(name, each.axis)] = channels, Key(each.tensor, each.axis)
    return statistics.derived(found)


def _ratio(now: float, before: float) -> float:
    return float(now) / float(before) if before else 0.0


def _stretched(per_tensor: Summary, low: np.float32, high: np.float32) -> Summary:
    """Returns a summary of other extremes whose histogram has the same shape on each side of
    zero."""
    edges, counts = per_tensor.edges, per_tensor.bins
    if per_tensor.zeros:
        # Zeros are counted apart, since scaling moves every value of their bin but zero itself.
        counts[int(np.searchsorted(edges, 0.0, side="right")) - 1] -= np.uint64(per_tensor.zeros)
    middles = np.clip((edges[:-1] + edges[1:]) / 2, per_tensor.low, per_tensor.high)
    down, up = _ratio(float(low), per_tensor.low), _ratio(float(high), per_tensor.high)
    moved = np.where(middles < 0, middles * down, middles * up)
    moved = np.clip(moved, low, high)
    tally = Tally()
    # The new bins are those that a tally of the new extremes chooses itself.
    tally.add(np.array([low, high], np.float32))
    bins = np.zeros(tally.bins().size, np.uint64)
    at = np.floor(np.ldexp(moved, -tally.exponent)).astype(np.int64) - tally.first
    at = np.clip(at, 0, bins.size - 1)
    # The extremes belong to the outer bins; rounding must not move them inwards.
    at[0], at[-1] = 0, bins.size - 1
    np.add.at(bins, at, counts)
    if per_tensor.zeros:
        bins[-tally.first] += np.uint64(per_tensor.zeros)
    if bins.size > 1 and counts.size == 1:  # one bin cannot fill both ends
        bins[0], bins[-1] = counts[0] - min(1, int(counts[0]) - 1), min(1, int(counts[0]) - 1)
    total = float(moved @ counts.astype(np.float64))
    squares = float((moved**2) @ counts.astype(np.float64))
    return Summary.restore(
        None,
        per_tensor.counts(),
        _extremes(low, high),
        bins,
        (to_fixed_point(total, SUM_BITS), to_fixed_point(squares, SQUARE_BITS)),
        (np.empty(0, np.float32), np.empty(0, np.float32)),
    )


def _extremes(low: np.float32, high: np.float32) -> Floats:
    return np.array([low, high], np.float32)
