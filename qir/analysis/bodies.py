"""The bodies of branches and loops."""

from __future__ import annotations

from qir.ir.graph import Graph


def bodies(graph: Graph) -> list[Graph]:
    """Returns a graph, and what its branches and loops hold; what a kernel computes stays as it
    is."""
    nodes = [n for n in graph if n.bodies and n.op != "fused"]
    inner = [graph.body(n, name) for n in nodes for name in n.bodies]
    return [graph, *(each for body in inner for each in bodies(body))]
