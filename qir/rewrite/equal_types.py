"""Finds the values of a node that must have one quantized type."""

from __future__ import annotations

from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.graph import STATED_TYPE_OPS


def tied(node: Node) -> tuple[Value, ...]:
    """Returns the operands that an op hands on as they are, and its results: integers of one
    quantized type."""
    if node.op in STATED_TYPE_OPS or node.stages or node.bodies:
        return ()
    same = spec(node.op).traits.same_params
    found = [v for s, v in node.operands.items() if s.partition(".")[0] in same and _own(node, s)]
    if not found:
        return ()
    return tuple(v for v in (*found, *node.results) if v.type.quant is not None)


def _own(node: Node, slot: str) -> bool:
    return spec(node.op).slot(slot) is not None
