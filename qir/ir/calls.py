"""What an op's rules see of a node, and the types that they give its results."""

from __future__ import annotations

from collections.abc import Mapping

from qir.errors import TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.node import Program, Value
from qir.ir.ops import Call, Signature, spec
from qir.ir.ops.graph import GIVEN
from qir.ir.types import Array, TensorType


def infer(
    op: str,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    bodies: Mapping[str, Program] | None = None,
) -> tuple[TensorType, ...]:
    """The result types by the op's rule; codes stay codes where the op only moves them."""
    row = spec(op)
    call = make_call(op, operands, attrs, bodies)
    types = row.rule(call)
    if row.move and len(types) == 1:
        slot = next((s for s in ("x", "xs.0") if s in operands), next(iter(operands)))
        element = operands[slot].type.quant
        if element is not None:
            moved = row.move(call, element)
            if moved is None:
                raise TypeRuleError(f"{op}: the quantized axis {element.axis} does not survive")
            return (types[0].with_element(moved),)
    return types


def make_call(
    op: str,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    bodies: Mapping[str, Program] | None = None,
) -> Call:
    """What an op's rules see of one use."""
    constants = {
        slot: value.node._attrs["data"]
        for slot, value in operands.items()
        if value.node.op == "constant"
    }
    if op == "constant":
        constants = {"data": attrs["data"]}
    found = {k: v for k, v in constants.items() if isinstance(v, Array)}
    types = {slot: value.type for slot, value in operands.items()}
    row = spec(op)
    beside = {s: types.pop(s) for s in list(types) if op not in GIVEN and row.companion(s)}
    held = {name: _signature(body) for name, body in (bodies or {}).items()}
    return Call(op, types, attrs, found, beside, held)


def _signature(body: Program) -> Signature:
    made = tuple(v.type for v in body.outputs.values())
    return Signature(tuple(v.type for v in body.inputs), made)
