"""From a graph to a symbol with its parameters, each node by its row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Change, Ledger
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.fold.fold_shapes import FoldShapes
from qir.passes.layout import Layout
from qir.rewrite import run_passes

from . import elementwise, indexing, layers, movement, pooling, recurrent
from .symbol import Entry
from .writer import REMEDY, STEP, Row, Writer

ROWS: dict[str, Row] = {
    op: row
    for family in (elementwise, indexing, layers, movement, pooling, recurrent)
    for op, row in family.ROWS.items()
}


@dataclass(frozen=True)
class Model:
    """What the two files of a model hold."""

    symbol: str
    parameters: dict[str, NDArray[Any]]


def prepared(graph: Graph, ledger: Ledger) -> Graph:
    """Returns the graph with channels first, and constants in place of what is known."""
    last = any(n.attrs.get("layout") == "NHWC" for _, each in graph.walk() for n in each)
    passes = [FoldConstants(), FoldShapes(), *([Layout("nchw")] if last else [])]
    return run_passes(graph, passes, ledger)


def to_model(graph: Graph, ledger: Ledger) -> Model:
    """Writes a graph; Refused for what MXNet has no operator for, naming the node."""
    writer = Writer(graph, ledger)
    for value in graph.inputs:
        writer.input(value)
    for node in graph:
        if node.op in ("input", "constant", "output"):
            continue
        made = written(writer, node)
        for value, entry in zip(node.results, made, strict=False):
            writer.found[value] = entry
    return finished(writer)


def written(writer: Writer, node: Node) -> list[Entry]:
    """Returns the results of a node."""
    row = ROWS.get(node.op)
    if row is None:
        raise writer.refuse(node, f"MXNet 1.9 has no operator for it; {REMEDY}")
    if node.attrs.get("layout", "NCHW") != "NCHW":
        raise writer.refuse(node, "its channels are last; run the pass layout with to = nchw")
    made = row(writer, node)
    return [made] if isinstance(made, tuple) else list(made)


def finished(writer: Writer) -> Model:
    """Returns the symbol with the results of the graph as its heads."""
    graph = writer.graph
    for name, value in graph.outputs.items():
        if not value.type.shape:
            said = "a number alone is an array of one element in MXNet"
            writer.ledger.add(Change.DROPPED, STEP, name, said)
        if str(value.type.dtype) == "bool":
            said = "truth values are floats, 0 and 1, in MXNet"
            writer.ledger.add(Change.DROPPED, STEP, name, said)
    heads = [writer.entry(value) for value in graph.outputs.values()]
    return Model(writer.symbol.json(heads), writer.held)
