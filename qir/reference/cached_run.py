"""Runs variants of one graph on one batch, computing only what differs from a run that was kept.

Two nodes that compute the same from the same operands have one key, in whatever graph they are. So
of a variant only those nodes run that are downstream of a change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.reference.interpreter import bind_inputs, profile_name_of, rules_of, run_node

Tensor = NDArray[np.generic]
Keys = dict[Value, tuple[int, int]]
"""Value -> the number of its node's key, and its place among the results."""


class CachedRun:
    """One batch of inputs, and the values of one graph on it."""

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        self._inputs = {name: np.asarray(data) for name, data in inputs.items()}
        self._numbers: dict[Hashable, int] = {}
        self._kept: dict[int, tuple[Tensor, ...]] = {}
        self.computed = 0
        """Nodes that were computed so far, those of the kept run among them."""

    @property
    def kept_bytes(self) -> int:
        """Returns how much memory the kept values take."""
        return sum(data.nbytes for tensors in self._kept.values() for data in tensors)

    def keep(self, graph: Graph) -> dict[str, Tensor]:
        """Runs a graph, keeps all its values and returns its outputs."""
        return self._run(graph, keep=True)

    def run(self, graph: Graph) -> dict[str, Tensor]:
        """Runs a graph from the kept values on, and returns its outputs.

        Raises DataError for inputs that do not fit, and what an op raises, with its name.
        """
        return self._run(graph, keep=False)

    @np.errstate(all="ignore")  # infinities and NaNs are numbers here, and need no warnings
    def _run(self, graph: Graph, *, keep: bool) -> dict[str, Tensor]:
        bind_inputs(graph, self._inputs)
        keys = self._keys(graph)
        live: dict[Value, Tensor] = {}
        nodes = list(graph if keep else self._needed(graph, keys))
        uses_left: dict[Value, int] = {}
        for node in nodes:
            for value in node.operands.values():
                uses_left[value] = uses_left.get(value, 0) + 1
        for value in graph.outputs.values():
            uses_left[value] = uses_left.get(value, 0) + 1
        for node in nodes:
            if node.op == "output":
                continue
            results = self._computed(graph, node, keys, live)
            live.update(zip(node.results, results, strict=True))
            if keep:
                self._kept[keys[node.results[0]][0]] = results
            for value in node.operands.values():
                # A value is dropped after its last use: the kept run alone may already fill the
                # memory.
                uses_left[value] -= 1
                if not uses_left[value]:
                    live.pop(value, None)
        return {name: self._value(v, keys, live) for name, v in graph.outputs.items()}

    def _computed(
        self, graph: Graph, node: Node, keys: Keys, live: Mapping[Value, Tensor]
    ) -> tuple[Tensor, ...]:
        if node.op == "input":
            return (self._inputs[node.name],)
        operands = {slot: self._value(v, keys, live) for slot, v in node.operands.items()}
        self.computed += node.op != "constant"
        try:
            return run_node(node, operands, rules_of(graph, node))
        except QirError as error:
            raise type(error)(f"{node.name}: {error}") from error

    def _value(self, value: Value, keys: Keys, live: Mapping[Value, Tensor]) -> Tensor:
        if value in live:
            return live[value]
        number, place = keys[value]
        return self._kept[number][place]

    def _needed(self, graph: Graph, keys: Keys) -> list[Node]:
        """Returns the nodes that outputs depend on and that were not kept, in the graph's order."""
        needed = {v.node for v in graph.outputs.values()}
        nodes: list[Node] = []
        # Backwards from the outputs; a kept node ends the search on its branch.
        for node in reversed(list(graph)):
            if node in needed and keys[node.results[0]][0] not in self._kept:
                nodes.append(node)
                needed.update(v.node for v in node.operands.values())
        return nodes[::-1]

    def _keys(self, graph: Graph) -> Keys:
        keys: Keys = {}
        for node in graph:
            if node.results:
                key = (
                    *_node_identity(graph, node),
                    *((s, keys[v]) for s, v in node.operands.items()),
                )
                # A key holds the keys of its operands: numbers keep these from growing with depth.
                number = self._numbers.setdefault(key, len(self._numbers))
                keys.update((value, (number, i)) for i, value in enumerate(node.results))
        return keys


def _node_identity(graph: Graph, node: Node) -> Iterator[Hashable]:
    """Yields what a node computes, but for its operands; a node that holds graphs is like no
    other."""
    yield node.op
    if node.op == "input":
        yield node.name
    elif node.bodies or node.stages:
        # Bodies and stages are not compared; a fresh object equals nothing else.
        yield object()
    elif (constant := node.result.constant if node.op == "constant" else None) is not None:
        yield constant.digest
    else:
        name = profile_name_of(graph, node)
        # Two graphs may mean different profiles by one name.
        yield name, id(graph.own_profiles.get(name))
        # With the repr, since 1 == 1.0 == True and 0.0 == -0.0.
        yield tuple((name, value, repr(value)) for name, value in sorted(node.attrs.items()))
        yield tuple(sorted(node.inner.items()))
        yield tuple(value.type for value in node.results)
