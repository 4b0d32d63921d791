"""Computes what depends on constants only: one node, or a value of a graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.errors import GraphError, QirError
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.profiles import library_of
from qir.reference.interpreter import run, run_node
from qir.reference.table import compute_all

_FILLS = frozenset({"pad", "trilu"})


def compute_constants(
    node: Node, operands: Mapping[str, NDArray[np.generic]], profile: str
) -> tuple[NDArray[np.generic], ...]:
    """Returns what a node makes of these operands; nothing where it cannot be computed.

    What only moves elements takes any: float values, or the quantized values that stand for them.
    """
    try:
        # Pads and trilu put in zeros, which are another integer where there is a zero point.
        if spec(node.op).traits.value_preserving and node.op not in _FILLS:
            return compute_all(node.op, operands, node.attrs)
        return run_node(node, operands, library_of(node.graph).named(node.profile or profile))
    except QirError:
        return ()


def constant_value(graph: Graph, value: Value | str) -> NDArray[np.generic]:
    """Returns the elements of a value that depends on constants alone: integers if quantized.

    Raises GraphError, naming an input that the value depends on.
    """
    target = graph[value] if isinstance(value, str) else value
    if target.node not in graph:
        raise GraphError(f"%{target.name} is of another graph")
    needed = {target.node: None}
    todo = [target.node]
    while todo:
        node = todo.pop()
        if node.op == "input":
            raise GraphError(f"%{target.name} depends on the input %{node.name}; it is no constant")
        producers = {value.node: None for value in node.operands.values()}
        todo += producers.keys() - needed.keys()
        needed |= producers
    return run(graph.extract((), (target,)), {})[target.name]
