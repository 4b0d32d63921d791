"""Counts the multiply-adds of an op."""

from __future__ import annotations

from collections.abc import Mapping

from qir.ir.node import Node
from qir.ir.quantized_ops import quantized_nodes
from qir.query.cost import macs


def coded_work(node: Node, codes: Mapping[Node, bool], sizes: Mapping[str, int]) -> int:
    """Counts multiply-adds that are on integers before planning; `codes` marks such nodes."""
    if not node.bodies:
        return work(node, sizes) if codes.get(node, False) else 0
    held = [(body, quantized_nodes(body)) for body in node.bodies.values()]
    return sum(coded_work(each, found, sizes) for body, found in held for each in body)


def work(node: Node, sizes: Mapping[str, int]) -> int:
    """Returns the multiply-adds of one sample; of what holds graphs, all that these take."""
    if node.bodies:
        return sum(work(each, sizes) for body in node.bodies.values() for each in body)
    return macs(node, sizes) or 0


def counted(node: Node, sizes: Mapping[str, int]) -> bool:
    """Returns whether its work is known, and not of open size or that of a foreign op."""
    if node.bodies:
        return all(counted(each, sizes) for body in node.bodies.values() for each in body)
    return macs(node, sizes) is not None
