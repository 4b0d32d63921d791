"""The plain parts of calibration statistics: keys, batches, and the log of their extremes."""

from __future__ import annotations

from array import array as Packed
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from qir.calibration.summary import Extremes, Floats, Summary

MAX_BATCHES = 1 << 20
"""Statistics hold no more; each is kept by its number."""


class Key(NamedTuple):
    """Whose statistics: a tensor id, and the axis whose channels are kept apart, if any."""

    tensor: str
    axis: int | None = None

    def __str__(self) -> str:
        return self.tensor if self.axis is None else f"{self.tensor} by axis {self.axis}"


class BatchId(NamedTuple):
    """Which batch: the digest of the data it is part of, and its place there."""

    data: str
    number: int


@dataclass(frozen=True)
class Log:
    """Extremes of one tensor batch by batch, in the order of the data."""

    batches: tuple[BatchId, ...]
    low: Floats
    high: Floats


@dataclass
class Trace:
    """A log while it grows, in the order of arrival; a batch is a number here."""

    batch: Packed[int] = field(default_factory=lambda: Packed("L"))
    low: Packed[float] = field(default_factory=lambda: Packed("f"))
    high: Packed[float] = field(default_factory=lambda: Packed("f"))

    def append(self, batch: int, extremes: Extremes) -> None:
        if extremes.low <= extremes.high:  # a batch without finite values has no extremes
            self.batch.append(batch)
            self.low.append(extremes.low)
            self.high.append(extremes.high)

    def stretched(self, before: Summary, after: Summary) -> Trace:
        """Returns the log of a tensor whose summary changed, each side of zero in proportion."""
        ends = {before.low: after.low, before.high: after.high}
        down, up = (
            now / was if was else 0.0
            for was, now in ((before.low, after.low), (before.high, after.high))
        )

        def moved(value: float) -> float:
            found = ends.get(value, value * (down if value < 0 else up))
            return min(max(found, after.low), after.high)

        low, high = (Packed("f", map(moved, side)) for side in (self.low, self.high))
        return Trace(Packed("L", self.batch), low, high)

    def log(self, batches: tuple[BatchId, ...]) -> Log:
        """Returns the log in the order of the data; `batches` are all batches in the order of
        arrival."""
        # Threads include batches in any order; rules such as moving averages read them in that of
        # the data.
        order = sorted(range(len(self.batch)), key=lambda i: batches[self.batch[i]])
        return Log(
            tuple(batches[self.batch[i]] for i in order),
            np.array(self.low, np.float32)[order],
            np.array(self.high, np.float32)[order],
        )


class StatisticsEntry(NamedTuple):
    """All that is known of one key."""

    key: Key
    summary: Summary
    trace: Trace


def sort_key(key: Key) -> tuple[str, int]:
    """Keys in order, the whole tensor before its channels."""
    return key.tensor, -1 if key.axis is None else key.axis


@dataclass(frozen=True)
class StatisticsContents:
    """All that statistics hold: what a file of them says."""

    model: str
    batches: tuple[BatchId, ...]
    entries: tuple[StatisticsEntry, ...]
    unfinished: bool = False
    """Whether batches are missing that the run is still to do."""
