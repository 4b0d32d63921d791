"""Times of several things, measured in turns so that a busy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_QUIET = 0.002
"""Seconds for which threads are watched."""
_IDLE = 0.25
"""Processor time in a second of a process whose threads sleep, at most."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a call, for one of them; `to_json` has name, runs, median, least, spread, ratio."""

    name: str
    seconds: tuple[float, ...]
    """In the order they were measured."""
    ratio: float
    """Its median over the first one's: median of the quotients of each turn."""

    @property
    def median(self) -> float:
        """The middle one of the seconds."""
        return statistics.median(self.seconds)

    @property
    def least(self) -> float:
        """The least of the seconds."""
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """How far the middle half is apart, as a share of the median."""
        if len(self.seconds) < 4:
            return (max(self.seconds) - min(self.seconds)) / self.median
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / self.median

    def to_json(self) -> dict[str, object]:
        """Returns the fields as JSON takes them; times in seconds."""
        return {
            "name": self.name,
            "runs": len(self.seconds),
            "median": self.median,
            "least": self.least,
            "spread": self.spread,
            "ratio": self.ratio,
        }


def settle(longest: float = 0.5) -> None:
    """Waits until the threads of this process sleep, for so many seconds at most.

    Threads of a pool spin for a while after a run; so they would take time from the next one.
    """
    end = time.perf_counter() + longest
    while time.perf_counter() < end:
        started, used = time.perf_counter(), time.process_time()
        time.sleep(_QUIET)
        # Processor time counts all threads, so one that still spins shows here.
        if time.process_time() - used < _IDLE * (time.perf_counter() - started):
            return


def time_interleaved(
    calls: Mapping[str, Callable[[], object]],
    runs: int,
    *,
    warm: int = 3,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Timing, ...]:
    """Calls each in turn so many times, after a few unmeasured turns.

    Where they run on several threads, a turn begins when those of the one before sleep, and with
    a call that wakes its own and is not measured.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warm + runs):
        for name, call in calls.items():
            if threads > 1:
                settle()
                call()
            started = time.perf_counter()
            call()
            elapsed = time.perf_counter() - started
            if turn >= warm:
                seconds[name].append(elapsed)
        if progress is not None:
            progress(turn + 1, warm + runs)
    first = next(iter(seconds.values()), [])
    return tuple(
        Timing(
            name,
            tuple(times),
            statistics.median(t / f for t, f in zip(times, first, strict=True)),
        )
        for name, times in seconds.items()
    )
