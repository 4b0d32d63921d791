"""The regions of a graph that are quantized before planning."""

from __future__ import annotations

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.types import QuantType

_NUMBERS = frozenset({"scale", "zero"})
_SUMS = frozenset({"matmul_integer", "conv_integer"})
_FAR = 64
"""How many values are looked at between a number and its reader."""


def already(node: Node) -> bool:
    """Returns whether an op works on quantized values or next to them, or makes their numbers.

    A product whose weights are float constants is none, whatever its data are.
    """
    if about_codes(node) or behind_sums(node) or gives_numbers(node):
        return True
    return any(decoded(v) for v in node.operands.values()) and not _real_weights(node)


def decoded(value: Value) -> bool:
    """Returns whether a value is read from quantized values."""
    return value.node.op == "dequantize"


def coded(value: Value) -> list[QuantType]:
    """Returns the maps that a value is quantized by."""
    readers = [use.node for use in value.uses if use.node.op == "quantize" and use.slot == "x"]
    return [n.result.type.quant for n in readers if n.result.type.quant]


def source(value: Value) -> list[QuantType]:
    """Returns the quantized type that a value is dequantized from."""
    quant = value.node.operands["x"].type.quant if decoded(value) else None
    return [quant] if quant else []


def suits(quant: QuantType, allowed: Scheme) -> bool:
    """Returns whether quantized values that are there are such as a slot takes."""
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


def held(graph: Graph) -> list[str]:
    """Returns the names of the quantized values."""
    return [v.name for v in graph.values.values() if v.type.quant]


def _real_weights(node: Node) -> bool:
    weight = node.operands.get(spec(node.op).traits.weight or "")
    return weight is not None and weight.constant is not None


def gives_numbers(node: Node, steps: int = 6) -> bool:
    """Returns whether it makes what becomes numbers of quantized values, or all that hangs on it
    does."""
    if any(map(_number, node.results)):
        return True
    users = [use.node for value in node.results for use in value.uses]
    return bool(users and steps) and all(gives_numbers(user, steps - 1) for user in users)


def _number(value: Value) -> bool:
    """Returns whether a value is read as a scale, a zero point or what scales a raw sum.

    Moves, casts and factors may be between.
    """
    waiting, seen = [value], {value}
    while waiting and len(seen) < _FAR:
        for use in waiting.pop().uses:
            if _of_codes(use.node, use.slot) or _scales_sum(use.node, use.slot):
                return True
            if _carries(use.node, use.slot):
                more = [v for v in use.node.results if v not in seen]
                seen.update(more)
                waiting += more
    return False


def _of_codes(node: Node, slot: str) -> bool:
    """Returns whether an operand is the scale or zero point of quantized values, typed so or
    raw."""
    named = slot.rpartition(".")[2] in _NUMBERS
    return named and (node.op in _SUMS or about_codes(node))


def _carries(node: Node, slot: str) -> bool:
    """Returns whether a result is an operand's number moved, cast or times another."""
    return node.op in ("cast", "mul", "div") or _moves(node, slot)


def _moves(node: Node, slot: str) -> bool:
    known = spec(node.op)
    return known.traits.value_preserving and slot.partition(".")[0] in known.traits.same_params


def about_codes(node: Node) -> bool:
    """Returns whether an op takes or makes quantized values itself."""
    return any(v.type.quant for v in (*node.operands.values(), *node.results))


def _scales_sum(node: Node, slot: str) -> bool:
    """Returns whether an operand is what a raw sum is multiplied by: once, or a row after a
    constant."""
    others = [v for s, v in node.operands.items() if s != slot]
    if node.op not in ("mul", "div") or len(others) != 1:
        return False
    if _raw(others[0]):
        return True
    before = others[0].node
    sides = list(before.operands.values())
    once = before.op == "mul" and any(map(_raw, sides)) and any(v.constant for v in sides)
    shape = node.operands[slot].type.shape
    behind = shape[1:] if others[0].type.rank > 2 else shape[-1:]
    return once and all(d == 1 for d in behind)


def _raw(value: Value, steps: int = 6) -> bool:
    """Returns whether it is a sum of raw integers that nothing has scaled, cast and moved or
    not."""
    node = value.node
    if node.op in _SUMS:
        return True
    through = [v for s, v in node.operands.items() if node.op == "cast" or _moves(node, s)]
    return bool(through and steps) and any(_raw(v, steps - 1) for v in through)


def behind_sums(node: Node, steps: int = 3) -> bool:
    """Returns whether it sums raw integers, or scales such a sum and adds a bias to it."""
    if node.op in _SUMS or any(_raw(value) for value in node.results):
        return True
    if not steps or node.op not in ("mul", "div", "add"):
        return False
    return any(behind_sums(value.node, steps - 1) for value in node.operands.values())
