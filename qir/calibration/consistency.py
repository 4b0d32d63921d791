"""Checks that the numbers of a statistics file agree with each other; each raises ValueError.

A digest detects damage, but not a wrong writer: a file that no run could have written is refused.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from qir._kernels._statistics import SUM_BITS
from qir.calibration.record import Trace
from qir.calibration.summary import SQUARE_BITS, Floats, Summary

MAX_VALUES = 1 << 62
"""Counts are smaller, so that sums of several fit into 64 bits."""
ROUNDING = 2.0**-20
"""Relative error of a float64 sum: far above what rounding adds, far below what errors do."""
Doubles = NDArray[np.float64]


def require_summary(summary: Summary, counts: NDArray[np.uint64], extremes: Floats) -> None:
    """Raises ValueError unless counts, extremes, bins, sums and channels could be of the same
    values."""
    if any(count >= MAX_VALUES for count in counts.tolist()):
        raise ValueError(f"it counts more than {MAX_VALUES} values")
    if extremes.tobytes() != summary.extremes.tobytes() or negative_zero(extremes):
        raise ValueError("the extremes are no range")
    require_bins(summary)
    require_totals(summary)
    require_channels(summary)


def require_bins(summary: Summary) -> None:
    """Raises ValueError unless the histogram holds all finite values, and the extremes and
    zeros."""
    bins: list[int] = summary.bins.tolist()
    if sum(bins) != summary.finite:
        raise ValueError("the bins do not add up to the count")
    if not bins:
        return
    if not (bins[0] and bins[-1]):
        raise ValueError("the bins of the extremes are empty")
    if summary.low < summary.high and summary.finite < 2:
        raise ValueError("two extremes of a single value")
    edges = summary.edges
    # Edges are multiples of the bin width, so zeros are in the bin that begins at 0.
    middle = int(np.searchsorted(edges, 0.0, side="right")) - 1
    bin_count = bins[middle] if 0 <= middle < len(bins) and edges[middle] == 0 else 0
    at_end = 0.0 in (summary.low, summary.high)
    least = summary.finite if summary.low == summary.high == 0 else int(at_end)
    if not least <= summary.zeros <= bin_count:
        raise ValueError("the count of zeros does not fit the bins")


def require_totals(summary: Summary) -> None:
    """Raises ValueError unless sum and sum of squares are where the histogram puts them."""
    if not summary.finite:
        if summary.total or summary.total_squares:
            raise ValueError("a sum without values")
        return
    counts = summary.bins.astype(np.float64)
    edges = summary.edges
    low = np.maximum(edges[:-1], summary.low)
    high = np.minimum(edges[1:], summary.high)
    require_between(summary.total, SUM_BITS, counts, low, high, "sum")
    a, b = np.square(low), np.square(high)  # no bin has zero inside, so squares are monotonic
    require_between(
        summary.total_squares,
        SQUARE_BITS,
        counts,
        np.minimum(a, b),
        np.maximum(a, b),
        "sum of squares",
    )


def require_between(
    total: int, bits: int, counts: Doubles, low: Doubles, high: Doubles, what: str
) -> None:
    """Raises ValueError unless a sum in units of 2**-bits is one of so many values in each
    interval."""
    least, most = float(counts @ low), float(counts @ high)
    # The bounds are float64 sums themselves, whose rounding must not refuse a correct file.
    slack = ROUNDING * float(counts @ np.maximum(np.abs(low), np.abs(high)))
    # A sum of squares has up to 298 bits after the point, more than a float64 holds.
    if not Fraction(least - slack) <= Fraction(total, 1 << bits) <= Fraction(most + slack):
        raise ValueError(f"the {what} does not fit the bins")


def require_channels(summary: Summary) -> None:
    """Raises ValueError unless the extremes of the channels are those of the tensor."""
    lows, highs = summary.channel_low, summary.channel_high
    if (summary.axis is None or not summary.count) and lows.size:
        raise ValueError("it has channels, but no axis or no values")
    if summary.axis is not None and not min(1, summary.count) <= lows.size <= summary.count:
        raise ValueError(f"{lows.size} channels of {summary.count} values")
    full = lows <= highs
    empty = (lows == np.inf) & (highs == -np.inf)
    if not (full | empty).all() or np.isinf(lows[full]).any() or np.isinf(highs[full]).any():
        raise ValueError("the extremes of a channel are no range")
    if not lows.size:
        return
    if int(full.sum()) > summary.finite:
        raise ValueError("more channels than finite values")
    if lows.min() != summary.low or highs.max() != summary.high:
        raise ValueError("the extremes of the channels are not those of the tensor")
    require_channel_sums(summary)


def require_channel_sums(summary: Summary) -> None:
    """Raises ValueError unless the sum of each channel is where its extremes put it."""
    sums = summary.channel_totals or ()
    # All channels of a tensor have as many values, so their number divides the count.
    each = Fraction(summary.count, max(1, len(sums)))
    if sums and each.denominator != 1:
        raise ValueError(f"{summary.count} values in {len(sums)} channels")
    for total, low, high in zip(sums, summary.channel_low, summary.channel_high, strict=False):
        ends = (0, 0) if low > high else (Fraction(float(low)), Fraction(float(high)))
        least, most = min(ends[0], 0) * each, max(ends[1], 0) * each  # infinities count as 0
        slack = Fraction(ROUNDING) * (most - least)
        if not least - slack <= Fraction(total, 1 << SUM_BITS) <= most + slack:
            raise ValueError("the sum of a channel does not fit its extremes")


def require_trace(trace: Trace, summary: Summary, batches: int) -> None:
    """Raises ValueError unless a log lists batches that exist, in order, and their extremes."""
    numbers = np.asarray(trace.batch, np.int64)
    low, high = np.asarray(trace.low, np.float32), np.asarray(trace.high, np.float32)
    if (numbers >= batches).any():
        raise ValueError(f"the log names a batch that is not among the {batches} listed")
    if (np.diff(numbers) <= 0).any():
        raise ValueError("the batches of the log are out of order, or listed twice")
    if not (low <= high).all() or negative_zero(low) or negative_zero(high):
        raise ValueError("the extremes of a batch are no range")
    if numbers.size > summary.finite or bool(numbers.size) != bool(summary.finite):
        raise ValueError(f"the log has {numbers.size} batches of {summary.finite} values")
    if numbers.size and (low.min() != summary.low or high.max() != summary.high):
        raise ValueError("the extremes of the log are not those of the tensor")


def negative_zero(values: Floats) -> bool:
    """Tells whether a zero has a sign, which statistics do not keep."""
    return bool(((values == 0) & np.signbit(values)).any())
