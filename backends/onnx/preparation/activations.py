"""Merges consecutive activations, as ClipQuantFusion and similar optimizer passes of onnxruntime
do."""

from __future__ import annotations

from qir.analysis.activations import clamps_nothing, drops_unclamping_activations
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Change
from qir.rewrite.fusing import ACTIVATIONS
from qir.rewrite.preparation import Preparation


def join_activations(graph: Graph, prepared: Preparation) -> int:
    """Merges two consecutive activations, if the profile's runtime drops those that clamp nothing.

    A relu is merged into a following clip. One before a quantize is removed if it clamps no
    integer. Returns how many were removed.
    """
    if not drops_unclamping_activations(prepared.profile):
        return 0
    count = 0
    for last in [node for node in graph if node.op in ACTIVATIONS]:
        first = last.operands["x"].node
        if (
            first.op not in ACTIVATIONS
            or first.result.only_use is None
            or first.stages
            or last.stages
        ):
            continue
        # clip(relu(x), low, high) = clip(x, max(low, 0), high)
        if first.op == "relu" and last.op == "clip":
            lower = last.attrs.get("min")
            lower = max(lower, 0.0) if isinstance(lower, float) else 0.0
            graph.set_attrs(last, **{**last.attrs, "min": lower})
            graph.set_operand(last, "x", first.operands["x"])
            removed, reason = first, "relu is part of the clip after it"
        elif _is_redundant_before_quantize(last):
            graph.replace(last.result, first.result)
            removed, reason = last, f"{last.op} clamps nothing, and is dropped"
        else:
            continue
        graph.remove(removed)
        prepared.ledger.add(Change.EXACT, prepared.name, removed.name, reason)
        count += 1
    return count


def _is_redundant_before_quantize(node: Node) -> bool:
    """Returns whether only a quantize reads an activation, and clamps as much itself."""
    use = node.result.only_use
    quant = use.node.result.type.quant if use and use.node.op == "quantize" else None
    static = quant is not None and not quant.dynamic and quant.granularity is None
    return quant is not None and static and clamps_nothing(node, quant)
