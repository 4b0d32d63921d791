"""Integer products whose sums can overflow 32 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.verify.accumulators import INT32, fits_int32_by_types, products, sum_bounds
from qir.ir.verify.rule import Look, NodeContext
from qir.ir.verify.step import Product
from qir.profiles import profile, query_for_node
from qir.reference.constants import compute_constants


def wrapping(graph: Graph, node: Node, *, biased: bool = True) -> str:
    """Describes how sums of a node's products overflow 32 bits; empty where they fit.

    `biased` includes the bias in the sums. Some input reaches the reported sum; sums without a
    known bound are not reported.
    """
    for product in _products(graph, node):
        summed = product if biased else replace(product, bias=None, why_unbounded="")
        if fits_int32_by_types(summed):
            continue
        found = sum_bounds(summed)
        if isinstance(found, str):
            continue
        _, least, greatest, _ = found
        if least < INT32[0] or greatest > INT32[1]:
            return f"sums come to {least}..{greatest}, which wrap in 32 bits"
    return ""


def going_on(graph: Graph, node: Node) -> str:
    """Notes that a float replacement would not wrap where the int32 accumulator does.

    The text ends a line of the ledger; it is empty where the profile sums in more than 32 bits, or
    no input is known to overflow.
    """
    named = profile_within(graph, node)
    if not named or not (said := wrapping(graph, node)):
        return ""
    narrow = profile(named).resolve(query_for_node(node)).acc.type == "i32"
    return f", which go on where its {said}" if narrow else ""


def profile_within(graph: Graph, node: Node) -> str:
    """Returns the profile of a node of a graph or body."""
    return node.profile or _look(graph).profile


def _products(graph: Graph, node: Node) -> Iterator[Product]:
    """Yields the integer products that a node computes, with what its operands are alone."""
    look = _look(graph)
    given = (look.source(v).node for v in node.operands.values())
    look.moving.update(n for n in given if n.op != "constant")
    yield from products(NodeContext(look, node))


def _look(graph: Graph) -> Look:
    """Returns a graph with what is known around it, where it is a body."""
    if graph.holder is None:
        return Look(graph, graph.name, compute=compute_constants)
    whole, node = graph.holder
    look = _look(whole)
    look.bind(node, graph)
    return Look(graph, f"{look.path}/{node.name}/{graph.name}", look)
