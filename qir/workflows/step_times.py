"""How long each step of a compiled model takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from qir.atomic import replacing
from qir.errors import UsageError
from qir.workflows.engines import Engine, Tensors


class StepTiming(Protocol):
    """The time of one step."""

    step: str
    kind: str
    seconds: float
    spread: float
    bytes: int
    work: int
    peak: str


@runtime_checkable
class Profiled(Protocol):
    """An executable that can tell the time of its steps."""

    def profile(self, inputs: Mapping[str, object], *, runs: int = 10) -> Sequence[StepTiming]:
        """Returns the time of each step, in order."""
        ...

    def peaks(self) -> Mapping[str, float]:
        """Multiply-adds a second, at most."""
        ...


@dataclass(frozen=True, slots=True)
class StepTable:
    """The steps in the order in which they run, and the peaks of the processor."""

    steps: Sequence[StepTiming]
    peaks: Mapping[str, float]

    def to_json(self) -> list[dict[str, object]]:
        """Returns the steps, slowest first; rates are null where there is no work or no time."""
        rows = sorted(self.steps, key=lambda step: -step.seconds)
        return [
            {
                "step": step.step,
                "kind": step.kind,
                "seconds": step.seconds,
                "spread": step.spread,
                "bytes": step.bytes,
                "multiply_adds": step.work,
                "multiply_adds_per_second": rate(step.work, step),
                "share_of_peak": self.share_of_peak(step),
                "bytes_per_second": rate(step.bytes, step),
            }
            for step in rows
        ]

    def share_of_peak(self, step: StepTiming) -> float | None:
        """Returns a step's multiply-adds a second as a share of the peak; None where it has
        none."""
        per_second = rate(step.work, step)
        return None if per_second is None else per_second / self.peaks[step.peak]

    def trace(self, path: Path) -> None:
        """Writes the steps one after the other as a Chrome trace, by rename."""
        # Times are medians of several runs, so that the trace is of no single run: steps are put
        # end to end.
        events, start = [], 0.0
        for step in self.steps:
            events.append(
                {
                    "name": step.step,
                    "cat": step.kind,
                    "ph": "X",
                    "pid": 1,
                    "tid": 1,
                    # Chrome's trace format counts in microseconds.
                    "ts": start,
                    "dur": step.seconds * 1e6,
                    "args": {"bytes": step.bytes, "multiply_adds": step.work},
                }
            )
            start += step.seconds * 1e6
        with replacing(path) as draft:
            draft.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def step_times(engines: Sequence[Engine], inputs: Tensors, runs: int) -> StepTable:
    """Returns the steps of the first engine that can tell; raises UsageError where none can."""
    for engine in engines:
        if isinstance(engine.executable, Profiled):
            # Measured on both sides of the steps: a core that others slowed, or whose clock fell,
            # at the end alone would give shares above 1.
            before = engine.executable.peaks()
            steps = engine.executable.profile(inputs, runs=runs)
            after = engine.executable.peaks()
            return StepTable(steps, {kind: max(before[kind], after[kind]) for kind in before})
    raise UsageError("`steps`: only cpu reports the time of each step; measure that engine")


def rate(amount: int, step: StepTiming) -> float | None:
    """Returns an amount a second; None where there is no amount or no time."""
    return amount / step.seconds if amount and step.seconds else None
