"""What codes a model holds before anything is planned, and what of it is still real."""

from __future__ import annotations

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.types import QuantType

_NUMBERS = frozenset({"scale", "zero"})


def already(node: Node) -> bool:
    """Whether an op works on codes or beside them, or makes their numbers.

    A product whose weights are real constants is none, whatever its data are.
    """
    if _about_codes(node) or _sums(node) or _gives_numbers(node):
        return True
    return any(decoded(v) for v in node.operands.values()) and not _real_weights(node)


def decoded(value: Value) -> bool:
    """Whether a value is read from codes."""
    return value.node.op == "dequantize"


def coded(value: Value) -> list[QuantType]:
    """The maps that a value is quantized by."""
    readers = [use.node for use in value.uses if use.node.op == "quantize" and use.slot == "x"]
    return [n.result.type.quant for n in readers if n.result.type.quant]


def source(value: Value) -> list[QuantType]:
    """The map of the codes that a value is read from."""
    quant = value.node.operands["x"].type.quant if decoded(value) else None
    return [quant] if quant else []


def suits(quant: QuantType, allowed: Scheme) -> bool:
    """Whether codes that are there are such as a slot takes."""
    if quant.dynamic or quant.kind != "uniform" or quant.grain is not None or quant.real_zero:
        return False
    if quant.storage != allowed.storage or allowed.grain != "tensor":
        return False
    scale, zero = np.float32(quant.scales()), int(np.asarray(quant.zeros()))
    if allowed.scale is not None:
        return scale == np.float32(allowed.scale) and zero == (allowed.zero or 0)
    return not allowed.symmetric or zero == 0


def held(graph: Graph) -> list[str]:
    """Names of the values that hold codes."""
    return [v.name for v in graph.values.values() if v.type.quant]


def _real_weights(node: Node) -> bool:
    weight = node.operands.get(spec(node.op).traits.weight or "")
    return weight is not None and weight.constant is not None


def _gives_numbers(node: Node) -> bool:
    """Whether all that is made here is a scale or zero point, or scales a raw sum."""
    uses = [use for value in node.results for use in value.uses]
    return bool(uses) and all(
        (use.slot.rpartition(".")[2] in _NUMBERS and _about_codes(use.node))
        or _scales_sum(use.node, use.slot)
        for use in uses
    )


def _about_codes(node: Node) -> bool:
    return any(v.type.quant for v in (*node.operands.values(), *node.results))


def _scales_sum(node: Node, slot: str) -> bool:
    others = [v for s, v in node.operands.items() if s != slot]
    return node.op == "mul" and len(others) == 1 and _sums(others[0].node, 1)


def _sums(node: Node, steps: int = 3) -> bool:
    """Whether it sums raw integers, or scales such a sum and adds a bias to it."""
    if node.op in ("matmul_integer", "conv_integer"):
        return True
    if not steps or node.op not in ("cast", "mul", "add"):
        return False
    return any(_sums(value.node, steps - 1) for value in node.operands.values())
