"""The comparisons themselves: what QIR predicts against what onnxruntime gave, tensor by tensor."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from qir import pipeline
from qir.ir.graph import Graph
from tests.counting import note

Tensors = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Difference:
    """One tensor whose bytes are not the same."""

    where: str
    tensor: str
    count: int
    size: int
    first: str

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.tensor}: {self.count} of {self.size} differ, first {self.first}"
        )


def compare(
    where: str, predicted: Tensors, judge: Tensors, names: Iterable[str]
) -> list[Difference]:
    """Returns the tensors that differ in type, shape or any element; AssertionError for none to
    compare.
    """
    differences, compared = [], 0
    for name in names:
        actual, expected = predicted[name], judge[name]
        compared += 1
        note(actual, expected)
        if actual.dtype != expected.dtype or actual.shape != expected.shape:
            description = (
                f"{actual.dtype}{list(actual.shape)} for {expected.dtype}{list(expected.shape)}"
            )
            differences.append(Difference(where, name, expected.size, expected.size, description))
            continue
        # NaN equals NaN here.
        differs = ~((actual == expected) | ((actual != actual) & (expected != expected)))
        if differs.any():
            index = tuple(int(i) for i in np.argwhere(differs)[0])
            first = f"{actual[index]} for {expected[index]} at {list(index)}"
            differences.append(Difference(where, name, int(differs.sum()), expected.size, first))
    assert compared, f"{where}: there was nothing to compare"
    return differences


def read(proto: onnx.ModelProto) -> Graph:
    """Returns a model as QIR reads it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        return pipeline.load(path)


def reference_differences(
    where: str, graph: Graph, feeds: Tensors, judge: Tensors, profile: str | None
) -> list[Difference]:
    """Returns where the interpreter, under a profile, gives other bytes than the judge."""
    names = [n for n in judge if graph.has(n)]
    values = pipeline.run(graph, feeds, values=names, profile=profile)
    outputs = pipeline.run(graph, feeds, profile=profile)
    return compare(where, {**outputs, **values}, judge, judge)


def kernel_differences(
    where: str, graph: Graph, feeds: Tensors, judge: Tensors, *, threads: int = 1
) -> list[Difference]:
    """Returns where QIR's kernels give other bytes than the judge; every tensor is an output."""
    computed = pipeline.compile(exposed(graph, judge), target="cpu", threads=threads)(**feeds)
    results = {n: np.asarray(a) for n, a in computed.items()}
    return compare(where, results, judge, judge)


def exposed(graph: Graph, names: Iterable[str]) -> Graph:
    """Returns a copy in which these values are outputs under their names, as well as the old
    outputs.
    """
    copy = graph.copy()
    results = dict(copy.outputs)
    results |= {n: copy[n] for n in names if copy.has(n) and n not in results}
    copy.remove(copy.output)
    copy.add("output", results)
    return copy
