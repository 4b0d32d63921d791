"""The store is the graph that networkx's own methods make."""

from __future__ import annotations

from itertools import product

import networkx as nx

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.testing import FORMS, random_graph


def made_by_networkx(graph: Graph) -> nx.MultiDiGraph[Node]:
    out: nx.MultiDiGraph[Node] = nx.MultiDiGraph()
    out.add_nodes_from(graph)
    for node in graph:
        for slot, value in node.operands.items():
            out.add_edge(value.node, node, key=slot, result=value.index)
    return out


def test_the_store_holds_what_networkx_would() -> None:
    for seed, form in product(range(5), FORMS):
        for _, graph in random_graph(seed, form).walk():
            wanted = made_by_networkx(graph)
            assert nx.utils.graphs_equal(graph.nx, wanted), f"seed {seed}"
            assert graph.nx.pred == wanted.pred, f"seed {seed}"
            copied = graph.nx.copy()
            copied.remove_nodes_from(list(copied))
            assert nx.utils.graphs_equal(graph.nx, wanted), f"seed {seed}"


def test_two_uses_of_one_value_are_two_edges_and_go_one_by_one() -> None:
    graph = random_graph(0, next(iter(FORMS)))
    (x, *_) = graph.inputs
    both = graph.add("add", {"a": x, "b": x})
    assert dict(graph.nx[x.node][both]) == {"a": {"result": 0}, "b": {"result": 0}}
    other = graph.add("relu", {"x": x}).result
    graph.set_operand(both, "a", other)
    assert nx.utils.graphs_equal(graph.nx, made_by_networkx(graph))
    edges = list(graph.nx.in_edges(both, keys=True))
    assert edges == [(x.node, both, "b"), (other.node, both, "a")]
