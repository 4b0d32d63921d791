"""What `qir bench --profile` shows of the steps of a compiled model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from qir.cli.screen import Column, Screen, percent, size, three_digits

if TYPE_CHECKING:
    from qir.cli.engines import Engine, Tensors


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
                "multiply_adds_per_second": _rate(step.work, step),
                "share_of_peak": self._share(step),
                "bytes_per_second": _rate(step.bytes, step),
            }
            for step in rows
        ]

    def _share(self, step: StepTiming) -> float | None:
        rate = _rate(step.work, step)
        return None if rate is None else rate / self.peaks[step.peak]

    def show(self, screen: Screen, seconds: str = "time") -> None:
        """Prints them as a table, slowest first."""
        total = sum(step.seconds for step in self.steps)
        rows = []
        for step in sorted(self.steps, key=lambda step: -step.seconds):
            work, moved = _rate(step.work, step), _rate(step.bytes, step)
            share = self._share(step)
            rows.append(
                (
                    step.step,
                    step.kind,
                    time(step.seconds),
                    percent(step.seconds / total) if total else "-",
                    percent(step.spread),
                    "" if work is None else three_digits(work / 1e9),
                    "" if share is None else percent(share),
                    "" if moved is None else three_digits(moved / 1e9),
                    size(float(step.bytes)),
                )
            )
        columns = (
            Column("step", fit="fold"),
            Column("kind"),
            Column(seconds, "right"),
            Column("share", "right"),
            Column("spread", "right", fit="drop"),
            Column("GMAC/s", "right"),
            Column("of peak", "right"),
            Column("GB/s", "right"),
            Column("reads and writes", "right", fit="drop"),
        )
        screen.table(columns, rows, title="steps")
        known = ", ".join(f"{kind} {three_digits(rate / 1e9)}" for kind, rate in self.peaks.items())
        screen.line(f"  peak, GMAC/s of a product of large matrices: {known}")

    def trace(self, path: Path) -> None:
        """Writes the steps one after the other as a Chrome trace, by rename."""
        from qir.atomic import replacing

        events, start = [], 0.0
        for step in self.steps:
            events.append(
                {
                    "name": step.step,
                    "cat": step.kind,
                    "ph": "X",
                    "pid": 1,
                    "tid": 1,
                    "ts": start,
                    "dur": step.seconds * 1e6,
                    "args": {"bytes": step.bytes, "multiply_adds": step.work},
                }
            )
            start += step.seconds * 1e6
        with replacing(path) as draft:
            draft.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def profile_of(engines: Sequence[Engine], inputs: Tensors, runs: int) -> StepTable:
    """Returns the steps of the first engine that can tell; raises UsageError where none can."""
    from qir.errors import UsageError

    for engine in engines:
        if isinstance(engine.executable, Profiled):
            steps = engine.executable.profile(inputs, runs=runs)
            return StepTable(steps, engine.executable.peaks())
    raise UsageError("--profile: only cpu reports the time of each step; measure --with cpu")


def _rate(amount: int, step: StepTiming) -> float | None:
    return amount / step.seconds if amount and step.seconds else None


def time(seconds: float) -> str:
    """Returns a time in three figures: 12.3 us, 1.20 ms, 2.5 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 0.9995:
            return f"{three_digits(seconds * scale)} {unit}"
    return f"{three_digits(seconds * 1e6)} us"
