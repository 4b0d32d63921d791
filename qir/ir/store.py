"""A networkx graph's own tables, written without the checks that its methods repeat.

A new node and the edge of a free slot are all that is written here: what comes in numbers. What is
taken out goes through networkx.
"""

from __future__ import annotations

import networkx as nx

from qir.ir.node import Node


def put(store: nx.MultiDiGraph[Node], node: Node) -> None:
    """`add_node` for a node that is not there."""
    store._node[node] = {}
    store._succ[node] = {}
    store._pred[node] = {}


def join(store: nx.MultiDiGraph[Node], producer: Node, user: Node, slot: str, result: int) -> None:
    """`add_edge` between two nodes that are there, for a slot that has none."""
    users = store._succ[producer]
    if (slots := users.get(user)) is None:
        slots = users[user] = store._pred[user][producer] = {}
    slots[slot] = {"result": result}
