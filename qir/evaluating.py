"""Measures how good a model is on data: by labels, or against another model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir import pipeline
from qir.arguments import checked
from qir.calibration import Preprocess, Statistics, open_data, read_labels
from qir.calibration.data import Item, fixed_batch, refuse_infinite
from qir.calibration.images import holds_images, image_files
from qir.calibration.runner import input_specs
from qir.calibration.scaling import Scaled, with_scaled
from qir.errors import QirError, UsageError
from qir.inspect.evaluation import (
    Evaluation,
    against_labels,
    against_results,
    join_batches,
    require_length,
)
from qir.inspect.metrics import metric
from qir.inspect.quantization_check import QuantizationCheck, Settings, check_quantized
from qir.ir.dtype import box_object
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.quantize.equalize import scaled_tensors
from qir.quantizing import DEFAULT, fold, in_ops_of, known_corrections
from qir.registry import DEFAULT_TARGET
from qir.target import target as named_target

Tensor = NDArray[np.generic]
Run = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
Data = str | Path | Item | Iterable[Item]
REFERENCE = "reference"
FAST = "cpu"
"""The target whose kernels run what they can; the reference runs the rest."""
CHECKED = 8
"""Samples in a batch of `check`, which holds all tensors of one."""
WITH_LABELS = ("top1",)
WITH_MODEL = ("agreement", "sqnr")


@checked
def evaluate(
    graph: Graph,
    data: str | Path | Item | Iterable[Item],
    labels: str | Path | NDArray[np.generic] | None = None,
    *,
    metrics: Sequence[str] = (),
    against: Graph | None = None,
    target: str = "",
    batch: int | None = None,
    limit: int | None = None,
    preprocess: Preprocess | str | Path | None = None,
    threads: int | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Evaluation:
    """Runs a model on data and measures its outputs, against labels or against another model.

    `metrics` are names, such as top1; without them top1 for labels, agreement and sqnr for a model.
    `target` runs the model: `reference`, or a target's name; without it QIR's own kernels, or the
    reference where these do not take it.

    Raises DataError for labels and data that do not fit, UsageError for unknown metrics.
    """
    if (labels is None) == (against is None):
        raise UsageError("a model is measured by labels, or against another model: give one of two")
    chosen_metrics = [
        metric(name) for name in metrics or (WITH_MODEL if labels is None else WITH_LABELS)
    ]
    source = open_data(data, input_specs(graph), batch=batch, limit=limit, preprocess=preprocess)
    truth = None if labels is None else labels_of(labels, data, source.samples, limit)
    engine, run = runner(graph, target, threads)
    other = None if against is None else runner(against, target, threads)[1]
    results: list[Mapping[str, Tensor]] = []
    expected: list[Mapping[str, Tensor]] = []
    if progress is not None:
        progress(0, source.batches)
    for done, inputs in enumerate(checked_inputs(source, source.name), 1):
        results.append(run(inputs))
        if other is not None:
            expected.append(other(inputs))
        if progress is not None:
            progress(done, source.batches)
    joined = join_batches(results)
    samples = sum(len(next(iter(part.values()))) for part in results if part)
    if truth is None:
        return Evaluation(
            samples, engine, against_results(chosen_metrics, join_batches(expected), joined)
        )
    return Evaluation(samples, engine, against_labels(chosen_metrics, truth[:samples], joined))


@checked
def check(
    graph: Graph,
    quantized: Graph,
    data: str | Path | Item | Iterable[Item],
    statistics: Statistics,
    labels: str | Path | NDArray[np.generic] | None = None,
    *,
    metrics: Sequence[str] = (),
    target: str = DEFAULT_TARGET,
    granularity: str = "channel",
    range_rule: str = "minmax",
    corrections: Iterable[str] | str = DEFAULT,
    batch: int | None = None,
    limit: int | None = None,
    preprocess: Preprocess | str | Path | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> QuantizationCheck:
    """Measures a graph in QDQ form next to the float one that it was quantized from.

    Runs each once on the same data, and finds the tensors that lose most, why, and what would
    help. The keyword arguments are those that `quantize` was given: remedies depend on them.

    Raises DataError for labels and data that do not fit.
    """
    inputs = input_specs(graph)
    batch = batch or (None if fixed_batch(inputs) else CHECKED)
    source = open_data(data, inputs, batch=batch, limit=limit, preprocess=preprocess)
    chosen_metrics = [metric(name) for name in metrics or WITH_LABELS] if labels is not None else []
    truth = None if labels is None else labels_of(labels, data, source.samples, limit)
    backend = named_target(target)
    table = backend.capability()
    names = known_corrections(corrections, table, granularity)
    # Names of tensors are compared, so the float graph is folded as quantizing folded it.
    folded = fold(graph)
    scaled: Mapping[str, Scaled] = {}
    if "equalize" in names:
        scaled = scaled_tensors(in_ops_of(table, folded, Ledger(), granularity), statistics)
    if progress is not None:
        progress(0, source.batches)
    return check_quantized(
        folded,
        quantized,
        checked_inputs(source, source.name),
        with_scaled(statistics, scaled) if scaled else statistics,
        truth,
        chosen_metrics,
        scaled=scaled,
        settings=Settings(granularity, range_rule, names),
        progress=None if progress is None else lambda done: progress(done, source.batches),
    )


def labels_of(
    labels: str | Path | Tensor, data: Data, samples: int | None, limit: int | None
) -> Tensor:
    """Returns the labels of data, as many as there are samples; raises DataError for another
    number.

    Of data with a limit the labels may be those of all samples.
    """
    names = None
    if isinstance(data, str | Path) and holds_images(Path(data)):
        names = [file.relative_to(data).as_posix() for file in image_files(Path(data))]
        names = [Path(data).name] if Path(data).is_file() else names
    all_labels = read_labels(labels, names)
    where = str(labels) if isinstance(labels, str | Path) else "labels"
    if samples is not None and limit is not None and all_labels.ndim and len(all_labels) > samples:
        return all_labels[:samples]
    if samples is not None:
        require_length(all_labels, samples, where)
    return all_labels


def checked_inputs(
    batches: Iterable[Mapping[str, Tensor]], name: str
) -> Iterator[Mapping[str, Tensor]]:
    """Batches in turn; raises DataError for infinite numbers, which no int8 model represents."""
    for number, inputs in enumerate(batches):
        for key, array in inputs.items():
            refuse_infinite(np.asarray(array), f"batch {number} of {name}: input {key!r}")
        yield inputs


def runner(graph: Graph, target: str = "", threads: int | None = None) -> tuple[str, Run]:
    """Returns the name of what runs a graph, and a function that does."""
    if target != REFERENCE:
        try:
            executable = pipeline.compile(graph, target=target or FAST, threads=threads)
            return target or FAST, lambda inputs: _arrays(executable(**inputs))
        except QirError:
            if target:
                raise
    # Kernels that no one asked for by name may refuse a model: the reference takes all.
    return REFERENCE, lambda inputs: pipeline.run(graph, inputs)


def _arrays(results: Mapping[str, object]) -> dict[str, Tensor]:
    """Results as arrays; what is no tensor in a box."""
    return {
        name: result if isinstance(result, np.ndarray) else box_object(result)
        for name, result in results.items()
    }


__all__ = ["check", "evaluate"]
