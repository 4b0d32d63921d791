"""`qir quantize --check`: the quantized model next to the float one, and its worst tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.comparison import number
from qir.cli.eval import SHARES, shown
from qir.cli.screen import Column, Screen, plural

if TYPE_CHECKING:
    from qir.inspect.quantization_check import Flips, QuantizationCheck, Worst

ESTIMATE = "~"
"""Stands before gains that are estimates."""

check_option = click.option(
    "--check",
    "wanted",
    is_flag=True,
    help="Run the float and the int8 model once on the samples: metrics, answers that flip, and"
    " the ten worst tensors, each with its cause and a remedy.",
)
check_data_option = click.option(
    "--check-data",
    type=shared.PATH,
    metavar="PATH",
    help="Samples for --check, other than those of --data.",
)
labels_option = click.option(
    "--labels",
    metavar="FILE",
    help="Labels for --drop and --check, one a sample, as `qir eval` reads them.",
)
metric_option = click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Metric of --labels, top1 unless given; may be given several times.",
)


def require_fitting(
    wanted: bool,
    check_data: Path | None,
    labels: str | None,
    metrics: tuple[str, ...],
    data: Path | None,
    others: Mapping[str, object],
) -> None:
    """Raises UsageError for options of --check without it, or with what it does not go with."""
    from qir.errors import UsageError
    from qir.workflows.quantization import require_fitting_check

    if check_data and not wanted:
        raise UsageError("--check-data and --metric go with --check")
    require_fitting_check(wanted, labels, metrics, others)
    if wanted and check_data is None and data is None:
        raise UsageError("--check needs samples: give --check-data PATH")


def to_json(found: QuantizationCheck | None) -> dict[str, object] | None:
    """Returns a check as JSON has it; None where there was none."""
    if found is None:
        return None

    def plain(rows: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, object]]:
        return {name: {m: number(x) for m, x in row.items()} for name, row in rows.items()}

    worst = [
        {**asdict(w), **{k: number(getattr(w, k)) for k in ("sqnr", "lost", "gain")}}
        for w in found.worst
    ]
    return {
        "samples": found.samples,
        "float": plain(found.float),
        "quantized": plain(found.quantized),
        "near": plain(found.near),
        "flips": {name: asdict(each) for name, each in found.flips.items()},
        "worst": worst,
    }


def show(screen: Screen, found: QuantizationCheck, data: Path) -> None:
    """Prints a check: metrics, flips, and the worst tensors with what would help."""
    screen.line()
    screen.line(f"check on {plural(found.samples, 'sample')} of {data.name}", "bold")
    _show_metrics(screen, found)
    for name, flips in found.flips.items():
        screen.line(f"  {_flips_text(flips, bool(found.metrics))} at output {name}")
    if not found.worst:
        screen.line("  no tensor loses more than half a decibel")
        return
    _show_worst(screen, found.worst)


def _show_metrics(screen: Screen, found: QuantizationCheck) -> None:
    rows = []
    for output, row in found.float.items():
        for name, value in row.items():
            other = found.quantized[output][name]
            # Shares are printed in percent, so that their change is in points.
            change = f"{100 * (other - value):+.1f}" if name in SHARES else f"{other - value:+.3g}"
            rows.append((output, name, shown(name, value), shown(name, other), change))
    columns = (
        Column("output", fit="fold"),
        Column("metric"),
        Column("float", "right"),
        Column("int8", "right"),
        Column("change", "right"),
    )
    screen.table(columns, rows)
    distances = [
        (name, shown("agreement", row["agreement"]), shown("sqnr", row["sqnr"]))
        for name, row in found.near.items()
    ]
    distance_columns = (
        Column("int8 against float", fit="fold"),
        Column("agreement", "right"),
        Column("SQNR", "right"),
    )
    screen.table(distance_columns, distances)


def _flips_text(flips: Flips, labelled: bool) -> str:
    changed = plural(flips.changed, "answer")
    if not labelled:
        return f"{changed} of int8 differ{'s' if flips.changed == 1 else ''} from float"
    return (
        f"{changed} differ{'s' if flips.changed == 1 else ''}: {flips.lost} right only in float, "
        f"{flips.gained} right only in int8"
    )


def _show_worst(screen: Screen, worst: tuple[Worst, ...]) -> None:
    columns = (
        Column("tensor", fit="fold"),
        Column("SQNR", "right"),
        Column("lost here", "right"),
        Column("cause"),
        Column("remedy", fit="wrap"),
        Column("gain", "right"),
        Column("what shows it", fit="wrap"),
    )
    rows = [
        (
            w.tensor,
            f"{w.sqnr:.1f} dB",
            f"{w.lost:.1f} dB",
            w.cause,
            w.remedy,
            f"{'' if w.measured else ESTIMATE}{w.gain:.1f} dB",
            w.detail,
        )
        for w in worst
    ]
    screen.table(columns, rows, title="worst tensors")
    screen.line(
        "  lost here: below the tensors it is computed from; gain: of this tensor"
        + (f", {ESTIMATE} estimated" if not all(w.measured for w in worst) else ""),
        "dim",
    )
    screen.line("  docs/guide/accuracy-drop.md says what the causes are and how gains are found")
