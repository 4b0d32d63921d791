"""Type inference of one op: builds the `Call` that its type rule sees, and caches the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from qir.errors import GraphError, TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.dtype import DType
from qir.ir.node import GraphLike, Node, Stage, Value
from qir.ir.ops import OPS, BodySignature, Call, spec
from qir.ir.ops.graph import STATED_TYPE_OPS
from qir.ir.ops.spec import OpSpec
from qir.ir.types import Array, TensorType


def infer_result_types(
    op: str,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    bodies: Mapping[str, GraphLike] | None = None,
) -> tuple[TensorType, ...]:
    """Returns an op's result types; a quantized operand that is only moved stays quantized."""
    if op in _RESULT_TYPES and (key := _cache_key(operands, attrs)) is not None:
        return _infer_cached(op, key, operands, attrs)
    row = spec(op)
    call = make_call(op, operands, attrs, bodies)
    types = row.rule(call)
    if row.move:
        slot = next((s for s in ("x", "xs.0") if s in operands), next(iter(operands)))
        element = operands[slot].type.quant
        if element is not None:
            moved = row.move(call, element)
            if moved is None:
                said = (
                    f"axis {element.axis}"
                    if element.axis is not None
                    else f"blocks {element.granularity}"
                )
                reason = "the op works across them, or breaks them up; dequantize first"
                raise TypeRuleError(f"{op}: the quantized {said} does not survive: {reason}")
            return tuple(kind.with_element(moved) for kind in types)
    return types


_RESULT_TYPES = {
    name: dict[tuple[object, ...], "tuple[TensorType, ...] | None"]()
    for name, row in OPS.items()
    if name not in STATED_TYPE_OPS
    and not row.bodies
    and not any(a.kind == "array" for a in row.attrs)
}
"""The cache of result types of each core op, by slots, operand types and attributes.

None marks a call whose rule reads constants, which the key leaves out.
"""
_MAX_CACHED_TYPES = 2048
"""Bounds the cached result types of one op."""
_MAX_SLOT_COMBINATIONS = 256
"""Bounds the cached slot combinations of one op."""


class _RecordedConstants(Mapping[str, Array]):
    """Constants that record which of them a type rule reads."""

    def __init__(self, held: Mapping[str, Array]) -> None:
        self.held = held
        self.asked = False
        self.slots: set[str] = set()

    def __getitem__(self, slot: str) -> Array:
        self.asked = True
        self.slots.add(slot)
        return self.held[slot]

    def __iter__(self) -> Iterator[str]:
        self.asked = True
        return iter(self.held)

    def __len__(self) -> int:
        self.asked = True
        return len(self.held)


def _cache_key(
    operands: Mapping[str, Value], attrs: Mapping[str, Attr]
) -> tuple[object, ...] | None:
    """Returns all that a rule reads but constants; None where an operand is quantized."""
    types = [value._type for value in operands.values()]
    for kind in types:
        if kind.element.__class__ is not DType:
            return None
    return (*operands, *types, *attrs.values())


def _infer_cached(
    op: str,
    key: tuple[object, ...],
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
) -> tuple[TensorType, ...]:
    """Returns the result types for unquantized operands, from the cache where possible."""
    found = _RESULT_TYPES[op].get(key, ())
    if found:
        return found
    call = make_call(op, operands, attrs)
    if found is None:
        return spec(op).rule(call)
    asked = _RecordedConstants(call.constants)
    types = spec(op).rule(replace(call, constants=asked))
    # Clearing all is rare and cheaper than tracking the order of use.
    if len(_RESULT_TYPES[op]) == _MAX_CACHED_TYPES:
        _RESULT_TYPES[op].clear()
    _RESULT_TYPES[op][key] = None if asked.asked else types
    return types


def value_dependent_slots(node: Node) -> frozenset[str]:
    """Returns the slots whose constant values decide the result types, such as a Reshape's shape.

    Empty for an op whose types are stated.
    """
    if node._op in STATED_TYPE_OPS:
        return frozenset()
    call = make_call(node._op, node.operands, node.attrs, dict(node.bodies))
    held = _RecordedConstants(call.constants)
    spec(node._op).rule(replace(call, constants=held))
    return frozenset(held.slots)


def cached_result_types(
    op: str, operands: Mapping[str, Value], attrs: Mapping[str, Attr]
) -> tuple[TensorType, ...] | None:
    """Returns the cached result types of an equal call, if there is one without companions."""
    kept = _RESULT_TYPES.get(op)
    if not kept or (key := _cache_key(operands, attrs)) is None:
        return None
    found = kept.get(key)
    return found if found and not _has_companion(op, tuple(operands)) else None


