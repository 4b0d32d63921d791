"""Follows quantized values back to their producer, through ops that only move elements.

Where a model moves floats between `dequantize` and a product, a runtime moves the integers. Values
that depend on constants alone are evaluated by a callback, because the reference interpreter is
above this package in the layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import TypeRuleError
from qir.ir import dims
from qir.ir.calls import make_call
from qir.ir.node import Node, Value
from qir.ir.ops import OPS
from qir.ir.ops.plugin import ops_with
from qir.ir.result_bounds import result_bounds
from qir.ir.types import Array, QuantType, TensorType

Compute: TypeAlias = Callable[
    [Node, Mapping[str, NDArray[np.generic]], str], tuple[NDArray[np.generic], ...]
]
"""Computes one node on arrays by slot, under a profile; empty where it cannot be computed."""
Ends: TypeAlias = tuple[float, float]

MOVING_OPS = ops_with(OPS.values(), lambda row: row.traits.value_preserving)
"""Ops whose results are elements of an operand."""
_ZERO_FILLING_OPS = frozenset({"pad", "trilu"})
"""Those that put zeros among them."""
_NOT_EVALUATED = frozenset({"foreign", "fused", "if", "loop", "scan"})
_MAX_STEPS = 64
"""Bounds the ops that are followed in a chain, or evaluated for one constant."""
_MAX_ELEMENTS = 1 << 26  # elements of a constant that are computed
_UNBOUNDED: Ends = (-math.inf, math.inf)


class Sight(Protocol):
    """A graph under verification, as far as quantized values are followed in it."""

    compute: Compute | None
    profile: str

    def source(self, value: Value) -> Value: ...

    def static(self, value: Value) -> bool: ...


@dataclass(frozen=True, slots=True)
class Trail:
    """The path of quantized values from their producer to where they are read."""

    start: Value
    """The value that holds what is moved."""
    path: tuple[Value, ...]
    """What it becomes on the way, the value that is read last."""
    quant: QuantType | None
    """The quantized type that is read; None for floats."""
    why_type_unknown: str = ""
    """Why that quantized type may be wrong for some elements; empty where it is right."""


def follow(look: Sight, value: Value) -> Trail:
    """Returns the trail of the integers that a value is read from; of floats, the value alone."""
    value = read = look.source(value)
    path: list[Value] = []
    while len(path) < _MAX_STEPS and (before := _producer_of_integers(look, value)) is not None:
        path.append(value)
        value = before
    path.reverse()
    quant, lost = value.type.quant, ""
    if quant is None and len(path) == _MAX_STEPS and _producer_of_integers(look, value) is not None:
        return Trail(read, (), None)
    for made in path:
        node = made.node
        if quant is None or node.op == "dequantize":
            continue
        if made.type.quant is None:
            lost = lost or _why_mixed(node)
        moved = made.type.quant or _moved_quant_type(node, quant)
        if moved is None:
            lost = lost or f"its scales do not keep to one axis through {node.op}"
        quant = moved or quant
    if quant is None and not value.type.dtype.is_integer:
        return Trail(read, (), None)
    return Trail(value, tuple(path), quant, lost)


def _producer_of_integers(look: Sight, value: Value) -> Value | None:
    """Returns the value whose integers this one has, perhaps moved; None where it computes."""
    node = value.node
    if node.stages or node._bodies:
        return None
    if node.op == "dequantize":
        before = node._operands.get("x")
        before = look.source(before) if before is not None else None
        return before if before is not None and before.type.shape == value.type.shape else None
    found = node._operands.get(_data(node)) if node.op in MOVING_OPS else None
    return look.source(found) if found is not None else None


def _data(node: Node) -> str:
    slot = OPS[node.op].operands[0]
    return f"{slot.name}.0" if slot.variadic else slot.name


def _why_mixed(node: Node) -> str:
    """Returns why a result holds more than its operand's quantized values; empty otherwise."""
    if node.op == "concat" and len(node._operands) > 1:
        return "concat joins quantized tensors that are dequantized separately"
    return "pad adds floats to quantized values" if _pads_with_floats(node) else ""


def _pads_with_floats(node: Node) -> bool:
    return node.op == "pad" and node._attrs.get("value", 0.0) != 0.0


def _moved_quant_type(node: Node, quant: QuantType) -> QuantType | None:
    if quant.granularity is None:
        return quant
    move = OPS[node.op].move
    try:
        return move(make_call(node.op, node._operands, node._attrs), quant) if move else None
    except TypeRuleError:  # which is a finding of its own, about that node
        return None


