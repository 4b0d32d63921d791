"""Compares two models: their graphs, and their results on the same samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qir import pipeline
from qir.arguments import checked
from qir.errors import UsageError
from qir.inspect.metrics import metric
from qir.ir.graph import Graph
from qir.profiles import dequantize_by_profile, profile_in
from qir.query.diff import GraphDifference, diff
from qir.workflows.engines import REFERENCE, Engine, Tensor, Tensors
from qir.workflows.inputs import SampleData, batches, defaults_of_one_model
from qir.workflows.progress import Progress, silent
from qir.workflows.running import Distances, count_opaque_differences, distances, join, run_each


@dataclass(frozen=True, slots=True)
class MeasuredDifference:
    """How far the results of two models are apart."""

    samples: int
    results: Mapping[str, Tensor]
    """Of the first model, dequantized, by the names of outputs that both have."""
    distances: Distances
    opaque_differences: Mapping[str, int]
    """Of outputs that are no numbers, how many elements differ."""


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """What differs between two models."""

    difference: GraphDifference
    measured: MeasuredDifference | None
    """The distance of their results, where they were run."""


@checked
def compare_models(
    a: Graph,
    b: Graph,
    data: SampleData | str | Path | None = None,
    *,
    run: bool | None = None,
    metrics: Sequence[str] = ("sqnr",),
    isa: str | None = None,
    progress: Progress = silent,
) -> ModelComparison:
    """Compares two graphs, and runs both in the reference where there are data.

    `run` runs models without inputs too. Results are dequantized; the first model is right. `isa`
    is the processor by whose rules both compute. Raises UsageError for models that take other
    inputs, or have no output of one name.
    """
    chosen_metrics = [metric(name) for name in metrics]
    difference, samples = diff(a, b), SampleData.from_argument(data)
    if not (samples is not None if run is None else run):
        return ModelComparison(difference, None)
    expected, actual = _results((a, b), samples, isa, progress)
    measured = MeasuredDifference(
        next((len(array) for array in expected.values()), 0),
        expected,
        distances(chosen_metrics, expected, actual),
        count_opaque_differences(expected, actual),
    )
    return ModelComparison(difference, measured)


def _results(
    graphs: tuple[Graph, Graph], samples: SampleData | None, isa: str | None, progress: Progress
) -> list[dict[str, Tensor]]:
    """Returns the outputs that both models have, for all samples, dequantized."""
    input_types = [{value.name: value.type.element for value in graph.inputs} for graph in graphs]
    # Shapes are not compared: the same samples may fit a size that only one model leaves open.
    if input_types[0] != input_types[1]:
        a, b = (", ".join(f"{n} {e}" for n, e in each.items()) for each in input_types)
        raise UsageError(f"`data`: the models take other inputs, {a} and {b}")
    names = [name for name in graphs[0].outputs if name in graphs[1].outputs]
    if not names:
        raise UsageError("`data`: the models have no output of one name")
    engines = [
        Engine(REFERENCE, partial(_dequantized_results, graph, names, isa), None)
        for graph in graphs
    ]
    inputs: Iterable[Tensors] = batches(graphs[0], samples)
    # The same feeds go to both, and a model refuses an input that it has not.
    if unshared_defaults := defaults_of_one_model(graphs):
        inputs = (
            {name: array for name, array in batch.items() if name not in unshared_defaults}
            for batch in inputs
        )
    return [join(parts) for parts in run_each(engines, inputs, progress)]


def _dequantized_results(
    graph: Graph, names: Sequence[str], isa: str | None, inputs: Tensors
) -> dict[str, Tensor]:
    results = pipeline.run(graph, inputs, isa=isa)
    quant_types = {name: graph.outputs[name].type.quant for name in names}
    rules = profile_in(graph, graph.profile)
    return {
        name: results[name]
        # A dynamic type states no scale to dequantize by.
        if quant is None or quant.dynamic
        else dequantize_by_profile(rules, results[name], quant)
        for name, quant in quant_types.items()
    }
