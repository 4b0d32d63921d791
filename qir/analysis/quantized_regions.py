"""The regions of a graph that are quantized before planning."""

from __future__ import annotations

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.types import QuantType

_PARAMETER_SLOTS = frozenset({"scale", "zero"})
_RAW_PRODUCTS = frozenset({"matmul_integer", "conv_integer"})
_MAX_VISITED = 64
"""Values that are visited between a possible scale and the op that reads it."""


def is_quantized_already(node: Node) -> bool:
    """Returns whether an op reads or makes quantized values, or computes their parameters.

    A product with constant float weights does not, even if its data are dequantized.
    """
    if touches_quantized(node) or continues_raw_sum(node) or computes_parameters(node):
        return True
    return any(is_dequantized(v) for v in node.operands.values()) and not _has_float_weights(node)


def is_dequantized(value: Value) -> bool:
    """Returns whether a value is the result of a dequantize."""
    return value.node.op == "dequantize"


def quantized_types(value: Value) -> list[QuantType]:
    """Returns the types that a value is quantized to by its readers."""
    readers = [use.node for use in value.uses if use.node.op == "quantize" and use.slot == "x"]
    return [n.result.type.quant for n in readers if n.result.type.quant]


def dequantized_types(value: Value) -> list[QuantType]:
    """Returns the quantized type that a value is dequantized from, as a list of one or none."""
    quant = value.node.operands["x"].type.quant if is_dequantized(value) else None
    return [quant] if quant else []


def fits_scheme(quant: QuantType, allowed: Scheme) -> bool:
    """Returns whether an existing quantized type is one that a slot's scheme allows."""
    if (
        quant.dynamic
        or quant.kind != "uniform"
        or quant.granularity is not None
        or quant.has_float_zero
    ):
        return False
    if quant.storage not in allowed.storages or allowed.granularity != "tensor":
        return False
    scale, zero = np.float32(quant.scales()), int(np.asarray(quant.zeros()))
    if allowed.scale is not None:
        return scale == np.float32(allowed.scale) and zero == (allowed.zero or 0)
    wanted = 0 if allowed.symmetric else allowed.zero
    return wanted is None or zero == wanted


def quantized_values(graph: Graph) -> list[str]:
    """Returns the names of the quantized values."""
    return [v.name for v in graph.values.values() if v.type.quant]


def _has_float_weights(node: Node) -> bool:
    weight = node.operands.get(spec(node.op).traits.weight or "")
    return weight is not None and weight.constant is not None


def computes_parameters(node: Node, steps: int = 6) -> bool:
    """Returns whether an op computes scales or zero points, itself or by all of its readers.

    Such ops are part of dynamic quantization as ONNX models write it: min, max, div, round.
    """
    if any(map(_is_parameter, node.results)):
        return True
    # So many steps at most, since the readers of readers may be most of the graph.
    users = [use.node for value in node.results for use in value.uses]
    return bool(users and steps) and all(computes_parameters(user, steps - 1) for user in users)


def _is_parameter(value: Value) -> bool:
    """Returns whether a value is read as a scale or zero point, or scales a raw integer sum.

    Moves, casts and factors may be in between.
    """
    waiting, seen = [value], {value}
    while waiting and len(seen) < _MAX_VISITED:
        for use in waiting.pop().uses:
            if _is_parameter_slot(use.node, use.slot) or _scales_raw_sum(use.node, use.slot):
                return True
            if _carries_parameter(use.node, use.slot):
                more = [v for v in use.node.results if v not in seen]
                seen.update(more)
                waiting += more
    return False


def _is_parameter_slot(node: Node, slot: str) -> bool:
    """Returns whether an operand is a scale or zero point, of a quantized type or a raw product."""
    named = slot.rpartition(".")[2] in _PARAMETER_SLOTS
    return named and (node.op in _RAW_PRODUCTS or touches_quantized(node))


def _carries_parameter(node: Node, slot: str) -> bool:
    """Returns whether a result is an operand that is moved, cast or multiplied."""
    return node.op in ("cast", "mul", "div") or _is_moved(node, slot)


def _is_moved(node: Node, slot: str) -> bool:
    known = spec(node.op)
    return known.traits.value_preserving and slot.partition(".")[0] in known.traits.same_params


def touches_quantized(node: Node) -> bool:
    """Returns whether an operand or result of an op has a quantized type."""
    return any(v.type.quant for v in (*node.operands.values(), *node.results))


def _scales_raw_sum(node: Node, slot: str) -> bool:
    """Returns whether an operand scales a raw integer sum.

    It is the only factor, or a factor of each row after a constant one: exporters multiply by the
    weights' scale and by the data's scale in turn.
    """
    others = [v for s, v in node.operands.items() if s != slot]
    if node.op not in ("mul", "div") or len(others) != 1:
        return False
    if _is_raw_sum(others[0]):
        return True
    before = others[0].node
    sides = list(before.operands.values())
    once = before.op == "mul" and any(map(_is_raw_sum, sides)) and any(v.constant for v in sides)
    shape = node.operands[slot].type.shape
    trailing = shape[1:] if others[0].type.rank > 2 else shape[-1:]
    return once and all(d == 1 for d in trailing)


def _is_raw_sum(value: Value, steps: int = 6) -> bool:
    """Returns whether a value is a raw integer sum (ONNX's MatMulInteger) that is not scaled yet.

    It may be cast or moved.
    """
    node = value.node
    if node.op in _RAW_PRODUCTS:
        return True
    through = [v for s, v in node.operands.items() if node.op == "cast" or _is_moved(node, s)]
    return bool(through and steps) and any(_is_raw_sum(v, steps - 1) for v in through)


def continues_raw_sum(node: Node, steps: int = 3) -> bool:
    """Returns whether an op computes a raw integer sum, scales one, or adds the bias to it."""
    if node.op in _RAW_PRODUCTS or any(_is_raw_sum(value) for value in node.results):
        return True
    if not steps or node.op not in ("mul", "div", "add"):
        return False
    return any(continues_raw_sum(value.node, steps - 1) for value in node.operands.values())
