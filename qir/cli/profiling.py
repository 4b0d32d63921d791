"""What `qir bench --profile` shows of the steps of a compiled model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qir.cli.screen import Column, Screen, percent, size, three_digits

if TYPE_CHECKING:
    from qir.workflows.step_times import StepTable


def show_steps(screen: Screen, table: StepTable) -> None:
    """Prints them as a table, slowest first."""
    from qir.workflows.step_times import rate

    total = sum(step.seconds for step in table.steps)
    rows = []
    for step in sorted(table.steps, key=lambda step: -step.seconds):
        work, moved = rate(step.work, step), rate(step.bytes, step)
        share = table.share_of_peak(step)
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
        Column("time", "right"),
        Column("share", "right"),
        Column("spread", "right", fit="drop"),
        Column("GMAC/s", "right"),
        Column("of peak", "right"),
        Column("GB/s", "right"),
        Column("reads and writes", "right", fit="drop"),
    )
    screen.table(columns, rows, title="steps")
    known = ", ".join(f"{kind} {three_digits(rate / 1e9)}" for kind, rate in table.peaks.items())
    screen.line(f"  peak, GMAC/s of a product of large matrices: {known}")


def time(seconds: float) -> str:
    """Returns a time in three figures: 12.3 us, 1.20 ms, 2.5 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 0.9995:
            return f"{three_digits(seconds * scale)} {unit}"
    return f"{three_digits(seconds * 1e6)} us"
