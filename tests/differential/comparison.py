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
    """The tensors that differ in type, shape or any element; AssertionError for none to compare."""
    found, compared = [], 0
    for name in names:
        mine, theirs = predicted[name], judge[name]
        compared += 1
        note(mine, theirs)
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            kinds = f"{mine.dtype}{list(mine.shape)} for {theirs.dtype}{list(theirs.shape)}"
            found.append(Difference(where, name, theirs.size, theirs.size, kinds))
            continue
        wrong = ~((mine == theirs) | ((mine != mine) & (theirs != theirs)))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            first = f"{mine[at]} for {theirs[at]} at {list(at)}"
            found.append(Difference(where, name, int(wrong.sum()), theirs.size, first))
    assert compared, f"{where}: there was nothing to compare"
    return found


def read(proto: onnx.ModelProto) -> Graph:
    """A model as QIR reads it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        return pipeline.load(path)


def reference_differences(
    where: str, graph: Graph, feeds: Tensors, judge: Tensors, profile: str | None
) -> list[Difference]:
    """Where the reference interpreter, under a profile, gives other bytes than the judge."""
    names = [n for n in judge if graph.has(n)]
    values = pipeline.run(graph, feeds, values=names, profile=profile)
    outputs = pipeline.run(graph, feeds, profile=profile)
    return compare(where, {**outputs, **values}, judge, judge)


def kernel_differences(
    where: str, graph: Graph, feeds: Tensors, judge: Tensors, *, threads: int = 1
) -> list[Difference]:
    """Where QIR's kernels give other bytes than the judge; every tensor is an output."""
    made = pipeline.compile(exposed(graph, judge), target="cpu", threads=threads)(**feeds)
    given = {n: np.asarray(a) for n, a in made.items()}
    return compare(where, given, judge, judge)


def exposed(graph: Graph, names: Iterable[str]) -> Graph:
    """A copy in which these values are outputs, under their names, beside what were outputs."""
    out = graph.copy()
    results = dict(out.outputs)
    results |= {n: out[n] for n in names if out.has(n) and n not in results}
    out.remove(out.output)
    out.add("output", results)
    return out
