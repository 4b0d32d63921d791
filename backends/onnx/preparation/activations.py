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
        if first.op == "relu" and last.op == "clip":
            least = last.attrs.get("min")
            least = max(least, 0.0) if isinstance(least, float) else 0.0
            graph.set_attrs(last, **{**last.attrs, "min": least})
            graph.set_operand(last, "x", first.operands["x"])
            gone, said = first, "relu is part of the clip after it"
        elif _is_redundant_before_quantize(last):
            graph.replace(last.result, first.result)
            gone, said = last, f"{last.op} clamps nothing, and is dropped"
        else:
            continue
        graph.remove(gone)
        prepared.ledger.add(Change.EXACT, prepared.name, gone.name, said)
        count += 1
    return count


def _is_redundant_before_quantize(node: Node) -> bool:
    """Returns whether only a quantize reads an activation, and clamps as much itself."""
    use = node.result.only_use
    quant = use.node.result.type.quant if use and use.node.op == "quantize" else None
    static = quant is not None and not quant.dynamic and quant.granularity is None
    return quant is not None and static and clamps_nothing(node, quant)
