"""The bodies of branches and loops."""

from __future__ import annotations

from qir.ir.graph import Graph


def graphs_with_bodies(graph: Graph) -> list[Graph]:
    """Returns a graph and, recursively, the bodies of its branches and loops.

    Bodies of op groups are left out: they are what a kernel computes.
    """
    nodes = [n for n in graph if n.bodies and n.op != "fused"]
    inner = [graph.body(n, name) for n in nodes for name in n.bodies]
    return [graph, *(each for body in inner for each in graphs_with_bodies(body))]
