"""Reasons why an op does not fit a row of a target's table, by its attributes and shapes."""

from __future__ import annotations

from qir.capability import OpCapability
from qir.ir.attrs import same
from qir.ir.dtype import F32
from qir.ir.node import Node
from qir.ir.ops import spec


def form_obstacle(node: Node, row: OpCapability, name: str) -> str:
    """Returns which attribute, rank, constant, type or bias the target `name` does not take."""
    for slot, rank in row.ranks.items():
        if slot in node.operands and node.operands[slot].type.rank != rank:
            return f"its {slot} has {node.operands[slot].type.rank} axes, {name} takes {rank}"
    for attr, allowed in (row.when or {}).items():
        if not any(same(node.attrs.get(attr), v) for v in allowed):
            return f"{attr} = {node.attrs.get(attr)!r}: {name} takes {allowed[0]!r}"
    for slot in row.constant:
        value = node.operands.get(slot)
        if value is not None and row.must(slot, value.constant is not None):
            return f"{slot} is computed; the table of {name} has a constant there"
    data = [v for slot, v in node.operands.items() if slot.split(".")[0] in row.slots]
    if any(value.type.dtype != F32 for value in (*node.results, *data)):
        return "it does not compute in f32"
    if any(0 in value.type.shape for value in (*node.results, *data)):
        return "it reads or gives a tensor without elements, which has no range"
    return _bias_obstacle(node, row, name)


def _bias_obstacle(node: Node, row: OpCapability, name: str) -> str:
    traits = spec(node.op).traits
    slot = traits.bias or ""
    if slot not in node.operands or traits.weight_axis is None:
        return ""
    if (rank := node.operands[slot].type.rank) != 1:
        return f"its bias has {rank} axes, a kernel takes 1"
    if slot not in row.slots and slot not in row.constant:  # a constant may stay float
        return f"{name} has no {node.op} with a bias: add it after the {node.op}"
    return ""
