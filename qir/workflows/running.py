"""Runs a model on data by any engine, and compares two engines on one model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from qir.arguments import checked, require_counts
from qir.atomic import claim, replacing
from qir.calibration.data import data_files
from qir.errors import DataError, UsageError
from qir.inspect.compare import OutputDifference, compare, values_agree
from qir.inspect.float_faults import FloatFault, first_fault
from qir.inspect.metrics import Metric, metric
from qir.ir.dtype import decode_texts, dtype_of
from qir.ir.graph import Graph
from qir.workflows.engines import (
    REFERENCE,
    Engine,
    Tensor,
    Tensors,
    compared,
    fallbacks,
    grouped,
    is_reference,
    require_kernels,
)
from qir.workflows.engines import engine as named_engine
from qir.workflows.inputs import SampleData, batches
from qir.workflows.progress import Progress, silent

Parts = dict[str, list[Tensor]]
"""Results by name, an array for each batch."""
Distances = dict[str, dict[str, float]]
"""How near two runs are, by output and metric."""


@dataclass(frozen=True, slots=True)
class ModelRun:
    """The results of a model on data."""

    engine: str
    results: Mapping[str, Tensor]
    """Of all batches, along the first axis."""
    samples: int
    """How many were run; with feeds, how many feeds."""
    fallbacks: Sequence[Mapping[str, str]]
    """The nodes of a compiled program that the reference computes: node, op, and reason."""
    computed: Graph
    """The graph as it ran: grouped by the engine, or as it was given."""


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """The results of two engines on one model and the same data."""

    engines: tuple[str, str]
    samples: int
    outputs: tuple[OutputDifference, ...]
    distances: Distances
    fault: FloatFault | None
    """The first float sum that differs by more than its order explains."""
    fallbacks: Sequence[Mapping[str, str]]
    computed: Graph
    """The graph as both computed it."""

    @property
    def agree(self) -> bool:
        """Whether all results are as near as they must be."""
        return self.fault is None and all(output.agree for output in self.outputs)


@checked
def run_model(
    graph: Graph,
    data: SampleData | str | Path | None = None,
    *,
    engine: str = REFERENCE,
    file: str | Path | None = None,
    values: Sequence[str] = (),
    isa: str | None = None,
    threads: int | None = None,
    strict: bool = False,
    output: str | Path | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> ModelRun:
    """Runs a model on the samples of a file or folder; writes the results where `output` is given.

    `engine` is `reference`, or the name of a target; a runtime runs `file`, which the graph was
    read from, as it is. `values` are what the reference gives instead of outputs, `isa` is the
    processor by whose rules it computes. With `feeds` each file holds the inputs of one run, and
    is written as FILE/NAME. With `strict` a node that no kernel of a program computes is refused.

    Raises UsageError for options that do not go together, DataError for data that do not fit.
    """
    require_counts({"threads": threads})
    samples, results_file = (
        SampleData.from_argument(data),
        Path(output) if output is not None else None,
    )
    _require_options([engine], results_file, values, isa, force=force)
    runs = [named_engine(engine, graph, _file_of(graph, file), threads, values=values, isa=isa)]
    (parts,) = run_each(runs, batches(graph, samples), progress)
    missing_kernels = fallbacks(runs)
    if strict:
        require_kernels(_file_of(graph, file), missing_kernels)
    feeds = samples is not None and samples.feeds
    results = join(parts, feeds=feeds)
    if results_file is not None:
        saved = _by_feed(samples, parts) if feeds else _by_name(results)
        save_results(results_file, graph, saved)
    count = _count_samples(graph, parts, results, feeds=feeds)
    return ModelRun(engine, results, count, missing_kernels, grouped(runs[0]) or graph)


@checked
def compare_engines(
    graph: Graph,
    data: SampleData | str | Path | None = None,
    *,
    engines: Sequence[str],
    file: str | Path | None = None,
    tolerance: float | None = None,
    metrics: Sequence[str] = (),
    isa: str | None = None,
    threads: int | None = None,
    strict: bool = False,
    progress: Progress = silent,
) -> EngineComparison:
    """Runs two engines on the same samples and compares their results; the first one is right.

    Quantized results must be equal; those of float sums may differ by `tolerance`, a share of the
    largest value. Where bytes differ, each float sum is run alone on the first batch, to find the
    first one whose difference its order does not explain. `metrics` also measure the distance.

    The other arguments are those of `run_model`, and so are the errors.
    """
    require_counts({"threads": threads})
    if tolerance is not None:
        require_tolerance(tolerance)
    first, second = _two(engines)
    chosen_metrics = [metric(name) for name in dict.fromkeys(metrics)]
    _require_options([first, second], None, (), isa, force=False)
    runs, computed = compared([first, second], graph, _file_of(graph, file), threads, isa=isa)
    samples = SampleData.from_argument(data)
    feeds = samples is not None and samples.feeds
    parts = run_each(runs, batches(graph, samples), progress)
    missing_kernels = fallbacks(runs)
    if strict:
        require_kernels(_file_of(graph, file), missing_kernels)
    expected, actual = (join(each, feeds=feeds) for each in parts)
    outputs = compare(graph, expected, actual, computed=computed, tolerance=tolerance)
    fault = None
    # Only unequal bytes are worth the second run that looks for the first faulty sum.
    if not all(output.equal for output in outputs):
        first_batch = next(iter(batches(graph, samples)), {})
        fault = _first_fault(computed, first_batch, (first, second), threads, isa)
    return EngineComparison(
        (first, second),
        _count_samples(graph, parts[0], expected, feeds=feeds),
        tuple(outputs),
        distances(chosen_metrics, expected, actual),
        fault,
        missing_kernels,
        computed,
    )


def _require_options(
    engines: Sequence[str],
    output: Path | None,
    values: Sequence[str],
    isa: str | None,
    *,
    force: bool,
) -> None:
    if output is not None:
        claim(output, force=force)
        if output.suffix != ".npz":
            raise UsageError(f"{output}: results are written as .npz")
    if values and not all(map(is_reference, engines)):
        raise UsageError("`values` needs the reference: other engines keep no values in between")
    # Kernels and runtimes execute on this machine, so no option can change their processor.
    if isa is not None and not any(map(is_reference, engines)):
        raise UsageError("`isa` is for the reference: other engines run on this processor")


def require_tolerance(tolerance: float) -> None:
    """Raises UsageError for what is no share of a value."""
    if not tolerance >= 0:  # nor NaN, which no difference is greater than
        raise UsageError(f"tolerance {tolerance:g}: give a share of the largest value, from 0")


def _two(names: Sequence[str]) -> tuple[str, str]:
    """Returns the names of two engines; one alone is compared with the reference."""
    both = (REFERENCE, *names) if len(names) == 1 else tuple(names)
    if len(both) != 2 or not all(both):
        text = ",".join(names)
        raise UsageError(f"`engines` {text!r}: name two engines, such as cpu,onnxruntime")
    return both[0], both[1]


def _file_of(graph: Graph, file: str | Path | None) -> Path:
    # No runtime owns a .qir file: where there is no file, it is given the graph.
    return Path(file) if file is not None else Path(f"{graph.name}.qir")


def _first_fault(
    graph: Graph, inputs: Tensors, names: Sequence[str], threads: int | None, isa: str | None
) -> FloatFault | None:
    """Returns the first float sum on which two engines differ more than its bound allows."""

    def run_alone(name: str, one_op: Graph, feeds: Tensors) -> Tensors:
        return named_engine(name, one_op, Path("one.qir"), threads, isa=isa).run(feeds)

    return first_fault(graph, inputs, [partial(run_alone, name) for name in names])


# -- batches and their results --------------------------------------------------------------------


def run_each(
    engines: Sequence[Engine], inputs: Iterable[Tensors], progress: Progress = silent
) -> list[Parts]:
    """Returns the results of each engine, batch by batch."""
    parts: list[Parts] = [{} for _ in engines]
    # Sources know how many batches they have; a generator that adds defaults does not.
    total = getattr(inputs, "batches", None)
    with progress("running") as tell:
        tell(0, total)
        for done, feeds in enumerate(inputs, 1):
            # Batch by batch through all engines, so that data are read once and one batch is in
            # memory.
            for each, own_parts in zip(engines, parts, strict=True):
                for name, array in each.run(feeds).items():
                    own_parts.setdefault(name, []).append(array)
            tell(done, total)
    return parts


def join(parts: Parts, *, feeds: bool = False) -> dict[str, Tensor]:
    """Results of all batches along the first axis; feeds whose shapes vary become one axis."""
    return {name: _joined(name, arrays, feeds) for name, arrays in parts.items()}


def _joined(name: str, arrays: Sequence[Tensor], feeds: bool) -> Tensor:
    # A result without axes, such as a mean, becomes one element a batch.
    arrays = [np.atleast_1d(array) for array in arrays]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1 and feeds:
        # Feeds are compared element by element, so their shapes need not agree.
        return np.concatenate([array.reshape(-1) for array in arrays])
    if len(shapes) > 1:
        first, other = sorted(shapes)[:2]
        raise DataError(
            f"{name}: batches give shapes {list(first)} and {list(other)}; use `batch`, or `limit`"
        )
    return np.concatenate(arrays)


def _count_samples(
    graph: Graph, parts: Parts, results: Mapping[str, Tensor], *, feeds: bool
) -> int:
    if feeds:  # a feed is one complete run, however many rows its arrays have
        return max(map(len, parts.values()), default=0)
    if not graph.inputs:
        return 1
    return next((len(array) for array in results.values() if array.ndim), 0)


def distances(metrics: Sequence[Metric], wanted: Tensors, given: Tensors) -> Distances:
    """By output and metric, how near two runs are; outputs that are no numbers are left out."""
    if not metrics:
        return {}
    names = [n for n in wanted if _is_numeric(wanted[n]) and _is_numeric(given[n])]
    return {name: {m.name: m(wanted[name], given[name]) for m in metrics} for name in names}


def count_opaque_differences(wanted: Tensors, given: Tensors) -> dict[str, int]:
    """By output that is no numbers, how many of its texts, lists and the like differ."""
    counts: dict[str, int] = {}
    for name, one in wanted.items():
        other = given[name]
        if _is_numeric(one) and _is_numeric(other):
            continue
        pairs = zip(one.reshape(-1).tolist(), other.reshape(-1).tolist(), strict=False)
        same = sum(values_agree(a, b) for a, b in pairs) if one.shape == other.shape else 0
        counts[name] = max(one.size, other.size) - same
    return counts


def _is_numeric(array: Tensor) -> bool:
    # Objects, bytes, texts, and NumPy 2's texts of variable length.
    return array.dtype.kind not in "OSUT"


# -- files of results -----------------------------------------------------------------------------


_Result = tuple[str, str, Tensor]
"""The name that a result is written by, the output that it is of, and its array."""


def _by_name(results: Mapping[str, Tensor]) -> Iterator[_Result]:
    return ((name, name, array) for name, array in results.items())


def _by_feed(samples: SampleData | None, parts: Parts) -> Iterator[_Result]:
    """Yields the results of each feed; those of a folder are named by their file."""
    if samples is None or not samples.path.is_dir():
        yield from ((name, name, array) for name, arrays in parts.items() for array in arrays)
        return
    files = data_files(samples.path)
    stems = [file.stem for file in files]
    for index, file in enumerate(files):
        # a.npy and a.npz in one folder would overwrite each other's results.
        start = file.stem if stems.count(file.stem) == 1 else file.name
        for name, arrays in parts.items():
            if index < len(arrays):  # there may be a limit
                yield f"{start}/{name}", name, arrays[index]


def save_results(path: Path, graph: Graph, results: Iterable[_Result]) -> None:
    """Writes arrays, strings as those of NumPy; raises DataError for what no such array is."""
    arrays = {}
    for key, name, array in results:
        kind = kind_of_result(graph, name, array)
        if kind.startswith("opaque"):
            raise DataError(f"{path}: {name} is {kind}, which no .npz holds: leave -o out")
        arrays[key] = storable = _as_numpy_texts(array) if array.dtype == object else array
        # NumPy's texts drop zeros at their ends, so that others would be read back.
        if storable is not array and not (decode_texts(storable) == array).all():
            raise DataError(f"{path}: {name} has texts that end in zeros, which no .npz holds")
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _as_numpy_texts(array: Tensor) -> Tensor:
    """Texts as an array of NumPy's; of bytes, where one is bytes that are no text."""
    items = array.reshape(-1).tolist()
    if not any(isinstance(item, bytes) for item in items):
        return array.astype(np.str_)
    # One array holds one type: bytes that are no UTF-8 decide for all.
    encoded = [item if isinstance(item, bytes) else str(item).encode() for item in items]
    return np.array(encoded, np.bytes_).reshape(array.shape)


def kind_of_result(graph: Graph, name: str, array: Tensor) -> str:
    """Returns what a result holds: its elements' type, or its own where it is no tensor."""
    value = graph.outputs.get(name) or graph.values.get(name)
    if value is None:
        return str(dtype_of(array))
    kind = value.type.dtype
    if kind.is_opaque:
        return str(value.type if array.dtype == object else dtype_of(array))
    # Another engine may give another type than the graph states: then the array's own is said.
    return str(kind if array.dtype == kind.carrier else dtype_of(array))
