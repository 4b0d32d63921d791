"""Integer products whose sums 32 bits do not hold: sums of floats go on where those wrap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.verify.accumulators import INT32, bound, products, safe
from qir.ir.verify.rule import Look, NodeContext
from qir.ir.verify.step import Product
from qir.profiles import profile, query_of
from qir.reference.constants import computed


def wrapping(graph: Graph, node: Node, *, biased: bool = True) -> str:
    """What sums of a node's products can come to beyond 32 bits, in words; empty where they fit.

    `biased` counts the bias among what is summed. Some input meets what is told; of sums that
    nobody can bound nothing is told.
    """
    for product in _products(graph, node):
        summed = product if biased else replace(product, bias=None, loose="")
        if safe(summed):
            continue
        found = bound(summed)
        if isinstance(found, str):
            continue
        _, least, greatest, _ = found
        if least < INT32[0] or greatest > INT32[1]:
            return f"sums come to {least}..{greatest}, which wrap in 32 bits"
    return ""


def going_on(graph: Graph, node: Node) -> str:
    """How sums of floats in a node's place come out otherwise: they go on where its own wrap.

    For the end of a line in the ledger; empty where its profile sums in more than 32 bits, or no
    input is known to take them beyond.
    """
    named = profile_within(graph, node)
    if not named or not (said := wrapping(graph, node)):
        return ""
    narrow = profile(named).resolve(query_of(node)).acc.type == "i32"
    return f", which go on where its {said}" if narrow else ""


def profile_within(graph: Graph, node: Node) -> str:
    """Whose arithmetic a node of a graph, or of a body in what is known of it, follows."""
    return node.profile or _look(graph).profile


def _products(graph: Graph, node: Node) -> Iterator[Product]:
    """The integer products that a node computes, with what its operands are alone."""
    look = _look(graph)
    given = (look.source(v).node for v in node.operands.values())
    look.moving.update(n for n in given if n.op != "constant")
    yield from products(NodeContext(look, node))


def _look(graph: Graph) -> Look:
    """A graph with what is known around it, where it is a body."""
    if graph.holder is None:
        return Look(graph, graph.name, compute=computed)
    whole, node = graph.holder
    look = _look(whole)
    look.bind(node, graph)
    return Look(graph, f"{look.path}/{node.name}/{graph.name}", look)
