"""The summary of one tensor: bounded, mergeable exactly, and independent of order."""

from __future__ import annotations

import math
import threading
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qir._kernels._statistics import SUM_BITS, SUM_WORDS, Tally, add_floats, add_totals
from qir.errors import DataError, UsageError

Floats = NDArray[np.float32]

# Sums of float32 are multiples of 2**-149 and sums of their squares of 2**-298: as
# integers in these units they add exactly, so in any order and grouping.
SQUARE_BITS = 2 * SUM_BITS
Sums = tuple[int, ...]


class Extremes(NamedTuple):
    """The least and the largest finite value; +inf and -inf when there is none."""

    low: float
    high: float


def to_fixed_point(value: float, bits: int) -> int:
    """Returns a finite multiple of 2**-bits as the integer multiple."""
    # Every finite float32 is a multiple of 2**-149, and its square of 2**-298.
    numerator, denominator = value.as_integer_ratio()
    return (numerator << bits) // denominator


class Summary:
    """One tensor's statistics; equal for the same batches, whatever the order they came in.

    Counts, extremes and bins are functions of the values alone. Each `update` sums its array in a
    fixed order to one float64, and these add as integers. With an axis, each channel's extremes and
    sum are kept too.
    """

    def __init__(self, axis: int | None = None) -> None:
        if axis is not None and axis < 0:
            raise UsageError(f"channel axis {axis} is negative: count it from the first axis")
        self.axis = axis
        self.total = 0
        self.total_squares = 0
        self._tally = Tally()
        self._lows: Floats = np.empty(0, np.float32)
        self._highs: Floats = np.empty(0, np.float32)
        self._sums: NDArray[np.uint32] | None = np.empty((0, SUM_WORDS), np.uint32)
        self._lock = threading.Lock()

    def update(self, array: NDArray[np.generic]) -> Extremes:
        """Adds an array's values and returns its own extremes.

        Raises DataError when the array does not hold float values or has other channels than
        before. Safe to call from several threads.
        """
        values = as_float32(array)
        channels, inner = self._channels_of(values)
        if values.size == 0:
            return Extremes(math.inf, -math.inf)
        with self._lock:
            if channels is None:
                low, high, total, squares = self._tally.add(values.reshape(-1))
            else:
                self._require_channels(channels)
                sums = np.zeros(channels)
                low, high, total, squares = self._tally.add(
                    values.reshape(-1), self._lows, self._highs, sums, inner
                )
                if self._sums is not None:
                    add_floats(self._sums, sums)
            # Integers add exactly in any order, so the result does not depend on threads or on
            # merging.
            self.total += to_fixed_point(total, SUM_BITS)
            self.total_squares += to_fixed_point(squares, SQUARE_BITS)
        return Extremes(low, high)

    def whole(self) -> Summary:
        """Returns a summary of the same values without channels."""
        summary = Summary()
        with self._lock:
            summary._tally.merge(self._tally)
            summary.total, summary.total_squares = self.total, self.total_squares
        return summary

    def merge(self, other: Summary) -> None:
        """Adds what another summary holds, exactly.

        Raises DataError when the two have different axes or numbers of channels. The other must not
        change meanwhile.
        """
        self.require_mergeable(other)
        with self._lock:
            if other._lows.size:
                self._require_channels(other._lows.size)
                np.minimum(self._lows, other._lows, out=self._lows)
                np.maximum(self._highs, other._highs, out=self._highs)
                # Sums of channels stay unknown where those of a part are.
                if self._sums is None or other._sums is None:
                    self._sums = None
                else:
                    add_totals(self._sums, other._sums)
            self._tally.merge(other._tally)
            self.total += other.total
            self.total_squares += other.total_squares

    def require_mergeable(self, other: Summary) -> None:
        """Raises DataError when the two have different axes or numbers of channels."""
        if self.axis != other.axis:
            raise DataError(f"summaries by axis {self.axis} and by axis {other.axis} do not merge")
        if other._lows.size and self._lows.size not in (0, other._lows.size):
            raise DataError(self._other_channels(other._lows.size))

    def _other_channels(self, count: int) -> str:
        return f"axis {self.axis} has {count} channels, in other batches {self._lows.size}"

    def _channels_of(self, values: Floats) -> tuple[int | None, int]:
        """Returns how many channels an array has, and how many values follow each other within
        one."""
        if self.axis is None:
            return None, 1
        if self.axis >= values.ndim:
            raise DataError(f"no channel axis {self.axis} in an array of shape {values.shape}")
        return values.shape[self.axis], math.prod(values.shape[self.axis + 1 :])

    def _require_channels(self, count: int) -> None:
        if not self._lows.size:
            self._lows = np.full(count, np.inf, np.float32)
            self._highs = np.full(count, -np.inf, np.float32)
            self._sums = np.zeros((count, SUM_WORDS), np.uint32)
        elif self._lows.size != count:
            raise DataError(self._other_channels(count))

    @property
    def finite(self) -> int:
        """How many values are numbers."""
        return self._tally.finite

    @property
    def nan(self) -> int:
        """How many values are NaN."""
        return self._tally.nan

    @property
    def above(self) -> int:
        """How many values are +inf."""
        return self._tally.above

    @property
    def below(self) -> int:
        """How many values are -inf."""
        return self._tally.below

    @property
    def zeros(self) -> int:
        """How many values are zero, of either sign."""
        return self._tally.zeros

    @property
    def count(self) -> int:
        """How many values were seen."""
        return self.finite + self.nan + self.above + self.below

    @property
    def extremes(self) -> Floats:
        """The least and the largest finite value; +inf and -inf when there is none."""
        return self._tally.extremes()

    @property
    def low(self) -> float:
        """The least finite value; +inf when there is none."""
        return float(self.extremes[0])

    @property
    def high(self) -> float:
        """The largest finite value; -inf when there is none."""
        return float(self.extremes[1])

    # Adding zero turns -0 into +0, so that the order of the two leaves no trace.
    @property
    def channel_low(self) -> Floats:
        """The least finite value of each channel; +inf where there is none, empty without axis."""
        return self._lows + np.float32(0)

    @property
    def channel_high(self) -> Floats:
        """The largest finite value of each channel; -inf where there is none."""
        return self._highs + np.float32(0)

    @property
    def channel_totals(self) -> Sums | None:
        """The exact sum of each channel in units of 2**-SUM_BITS.

        Empty without an axis; None where a file of version 1 is included, which holds no sums.
        """
        if self._sums is None:
            return None
        words = (row.astype("<u4").tobytes() for row in self._sums)
        return tuple(int.from_bytes(row, "little", signed=True) for row in words)

    @property
    def channel_mean(self) -> NDArray[np.float64] | None:
        """The mean of each channel; None without channels, with infinities, or without sums."""
        totals = self.channel_totals
        if not totals or self.finite != self.count:
            return None
        each = self.count // len(totals)
        return np.array([float(Fraction(total, each << SUM_BITS)) for total in totals])

    @property
    def mean(self) -> float:
        """The mean of the finite values; NaN when there is none."""
        if not self.finite:
            return math.nan
        return float(Fraction(self.total, self.finite << SUM_BITS))

    @property
    def variance(self) -> float:
        """The mean squared distance of the finite values from their mean; NaN without any."""
        if not self.finite:
            return math.nan
        mean = Fraction(self.total, self.finite << SUM_BITS)
        return max(0.0, float(Fraction(self.total_squares, self.finite << SQUARE_BITS) - mean**2))

    @property
    def bins(self) -> NDArray[np.uint64]:
        """How many finite values are in each bin, from the one of `low` to the one of `high`."""
        return self._tally.bins()

    @property
    def exponent(self) -> int:
        """Bins are 2**exponent wide and bounded by multiples of that."""
        return self._tally.exponent

    @property
    def edges(self) -> NDArray[np.float64]:
        """The bounds of the bins, one more than there are bins; exact, and empty without values."""
        if not self.finite:
            return np.empty(0)
        first = self._tally.first
        places = np.arange(first, first + self.bins.size + 1, dtype=np.float64)
        return np.multiply(places, math.ldexp(1.0, self.exponent), dtype=np.float64)

    def counts(self) -> NDArray[np.uint64]:
        """Returns finite, nan, above, below, zeros, as `restore` takes them."""
        return np.array([self.finite, self.nan, self.above, self.below, self.zeros], np.uint64)

    @classmethod
    def restore(
        cls,
        axis: int | None,
        counts: NDArray[np.uint64],
        extremes: Floats,
        bins: NDArray[np.uint64],
        totals: tuple[int, int],
        channels: tuple[Floats, Floats],
        sums: Sums | None = (),
    ) -> Summary:
        """Returns a summary of the parts that were read from it.

        ValueError when they contradict each other; `consistency.require_summary` checks the rest.
        """
        summary = cls(axis)
        lows, highs = channels
        if lows.size != highs.size or (lows.size and axis is None):
            raise ValueError("the channels' extremes do not fit")
        if sums is not None and len(sums) != lows.size:
            raise ValueError("the channels' sums do not fit")
        if np.isnan(lows).any() or np.isnan(highs).any():
            raise ValueError("the extremes of a channel are no range")
        summary._tally = Tally.restore(counts, extremes, bins)
        summary._lows, summary._highs = lows.copy(), highs.copy()
        summary._sums = None if sums is None else _words(sums)
        summary.total, summary.total_squares = totals
        return summary

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Summary):
            return NotImplemented
        return self._state() == other._state()

    __hash__ = None  # type: ignore[assignment]

    def _state(self) -> tuple[int | None, int, int, Sums | None, bytes, bytes, bytes, bytes, bytes]:
        return (
            self.axis,
            self.total,
            self.total_squares,
            self.channel_totals,
            self.counts().tobytes(),
            self.extremes.tobytes(),
            self.bins.tobytes(),
            self.channel_low.tobytes(),
            self.channel_high.tobytes(),
        )

    def __repr__(self) -> str:
        axis = "" if self.axis is None else f", axis {self.axis}"
        return f"<Summary of {self.count} values in {self.low:g}..{self.high:g}{axis}>"


def _words(sums: Sums) -> NDArray[np.uint32]:
    """Returns sums as the kernels hold them."""
    held = b"".join(total.to_bytes(4 * SUM_WORDS, "little", signed=True) for total in sums)
    return np.frombuffer(held, "<u4").astype(np.uint32).reshape(len(sums), SUM_WORDS)


def as_float32(array: NDArray[np.generic]) -> Floats:
    """Returns the values in C order as float32; beyond its range they are infinite.

    DataError for what is not float values.
    """
    array = np.asarray(array)
    if array.dtype.kind in "OSUcMm" or array.dtype.fields is not None:
        raise DataError(f"statistics are of floats, not of {array.dtype}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32).reshape(array.shape)
