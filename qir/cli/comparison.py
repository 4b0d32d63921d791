"""Running models next to each other, and how near their results are by metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from qir.cli.screen import Column, Screen, float_text

if TYPE_CHECKING:
    from qir.cli.engines import Engine, Tensor, Tensors
    from qir.inspect.metrics import Metric


Parts = dict[str, "list[Tensor]"]
"""Results by name, an array for each batch."""


def run_all(
    screen: Screen, engines: Sequence[Engine], batches: Iterable[Tensors]
) -> list[dict[str, Tensor]]:
    """Returns the results of each engine, all batches joined."""
    return [join(parts) for parts in run_each(screen, engines, batches)]


def run_each(screen: Screen, engines: Sequence[Engine], batches: Iterable[Tensors]) -> list[Parts]:
    """Returns the results of each engine, batch by batch."""
    parts: list[Parts] = [{} for _ in engines]
    total = getattr(batches, "batches", None)
    with screen.progress("running") as progress:
        progress(0, total)
        for done, inputs in enumerate(batches, 1):
            for engine, own_parts in zip(engines, parts, strict=True):
                for name, array in engine.run(inputs).items():
                    own_parts.setdefault(name, []).append(array)
            progress(done, total)
    return parts


def join(parts: Parts, *, feeds: bool = False) -> dict[str, Tensor]:
    """Results of all batches along the first axis; feeds whose shapes vary become one axis."""
    return {name: _joined(name, arrays, feeds) for name, arrays in parts.items()}


def _joined(name: str, arrays: Sequence[Tensor], feeds: bool) -> Tensor:
    import numpy as np

    from qir.errors import DataError

    arrays = [np.atleast_1d(array) for array in arrays]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1 and feeds:
        # Feeds are compared element by element, so their shapes need not agree.
        return np.concatenate([array.reshape(-1) for array in arrays])
    if len(shapes) > 1:
        first, other = sorted(shapes)[:2]
        raise DataError(
            f"{name}: batches give shapes {list(first)} and {list(other)}; use --batch, or --limit"
        )
    return np.concatenate(arrays)


def measured(
    metrics: Sequence[Metric], wanted: Tensors, given: Tensors
) -> dict[str, dict[str, float]]:
    """By output and metric, how near two runs are; outputs that are no numbers are left out."""
    if not metrics:
        return {}
    names = [n for n in wanted if _numbers(wanted[n]) and _numbers(given[n])]
    return {name: {m.name: m(wanted[name], given[name]) for m in metrics} for name in names}


def count_opaque_differences(wanted: Tensors, given: Tensors) -> dict[str, int]:
    """By output that is no numbers, how many of its texts, lists and the like differ."""
    from qir.inspect.compare import values_agree

    out: dict[str, int] = {}
    for name, one in wanted.items():
        other = given[name]
        if _numbers(one) and _numbers(other):
            continue
        pairs = zip(one.reshape(-1).tolist(), other.reshape(-1).tolist(), strict=False)
        same = sum(values_agree(a, b) for a, b in pairs) if one.shape == other.shape else 0
        out[name] = max(one.size, other.size) - same
    return out


def _numbers(array: Tensor) -> bool:
    return array.dtype.kind not in "OSUT"


def number(x: float) -> float | str | None:
    """Returns a number as JSON has it, which knows no infinite ones."""
    if math.isnan(x):
        return None
    return str(x) if math.isinf(x) else x


def show_measurements(
    screen: Screen, metrics: Sequence[Metric], near: dict[str, dict[str, float]]
) -> None:
    """Prints what was measured, a row for each output."""
    if not metrics:
        return
    names = (f"{m.name} {m.unit}".rstrip() for m in metrics)
    columns = (Column("output", fit="fold"), *(Column(name, "right") for name in names))
    rows = [(name, *(float_text(x) for x in row.values())) for name, row in near.items()]
    screen.table(columns, rows)
