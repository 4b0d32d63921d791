"""Measures the time of each step, and the peak of the processor."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from qir._kernels import _cpu

SIDE = 1024
"""Rows and columns of the matrices whose product is the peak."""
SECONDS = 0.15
"""How long a peak is looked for."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long one step took in one run: the median of all, and how far the middle half is apart
    as a share of it."""

    step: str
    kind: str
    seconds: float
    spread: float
    bytes: int
    """What it reads and writes, weights included."""
    work: int
    """Its multiply-adds."""

    @property
    def peak(self) -> str:
        """Which of the peaks its work is compared with."""
        return "f32" if self.kind.startswith(("float_", "wide_", "recurrent")) else "int8"


def step_times(plan: _cpu.Plan, runs: int, run: Callable[[], object]) -> list[StepTime]:
    """Returns the time of each step of a plan in so many runs."""
    totals = [[seconds for _, _, seconds, _ in plan.profile()]]
    for _ in range(runs):
        run()
        totals.append([seconds for _, _, seconds, _ in plan.profile()])
    taken = zip(*([b - a for a, b in zip(*two, strict=True)] for two in pairwise(totals)),
                strict=True)  # fmt: skip
    rows = zip(plan.profile(), plan.work, taken, strict=True)
    return [
        StepTime(name, kind, statistics.median(times), _spread(times), size, work)
        for (name, kind, _, size), work, times in rows
    ]


def _spread(times: tuple[float, ...]) -> float:
    middle = statistics.median(times)
    if not middle:
        return 0.0
    if len(times) < 4:
        return (max(times) - min(times)) / middle
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def peaks(threads: int, isa: str | None) -> dict[str, float]:
    """Multiply-adds a second of the kernels' best case, a product of large matrices."""
    rng = np.random.default_rng(0)
    size = SIDE * SIDE
    found = {}
    for kind, width in (("int8", 1), ("f32", 4)):
        plan = _cpu.Plan(
            2 * width * size, [(0, width * size), (width * size, width * size)], isa=isa
        )
        if kind == "int8":
            weight = rng.integers(-127, 128, (SIDE, SIDE)).astype(np.int8)
            none, by = np.zeros(SIDE, np.int32), np.full(SIDE, 0.01, np.float32)
            plan.linear("peak", 0, 1, weight, none, by, rows=SIDE)
        else:
            matrix = rng.normal(size=(SIDE, SIDE)).astype(np.float32)
            plan.float_linear("peak", 0, 1, matrix, None, rows=SIDE)
        found[kind] = plan.work[0] / _least(plan, threads)
    return found


def _least(plan: _cpu.Plan, threads: int) -> float:
    """The least time of a run."""
    least, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        plan.run([], threads=threads)
        least = min(least, time.perf_counter() - started)
    return least
