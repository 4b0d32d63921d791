"""Conditions that onnxruntime's optimizer puts on the groups it makes kernels of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.analysis.activations import cuts_nothing
from qir.ir.dtype import I32, U8
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.profiles.conditions import GroupCondition
from qir.rewrite.fusing import ChainMatch, is_tail


def _redundant_tail(match: ChainMatch) -> bool:
    if match.result is None:
        return len(match.ops) == 1
    return all(cuts_nothing(node, match.result) for node in match.ops[1:])


def _bias_codes(match: ChainMatch) -> bool:
    bias = match.bias
    if bias is None:
        return True
    if bias.type.quant is not None:
        return bias.type.quant.storage == I32
    quant = match.codes[spec(match.head.op).traits.weight or ""].type.quant
    if bias.constant is None or bias.type.rank != 1 or quant is None:
        return False
    return quant.granularity is None or np.shape(quant.scales()) == bias.type.shape


def _bias_i32(match: ChainMatch) -> bool:
    quant = match.bias.type.quant if match.bias else None
    return match.bias is None or (quant is not None and quant.storage == I32)


def _signed_pair(match: ChainMatch) -> bool:
    traits = spec(match.head.op).traits
    x, w = (match.codes[s].type.quant for s in (traits.data, traits.weight or ""))
    return x is None or w is None or x.storage.kind != "int" or w.storage.kind == "int"


def _unit_gain(match: ChainMatch) -> bool:
    attrs = match.head.attrs
    return match.bias is None or (attrs.get("alpha", 1.0), attrs.get("beta", 1.0)) == (1.0, 1.0)


def _left_real(match: ChainMatch) -> bool:
    readers = _readers(match.last.result)
    if any(node.op == "quantize" for node in readers):
        return False
    if len(readers) != 1 or not is_tail(readers[0]):
        return True
    behind = readers[0].result
    shown = any(use.node.op == "output" for use in behind.uses)
    return shown or len(_readers(behind)) != 1


def _readers(value: Value) -> list[Node]:
    """Returns the readers of a value in an ONNX graph.

    There, one DynamicQuantizeLinear is both the op that chooses scale and zero point and the
    quantize that takes them.
    """
    readers = [use.node for use in value.uses if use.node.op != "output"]
    chosen = [n.results[0] for n in readers if _chooses_parameters(n)]
    return [n for n in readers if n.op != "quantize" or n.operands.get("scale") not in chosen]


def _chooses_parameters(node: Node) -> bool:
    plain = not any(node.attrs.get(name) for name in ("symmetric", "keep", "bounds"))
    return plain and (node.attrs.get("rule"), node.attrs.get("storage")) == ("onnx.dynamic", U8)


CONDITIONS: Mapping[str, GroupCondition] = {
    "redundant_tail": GroupCondition(
        "the activations clamp nothing that the result's type could hold",
        _redundant_tail,
        drops_activations=True,
    ),
    "bias_codes": GroupCondition(
        "the bias is quantized to i32, its scale not looked at, or a float constant of one "
        "axis, with as "
        "many elements as the weights have scales, where these have one a channel",
        _bias_codes,
    ),
    "bias_i32": GroupCondition("the bias is i32 values", _bias_i32),
    "signed_pair": GroupCondition("signed data meet signed weights", _signed_pair),
    "unit_gain_with_bias": GroupCondition(
        "with a bias, alpha and beta are 1", _unit_gain, of_types=False
    ),
    "left_real": GroupCondition(
        "no quantize reads the result, nor does one relu or clip, that itself is read once, read "
        "it alone",
        _left_real,
    ),
}
"""The conditions that profiles of onnxruntime name."""
