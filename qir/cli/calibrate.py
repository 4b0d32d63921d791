"""`qir calibrate`: runs a float model on data and keeps what its tensors look like."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import defaults
from qir.cli import verb as shared
from qir.cli.models import claim_files, open_model, require_distinct_files
from qir.cli.screen import Column, Screen, aligned, amount, percent, plural

if TYPE_CHECKING:
    from qir.calibration import Statistics
    from qir.inspect.ranges import TensorRange
    from qir.ir.graph import Graph


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
    from qir.inspect import ranges

    defaults.require_whole(feeds, batch)
    require_distinct_files([model, data], [output, part_of(output)])
    claim_files(output, force=force or resume)
    _claim_part(part_of(output), anew=force, resume=resume)
    screen = Screen(quiet=quiet)
    graph = open_model(model, data=data)
    saved = _saved(output) if resume else None
    resumed = len(saved.batches) if saved is not None else 0
    if resume and not as_json:
        _show_found(screen, output, saved)
    statistics = _observe(
        screen,
        graph,
        data,
        part=part_of(output),
        limit=limit,
        batch=batch,
        feeds=feeds,
        preprocess=preprocess,
        threads=threads,
        resume=saved,
    )
    statistics.save(output)
    # Only once the statistics are safely written.
    part_of(output).unlink(missing_ok=True)
    # In the order of the graph, which is that of computing.
    order = {name: i for i, name in enumerate(graph.values)}
    rows = sorted(ranges(statistics), key=lambda row: order.get(row.tensor, len(order)))
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


def part_of(output: Path) -> Path:
    """Returns where statistics are kept on the way."""
    return output.with_name(f"{output.name}.part")


def _claim_part(part: Path, *, anew: bool, resume: bool) -> None:
    from qir.atomic import claim
    from qir.errors import UsageError

    if part.exists() and not part.is_dir() and not anew and not resume:
        raise UsageError(f"{part} exists: --resume continues it, --force starts anew")
    # Claimed now, rather than at the first checkpoint some time later.
    claim(part, force=True)


def _saved(output: Path) -> Statistics | None:
    """Returns the statistics that an earlier run left, unfinished or not; None where there are
    none."""
    from qir.calibration import Statistics
    from qir.errors import InputError

    for path in (part_of(output), output):
        if path.exists():
            try:
                return Statistics.load(path)
            except InputError as error:
                raise InputError(f"{error}; --force without --resume starts anew") from error
    return None


def _show_found(screen: Screen, output: Path, found: Statistics | None) -> None:
    """Prints what a run resumes from, or that there is nothing to resume."""
    if found is None:
        screen.line(f"nothing to resume: no {part_of(output)} and no {output}; starting anew")
    else:
        progress = plural(len(found.batches), "batch", "batches")
        screen.line(f"resuming from {found.source}: {progress} done before")


def _observe(
    screen: Screen,
    graph: Graph,
    data: Path,
    *,
    part: Path,
    limit: int | None = None,
    batch: int | None = None,
    feeds: bool = False,
    preprocess: Path | None = None,
    threads: int | None = None,
    resume: Statistics | None = None,
) -> Statistics:
    """Calibrates, with a bar; `part` holds the statistics until the run ends or is stopped."""
    from qir import pipeline
    from qir.errors import DataError, Stopped

    defaults.require_inputs(data, graph)
    if resume is None:
        part.unlink(missing_ok=True)  # of another run, which --force gave up
    try:
        with screen.progress("calibrating") as progress:
            statistics = pipeline.calibrate(
                graph,
                data,
                limit=limit,
                batch=batch,
                feeds=feeds,
                preprocess=preprocess,
                threads=threads or len(os.sched_getaffinity(0)),
                progress=progress,
                checkpoint=part,
                resume=resume,
            )
    except (KeyboardInterrupt, Stopped) as stop:
        if part.exists():
            cause = (
                "interrupted" if isinstance(stop, KeyboardInterrupt) else "stopped by the system"
            )
            raise type(stop)(f"{cause}; --resume continues from {part}") from None
        raise
    except DataError:
        if resume is None:
            part.unlink(missing_ok=True)
        raise
    defaults.show_samples_left_out(
        screen, graph, data, limit=limit, feeds=feeds, preprocess=preprocess
    )
    return statistics


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
