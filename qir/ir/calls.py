"""What an op's rules see of a node, and the types that they give its results."""

from __future__ import annotations

from collections.abc import Mapping

from qir.errors import GraphError, TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.node import Program, Stage, Value
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
                said = (
                    f"axis {element.axis}"
                    if element.axis is not None
                    else f"blocks {element.grain}"
                )
                reason = "the op works across them, or breaks them up; dequantize first"
                raise TypeRuleError(f"{op}: the quantized {said} does not survive: {reason}")
            return (types[0].with_element(moved),)
    return types


def make_call(
    op: str,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    bodies: Mapping[str, Program] | None = None,
) -> Call:
    """What an op's rules see of one use."""
    row = spec(op)
    types: dict[str, TensorType] = {}
    constants: dict[str, Array] = {}
    beside: dict[str, TensorType] = {}
    for slot, value in operands.items():
        apart = op not in GIVEN and row.companion(slot)
        (beside if apart else types)[slot] = value.type
        array = value.constant
        if array is not None and (array.type is value.type or array.type == value.type):
            constants[slot] = array
    if op == "constant" and isinstance(data := attrs["data"], Array):
        constants["data"] = data
    held = {name: _signature(body) for name, body in bodies.items()} if bodies else {}
    return Call(op, types, attrs, constants, beside, held)


def _signature(body: Program) -> Signature:
    made = tuple(v.type for v in body.outputs.values())
    return Signature(tuple(v.type for v in body.inputs), made)


def check_chain(stages: tuple[Stage, ...]) -> None:
    """GraphError where stages are not a chain: one value each, made of the one before."""
    if len(stages) < 2:
        raise GraphError(f"a chain of {len(stages)} stages; one op alone is a plain node")
    for i, stage in enumerate(stages):
        row = spec(stage.op)
        if row.results != 1 or row.bodies or not row.operands or stage.op in GIVEN:
            raise GraphError(f"stage {i}, {stage.op}: a stage makes one value of its operands")
        flow = row.slot(stage.flow) if stage.flow else None
        if (i > 0) != (flow is not None) or stage.flow in stage.slots:
            raise GraphError(f"stage {i}, {stage.op}: the flow from the stage before is amiss")
    if stages[-1].type is not None:
        raise GraphError("the last stage's type is the group's")
