"""Measures how fast engines run a model, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from qir.arguments import checked, require_counts
from qir.calibration.runner import input_specs
from qir.errors import DataError, InputError, Refused, UsageError
from qir.inspect.timing import Timing, time_interleaved
from qir.ir.graph import Graph
from qir.programs import KERNELS
from qir.registry import DEFAULT_TARGET
from qir.workflows.engines import (
    Engine,
    Tensors,
    engine,
    fallbacks,
    require_kernels,
)
from qir.workflows.inputs import SampleData, batches, random_inputs
from qir.workflows.progress import Progress, silent
from qir.workflows.step_times import StepTable, step_times

LeftOut = dict[str, str]
"""The name of an `engine`, and the `reason` why it is not measured."""


@dataclass(frozen=True, slots=True)
class ModelBenchmark:
    """How fast engines run a model."""

    inputs: Tensors
    timings: tuple[Timing, ...]
    left_out: tuple[LeftOut, ...]
    """Engines that do not take the model."""
    fallbacks: Sequence[Mapping[str, str]]
    """Nodes that the reference computes inside of a compiled program."""
    steps: StepTable | None
    """The time of each step, where it was asked for."""


@checked
def benchmark_model(
    graph: Graph,
    data: SampleData | str | Path | None = None,
    *,
    engines: Sequence[str] = (KERNELS, DEFAULT_TARGET),
    file: str | Path | None = None,
    batch: int = 1,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    runs: int = 50,
    threads: int = 1,
    steps: bool = False,
    strict: bool = False,
    progress: Progress = silent,
) -> ModelBenchmark:
    """Times engines on the first batch of the data, or on inputs that are drawn by a seed.

    `file` is where the graph was read from: a runtime runs it as it is. `sizes` are those that the
    model leaves open, by name. With `steps` the time of each step of QIR's kernels is measured too,
    and with `strict` a node that no kernel computes is refused. Engines that do not take the model
    are left out; what the first of them raises is raised where none takes it.
    """
    require_counts({"batch": batch, "runs": runs, "threads": threads})
    require_counts(sizes or {})
    require_counts({"seed": seed}, least=0)
    # No runtime owns a .qir file: an engine is then given the graph.
    place = Path(file) if file is not None else Path(f"{graph.name}.qir")
    inputs = _inputs(graph, SampleData.from_argument(data), batch, seed, sizes or {})
    ready, refused = _engines_that_take(engines, graph, place, threads)
    measured, unable = _engines_that_run(ready, graph, inputs)
    calls: dict[str, Callable[[], object]] = {
        each.name: partial(each.run, inputs) for each in measured
    }
    with progress("measuring") as tell:
        timings = time_interleaved(calls, runs, threads=threads, progress=tell)
    # After the turns: measuring steps would slow those of the kernels.
    table = step_times(measured, inputs, runs) if steps else None
    # After the runs: which nodes fall back may depend on what was run last.
    missing_kernels = fallbacks(measured)
    if strict:
        require_kernels(place, missing_kernels)
    return ModelBenchmark(inputs, timings, (*refused, *unable), missing_kernels, table)


def _inputs(
    graph: Graph, samples: SampleData | None, batch: int, seed: int, sizes: Mapping[str, int]
) -> Tensors:
    if samples is None:
        return random_inputs(graph, seed, batch, sizes)
    # A model of one batch size is given its own.
    size = None if has_fixed_batch(graph) else samples.batch or batch
    # The first batch alone: all turns must do the same work.
    first = next(iter(batches(graph, replace(samples, batch=size))), None)
    if first is None:
        raise DataError(f"{samples.path}: no samples")
    return first


def has_fixed_batch(graph: Graph) -> bool:
    """Returns whether a model takes batches of one size alone."""
    return any(spec.shape and spec.shape[0] is not None for spec in input_specs(graph).values())


def _engines_that_take(
    names: Sequence[str], graph: Graph, file: Path, threads: int
) -> tuple[list[Engine], list[LeftOut]]:
    """Returns the engines that take the model, and why each of the others does not."""
    ready: list[Engine] = []
    errors_by_name: dict[str, InputError | Refused] = {}
    for name in names:
        try:
            ready.append(engine(name, graph, file, threads))
        except (InputError, Refused) as error:
            errors_by_name[name] = error
    # One engine that fails is left out; where all fail, the first error is the one to tell.
    if not ready:
        raise next(iter(errors_by_name.values()), UsageError("no engine is named"))
    reasons = {name: str(error).removeprefix(f"{file}: ") for name, error in errors_by_name.items()}
    return ready, [{"engine": name, "reason": reason} for name, reason in reasons.items()]


def _engines_that_run(
    engines: Sequence[Engine], graph: Graph, inputs: Tensors
) -> tuple[list[Engine], list[LeftOut]]:
    """Returns the engines that take what is given for defaults, and why each of the others does
    not."""
    able: list[Engine] = []
    errors: list[DataError] = []
    # Only defaults are tried: an engine may take the model and have none of its optional inputs.
    gives_defaults = any(value.name in inputs for value in graph.defaults)
    for each in engines:
        try:
            if gives_defaults:
                each.run(inputs)
            able.append(each)
        except DataError as error:
            errors.append(error)
    if not able:
        raise errors[0]
    unable = [each for each in engines if each not in able]
    reasons = zip(unable, errors, strict=True)
    return able, [{"engine": each.name, "reason": str(error)} for each, error in reasons]
