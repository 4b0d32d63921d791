"""How many multiply-adds an op takes."""

from __future__ import annotations

from collections.abc import Mapping

from qir.ir.cost import macs
from qir.ir.node import Node


def work(node: Node, sizes: Mapping[str, int]) -> int:
    """The multiply-adds of one sample; of what holds graphs, all that these take."""
    if node.bodies:
        return sum(work(each, sizes) for body in node.bodies.values() for each in body)
    return macs(node, sizes) or 0
