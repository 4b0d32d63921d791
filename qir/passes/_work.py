"""How many multiply-adds an op takes."""

from __future__ import annotations

from qir.ir.calls import make_call
from qir.ir.node import Node
from qir.ir.ops import spec


def work(node: Node) -> int:
    """The multiply-adds of one sample; of a group, all that its body takes."""
    if node.op == "fused":
        return sum(work(each) for body in node.bodies.values() for each in body)
    row = spec(node.op)
    if not (row.cost and node.results):
        return 0
    call = make_call(node.op, node.operands, node.attrs)
    shape = node.results[0].type.shape
    return row.cost(call, tuple(d if isinstance(d, int) else 1 for d in shape))
