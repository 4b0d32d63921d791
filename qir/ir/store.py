"""A graph for networkx: its nodes are vertices, its uses edges, keyed by slot name.

It is made when somebody asks for it, and every edit of the graph is repeated in it from then on.
New nodes, and edges of free slots, are written to networkx's own tables, without the checks that
its methods repeat: these come in numbers. What is taken out goes through networkx.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import networkx as nx

from qir.ir.node import Node, Value


class Store:
    """A networkx MultiDiGraph that a graph keeps equal to itself."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.graph: nx.MultiDiGraph[Node] = nx.MultiDiGraph()
        self.view: nx.MultiDiGraph[Node] = nx.freeze(nx.graphviews.generic_graph_view(self.graph))
        """What users see: the same tables, and no writing."""
        for node in nodes:
            self.put(node, node._operands)

    def put(self, node: Node, operands: Mapping[str, Value]) -> None:
        """Adds a new node with an edge per operand, as `MultiDiGraph.add_node` and `add_edge`
        do."""
        self.graph._node[node] = {}
        users = self.graph._succ
        users[node] = {}
        mine: dict[Node, dict[str, dict[str, int]]] = {}
        self.graph._pred[node] = mine
        for slot, value in operands.items():
            producer = value._node
            if (slots := mine.get(producer)) is None:
                slots = mine[producer] = users[producer][node] = {}
            slots[slot] = {"result": value._index}

    def join(self, value: Value, user: Node, slot: str) -> None:
        """Adds an edge between two present nodes, for a free slot, as `MultiDiGraph.add_edge`
        does."""
        users = self.graph._succ[value._node]
        if (slots := users.get(user)) is None:
            slots = users[user] = self.graph._pred[user][value._node] = {}
        slots[slot] = {"result": value._index}

    def part(self, value: Value, user: Node, slot: str) -> None:
        """Removes the edge of a slot."""
        self.graph.remove_edge(value._node, user, key=slot)

    def take_out(self, node: Node) -> None:
        """Removes a node that has no edges."""
        self.graph.remove_node(node)

    def joins(self, value: Value, user: Node, slot: str) -> bool:
        """Returns whether there is an edge from a value's node for a slot."""
        return bool(self.graph.has_edge(value._node, user, key=slot))
