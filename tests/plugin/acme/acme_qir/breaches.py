"""A pass that breaks its contract, in the way that it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qir.errors import OpError, Refused
from qir.ir.dtype import F16
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger
from qir.rewrite import Pass
from qir.rewrite.runner.filter import may

GIVEN: list[Graph] = []
"""The graph of a user, where a pass got hold of it."""


def nothing(graph: Graph, node: Node) -> None:
    """Does what the pass is for: abs instead of relu; the same for what relu takes."""
    made = graph.add("abs", {"x": node.operands["x"]}, before=node)
    name = node.name
    graph.replace(node.result, made.result)
    graph.remove(node)
    graph.rename(made.result, name)


def unasked(graph: Graph, node: Node) -> None:
    """Changes what it did not ask for."""


def raises(graph: Graph, node: Node) -> None:
    raise ZeroDivisionError("by nothing")


def fails(graph: Graph, node: Node) -> None:
    raise OpError("what it computes has no result")


def refuses(graph: Graph, node: Node) -> None:
    raise Refused("this would lose something")


def misuses(graph: Graph, node: Node) -> None:
    graph.remove(node)


def spoils(graph: Graph, node: Node) -> None:
    graph.set_type(node.result, TensorType(node.result.type.shape, F16))


def loosens(graph: Graph, node: Node) -> None:
    """Leaves a node that nobody uses."""
    graph.add("abs", {"x": node.result}, name="loose")


def edits_on(graph: Graph, node: Node) -> None:
    while True:
        graph.set_type(node.result, node.result.type)


def asks_on(graph: Graph, node: Node) -> None:
    while may("acme-breach", "turn", node):
        graph.set_type(node.result, node.result.type)


def computes_on(graph: Graph, node: Node) -> None:
    while True:
        time.sleep(0.001)


def edits_slowly(graph: Graph, node: Node) -> None:
    while True:
        time.sleep(0.001)
        graph.set_type(node.result, node.result.type)


def writes(graph: Graph, node: Node) -> None:
    """Writes into elements that the user's graph has too."""
    held = next(n.result.constant for n in graph if n.op == "constant")
    assert held is not None
    held.data[...] = 0


def reaches(graph: Graph, node: Node) -> None:
    """Edits the graph of the user."""
    theirs = GIVEN[-1]
    theirs.set_type(theirs[node.name], TensorType((2,), F16))


def moves(graph: Graph, node: Node) -> None:
    by = graph.constant(Array.of(np.array([1.5], np.float32)), before=node)
    more = graph.add("mul", {"a": node.operands["x"], "b": by}, before=node)
    graph.set_operand(node, "x", more.result)


def drops(graph: Graph, node: Node) -> None:
    """Takes a result of the model away."""
    graph.set_operand(graph.output, "more", None)


HOW: dict[str, Callable[[Graph, Node], None]] = {
    each.__name__: each
    for each in (
        nothing, unasked, raises, fails, refuses, misuses, spoils, loosens, edits_on, asks_on,
        computes_on, edits_slowly, writes, reaches, moves, drops,
    )
}  # fmt: skip
"""What it may do at the node that it is told."""


@dataclass(frozen=True)
class Breach(Pass):
    """Puts abs in the place of relu, and breaks its contract at one node."""

    name = "acme-breach"
    ensures: ClassVar[tuple[str, ...]] = ("pruned",)
    at: str = ""
    how: str = "nothing"
    says: int = 0
    """So many more changes than there were."""
    only: bool = False
    """Whether the other nodes are left alone."""

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in [n for n in graph if n.op == "relu"]:
            if self.only and node.name != self.at:
                continue
            act = HOW[self.how] if node.name == self.at else nothing
            if act is unasked:
                nothing(graph, node)
            elif may(self.name, "touch", node):
                act(graph, node)
                count += 1
        return count + self.says
