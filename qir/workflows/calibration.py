"""Runs a float model on samples and keeps the statistics of its tensors in a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from qir import pipeline
from qir.arguments import checked, require_counts
from qir.atomic import claim
from qir.calibration import Statistics
from qir.errors import DataError, InputError, UsageError
from qir.inspect.ranges import TensorRange, ranges
from qir.ir.graph import Graph
from qir.workflows.inputs import SampleData, require_inputs
from qir.workflows.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class CalibratedModel:
    """The statistics of a model's tensors."""

    statistics: Statistics
    ranges: tuple[TensorRange, ...]
    """What each tensor holds, in the order of computing."""


@checked
def calibrate_model(
    graph: Graph,
    data: SampleData | str | Path,
    output: str | Path,
    *,
    resume: Statistics | None = None,
    threads: int | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> CalibratedModel:
    """Calibrates as `qir.calibrate` does, and writes the statistics.

    Until they are written they are kept in a file next to the output, which an interrupted run
    leaves; `resume` are the statistics to continue from (`saved_statistics`). Raises DataError for
    data that do not fit, UsageError for an existing file unless `force`.
    """
    require_counts({"threads": threads})
    place, samples = Path(output), SampleData.from_argument(data)
    assert samples is not None
    part = part_of(place)
    claim_statistics(place, force=force, resume=resume is not None)
    require_inputs(samples.path, graph)
    if resume is None:
        part.unlink(missing_ok=True)  # of another run, which `force` gave up
    try:
        with progress("calibrating") as tell:
            statistics = pipeline.calibrate(
                graph,
                samples.path,
                limit=samples.limit,
                batch=samples.batch,
                feeds=samples.feeds,
                preprocess=samples.preprocess,
                threads=threads or len(os.sched_getaffinity(0)),
                progress=tell,
                checkpoint=part,
                resume=resume,
            )
    except DataError:
        # Bad data stay bad: there is nothing to continue.
        if resume is None:
            part.unlink(missing_ok=True)
        raise
    statistics.save(place)
    # Only once the statistics are safely written.
    part.unlink(missing_ok=True)
    order = {name: i for i, name in enumerate(graph.values)}
    # Statistics are kept by name; tensors that folding made, which the graph has not, come last.
    rows = sorted(ranges(statistics), key=lambda row: order.get(row.tensor, len(order)))
    return CalibratedModel(statistics, tuple(rows))


def part_of(output: Path) -> Path:
    """Returns where statistics are kept on the way."""
    return output.with_name(f"{output.name}.part")


def claim_statistics(output: Path, *, force: bool, resume: bool) -> None:
    """Raises UsageError unless statistics may be written there, before any work."""
    claim(output, force=force or resume)
    part = part_of(output)
    if part.exists() and not part.is_dir() and not force and not resume:
        raise UsageError(f"{part} exists: `resume` continues it, `force=True` starts anew")
    # Claimed now, rather than at the first checkpoint some time later.
    claim(part, force=True)


def saved_statistics(output: Path) -> Statistics | None:
    """Returns the statistics that an earlier run left, unfinished or not; None where there are
    none."""
    # An unfinished file next to a finished one is of a later run.
    for path in (part_of(output), output):
        if path.exists():
            try:
                return Statistics.load(path)
            except InputError as error:
                raise InputError(f"{error}; `force=True` without `resume` starts anew") from error
    return None
