"""Computes the work of the nodes of a graph, for one sample."""

from __future__ import annotations

from collections.abc import Mapping

from qir.errors import TypeRuleError
from qir.ir import dims
from qir.ir.dims import Shape
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import Call, spec
from qir.ir.types import TensorType


def one_sample(graph: Graph) -> dict[str, int]:
    """Returns the names of the inputs' first axes, each bound to 1."""
    return {name: 1 for value in graph.inputs for name in dims.names(value.type.shape[:1])}


def bound(shape: Shape, sizes: Mapping[str, int]) -> Shape:
    """Returns a shape with names replaced by sizes; a first axis that nobody knows holds one
    sample."""
    known = [dims.bind(dim, dict(sizes)) for dim in shape]
    if known and known[0] is None:
        known[0] = 1
    return tuple(known)


def macs(node: Node, sizes: Mapping[str, int]) -> int | None:
    """Multiply-adds of one node; None where a size is not known, or what a foreign op does."""
    if node.op == "foreign":
        return None
    if not node.stages:
        operands = {slot: value.type for slot, value in node.operands.items()}
        result = node.results[0].type if node.results else None
        return _call_macs(Call(node.op, operands, node.attrs), result, sizes)
    total = 0
    flow: TensorType | None = None
    for i, stage in enumerate(node.stages):
        values = node.stage_operands(i)
        operands = {slot: value.type for slot, value in values.items()}
        if stage.flow is not None and flow is not None:
            operands[stage.flow] = flow
        constants = {s: v.constant for s, v in values.items() if v.constant is not None}
        call = Call(stage.op, operands, stage.attrs, constants)
        try:
            (flow,) = spec(stage.op).rule(call)
        except TypeRuleError:
            return None
        part = _call_macs(call, flow, sizes)
        if part is None:
            return None
        total += part
    return total


def _call_macs(call: Call, result: TensorType | None, sizes: Mapping[str, int]) -> int | None:
    cost = spec(call.op).cost
    if cost is None or result is None:
        return 0
    types = {s: t.with_shape(bound(t.shape, sizes)) for s, t in call.types.items()}
    shape = bound(result.shape, sizes)
    if any(dims.known_shape(s) is None for s in (shape, *(t.shape for t in types.values()))):
        return None
    return cost(Call(call.op, types, call.attrs, call.constants), shape)
