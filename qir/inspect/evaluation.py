"""Measures a model's results by metrics: against labels, or against another model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from qir.errors import DataError, UsageError
from qir.inspect.metrics import Metric, is_labels

Tensor = NDArray[np.generic]
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What metrics say of each output; `to_json` has the keys of the fields."""

    samples: int
    engine: str
    """What ran the model."""
    outputs: Mapping[str, Mapping[str, float]]
    """By output and metric, the number."""

    def to_json(self) -> dict[str, object]:
        """Returns the fields; infinite numbers stay what they are."""
        return asdict(self)


def join_batches(parts: Iterable[Tensors]) -> dict[str, Tensor]:
    """Returns the results of all batches, joined along their first axis.

    Raises DataError where batches give samples of different shapes.
    """
    by_output: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, array in part.items():
            by_output.setdefault(name, []).append(np.atleast_1d(array))
    for name, arrays in by_output.items():
        shapes = sorted({array.shape[1:] for array in arrays})
        if len(shapes) > 1:
            shapes_text = f"{list(shapes[0])} and {list(shapes[1])}"
            raise DataError(
                f"output {name}: batches give samples of shapes {shapes_text}: use --limit"
            )
    return {name: np.concatenate(arrays) for name, arrays in by_output.items()}


def require_length(labels: Tensor, samples: int, where: str) -> None:
    """Raises DataError where there are not as many labels as samples."""
    if not labels.ndim or len(labels) != samples:
        count = len(labels) if labels.ndim else 1
        raise DataError(f"{where}: {count} labels, the data have {samples} samples")


def against_labels(
    metrics: Sequence[Metric], labels: Tensor, results: Tensors
) -> dict[str, dict[str, float]]:
    """Returns the numbers of each output that the labels fit.

    Raises DataError where they fit none, naming the shapes.
    """
    fitting = {
        name: scores for name, scores in results.items() if can_compare(metrics, labels, scores)
    }
    if not fitting:
        raise _misfit(metrics, labels, results)
    if any(is_labels(labels, scores) for scores in fitting.values()):
        require_some(labels)
    return {name: {m.name: m(labels, scores) for m in metrics} for name, scores in fitting.items()}


def require_some(labels: Tensor) -> None:
    """DataError where no label is a class."""
    if labels.size and int(labels.max()) < 0:
        raise DataError("labels: all are below 0, which leaves their samples out: count from 0")


def _misfit(metrics: Sequence[Metric], labels: Tensor, results: Tensors) -> DataError:
    """What is said of labels that fit no output: for which metrics, and what these take."""
    unfitting = [
        m
        for m in metrics
        if not any(can_compare([m], labels, scores) for scores in results.values())
    ]
    named_metrics = unfitting or metrics
    remedy = "measure one of them at a time"
    if any(m.labels for m in unfitting):
        remedy = "give each sample a class, as a whole number"
    elif unfitting:
        remedy = "give such arrays of the output's shape, or a model to compare with (--against)"
    shapes = ", ".join(f"{name} {list(scores.shape)}" for name, scores in results.items())
    return DataError(
        f"labels {labels.dtype} {list(labels.shape)} fit no output for"
        f" {', '.join(m.name for m in named_metrics)}: the model gives {shapes}; {remedy}"
    )


def can_compare(metrics: Sequence[Metric], labels: Tensor, scores: Tensor) -> bool:
    """Returns whether all metrics can compare an output with these labels."""
    if scores.dtype.kind in "OSUT":
        return False
    return all(
        (m.labels and is_labels(labels, scores))
        or (labels.shape == scores.shape and not (m.labels and labels.dtype.kind in "iu"))
        for m in metrics
    )


def against_results(
    metrics: Sequence[Metric], wanted: Tensors, given: Tensors
) -> dict[str, dict[str, float]]:
    """Returns the numbers of each output that two models share.

    Raises UsageError where they share none.
    """
    shared = [n for n, scores in given.items() if n in wanted and scores.dtype.kind not in "OSUT"]
    if not shared and len(wanted) == len(given) == 1:  # one may have renamed its only output
        wanted, shared = dict(zip(given, wanted.values(), strict=True)), list(given)
    if not shared:
        raise UsageError(
            f"the models share no output: one has {', '.join(given)}, the other {', '.join(wanted)}"
        )
    return {name: {m.name: m(wanted[name], given[name]) for m in metrics} for name in shared}
