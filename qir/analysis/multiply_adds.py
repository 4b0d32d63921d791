"""Counts the multiply-adds of an op."""

from __future__ import annotations

from collections.abc import Mapping

from qir.ir.node import Node
from qir.ir.quantized_ops import quantized_nodes
from qir.query.cost import macs


def integer_macs(node: Node, on_integers: Mapping[Node, bool], sizes: Mapping[str, int]) -> int:
    """Returns the multiply-adds that are on integers before planning, as `on_integers` marks."""
    if not node.bodies:
        return total_macs(node, sizes) if on_integers.get(node, False) else 0
    bodies = [(body, quantized_nodes(body)) for body in node.bodies.values()]
    return sum(
        integer_macs(inner, on_integers_in_body, sizes)
        for body, on_integers_in_body in bodies
        for inner in body
    )


def total_macs(node: Node, sizes: Mapping[str, int]) -> int:
    """Returns the multiply-adds of one sample; for branches and loops, those of all bodies."""
    if node.bodies:
        return sum(total_macs(each, sizes) for body in node.bodies.values() for each in body)
    return macs(node, sizes) or 0


def has_known_macs(node: Node, sizes: Mapping[str, int]) -> bool:
    """Returns whether the count is complete: no symbolic size is open, and no op is foreign."""
    if node.bodies:
        return all(has_known_macs(each, sizes) for body in node.bodies.values() for each in body)
    return macs(node, sizes) is not None
