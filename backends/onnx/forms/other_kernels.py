"""Converts biases and storage types of other runtimes' layers to those of onnxruntime's kernels."""

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
_FEW = 4
"""Steps that sums may move results by where losses are allowed."""


def fit(graph: Graph, ledger: Ledger, *, lossy: bool = False) -> None:
    """Splits sums of two tensors, makes biases integers in the unit of the sums, and stores data as
    u8 where signs are mixed.

    QLinearConv adds no other tensor: QLinearAdd does, where that moves results by one step at most;
    where it is more, the sum stays float unless losses are allowed.
    onnxruntime adds biases to the sums. QLinearConv and QGemm take data and make results of one
    storage; where one layer has u8 on one side and i8 on the other, all i8 data become u8.
    """
    for node in list(graph):
        if apart := saturation_note(graph, node):  # said of the storage that the kernel has
            said = f"written as float ops between quantized values{apart}"
            ledger.add(Change.APPROXIMATED, STEP, node.name, said)
            expand(graph, node)
    SplitSums(_FEW if lossy else 1).run(graph, ledger)
    StoreWeights(rescaled=True).run(graph, ledger)
    RoundBiases().run(graph, ledger)
    if any(map(_mixes, graph)):
        UnsignedData(kernels=True).run(graph, ledger)


def _mixes(node: Node) -> bool:
    """Returns whether a layer reads signed bytes and makes unsigned ones, or the other way
    round."""
    op, held = node.op, {slot: slot for slot in node.operands}
    if node.stages:
        first = node.stages[0]
        op, held = first.op, dict(zip(first.slots, first.group_slots(0), strict=True))
    traits = spec(op).traits
    if traits.weight is None or len(node.results) != 1:
        return False
    read = node.operands.get(held.get(traits.data, ""))
    quants = [v.type.quant for v in (read, node.result) if v is not None]
    return {q.storage.name for q in quants if q is not None} == {"u8", "i8"}
