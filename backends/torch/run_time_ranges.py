"""Replaces range rules of other frameworks by that of a target, for parameters a run computes."""

from __future__ import annotations

from dataclasses import replace

from qir.capability import Capability
from qir.ir.dtype import U8, dtype
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ledger import Change, Ledger

STEP = "write torch"
_TYPED = frozenset({"quantize", "dequantize"})
"""Ops that state the element type of a scale in a quantized type."""


def use_rule_of(table: Capability, graph: Graph, ledger: Ledger) -> int:
    """Makes data that are quantized per tensor to u8 while a model runs follow a target's rule.

    Its kernels of dynamic linear layers choose by no other. Returns how many nodes were changed.
    """
    rule, kind = table.dynamic.rule, dtype(table.dynamic.scale)
    choosing = [n for n in graph if n.op == "choose_qparams" and _chooses_otherwise(n, rule)]
    for node in choosing:
        old, scale = str(node.attrs["rule"]), node.results[0]
        graph.set_attrs(node, rule=rule, bounds=table.dynamic.bounds or (), scale_type=kind)
        graph.set_type(scale, scale.type.with_element(kind))
        for value in {v for user in scale.users for v in (*user.operands.values(), *user.results)}:
            _state_scale_type(graph, value, table.dynamic.scale)
        reason = f"{rule} chooses scale and zero point in the place of {old}"
        ledger.add(Change.APPROXIMATED, STEP, node.name, reason)
    return len(choosing)


def _chooses_otherwise(node: Node, rule: str) -> bool:
    """Returns whether ONNX's rule chooses, whose data a target's kernels quantize by their own."""
    attrs = node.attrs
    plain = attrs["storage"] == U8 and not (attrs["keep"] or attrs["blocks"] or attrs["symmetric"])
    readers = {user.op for result in node.results for user in result.users}
    return plain and attrs["rule"] == "onnx.dynamic" != rule and readers <= _TYPED


def _state_scale_type(graph: Graph, value: Value, kind: str) -> None:
    """Gives a quantized type the element type of the scale that is chosen."""
    quant = value.type.quant
    if quant is not None and quant.dynamic:
        scale_type = None if kind == "f32" else dtype(kind)
        graph.set_type(value, value.type.with_element(replace(quant, scale_dtype=scale_type)))
