"""The conditions under which onnxruntime's optimizer fuses a group to one kernel.

Each is a predicate of a matched chain; profiles name them in their groups.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.analysis.activations import clamps_nothing
from qir.ir.dtype import I32, U8
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.profiles.conditions import GroupCondition
from qir.rewrite.fusing import ChainMatch, is_fusible_activation


def _clamps_are_redundant(match: ChainMatch) -> bool:
    """The activations clamp nothing that the result's integers do not clamp themselves."""
    if match.result is None:
        return len(match.ops) == 1
    return all(clamps_nothing(node, match.result) for node in match.ops[1:])


def _has_quantizable_bias(match: ChainMatch) -> bool:
    """The bias is int32, or a float constant that WeightBiasQuantization would quantize."""
    bias = match.bias
    if bias is None:
        return True
    if bias.type.quant is not None:
        return bias.type.quant.storage == I32
    # `codes` are the operands of the chain's kernel, quantized, by slot.
    quant = match.operands[spec(match.anchor.op).traits.weight or ""].type.quant
    if bias.constant is None or bias.type.rank != 1 or quant is None:
        return False
    # The optimizer quantizes a bias with one scale per result channel, or one for all.
    return quant.granularity is None or np.shape(quant.scales()) == bias.type.shape


def _has_int32_bias(match: ChainMatch) -> bool:
    """The bias is int32, or absent."""
    quant = match.bias.type.quant if match.bias else None
    return match.bias is None or (quant is not None and quant.storage == I32)


def _has_matching_signs(match: ChainMatch) -> bool:
    """Signed data have signed weights: there are kernels of U8U8, U8S8 and S8S8 only."""
    traits = spec(match.anchor.op).traits
    x, w = (match.operands[s].type.quant for s in (traits.data, traits.weight or ""))
    return x is None or w is None or x.storage.kind != "int" or w.storage.kind == "int"


def _has_scales_of_one_matrix(match: ChainMatch) -> bool:
    """Several scales of a MatMul's constant weights are those of the columns of one matrix."""
    weight = match.operands.get("b")
    quant = weight.type.quant if weight is not None else None
    if weight is None or quant is None or quant.granularity is None:
        return True
    # Stacked matrices with a scale for each column stay float32, also a stack of one.
    return weight.type.rank == 2 and quant.granularity.axis == 1


def _has_unit_gain(match: ChainMatch) -> bool:
    """A Gemm with a bias has alpha = beta = 1."""
    attrs = match.anchor.attrs
    return match.bias is None or (attrs.get("alpha", 1.0), attrs.get("beta", 1.0)) == (1.0, 1.0)


def _stays_float(match: ChainMatch) -> bool:
    """No quantize reads the result, directly or after one activation that is read once."""
    consumers = _onnx_consumers(match.last.result)
    if any(node.op == "quantize" for node in consumers):
        return False
    if len(consumers) != 1 or not is_fusible_activation(consumers[0]):
        return True
    activation_result = consumers[0].result
    is_output = any(use.node.op == "output" for use in activation_result.uses)
    return is_output or len(_onnx_consumers(activation_result)) != 1


def _onnx_consumers(value: Value) -> list[Node]:
    """Returns the consumers of a value as ONNX's graph has them.

    There, one DynamicQuantizeLinear both chooses the parameters and quantizes by them.
    """
    readers = [use.node for use in value.uses if use.node.op != "output"]
    chosen = [n.results[0] for n in readers if _is_dynamic_quantize_linear(n)]
    return [n for n in readers if n.op != "quantize" or n.operands.get("scale") not in chosen]


def _is_dynamic_quantize_linear(node: Node) -> bool:
    """Returns whether a node is written as DynamicQuantizeLinear."""
    is_plain = not any(node.attrs.get(name) for name in ("symmetric", "keep", "bounds"))
    return is_plain and (node.attrs.get("rule"), node.attrs.get("storage")) == ("onnx.dynamic", U8)


CONDITIONS: Mapping[str, GroupCondition] = {
    "redundant_tail": GroupCondition(
        "the activations clamp nothing that the result's type could hold",
        _clamps_are_redundant,
        drops_activations=True,
    ),
    "bias_codes": GroupCondition(
        "the bias is quantized to i32, its scale not looked at, or a float constant of one "
        "axis, with as "
        "many elements as the weights have scales, where these have one a channel",
        _has_quantizable_bias,
    ),
    "bias_i32": GroupCondition("the bias is i32 values", _has_int32_bias),
    "signed_pair": GroupCondition("signed data meet signed weights", _has_matching_signs),
    "matrix_scales": GroupCondition(
        "weights with several scales are one matrix, with a scale for each column",
        _has_scales_of_one_matrix,
    ),
    "unit_gain_with_bias": GroupCondition(
        "with a bias, alpha and beta are 1", _has_unit_gain, of_types=False
    ),
    "left_real": GroupCondition(
        "no quantize reads the result, nor does one relu or clip, that itself is read once, read "
        "it alone",
        _stays_float,
    ),
}
"""Group conditions by the names that profiles of onnxruntime use."""
