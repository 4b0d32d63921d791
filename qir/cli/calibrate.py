"""`qir calibrate`: runs a float model on data and keeps what its tensors look like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import defaults
from qir.cli import verb as shared
from qir.cli.models import open_model, require_distinct_files
from qir.cli.screen import Column, Screen, aligned, amount, percent, plural

if TYPE_CHECKING:
    from qir.calibration import Statistics
    from qir.inspect.ranges import TensorRange


@shared.verb(
    "qir calibrate model.onnx --data samples.npy -o model.stats",
    "qir calibrate model.onnx --data samples.npy --limit 64 -o few.stats",
    "qir calibrate model.onnx --data samples.npy -o model.stats --resume",
)
@shared.model
@shared.data(shared.DATA, required=True)
@shared.preprocess
@shared.output("Where to write the statistics.")
@shared.whole("--limit", "Use only so many samples.")
@shared.whole("--batch", "Samples in a batch; as many as fit by default.")
@shared.feeds
@shared.threads
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@shared.force
@shared.as_json
@shared.quiet
def calibrate(
    model: Path,
    data: Path,
    preprocess: Path | None,
    output: Path,
    limit: int | None,
    batch: int | None,
    feeds: bool,
    threads: int | None,
    resume: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a float model on samples and keep what its tensors hold.

    The statistics serve any number of `qir quantize` runs, with any range rule. Data are arrays
    with samples along the first axis: one array for a model with one input, else arrays named as
    the inputs; with --feeds each file is one run, as it is. NaN in the data or in the model's
    tensors is refused. A run saves FILE.part every few seconds and when it is interrupted; --resume
    continues from it, and says what it found.

    --json prints {file, output, batches, resumed, tensors: [{tensor, count, low, high, mean,
    deviation, zeros, nan, infinite, channels}]}.
    """
    from qir.workflows import SampleData, calibrate_model
    from qir.workflows.calibration import claim_statistics, part_of, saved_statistics

    shared.require_whole(feeds, batch)
    require_distinct_files([model, data], [output, part_of(output)])
    claim_statistics(output, force=force, resume=resume)
    screen = Screen(quiet=quiet)
    graph = open_model(model, data=data)
    saved = saved_statistics(output) if resume else None
    # Before the work: it tells whether an hour is saved, and --json must print one value alone.
    if resume and not as_json:
        _show_found(screen, output, saved)
    samples = SampleData(data, None, limit, batch, feeds, preprocess)
    with _continued(part_of(output)):
        calibrated = calibrate_model(
            graph,
            samples,
            output,
            resume=saved,
            threads=threads,
            progress=screen.progress,
            # To resume is to replace the statistics that are resumed.
            force=force or resume,
        )
    defaults.show_samples_left_out(screen, graph, samples)
    statistics, rows = calibrated.statistics, calibrated.ranges
    resumed = len(saved.batches) if saved is not None else 0
    if as_json:
        screen.json(
            {
                "file": str(model),
                "output": str(output),
                "batches": len(statistics.batches),
                "resumed": resumed,
                "tensors": [row.to_json() for row in rows],
            }
        )
        return
    counts = (
        f"{plural(len(rows), 'tensor')} over {plural(len(statistics.batches), 'batch', 'batches')}"
    )
    screen.line(f"{output.name}: {counts}", "bold")
    defaults.show_passed_over(screen, graph, data)
    _show(screen, rows)


def _show_found(screen: Screen, output: Path, found: Statistics | None) -> None:
    """Prints what a run resumes from, or that there is nothing to resume."""
    from qir.workflows.calibration import part_of

    if found is None:
        screen.line(f"nothing to resume: no {part_of(output)} and no {output}; starting anew")
    else:
        progress = plural(len(found.batches), "batch", "batches")
        screen.line(f"resuming from {found.source}: {progress} done before")


@contextmanager
def _continued(part: Path) -> Iterator[None]:
    """Says what an interrupted run continues from."""
    from qir.errors import Stopped

    try:
        yield
    except (KeyboardInterrupt, Stopped) as stop:
        if part.exists():
            interrupted = isinstance(stop, KeyboardInterrupt)
            cause = "interrupted" if interrupted else "stopped by the system"
            raise type(stop)(f"{cause}; --resume continues from {part}") from None
        raise


def _show(screen: Screen, rows: Sequence[TensorRange]) -> None:
    columns = (
        Column("tensor", fit="fold"),
        Column("values", "right"),
        Column("low", "right"),
        Column("high", "right"),
        Column("mean", "right", fit="drop"),
        Column("deviation", "right", fit="drop"),
        Column("zeros", "right", fit="drop"),
    )
    table = [
        (
            r.tensor,
            amount(r.count),
            aligned(r.low),
            aligned(r.high),
            aligned(r.mean),
            aligned(r.deviation),
            percent(r.zeros / r.count) if r.zeros else "-",
        )
        for r in rows
    ]
    screen.table(columns, table)
    for row in rows:
        if row.nan or row.infinite:
            bad = f"{row.nan} NaN, {row.infinite} infinite of {row.count}"
            screen.line(f"  {row.tensor}: {bad}; its range is of the others", "yellow")
