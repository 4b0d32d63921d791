"""Says which ops are computed on quantized values, and how these hang together.

The runtime of the graph's profile answers, as it does for `qir.pipeline.op_verdicts`. A graph of
another profile, such as `native`, is answered by its form: ops between dequantize and quantize, or
on quantized types. Shape arithmetic and other ops without float values are left out.
"""

from __future__ import annotations

from qir import registry
from qir.inspect.probing import head_of
from qir.ir import quantized_ops
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.quantized_ops import CONVERSION_OPS, is_integral
from qir.profiles import profile_in
from qir.target import target


def quantized_nodes(graph: Graph) -> dict[Node, bool]:
    """Returns for every op that computes whether it does so on quantized values."""
    by_form = {
        n: is_quantized
        for n, is_quantized in quantized_ops.quantized_nodes(graph).items()
        if not is_integral(n)
    }
    backend = head_of(profile_in(graph, graph.profile)).backend
    if backend not in registry.names("qir.targets"):
        return by_form
    verdict_by_name = {
        v.node: v.taken for v in target(backend).verdicts(graph) if v.path == graph.name
    }
    return {
        n: verdict_by_name[n.name] == "integer" if n.name in verdict_by_name else is_quantized
        for n, is_quantized in by_form.items()
    }


def longest_chain(graph: Graph) -> tuple[Node, ...]:
    """Returns the longest path of ops on quantized values, with nothing in floats between them."""
    return quantized_ops.longest_chain(graph, quantized_nodes(graph))


def islands(graph: Graph) -> tuple[tuple[Node, ...], ...]:
    """Returns the groups of ops on quantized values that float ops separate, largest first."""
    import networkx as nx

    integer = quantized_nodes(graph)
    connected = [n for n in graph if integer.get(n, False) or n.op in CONVERSION_OPS]
    parts = nx.weakly_connected_components(graph.nx.subgraph(connected))
    position = {node: i for i, node in enumerate(graph)}
    groups = [
        sorted((n for n in p if integer.get(n, False)), key=position.__getitem__) for p in parts
    ]
    ordered = sorted((g for g in groups if g), key=lambda g: (-len(g), position[g[0]]))
    return tuple(map(tuple, ordered))
