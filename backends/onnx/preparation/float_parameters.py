"""Quantizes float weights and biases of integer layers, as onnxruntime's WeightBiasQuantization
does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32, I8, I32, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.layers import TRANSPOSED_CONVOLUTIONS
from qir.ir.types import Array, QuantType, uniform
from qir.ledger import Change
from qir.numerics import Rule, affine_of, choose, quantize, quantize_bias
from qir.profiles import Profile, Query, query_for_node
from qir.rewrite.fusing import is_fusible_activation
from qir.rewrite.preparation import Preparation

from .unsigned_values import STEP as UNSIGNED

LAYER_SLOTS = {
    **{f"conv{n}d": ("x", "w", "bias") for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": ("x", "w", "bias") for n in (1, 2, 3)},
    "gemm": ("a", "b", "c"),
}
"""Data, weights and bias of the ops whose float constants are quantized."""


@dataclass(frozen=True)
class _FloatLayer:
    """A layer between quantized values, all of whose float values are constants."""

    node: Node
    data: QuantType
    weights: Value
    bias: Value | None


def quantizes_float_constants(profile: Profile) -> bool:
    """Returns whether a profile's runtime quantizes float constants between quantized values."""
    return profile.resolve(Query("constant")).weights.given == "float"


def quantize_parameters(graph: Graph, prepared: Preparation) -> int:
    """Quantizes weights by the rule of constants, and biases in units of the accumulator."""
    if not quantizes_float_constants(prepared.profile):
        return 0
    count, ledger = 0, prepared.ledger
    for node in list(graph):
        layer = _quantizable_layer(node)
        if layer is None:
            continue
        if problem := _invalid_constant_reason(layer):
            ledger.add(Change.UNVERIFIED, prepared.name, node.name, f"{problem}: not predicted")
            continue
        if layer.weights.constant is not None:
            if layer.weights.node.attrs["default"] is True:
                prepared.default_weights.add(node)
            _quantize_weights(graph, layer, prepared)
            count += 1
        if layer.bias is not None:
            _quantize_bias(graph, layer, prepared)
            count += 1
    return count


def _quantizable_layer(node: Node) -> _FloatLayer | None:
    """Returns a layer whose float constants the runtime quantizes; None for any other node.

    Its data are dequantized by one scale, a quantize reads its result, its weights are constants or
    dequantized, and its bias is a list of constants, if there is one.
    """
    if node.op not in LAYER_SLOTS or node.stages or node.schemes or not _ends_in_quantize(node):
        return None
    data, weights, bias = (node.operands.get(slot) for slot in LAYER_SLOTS[node.op])
    if data is None or weights is None or data.node.op != "dequantize":
        return None
    quant = data.node.operands["x"].type.quant
    if quant is None or not _is_per_tensor(quant):
        return None
    if bias is not None and (bias.constant is None or bias.type.rank != 1):
        return None
    if any(v is not None and v.type.element != F32 for v in (data, weights, bias)):
        return None
    if weights.constant is None and not _has_fitting_weights(node, weights, bias):
        return None
    return _FloatLayer(node, quant, weights, bias)


def _has_fitting_weights(node: Node, weights: Value, bias: Value | None) -> bool:
    """Returns whether weights are dequantized by one scale, or by as many as there are biases."""
    kind = weights.node.operands["x"].type.quant if weights.node.op == "dequantize" else None
    if kind is None or bias is None:
        return False
    if _is_per_tensor(kind):
        return True
    results_first = node.op.startswith("conv") and node.op not in TRANSPOSED_CONVOLUTIONS
    results_first = results_first or node.attrs.get("trans_b") is True
    # Weights of a transposed convolution and of a Gemm without transB have results on axis 1.
    axis = 0 if results_first else 1
    return kind.axis == axis and not kind.dynamic and _scale_shape(kind) == bias.type.shape


def _is_per_tensor(quant: QuantType) -> bool:
    return quant.granularity is None or (not quant.dynamic and _scale_shape(quant) == (1,))


def _scale_shape(quant: QuantType) -> tuple[int, ...]:
    return np.shape(quant.scales())


def _invalid_constant_reason(layer: _FloatLayer) -> str:
    """Returns why constants cannot be quantized, such as NaN; empty where they can."""
    for name, value in (("weights", layer.weights), ("biases", layer.bias)):
        constant = value.constant if value is not None else None
        # NaN has no integer, and the optimizer's result for infinities differs by version.
        if constant is not None and np.isnan(constant.data).any():
            return f"some of its {name} are no numbers"
        if constant is not None and name == "weights" and np.isinf(constant.data).any():
            return "some of its weights are infinite"
    return ""


def _ends_in_quantize(node: Node) -> bool:
    """Returns whether a quantize is the only consumer of a node, or of the activations after it."""
    while True:
        readers = [use.node for use in node.result.uses if use.node.op != "output"]
        if len(readers) != 1:
            return False
        (node,) = readers
        if not is_fusible_activation(node):
            return node.op == "quantize"


