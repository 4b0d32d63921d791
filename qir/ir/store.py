"""A networkx graph's own tables, written without the checks that its methods repeat.

A new node and the edge of a free slot are all that is written here: what comes in numbers. What is
taken out goes through networkx.
"""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx

from qir.ir.node import Node, Value


def put(store: nx.MultiDiGraph[Node], node: Node, operands: Mapping[str, Value]) -> None:
    """Adds a new node with an edge per operand, as `MultiDiGraph.add_node` and `add_edge` do."""
    store._node[node] = {}
    users = store._succ
    users[node] = {}
    mine: dict[Node, dict[str, dict[str, int]]] = {}
    store._pred[node] = mine
    for slot, value in operands.items():
        producer = value._node
        if (slots := mine.get(producer)) is None:
            slots = mine[producer] = users[producer][node] = {}
        slots[slot] = {"result": value._index}


def join(store: nx.MultiDiGraph[Node], producer: Node, user: Node, slot: str, result: int) -> None:
    """Adds an edge between two present nodes, for a free slot, as `MultiDiGraph.add_edge` does."""
    users = store._succ[producer]
    if (slots := users.get(user)) is None:
        slots = users[user] = store._pred[user][producer] = {}
    slots[slot] = {"result": result}
