"""Which values hold one map, so that their codes mean the same."""

from __future__ import annotations

import networkx as nx

from qir.ir.coded import BRIDGES, in_codes
from qir.ir.facts import coded
from qir.ir.graph import Graph
from qir.ir.node import Node, Value


def sharing(graph: Graph, name: str) -> tuple[Value, ...]:
    """The values whose codes mean what those of a value mean, itself among them.

    In QDQ form the map of a float value is that of the codes it is read from or stored as. Empty
    where the value has none; GraphError where there is no such value.
    """
    wanted = coded(graph[name])
    if wanted is None:
        return ()
    found = ((value, coded(value)) for value in graph.values.values())
    return tuple(v for v, quant in found if quant is not None and quant.same_map(wanted))


def islands(graph: Graph) -> tuple[tuple[Node, ...], ...]:
    """The groups of ops that work on codes with nothing in floats between them, largest first."""
    integer = in_codes(graph)
    kept = [n for n in graph if integer.get(n, False) or n.op in BRIDGES]
    parts = nx.weakly_connected_components(graph.nx.subgraph(kept))
    place = {node: i for i, node in enumerate(graph)}
    groups = [sorted((n for n in p if integer.get(n, False)), key=place.__getitem__) for p in parts]
    found = sorted((g for g in groups if g), key=lambda g: (-len(g), place[g[0]]))
    return tuple(map(tuple, found))