# -- what constants make ------------------------------------------------------------------------


def trail_elements(look: Sight, trail: Trail) -> Array | None:
    """Returns the constant elements at the end of a trail; None where they are not constant."""
    array = trail.start.constant
    if array is not None and array.type != trail.start.type:
        return None
    data = array.data if array is not None else _constant_elements(look, trail.start, {})
    for made in trail.path:
        if data is None:
            return None
        if made.node.op != "dequantize":
            data = _moved_elements(look, made, data)
    if data is None:
        return None
    if array is not None and not trail.path:
        return array
    read = trail.path[-1].type if trail.path else trail.start.type
    element = trail.quant or read.element
    return Array(np.asarray(data, order="C"), TensorType(data.shape, element), "")


def _moved_elements(
    look: Sight, made: Value, data: NDArray[np.generic]
) -> NDArray[np.generic] | None:
    """Returns the elements after an op that moves them."""
    # Fills and concat add elements that have no integers of this type.
    node = made.node
    if look.compute is None or node.op in _ZERO_FILLING_OPS or node.op == "concat":
        return None
    operands = {_data(node): data}
    done: dict[Value, NDArray[np.generic] | None] = {}
    for slot, value in node._operands.items():
        if slot not in operands:
            found = _constant_elements(look, value, done)
            if found is None:
                return None
            operands[slot] = found
    out = look.compute(node, operands, look.profile)
    moved = out[made.index] if made.index < len(out) else None
    return moved if moved is not None and moved.dtype == data.dtype else None


def _constant_elements(
    look: Sight, value: Value, done: dict[Value, NDArray[np.generic] | None]
) -> NDArray[np.generic] | None:
    """Evaluates a value that depends on constants alone, within the limits of size and steps."""
    value = look.source(value)
    if value.constant is not None:
        return value.constant.data
    if value in done:
        return done[value]
    done[value] = None  # what cannot be evaluated is not tried again
    sizes = dims.known_shape(value.type.shape)
    small = sizes is not None and math.prod(sizes) <= _MAX_ELEMENTS and len(done) <= _MAX_STEPS
    if (
        look.compute is None
        or not small
        or not look.static(value)
        or value.node.op in _NOT_EVALUATED
    ):
        return None
    operands = {}
    for slot, operand in value.node._operands.items():
        found = _constant_elements(look, operand, done)
        if found is None:
            return None
        operands[slot] = found
    out = look.compute(value.node, operands, look.profile)
    done[value] = out[value.index] if value.index < len(out) else None
    return done[value]


# -- bounds of quantized values -----------------------------------------------------------------


def integer_bounds(look: Sight, trail: Trail) -> Ends:
    """Returns bounds of q - zero that the producer guarantees: after a Relu none is below 0."""
    low, high = _in_scale_units(trail.start.type.quant, *_float_bounds(look, trail.start))
    if trail.why_type_unknown or any(
        _pads_with_floats(made.node) or made.node.op == "concat" for made in trail.path
    ):
        return _UNBOUNDED
    if any(made.node.op in _ZERO_FILLING_OPS for made in trail.path):
        low, high = min(low, 0), max(high, 0)
    return low, high


def _in_scale_units(quant: QuantType | None, low: float, high: float) -> Ends:
    """Converts float bounds to units of the scale, rounded outwards."""
    if quant is None or quant.scale is None:
        return (0 if low >= 0 else -math.inf), (0 if high <= 0 else math.inf)
    scales = np.asarray(quant.scales(), np.float64).reshape(-1)
    if not scales.size or not (np.isfinite(scales) & (scales > 0)).all():
        return _UNBOUNDED
    least, greatest = float(scales.min()), float(scales.max())
    low = low / (greatest if low > 0 else least)
    high = high / (least if high > 0 else greatest)
    return (
        math.floor(low) if math.isfinite(low) else low,
        math.ceil(high) if math.isfinite(high) else high,
    )


def _float_bounds(look: Sight, value: Value) -> Ends:
    """Returns bounds of the floats that a value was quantized from, by the op that made them."""
    filled = False
    for _ in range(_MAX_STEPS):
        node = value.node
        if node.op == "quantize":
            before = node._operands.get("x")
        elif node.op in MOVING_OPS and node.op != "concat" and not _pads_with_floats(node):
            filled = filled or node.op in _ZERO_FILLING_OPS
            before = node._operands.get(_data(node))
        else:
            break
        if before is None:
            return _UNBOUNDED
        value = look.source(before)
    low, high = result_bounds(value.node)
    return (min(low, 0.0), max(high, 0.0)) if filled else (low, high)
