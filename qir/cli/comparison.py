"""What the screen says of runs next to each other: distances, and what the reference computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from qir.cli.screen import Column, Screen, float_text

if TYPE_CHECKING:
    from qir.inspect.metrics import Metric
    from qir.workflows.running import Distances

_MOST_FALLBACKS = 4


def number(x: float) -> float | str | None:
    """Returns a number as JSON has it, which knows no infinite ones."""
    if math.isnan(x):
        return None
    # An infinite SQNR is a result, namely of equal outputs; NaN is the lack of one.
    return str(x) if math.isinf(x) else x


def show_measurements(screen: Screen, metrics: Sequence[Metric], distances: Distances) -> None:
    """Prints what was measured, a row for each output."""
    if not metrics:
        return
    names = (f"{m.name} {m.unit}".rstrip() for m in metrics)
    columns = (Column("output", fit="fold"), *(Column(name, "right") for name in names))
    rows = [(name, *(float_text(x) for x in row.values())) for name, row in distances.items()]
    screen.table(columns, rows)


def show_fallbacks(screen: Screen, fallbacks: Sequence[Mapping[str, str]]) -> None:
    """Says once which nodes the reference computes, if there are any."""
    if fallbacks:
        names = [fallback["node"] for fallback in fallbacks[:_MOST_FALLBACKS]]
        text = ", ".join(names) + (" .." if len(fallbacks) > _MOST_FALLBACKS else "")
        count = f"{len(fallbacks)} node{'s' if len(fallbacks) > 1 else ''}"
        screen.line(f"  {count} run by the reference: {text}", "yellow")
