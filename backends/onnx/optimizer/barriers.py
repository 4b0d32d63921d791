"""Keeps float what onnxruntime's optimizer would quantize."""

from __future__ import annotations

from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.rewrite.fusing import is_fusible_activation

from ..preparation.float_parameters import CODED

_LAYERS = {**CODED, "matmul": ("a", "b", "bias"), "linear": ("x", "w", "bias")}
"""Data, weights and bias of layers; a matrix product and the sum after it become a Gemm."""
_JOINED = frozenset({"add", "mul", "batch_norm"})
"""Ops whose constants the optimizer makes part of the layer before them."""


def tempts(value: Value) -> bool:
    """Returns whether onnxruntime's optimizer would quantize what a layer before a quantize takes.

    Between dequantize and quantize it quantizes float weights and biases itself, one scale a
    tensor. Before that it takes ops that move elements past quantized values, and makes constants
    that are added or multiplied a part of the layer.
    """
    node = value.node
    while (before := _before(node)) is not None:
        node = before
    slots = _LAYERS.get(node.op)
    if slots is None or node.stages:
        return False
    data, *rest = (node.operands.get(slot) for slot in slots)
    real = any(v is not None and v.node.op != "dequantize" for v in rest)
    return real and data is not None and _coded(data)


def _before(node: Node) -> Node | None:
    """Returns what an op takes that the optimizer takes with the layer before it; None for
    others."""
    if is_fusible_activation(node) or _moves(node):
        return next(iter(node.operands.values())).node
    if node.op in _JOINED:
        found = [v.node for v in node.operands.values() if v.constant is None]
        return found[0] if len(found) == 1 else None
    return None


def _coded(value: Value) -> bool:
    """Returns whether a value is dequantized, ops that move elements aside."""
    while _moves(value.node):
        value = value.node.operands["x"]
    return value.node.op == "dequantize"


def _moves(node: Node) -> bool:
    """Returns whether an op takes elements of one operand as they are, so that integers may be
    taken too."""
    if node.op in ("input", "constant", "output", "foreign", "fused"):
        return False
    found = spec(node.op).traits
    return found.value_preserving and found.same_params == ("x",)
