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
from qir.ir.ops.graph import FREE_SLOT_OPS, STATED_TYPE_OPS
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
    op_spec = spec(op)
    call = make_call(op, operands, attrs, bodies)
    types = op_spec.rule(call)
    if op_spec.move:
        # The operand whose quantized type the result takes over: `x`, the first of `xs`, else the
        # first.
        slot = next((s for s in ("x", "xs.0") if s in operands), next(iter(operands)))
        element = operands[slot].type.quant
        if element is not None:
            moved = op_spec.move(call, element)
            if moved is None:
                granularity = (
                    f"axis {element.axis}"
                    if element.axis is not None
                    else f"blocks {element.granularity}"
                )
                reason = "the op works across them, or breaks them up; dequantize first"
                raise TypeRuleError(f"{op}: the quantized {granularity} does not survive: {reason}")
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

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self.held = constants
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
        # Quantized types are slow to hash and seldom repeat.
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
    # Three answers: (), not seen yet; None, depends on constants; the types.
    cached = _RESULT_TYPES[op].get(key, ())
    if cached:
        return cached
    call = make_call(op, operands, attrs)
    if cached is None:
        return spec(op).rule(call)
    recorder = _RecordedConstants(call.constants)
    types = spec(op).rule(replace(call, constants=recorder))
    # Clearing all is rare and cheaper than tracking the order of use.
    if len(_RESULT_TYPES[op]) == _MAX_CACHED_TYPES:
        _RESULT_TYPES[op].clear()
    _RESULT_TYPES[op][key] = None if recorder.asked else types
    return types


def value_dependent_slots(node: Node) -> frozenset[str]:
    """Returns the slots whose constant values decide the result types, such as a Reshape's shape.

    Empty for an op whose types are stated.
    """
    if node._op in STATED_TYPE_OPS:
        return frozenset()
    call = make_call(node._op, node.operands, node.attrs, dict(node.bodies))
    recorder = _RecordedConstants(call.constants)
    spec(node._op).rule(replace(call, constants=recorder))
    return frozenset(recorder.slots)


def cached_result_types(
    op: str, operands: Mapping[str, Value], attrs: Mapping[str, Attr]
) -> tuple[TensorType, ...] | None:
    """Returns the cached result types of an equal call, if there is one without companions."""
    by_key = _RESULT_TYPES.get(op)
    if not by_key or (key := _cache_key(operands, attrs)) is None:
        return None
    types = by_key.get(key)
    return types if types and not _has_companion(op, tuple(operands)) else None


@lru_cache(1024)
def _has_companion(op: str, slots: tuple[str, ...]) -> bool:
    """Returns whether any slot is a companion, such as `x.scale`."""
    op_spec = spec(op)
    return any(op_spec.is_companion(slot) for slot in slots)


def make_call(
    op: str,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    bodies: Mapping[str, GraphLike] | None = None,
) -> Call:
    """Returns one use of an op as its type rule sees it."""
    op_spec = spec(op)
    types: dict[str, TensorType] = {}
    constants: dict[str, Array] = {}
    companions: dict[str, TensorType] = {}
    for slot, value in operands.items():
        is_companion = op not in STATED_TYPE_OPS and op_spec.is_companion(slot)
        (companions if is_companion else types)[slot] = value._type
        array = value.constant
        # A constant whose value was given another type is not read as one: its elements would not
        # fit.
        if array is not None and (array.type is value._type or array.type == value._type):
            constants[slot] = array
    if op == "constant" and isinstance(data := attrs["data"], Array):
        constants["data"] = data
    signatures = {name: _signature(body) for name, body in bodies.items()} if bodies else {}
    return Call(op, types, attrs, constants, companions, signatures)


def _signature(body: GraphLike) -> BodySignature:
    outputs = tuple(v._type for v in body.outputs.values())
    return BodySignature(tuple(v._type for v in body.inputs), outputs)


def check_chain(stages: tuple[Stage, ...]) -> None:
    """Raises GraphError where stages are not a chain: one value each, made of the one before.

    TypeRuleError for operands that a stage's op does not take, or lacks.
    """
    if len(stages) < 2:
        raise GraphError(f"a chain of {len(stages)} stages; one op alone is a plain node")
    for i, stage in enumerate(stages):
        op_spec = spec(stage.op)
        if (
            op_spec.results != 1
            or op_spec.bodies
            or not op_spec.operands
            or stage.op in STATED_TYPE_OPS
        ):
            raise GraphError(f"stage {i}, {stage.op}: a stage makes one value of its operands")
        flow = op_spec.slot(stage.flow) if stage.flow else None
        if (i > 0) != (flow is not None) or stage.flow in stage.slots:
            raise GraphError(f"stage {i}, {stage.op}: the flow from the stage before is amiss")
        filled = {*stage.slots, stage.flow}
        for slot in stage.slots:
            _check_slot(op_spec, slot)
        for slot_spec in op_spec.operands:
            if not (slot_spec.optional or slot_spec.variadic) and slot_spec.name not in filled:
                raise TypeRuleError(f"stage {i}: {stage.op} needs {slot_spec.name}")
    if stages[-1].type is not None:
        raise GraphError("the last stage's type is the group's")


def check_slots(op: str, operands: Mapping[str, Value], *, complete: bool = True) -> None:
    """Raises GraphError for what is no value, TypeRuleError for operands that the op does not take.

    `complete`: all operands are given, so that a required one must be among them.
    """
    for slot, value in operands.items():
        if not isinstance(value, Value):
            raise GraphError(f"{op}: {slot} is {type(value).__name__}, it takes a value")
    op_spec = spec(op)
    if op in FREE_SLOT_OPS or tuple(operands) in op_spec.checked_operand_names:
        return
    for slot in operands:
        _check_slot(op_spec, slot)
    for slot_spec in op_spec.operands if complete else ():
        if not (slot_spec.optional or slot_spec.variadic) and slot_spec.name not in operands:
            raise TypeRuleError(f"{op} needs {slot_spec.name}")
    if complete and len(op_spec.checked_operand_names) < _MAX_SLOT_COMBINATIONS:
        op_spec.checked_operand_names.add(tuple(operands))


def _check_slot(row: OpSpec, slot: str) -> None:
    if row.slot(slot) is None and not row.is_companion(slot):
        known = ", ".join(s.name for s in row.operands) or "none"
        raise TypeRuleError(f"{row.name} has no slot {slot}; its slots: {known}")


def check_operand(node: Node, slot: str, value: Value | None) -> None:
    """GraphError or TypeRuleError where a slot cannot be bound to a value, or emptied."""
    is_bound = slot in node._operands
    if node._op == "fused" and (value is None or not is_bound):
        reason = "needs all its operands" if is_bound else f"has no operand {slot}"
        raise TypeRuleError(f"{node.name} {reason}; a group has those of its stages or its body")
    if value is not None:
        # A slot that is bound already is known to be one of the op's.
        if not (is_bound and isinstance(value, Value)):
            check_slots(node._op, {slot: value}, complete=False)
        return
    op_spec = spec(node._op)
    if not is_bound and node._op not in ("output", "foreign"):
        _check_slot(op_spec, slot)
    if is_bound and any(s.name == slot and not s.optional for s in op_spec.operands):
        raise TypeRuleError(f"{node._op} needs {slot}")
