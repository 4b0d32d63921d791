"""Integer products whose sums can overflow 32 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.verify.accumulators import INT32, fits_int32_by_types, products, sum_bounds
from qir.ir.verify.rule import Look, NodeContext
from qir.ir.verify.step import Product
from qir.profiles import profile_in, query_for_node
from qir.reference.constants import compute_constants


def overflow_text(graph: Graph, node: Node, *, biased: bool = True) -> str:
    """Describes how a node's integer sums overflow 32 bits; empty where they fit.

    `biased` includes the bias in the sums. Only sums that some input really reaches are reported;
    sums without a known bound are not.
    """
    for product in _products(graph, node):
        summed = product if biased else replace(product, bias=None, why_unbounded="")
        if fits_int32_by_types(summed):
            continue
        limits = sum_bounds(summed)
        if isinstance(limits, str):
            continue
        _, least, greatest, _ = limits
        if least < INT32[0] or greatest > INT32[1]:
            return f"sums come to {least}..{greatest}, which wrap in 32 bits"
    return ""


def wrap_note(graph: Graph, node: Node) -> str:
    """Notes that a float replacement would not wrap where the int32 accumulator does.

    The text ends a line of the ledger; it is empty where the profile sums in more than 32 bits, or
    no input is known to overflow.
    """
    profile_name = profile_name_of(graph, node)
    if not profile_name or not (overflow := overflow_text(graph, node)):
        return ""
    sums_in_int32 = profile_in(graph, profile_name).resolve(query_for_node(node)).acc.type == "i32"
    return f", which go on where its {overflow}" if sums_in_int32 else ""


def profile_name_of(graph: Graph, node: Node) -> str:
    """Returns the name of a node's profile: its own, else that of the outermost graph."""
    return node.profile or _propagation(graph).profile


def _products(graph: Graph, node: Node) -> Iterator[Product]:
    """Yields the integer products that a node computes, by the ranges of its operands alone."""
    propagation = _propagation(graph)
    # Producers count as computed at run time. Their bounds then follow from their types alone, and
    # not from constants, since this look has not passed the nodes before them.
    producers = (propagation.source(v).node for v in node.operands.values())
    propagation.moving.update(n for n in producers if n.op != "constant")
    yield from products(NodeContext(propagation, node))


def _propagation(graph: Graph) -> Look:
    """Returns the verifier's context of a graph; for a body, with what its holder knows."""
    if graph.holder is None:
        return Look(graph, graph.name, compute=compute_constants)
    outer_graph, node = graph.holder
    outer = _propagation(outer_graph)
    outer.bind(node, graph)
    return Look(graph, f"{outer.path}/{node.name}/{graph.name}", outer)
