"""Graphs as MXNet's JSON writes them."""

from __future__ import annotations

from typing import Any


class Symbol:
    """A graph as MXNet's JSON writes it."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.results: list[int] = []

    def add(
        self,
        op: str,
        name: str,
        inputs: tuple[tuple[int, int], ...] = (),
        attrs: dict[str, Any] | None = None,
        subgraphs: list[Any] | None = None,
        results: int = 1,
    ) -> int:
        node: dict[str, Any] = {"op": op, "name": name}
        if attrs:
            node["attrs"] = {k: str(v) for k, v in attrs.items()}
        node["inputs"] = [[i, o, 0] for i, o in inputs]
        if subgraphs:
            node["subgraphs"] = subgraphs
        self.nodes.append(node)
        self.results.append(results)
        return len(self.nodes) - 1

    def done(self, head: int, *, top: bool, count: int = 1) -> dict[str, Any]:
        starts = [0]
        for k in self.results:
            starts.append(starts[-1] + k)
        made: dict[str, Any] = {
            "nodes": self.nodes,
            "arg_nodes": [i for i, n in enumerate(self.nodes) if n["op"] == "null"],
            "node_row_ptr": starts,
            "heads": [[head, i, 0] for i in range(count)],
        }
        if top:
            made["attrs"] = {"mxnet_version": ["int", 10901]}
        return made
