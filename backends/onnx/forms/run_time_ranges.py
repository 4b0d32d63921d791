"""Replaces scale rules of other frameworks by ONNX's, for parameters that a run computes."""

from __future__ import annotations

from dataclasses import replace

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.layers import RECURRENT_OPS
from qir.ir.types import QuantType
from qir.ledger import Change, Ledger
from qir.numerics.scale_rules import scale_rule

from ..writer.chosen_ops import RULES_BY_OPERATORS
from ..writer.writer import STEP

_ONNX_RULE = "onnx.dynamic"


def use_onnx_rule(graph: Graph, ledger: Ledger) -> int:
    """Replaces the scale rule of per-tensor u8 quantization by that of DynamicQuantizeLinear.

    Recurrent states that are quantized in each step stay float: no ONNX operator quantizes them.
    Returns how many nodes were changed.
    """
    return sum(
        _use_onnx_rule(graph, node, ledger) or _keep_state_float(graph, node, ledger)
        for node in list(graph)
    )


def _use_onnx_rule(graph: Graph, node: Node, ledger: Ledger) -> bool:
    """Replaces the rule of one node, unless primitive operators can compute it."""
    attrs, rule = node.attrs, str(node.attrs.get("rule", ""))
    # Rules that primitive operators compute stay as they are, at the cost of more nodes.
    if node.op != "choose_qparams" or rule in ("profile", *RULES_BY_OPERATORS):
        return False
    if scale_rule(rule).function is None:
        return False
    if str(attrs["storage"]) != "u8" or attrs["keep"] or attrs["symmetric"] is True:
        return False
    scale = node.results[0]
    reason = f"{_ONNX_RULE} chooses scale and zero point in the place of {rule}"
    graph.set_attrs(node, rule=_ONNX_RULE, bounds=(), scale_type=F32)
    graph.set_type(scale, scale.type.with_element(F32))
    # Types that named another scale type must agree with the float32 scale.
    for user in scale.users:
        for value in (*user.operands.values(), *user.results):
            _set_scale_type_f32(graph, value)
    ledger.add(Change.APPROXIMATED, STEP, node.name, reason)
    return True


def _set_scale_type_f32(graph: Graph, value: Value) -> None:
    """Makes a type's scale float32, as DynamicQuantizeLinear gives it."""
    quant = value.type.quant
    if isinstance(quant, QuantType) and quant.dynamic and quant.scale_dtype is not None:
        graph.set_type(value, value.type.with_element(replace(quant, scale_dtype=None)))


def _keep_state_float(graph: Graph, node: Node, ledger: Ledger) -> bool:
    """Removes the dynamic types of a recurrent layer's state."""
    inner = dict(node.inner)
    if node.op not in RECURRENT_OPS or not inner:
        return False
    if not all(isinstance(kind, QuantType) and kind.dynamic for kind in inner.values()):
        return False
    for slot in inner:
        graph.set_inner(node, slot, None)
    reason = f"ONNX's {node.op.upper()} does not quantize its state in each step: it stays float"
    ledger.add(Change.APPROXIMATED, STEP, node.name, reason)
    return True
