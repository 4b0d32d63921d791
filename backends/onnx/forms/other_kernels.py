"""Adapts layers made for other runtimes to the kernels of onnxruntime."""

from __future__ import annotations

from qir.analysis.summand_storage import saturation_note
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ledger import Change, Ledger
from qir.passes.forms.expand_qdq import expand
from qir.passes.forms.round_biases import RoundBiases
from qir.passes.forms.split_sums import SplitSums
from qir.passes.forms.store_weights import StoreWeights
from qir.passes.forms.unsigned_data import UnsignedData

STEP = "onnx forms"
MAX_LOSSY_STEPS = 4
"""Quantization steps by which a split sum may move results, where losses are allowed."""


def fit_kernels(graph: Graph, ledger: Ledger, *, lossy: bool = False) -> None:
    """Adapts layers to QLinearConv and QGemm.

    QLinearConv adds no other tensor. QLinearAdd does, if that moves results by one step at most;
    otherwise the sum stays float unless losses are allowed.

    Biases become int32 in units of the sums. Data and results of a layer get one storage: where one
    is u8 and the other i8, all i8 data become u8.
    """
    for node in list(graph):
        if overflow := saturation_note(graph, node):  # said of the storage that the kernel has
            reason = f"written as float ops between quantized values{overflow}"
            ledger.add(Change.APPROXIMATED, STEP, node.name, reason)
            expand(graph, node)
    # Order: sums are split first, as a layer that adds a tensor has no int32 bias to round.
    SplitSums(MAX_LOSSY_STEPS if lossy else 1).run(graph, ledger)
    StoreWeights(rescaled=True).run(graph, ledger)
    RoundBiases().run(graph, ledger)
    if any(map(_has_mixed_signs, graph)):
        UnsignedData(kernels=True).run(graph, ledger)


def _has_mixed_signs(node: Node) -> bool:
    """Returns whether a layer reads i8 and makes u8, or the reverse."""
    op, slot_map = node.op, {slot: slot for slot in node.operands}
    if node.stages:
        first = node.stages[0]
        op, slot_map = first.op, dict(zip(first.slots, first.group_slots(0), strict=True))
    traits = spec(op).traits
    if traits.weight is None or len(node.results) != 1:
        return False
    data = node.operands.get(slot_map.get(traits.data, ""))
    quants = [v.type.quant for v in (data, node.result) if v is not None]
    return {q.storage.name for q in quants if q is not None} == {"u8", "i8"}
