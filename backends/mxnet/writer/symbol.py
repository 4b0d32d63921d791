"""A symbol that grows node by node, and the JSON of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Entry: TypeAlias = tuple[int, int]
"""The number of a node, and which of its results."""
_VERSION = 10901
"""MXNet 1.9.1, whose operators and attributes are written."""


class SymbolBuilder:
    """Nodes, producers first; also the graph inside a fused layer."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self._results: list[int] = []

    def variable(self, name: str, attrs: Mapping[str, object] | None = None) -> Entry:
        """Adds an input or a parameter."""
        return self.add("null", name, (), attrs)

    def add(
        self,
        op: str,
        name: str,
        inputs: Sequence[Entry],
        attrs: Mapping[str, object] | None = None,
        *,
        results: int = 1,
        subgraph: SymbolBuilder | None = None,
    ) -> Entry:
        """Adds a node and returns its first result."""
        node: dict[str, Any] = {"op": op, "name": name}
        if attrs:
            node["attrs"] = {key: text(value) for key, value in attrs.items()}
        node["inputs"] = [[index, result, 0] for index, result in inputs]
        if subgraph is not None:
            node["subgraphs"] = [subgraph.graph([(len(subgraph.nodes) - 1, 0)])]
        self.nodes.append(node)
        self._results.append(results)
        return len(self.nodes) - 1, 0

    def graph(self, heads: Sequence[Entry]) -> dict[str, Any]:
        # node_row_ptr: the first entry number of each node, counting the results of all before it.
        """Returns the graph as MXNet's JSON has it."""
        starts = [0]
        for count in self._results:
            starts.append(starts[-1] + count)
        return {
            "nodes": self.nodes,
            "arg_nodes": [i for i, node in enumerate(self.nodes) if node["op"] == "null"],
            "node_row_ptr": starts,
            "heads": [[index, result, 0] for index, result in heads],
        }

    def json(self, heads: Sequence[Entry]) -> str:
        """Returns the text of a `-symbol.json` file."""
        document = self.graph(heads) | {"attrs": {"mxnet_version": ["int", _VERSION]}}
        return json.dumps(document, indent=2) + "\n"


def text(value: object) -> str:
    """Returns an attribute as MXNet writes it."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (tuple, list)):
        inside = ", ".join(map(text, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return str(value)
