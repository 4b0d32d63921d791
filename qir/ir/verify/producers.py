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
    value = read_value = look.source(value)
    path: list[Value] = []
    while len(path) < _MAX_STEPS and (producer := _producer_of_integers(look, value)) is not None:
        path.append(value)
        value = producer
    path.reverse()
    quant, why_type_unknown = value.type.quant, ""
    # The walk was cut short before it found a producer of integers: nothing is claimed.
    if quant is None and len(path) == _MAX_STEPS and _producer_of_integers(look, value) is not None:
        return Trail(read_value, (), None)
    for value_on_path in path:
        node = value_on_path.node
        if quant is None or node.op == "dequantize":
            continue
        # In QDQ form the moved values are floats: what is added to them on the way was never
        # quantized.
        if value_on_path.type.quant is None:
            why_type_unknown = why_type_unknown or _why_mixed(node)
        moved_type = value_on_path.type.quant or _moved_quant_type(node, quant)
        if moved_type is None:
            why_type_unknown = (
                why_type_unknown or f"its scales do not keep to one axis through {node.op}"
            )
        quant = moved_type or quant
    if quant is None and not value.type.dtype.is_integer:
        return Trail(read_value, (), None)
    return Trail(value, tuple(path), quant, why_type_unknown)


def _producer_of_integers(look: Sight, value: Value) -> Value | None:
    """Returns the value whose integers this one has, perhaps moved; None where it computes."""
    node = value.node
    if node.stages or node._bodies:
        return None
    if node.op == "dequantize":
        operand = node._operands.get("x")
        operand = look.source(operand) if operand is not None else None
        return operand if operand is not None and operand.type.shape == value.type.shape else None
    moved_operand = node._operands.get(_data_slot(node)) if node.op in MOVING_OPS else None
    return look.source(moved_operand) if moved_operand is not None else None


def _data_slot(node: Node) -> str:
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
    # A constant whose stated type was changed: the rule `types` reports it.
    if array is not None and array.type != trail.start.type:
        return None
    data = array.data if array is not None else _constant_elements(look, trail.start, {})
    for value_on_path in trail.path:
        if data is None:
            return None
        if value_on_path.node.op != "dequantize":
            data = _moved_elements(look, value_on_path, data)
    if data is None:
        return None
    if array is not None and not trail.path:
        return array
    read_type = trail.path[-1].type if trail.path else trail.start.type
    element = trail.quant or read_type.element
    return Array(np.asarray(data, order="C"), TensorType(data.shape, element), "")


def _moved_elements(
    look: Sight, result: Value, data: NDArray[np.generic]
) -> NDArray[np.generic] | None:
    """Returns the elements after an op that moves them."""
    # Fills and concat add elements that have no integers of this type.
    node = result.node
    if look.compute is None or node.op in _ZERO_FILLING_OPS or node.op == "concat":
        return None
    operands = {_data_slot(node): data}
    cache: dict[Value, NDArray[np.generic] | None] = {}
    for slot, value in node._operands.items():
        if slot not in operands:
            elements = _constant_elements(look, value, cache)
            if elements is None:
                return None
            operands[slot] = elements
    results = look.compute(node, operands, look.profile)
    moved = results[result.index] if result.index < len(results) else None
    return moved if moved is not None and moved.dtype == data.dtype else None


def _constant_elements(
    look: Sight, value: Value, cache: dict[Value, NDArray[np.generic] | None]
) -> NDArray[np.generic] | None:
    """Evaluates a value that depends on constants alone, within the limits of size and steps."""
    value = look.source(value)
    if value.constant is not None:
        return value.constant.data
    if value in cache:
        return cache[value]
    cache[value] = None  # what cannot be evaluated is not tried again
    sizes = dims.known_shape(value.type.shape)
    is_small = sizes is not None and math.prod(sizes) <= _MAX_ELEMENTS and len(cache) <= _MAX_STEPS
    if (
        look.compute is None
        or not is_small
        or not look.static(value)
        or value.node.op in _NOT_EVALUATED
    ):
        return None
    operands = {}
    for slot, operand in value.node._operands.items():
        elements = _constant_elements(look, operand, cache)
        if elements is None:
            return None
        operands[slot] = elements
    results = look.compute(value.node, operands, look.profile)
    cache[value] = results[value.index] if value.index < len(results) else None
    return cache[value]


# -- bounds of quantized values -----------------------------------------------------------------


def integer_bounds(look: Sight, trail: Trail) -> Ends:
    """Returns bounds of q - zero that the producer guarantees: after a Relu none is below 0."""
    low, high = _in_scale_units(trail.start.type.quant, *_float_bounds(look, trail.start))
    if trail.why_type_unknown or any(
        _pads_with_floats(value_on_path.node) or value_on_path.node.op == "concat"
        for value_on_path in trail.path
    ):
        return _UNBOUNDED
    # Zeros among the elements are q - zero = 0.
    if any(value_on_path.node.op in _ZERO_FILLING_OPS for value_on_path in trail.path):
        low, high = min(low, 0), max(high, 0)
    return low, high


def _in_scale_units(quant: QuantType | None, low: float, high: float) -> Ends:
    """Converts float bounds to units of the scale, rounded outwards."""
    if quant is None or quant.scale is None:
        # Without the scale only the sign of the bounds survives.
        return (0 if low >= 0 else -math.inf), (0 if high <= 0 else math.inf)
    scales = np.asarray(quant.scales(), np.float64).reshape(-1)
    if not scales.size or not (np.isfinite(scales) & (scales > 0)).all():
        return _UNBOUNDED
    least, greatest = float(scales.min()), float(scales.max())
    # The division that moves an end outwards: by the least scale away from 0, by the greatest
    # towards it.
    low = low / (greatest if low > 0 else least)
    high = high / (least if high > 0 else greatest)
    return (
        math.floor(low) if math.isfinite(low) else low,
        math.ceil(high) if math.isfinite(high) else high,
    )


def _float_bounds(look: Sight, value: Value) -> Ends:
    """Returns bounds of the floats that a value was quantized from, by the op that made them."""
    has_zeros = False
    for _ in range(_MAX_STEPS):
        node = value.node
        if node.op == "quantize":
            operand = node._operands.get("x")
        elif node.op in MOVING_OPS and node.op != "concat" and not _pads_with_floats(node):
            has_zeros = has_zeros or node.op in _ZERO_FILLING_OPS
            operand = node._operands.get(_data_slot(node))
        else:
            break
        if operand is None:
            return _UNBOUNDED
        value = look.source(operand)
    low, high = result_bounds(value.node)
    return (min(low, 0.0), max(high, 0.0)) if has_zeros else (low, high)