@lru_cache(1024)
def _has_companion(op: str, slots: tuple[str, ...]) -> bool:
    """Returns whether any slot is a companion, such as `x.scale`."""
    row = spec(op)
    return any(row.is_companion(slot) for slot in slots)


def make_call(
    op: str,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    bodies: Mapping[str, GraphLike] | None = None,
) -> Call:
    """Returns one use of an op as its type rule sees it."""
    row = spec(op)
    types: dict[str, TensorType] = {}
    constants: dict[str, Array] = {}
    beside: dict[str, TensorType] = {}
    for slot, value in operands.items():
        apart = op not in STATED_TYPE_OPS and row.is_companion(slot)
        (beside if apart else types)[slot] = value._type
        array = value.constant
        if array is not None and (array.type is value._type or array.type == value._type):
            constants[slot] = array
    if op == "constant" and isinstance(data := attrs["data"], Array):
        constants["data"] = data
    held = {name: _signature(body) for name, body in bodies.items()} if bodies else {}
    return Call(op, types, attrs, constants, beside, held)


def _signature(body: GraphLike) -> BodySignature:
    made = tuple(v._type for v in body.outputs.values())
    return BodySignature(tuple(v._type for v in body.inputs), made)


def check_chain(stages: tuple[Stage, ...]) -> None:
    """Raises GraphError where stages are not a chain: one value each, made of the one before.

    TypeRuleError for operands that a stage's op does not take, or lacks.
    """
    if len(stages) < 2:
        raise GraphError(f"a chain of {len(stages)} stages; one op alone is a plain node")
    for i, stage in enumerate(stages):
        row = spec(stage.op)
        if row.results != 1 or row.bodies or not row.operands or stage.op in STATED_TYPE_OPS:
            raise GraphError(f"stage {i}, {stage.op}: a stage makes one value of its operands")
        flow = row.slot(stage.flow) if stage.flow else None
        if (i > 0) != (flow is not None) or stage.flow in stage.slots:
            raise GraphError(f"stage {i}, {stage.op}: the flow from the stage before is amiss")
        filled = {*stage.slots, stage.flow}
        for slot in stage.slots:
            _check_slot(row, slot)
        for needed in row.operands:
            if not (needed.optional or needed.variadic) and needed.name not in filled:
                raise TypeRuleError(f"stage {i}: {stage.op} needs {needed.name}")
    if stages[-1].type is not None:
        raise GraphError("the last stage's type is the group's")


def check_slots(op: str, operands: Mapping[str, Value], *, whole: bool = True) -> None:
    """Raises GraphError for what is no value, TypeRuleError for operands that the op does not take.

    `whole`: all operands are given, so that a required one must be among them.
    """
    for slot, value in operands.items():
        if not isinstance(value, Value):
            raise GraphError(f"{op}: {slot} is {type(value).__name__}, it takes a value")
    row = spec(op)
    if op in ("output", "foreign", "fused") or tuple(operands) in row.checked_operand_names:
        return
    for slot in operands:
        _check_slot(row, slot)
    for needed in row.operands if whole else ():
        if not (needed.optional or needed.variadic) and needed.name not in operands:
            raise TypeRuleError(f"{op} needs {needed.name}")
    if whole and len(row.checked_operand_names) < _MAX_SLOT_COMBINATIONS:
        row.checked_operand_names.add(tuple(operands))


def _check_slot(row: OpSpec, slot: str) -> None:
    if row.slot(slot) is None and not row.is_companion(slot):
        known = ", ".join(s.name for s in row.operands) or "none"
        raise TypeRuleError(f"{row.name} has no slot {slot}; its slots: {known}")


def check_operand(node: Node, slot: str, value: Value | None) -> None:
    """GraphError or TypeRuleError where a slot cannot be bound to a value, or emptied."""
    held = slot in node._operands
    if node._op == "fused" and (value is None or not held):
        said = "needs all its operands" if held else f"has no operand {slot}"
        raise TypeRuleError(f"{node.name} {said}; a group has those of its stages or its body")
    if value is not None:
        if not (held and isinstance(value, Value)):
            check_slots(node._op, {slot: value}, whole=False)
        return
    row = spec(node._op)
    if not held and node._op not in ("output", "foreign"):
        _check_slot(row, slot)
    if held and any(s.name == slot and not s.optional for s in row.operands):
        raise TypeRuleError(f"{node._op} needs {slot}")
