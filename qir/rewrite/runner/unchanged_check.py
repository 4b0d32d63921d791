"""Checks that a pass that reports no change left the graph as it was, object by object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import is_

from qir.ir.graph import Graph
from qir.ir.node import Node


@dataclass(frozen=True, slots=True)
class State:
    """All that edits of a graph and its bodies change, as references to objects that nobody edits.

    Comparing identities takes less time than comparing contents, and an edit always puts in other
    objects. Where a node came from is left out: stating it is no edit.
    """

    parts: tuple[list[object], ...]

    @classmethod
    def of(cls, graph: Graph) -> State:
        """Returns the state as it is now."""
        return cls(tuple(_part(part) for _, part in graph.walk()))

    def other(self, graph: Graph) -> bool:
        """Returns whether the graph has another state now."""
        now = State.of(graph).parts
        if len(now) != len(self.parts):
            return True
        pairs = zip(self.parts, now, strict=True)
        return not all(len(a) == len(b) and all(map(is_, a, b)) for a, b in pairs)


def _part(graph: Graph) -> list[object]:
    out: list[object] = [graph, graph._name, graph._profile, graph._output]
    for node in graph:
        out += _node(node)
    return out


def _node(node: Node) -> Iterator[object]:
    yield from (node, node._op, node._profile, node._stages)
    for table in (node._attrs, node._operands, node._schemes, node._inner, node._bodies):
        yield from table
        yield from table.values()
    for value in node._results:
        yield from (value, value._name, value._type, value._node)
