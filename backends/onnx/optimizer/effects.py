"""Records in the ledger what onnxruntime changes beyond the operators of the written model."""

from __future__ import annotations

from qir.inspect.float_sums import float_sums, float_sums_text
from qir.inspect.releases import disagreements
from qir.ir.graph import Graph
from qir.ledger import Change, Ledger

from ..preparation.low_bit_weights import rounding
from ..versions import profiles
from ..writer.writer import STEP

_LSTM = "onnx:com.microsoft.DynamicQuantizeLSTM"
_THREADS = (
    "its parts compute as DynamicQuantizeLSTM on one thread; on several, onnxruntime quantizes the "
    "state of each part of the batch by itself, and gives other numbers"
)
_LEVEL = (
    "onnxruntime's optimizer makes MatMulNBits at accuracy level 4 of it and rounds its data to "
    "8 bits a block, unless session.qdq_matmulnbits_accuracy_level is below it"
)
_SINCE = "since 1.32, "
"""Versions that make MatMulNBits of products between quantized values of 16 bits too."""
_RANGE = "is not written: ONNX has scale and zero point alone"
BYTE = 8
"""Bits of quantized values that runtimes have kernels for."""


def threads(graph: Graph, ledger: Ledger) -> None:
    """Says of layers that are about to be opened how many threads they compute as."""
    for node in graph:
        if node.op == "fused" and node.attrs.get("kernel") == _LSTM:
            ledger.add(Change.REGROUPED, STEP, node.name, _THREADS)


def level(graph: Graph, ledger: Ledger) -> None:
    """Says of which products of float data the optimizer makes one that rounds them."""
    always = rounding(graph)
    for node in rounding(graph, wide=True):
        said = _LEVEL if node in always else _SINCE + _LEVEL
        ledger.add(Change.EXACT, STEP, node.name, said)


def wide(graph: Graph, ledger: Ledger) -> None:
    """Says how many ops between integers of more than 8 bits the runtime computes in float32."""
    if sums := float_sums(graph, BYTE):
        bits = max(s.bits for s in sums)
        said = f"quantized values of {bits} bits: {float_sums_text(sums, 'the runtime')}"
        ledger.add(Change.REGROUPED, STEP, sums[0].node, said)


def releases(graph: Graph, profile: str, ledger: Ledger) -> None:
    """Says which ops on quantized values other versions of onnxruntime compute differently."""
    for found in disagreements(graph, profile, tuple(profiles())):
        ledger.add(Change.UNVERIFIED, STEP, found.node, found.said)


def ranges(graph: Graph, ledger: Ledger) -> None:
    """Says how many values' declared ranges no file of ONNX has."""
    quants = ((v.name, v.type.quant) for _, each in graph.walk() for n in each for v in n.results)
    names = [name for name, quant in quants if quant is not None and quant.declared is not None]
    if names:
        more = f", and that of {len(names) - 1} more," if len(names) > 1 else ""
        ledger.add(Change.EXACT, STEP, names[0], f"the range its type declares{more} {_RANGE}")
