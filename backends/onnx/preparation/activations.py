"""Fuses consecutive activations, as a runtime does that drops those which clamp nothing."""

from __future__ import annotations

from qir.analysis.activations import cuts_nothing, drops_tails
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Change
from qir.rewrite.fusing import TAILS
from qir.rewrite.preparation import Preparation


def join_activations(graph: Graph, prepared: Preparation) -> int:
    """Fuses two consecutive activations, if the profile's runtime drops what clamps nothing.

    A relu is folded into a following clip; the last one before a quantize is removed where it
    clamps no quantized value. Returns how many were removed.
    """
    if not drops_tails(prepared.profile):
        return 0
    count = 0
    for last in [node for node in graph if node.op in TAILS]:
        first = last.operands["x"].node
        if first.op not in TAILS or first.result.only_use is None or first.stages or last.stages:
            continue
        if first.op == "relu" and last.op == "clip":
            least = last.attrs.get("min")
            least = max(least, 0.0) if isinstance(least, float) else 0.0
            graph.set_attrs(last, **{**last.attrs, "min": least})
            graph.set_operand(last, "x", first.operands["x"])
            gone, said = first, "relu is part of the clip after it"
        elif _before_codes(last):
            graph.replace(last.result, first.result)
            gone, said = last, f"{last.op} clamps nothing, and is dropped"
        else:
            continue
        graph.remove(gone)
        prepared.ledger.add(Change.EXACT, prepared.name, gone.name, said)
        count += 1
    return count


def _before_codes(node: Node) -> bool:
    """Returns whether one quantize alone reads an activation that cuts none of its quantized
    values."""
    use = node.result.only_use
    quant = use.node.result.type.quant if use and use.node.op == "quantize" else None
    static = quant is not None and not quant.dynamic and quant.granularity is None
    return quant is not None and static and cuts_nothing(node, quant)
