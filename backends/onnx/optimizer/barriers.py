"""Finds float layers that onnxruntime's optimizer would quantize by itself."""

from __future__ import annotations

from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.graph import STATED_TYPE_OPS
from qir.rewrite.fusing import is_fusible_activation

from ..preparation.convolution_inputs import FUSED_CONSUMERS
from ..preparation.float_parameters import LAYER_SLOTS

_LAYER_SLOTS = {**LAYER_SLOTS, "matmul": ("a", "b", "bias"), "linear": ("x", "w", "bias")}
"""Data, weights and bias of each layer; a matmul and the add after it become a Gemm."""


def would_be_quantized(value: Value) -> bool:
    """Returns whether onnxruntime's optimizer would quantize the float layer that computes a value.

    Between dequantize and quantize it quantizes float weights and biases itself, with one scale a
    tensor. Before that it moves quantizes past ops that keep elements, and folds constants that are
    added or multiplied into the layer.
    """
    node = value.node
    # Walk back over what the optimizer merges, to the layer that it would then see.
    while (producer := _fused_producer(node)) is not None:
        node = producer
    slots = _LAYER_SLOTS.get(node.op)
    if slots is None or node.stages:
        return False
    data, *rest = (node.operands.get(slot) for slot in slots)
    has_float_parameters = any(v is not None and v.node.op != "dequantize" for v in rest)
    return has_float_parameters and data is not None and _is_dequantized(data)


def _fused_producer(node: Node) -> Node | None:
    """Returns the producer of an op that the optimizer merges with the layer before it; else
    None."""
    if is_fusible_activation(node) or _keeps_elements(node):
        return next(iter(node.operands.values())).node
    if node.op in FUSED_CONSUMERS:
        computed = [v.node for v in node.operands.values() if v.constant is None]
        # With two computed operands it is an addition of the model, not of a constant.
        return computed[0] if len(computed) == 1 else None
    return None


def _is_dequantized(value: Value) -> bool:
    """Returns whether a value is dequantized, except for ops that keep its elements."""
    while _keeps_elements(value.node):
        value = value.node.operands["x"]
    return value.node.op == "dequantize"


def _keeps_elements(node: Node) -> bool:
    """Returns whether an op only moves elements of its operand x, so that integers could be
    moved too."""
    if node.op in STATED_TYPE_OPS | {"constant"}:
        return False
    traits = spec(node.op).traits
    return traits.value_preserving and traits.same_params == ("x",)