def _quantize_weights(graph: Graph, layer: _FloatLayer, prepared: Preparation) -> None:
    """Quantizes weights by one range.

    Those of a default are quantized at run time, as signed integers that become unsigned as others
    do.
    """
    node, value, profile = layer.node, layer.weights, prepared.profile
    assert value.constant is not None
    rule, floats = profile.resolve(Query("constant")), value.constant.data
    quant = weight_type(floats, rule)
    integers = quantize(floats, affine_of(quant), rule)
    # As for unsigned_values: onnxruntime's QDQS8ToU8Transformer adds 128 to both.
    if value.node.attrs["default"] and UNSIGNED in profile.prepare:
        quant = uniform(U8, quant.scales(), np.asarray(quant.zeros()) + 128)
        integers = (integers.astype(np.int16) + 128).astype(np.uint8)
    array = Array(integers, value.type.with_element(quant), f"{value.name}.codes")
    constant = graph.constant(array, name=graph.fresh(f"{value.name}.codes"), before=node)
    dequantized = graph.add("dequantize", {"x": constant}, before=node)
    graph.set_origins(dequantized.result.node, value.node.origins)
    graph.set_operand(node, LAYER_SLOTS[node.op][1], dequantized.result)
    reason = "its float weights are quantized"
    prepared.ledger.add(Change.NUDGED, prepared.name, node.name, reason, codes=0.5)


def weight_type(floats: NDArray[np.generic], rule: Rule) -> QuantType:
    """Returns the quantized type of float weights; zeros alone get a scale of 1."""
    lowest, highest = floats.min(initial=0), floats.max(initial=0)
    low, high = I8.bounds
    # A range of zeros alone gets 255, so that the scale is 1.
    scale, zero = choose(lowest, highest if highest > lowest else high - low, I8, rule.choose)
    return uniform(I8, np.asarray(scale), np.asarray(zero))


def _quantize_bias(graph: Graph, layer: _FloatLayer, prepared: Preparation) -> None:
    """Quantizes a bias in units of the product of both scales."""
    node, bias, (_, slot, bias_slot) = layer.node, layer.bias, LAYER_SLOTS[layer.node.op]
    assert bias is not None
    assert bias.constant is not None
    x, w = layer.data, node.operands[slot].node.operands["x"].type.quant
    assert w is not None
    # Scales that a run computes: the rounding to multiples stays in the graph, in float.
    if x.dynamic or w.dynamic:
        dequantized = _rounded_bias(graph, layer, bias)
        reason = "its float bias is quantized by the given scales"
    else:
        rule, floats = prepared.profile.resolve(query_for_node(node)), bias.constant.data
        # The unit of the accumulator: scale of the data times scale of the weights, in float32.
        unit = np.asarray(np.float32(x.scales()) * np.asarray(w.scales(), np.float32))
        integers = _int32_like_x86(
            floats, unit, quantize_bias(floats, affine_of(x), affine_of(w), rule)
        )
        per_channel = not _is_per_tensor(w)
        quant = uniform(
            I32, unit if per_channel else unit.reshape(()), axis=0 if per_channel else None
        )
        name = graph.fresh(f"{bias.name}.codes")
        array = Array(integers, bias.type.with_element(quant), name)
        constant = graph.constant(array, name=name, before=node)
        graph.set_origins(constant.node, bias.node.origins)
        dequantized = graph.add("dequantize", {"x": constant}, before=node).result
        reason = "its float bias is quantized"
    graph.set_operand(node, bias_slot, dequantized)
    prepared.ledger.add(Change.NUDGED, prepared.name, node.name, reason, codes=0.5)


def _int32_like_x86(
    floats: NDArray[np.generic], unit: NDArray[np.float32], quantized: NDArray[np.signedinteger]
) -> NDArray[np.int32]:
    """Returns integers as int32; those beyond 32 bits become the least one, as x86-64's
    cvttss2si gives."""
    with np.errstate(all="ignore"):
        steps = floats.astype(np.float32) / unit
    return np.where(np.abs(steps) < 2.0**31, quantized, np.iinfo(np.int32).min).astype(np.int32)


def _rounded_bias(graph: Graph, layer: _FloatLayer, bias: Value) -> Value:
    """Returns a bias rounded to multiples of a product of computed scales, in float."""
    node = layer.node
    scales = [_scale_of(graph, node.operands[slot].node, node) for slot in LAYER_SLOTS[node.op][:2]]
    unit = graph.add("mul", {"a": scales[0], "b": scales[1]}, before=node).result
    steps = graph.add("div", {"a": bias, "b": unit}, before=node).result
    rounded = graph.add("round", {"x": steps}, before=node).result
    return graph.add("mul", {"a": rounded, "b": unit}, before=node).result


def _scale_of(graph: Graph, dequantize: Node, before: Node) -> Value:
    """Returns the scale of a dequantize: an operand, or a constant of the type."""
    if companion := dequantize.operands.get("x.scale"):
        return companion
    quant = dequantize.operands["x"].type.quant
    assert quant is not None
    scales = np.asarray(quant.scales(), np.float32)
    return graph.constant(Array.of(scales, ""), name=graph.fresh("scale"), before=before)
