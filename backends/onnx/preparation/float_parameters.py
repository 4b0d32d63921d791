"""Quantizes float weights and biases of integer layers, as a runtime does when it loads a model."""

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
from qir.rewrite.fusing import is_tail
from qir.rewrite.preparation import Preparation

from .unsigned_values import STEP as UNSIGNED

CODED = {
    **{f"conv{n}d": ("x", "w", "bias") for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": ("x", "w", "bias") for n in (1, 2, 3)},
    "gemm": ("a", "b", "c"),
}
"""Data, weights and bias of the ops whose float values are quantized."""


@dataclass(frozen=True)
class _Layer:
    """A layer between quantized values, all of whose float values are constants."""

    node: Node
    data: QuantType
    weights: Value
    bias: Value | None


def takes_float(profile: Profile) -> bool:
    """Returns whether the runtime of a profile quantizes float constants between quantized
    values."""
    return profile.resolve(Query("constant")).weights.given == "float"


def quantize_parameters(graph: Graph, prepared: Preparation) -> int:
    """Quantizes constants: weights by the rule of constants, biases in units of the product."""
    if not takes_float(prepared.profile):
        return 0
    count, ledger = 0, prepared.ledger
    for node in list(graph):
        layer = _layer(node)
        if layer is None:
            continue
        if said := _odd(layer):
            ledger.add(Change.UNVERIFIED, prepared.name, node.name, f"{said}: not predicted")
            continue
        if layer.weights.constant is not None:
            if layer.weights.node.attrs["default"] is True:
                prepared.default_weights.add(node)
            _code_weights(graph, layer, prepared)
            count += 1
        if layer.bias is not None:
            _code_bias(graph, layer, prepared)
            count += 1
    return count


def _layer(node: Node) -> _Layer | None:
    """Returns the layer, where a runtime quantizes its float values; None where it leaves all of
    them.

    Its data are dequantized by one scale, a quantize reads its result, its weights are constants
    or dequantized, and its bias is a row of constants, or it has none.
    """
    if node.op not in CODED or node.stages or node.schemes or not _ends_in_quantize(node):
        return None
    data, weights, bias = (node.operands.get(slot) for slot in CODED[node.op])
    if data is None or weights is None or data.node.op != "dequantize":
        return None
    quant = data.node.operands["x"].type.quant
    if quant is None or not _one(quant):
        return None
    if bias is not None and (bias.constant is None or bias.type.rank != 1):
        return None
    if any(v is not None and v.type.element != F32 for v in (data, weights, bias)):
        return None
    if weights.constant is None and not _dequantized(node, weights, bias):
        return None
    return _Layer(node, quant, weights, bias)


def _dequantized(node: Node, weights: Value, bias: Value | None) -> bool:
    """Returns whether weights are dequantized by one scale, or by as many as there are biases."""
    kind = weights.node.operands["x"].type.quant if weights.node.op == "dequantize" else None
    if kind is None or bias is None:
        return False
    if _one(kind):
        return True
    first = node.op.startswith("conv") and node.op not in TRANSPOSED_CONVOLUTIONS
    first = first or node.attrs.get("trans_b") is True
    along = 0 if first else 1
    return kind.axis == along and not kind.dynamic and _shape(kind) == bias.type.shape


def _one(quant: QuantType) -> bool:
    return quant.granularity is None or (not quant.dynamic and _shape(quant) == (1,))


def _shape(quant: QuantType) -> tuple[int, ...]:
    return np.shape(quant.scales())


def _odd(layer: _Layer) -> str:
    """Returns what is wrong with constants of which nobody makes integers; empty where nothing
    is."""
    for name, value in (("weights", layer.weights), ("biases", layer.bias)):
        held = value.constant if value is not None else None
        if held is not None and np.isnan(held.data).any():
            return f"some of its {name} are no numbers"
        if held is not None and name == "weights" and np.isinf(held.data).any():
            return "some of its weights are infinite"
    return ""


def _ends_in_quantize(node: Node) -> bool:
    """Returns whether one quantize is all that reads a node, activations before it aside."""
    while True:
        readers = [use.node for use in node.result.uses if use.node.op != "output"]
        if len(readers) != 1:
            return False
        (node,) = readers
        if not is_tail(node):
            return node.op == "quantize"


def _code_weights(graph: Graph, layer: _Layer, prepared: Preparation) -> None:
    """Quantizes weights, by one range.

    Those of a default are made at run time: signed integers that become unsigned, as others do.
    """
    node, value, profile = layer.node, layer.weights, prepared.profile
    assert value.constant is not None
    rule, reals = profile.resolve(Query("constant")), value.constant.data
    quant = map_of_weights(reals, rule)
    held = quantize(reals, affine_of(quant), rule)
    if value.node.attrs["default"] and UNSIGNED in profile.prepare:
        quant = uniform(U8, quant.scales(), np.asarray(quant.zeros()) + 128)
        held = (held.astype(np.int16) + 128).astype(np.uint8)
    codes = Array(held, value.type.with_element(quant), f"{value.name}.codes")
    coded = graph.constant(codes, name=graph.fresh(f"{value.name}.codes"), before=node)
    made = graph.add("dequantize", {"x": coded}, before=node)
    graph.set_origins(made.result.node, value.node.origins)
    graph.set_operand(node, CODED[node.op][1], made.result)
    said = "its float weights are quantized"
    prepared.ledger.add(Change.NUDGED, prepared.name, node.name, said, codes=0.5)


def map_of_weights(reals: NDArray[np.generic], rule: Rule) -> QuantType:
    """Returns the map of the integers that float weights become; zeros alone have one of a step of
    1."""
    least, most = reals.min(initial=0), reals.max(initial=0)
    low, high = I8.bounds
    scale, zero = choose(least, most if most > least else high - low, I8, rule.choose)
    return uniform(I8, np.asarray(scale), np.asarray(zero))


def _code_bias(graph: Graph, layer: _Layer, prepared: Preparation) -> None:
    """Quantizes a bias, in units of the product's scales."""
    node, bias, (_, slot, added) = layer.node, layer.bias, CODED[layer.node.op]
    assert bias is not None
    assert bias.constant is not None
    x, w = layer.data, node.operands[slot].node.operands["x"].type.quant
    assert w is not None
    if x.dynamic or w.dynamic:
        made = _rounded(graph, layer, bias)
        said = "its float bias is quantized by the given scales"
    else:
        rule, reals = prepared.profile.resolve(query_for_node(node)), bias.constant.data
        unit = np.asarray(np.float32(x.scales()) * np.asarray(w.scales(), np.float32))
        codes = _cast(reals, unit, quantize_bias(reals, affine_of(x), affine_of(w), rule))
        many = not _one(w)
        quant = uniform(I32, unit if many else unit.reshape(()), axis=0 if many else None)
        name = graph.fresh(f"{bias.name}.codes")
        array = Array(codes, bias.type.with_element(quant), name)
        coded = graph.constant(array, name=name, before=node)
        graph.set_origins(coded.node, bias.node.origins)
        made = graph.add("dequantize", {"x": coded}, before=node).result
        said = "its float bias is quantized"
    graph.set_operand(node, added, made)
    prepared.ledger.add(Change.NUDGED, prepared.name, node.name, said, codes=0.5)


def _cast(
    reals: NDArray[np.generic], unit: NDArray[np.float32], codes: NDArray[np.signedinteger]
) -> NDArray[np.int32]:
    """Quantized values of which those beyond 32 bits are the least: so x86-64 makes integers of
    floats."""
    with np.errstate(all="ignore"):
        steps = reals.astype(np.float32) / unit
    return np.where(np.abs(steps) < 2.0**31, codes, np.iinfo(np.int32).min).astype(np.int32)


def _rounded(graph: Graph, layer: _Layer, bias: Value) -> Value:
    """Returns a bias as whole multiples of a product of scales that are given, in float."""
    node = layer.node
    scales = [_scale(graph, node.operands[slot].node, node) for slot in CODED[node.op][:2]]
    unit = graph.add("mul", {"a": scales[0], "b": scales[1]}, before=node).result
    steps = graph.add("div", {"a": bias, "b": unit}, before=node).result
    whole = graph.add("round", {"x": steps}, before=node).result
    return graph.add("mul", {"a": whole, "b": unit}, before=node).result


def _scale(graph: Graph, made: Node, before: Node) -> Value:
    """Returns the scale of quantized values that are dequantized, a constant where the type says
    it."""
    if given := made.operands.get("x.scale"):
        return given
    quant = made.operands["x"].type.quant
    assert quant is not None
    held = np.asarray(quant.scales(), np.float32)
    return graph.constant(Array.of(held, ""), name=graph.fresh("scale"), before=before)
