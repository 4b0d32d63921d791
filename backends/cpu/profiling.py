"""Measures the time of each step, and the peak throughput of the kernels on this processor."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from qir._kernels import _cpu

PEAK_MATRIX_SIZE = 512
"""Rows and columns of the matrices whose product measures the peak: a run is short enough to lie
between two interruptions."""
PEAK_SECONDS = 0.15
"""How long a peak is measured."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """The median time of a step over several runs.

    `spread` is the distance of the quartiles, as a share of the median.
    """

    step: str
    kind: str
    seconds: float
    spread: float
    bytes: int
    """How many bytes it reads and writes, weights included."""
    work: int
    """Its multiply-adds."""

    @property
    def peak(self) -> str:
        """The peak that its throughput is compared with."""
        return "f32" if self.kind.startswith(("float_", "wide_", "recurrent")) else "int8"


def step_times(plan: _cpu.Plan, runs: int, run: Callable[[], object]) -> list[StepTime]:
    """Returns the time of each step of a plan, measured over some runs."""
    # The plan adds up times over its life, so the time of a run is a difference.
    totals = [[seconds for _, _, seconds, _ in plan.profile()]]
    for _ in range(runs):
        run()
        totals.append([seconds for _, _, seconds, _ in plan.profile()])
    durations = zip(*([b - a for a, b in zip(*two, strict=True)] for two in pairwise(totals)),
                strict=True)  # fmt: skip
    rows = zip(plan.profile(), plan.work, durations, strict=True)
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
    size = PEAK_MATRIX_SIZE * PEAK_MATRIX_SIZE
    peak_by_kind = {}
    for kind, width in (("int8", 1), ("f32", 4)):
        plan = _cpu.Plan(
            2 * width * size, [(0, width * size), (width * size, width * size)], isa=isa
        )
        if kind == "int8":
            weight = rng.integers(-127, 128, (PEAK_MATRIX_SIZE, PEAK_MATRIX_SIZE)).astype(np.int8)
            # Neither the weights nor the scales change the speed; weights are dense and of all
            # sizes.
            no_bias, multipliers = (
                np.zeros(PEAK_MATRIX_SIZE, np.int32),
                np.full(PEAK_MATRIX_SIZE, 0.01, np.float32),
            )
            plan.linear("peak", 0, 1, weight, no_bias, multipliers, rows=PEAK_MATRIX_SIZE)
        else:
            matrix = rng.normal(size=(PEAK_MATRIX_SIZE, PEAK_MATRIX_SIZE)).astype(np.float32)
            plan.float_linear("peak", 0, 1, matrix, None, rows=PEAK_MATRIX_SIZE)
        peak_by_kind[kind] = plan.work[0] / _best_time(plan, threads)
    return peak_by_kind


def _best_time(plan: _cpu.Plan, threads: int) -> float:
    """Returns the shortest time of several runs: other processes only ever add to it."""
    shortest, end = float("inf"), time.perf_counter() + PEAK_SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        plan.run([], threads=threads)
        shortest = min(shortest, time.perf_counter() - started)
    return shortest
