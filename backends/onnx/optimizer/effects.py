"""Reports in the ledger what onnxruntime changes beyond the operators of the written model."""

from __future__ import annotations

from qir.inspect.float_sums import float_sums, float_sums_text
from qir.inspect.releases import disagreements
from qir.ir.graph import Graph
from qir.ledger import Change, Ledger

from ..preparation.low_bit_weights import rounded_products
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
BYTE_BITS = 8
"""Runtimes have integer kernels for quantized values of 8 bits only."""


def report_threads(graph: Graph, ledger: Ledger) -> None:
    """Reports that opened LSTM groups compute as DynamicQuantizeLSTM does on one thread."""
    for node in graph:
        if node.op == "fused" and node.attrs.get("kernel") == _LSTM:
            ledger.add(Change.REGROUPED, STEP, node.name, _THREADS)


def report_accuracy_levels(graph: Graph, ledger: Ledger) -> None:
    """Reports the products of float data that the optimizer makes MatMulNBits, which rounds the
    data."""
    # Products that the older versions round are among those of newer ones.
    always = rounded_products(graph)
    for node in rounded_products(graph, wide=True):
        reason = _LEVEL if node in always else _SINCE + _LEVEL
        ledger.add(Change.EXACT, STEP, node.name, reason)


def report_wide_ops(graph: Graph, ledger: Ledger) -> None:
    """Reports how many ops on integers of more than 8 bits the runtime computes in float32."""
    if sums := float_sums(graph, BYTE_BITS):
        bits = max(s.bits for s in sums)
        reason = f"quantized values of {bits} bits: {float_sums_text(sums, 'the runtime')}"
        ledger.add(Change.REGROUPED, STEP, sums[0].node, reason)


def report_releases(graph: Graph, profile: str, ledger: Ledger) -> None:
    """Reports the quantized ops that other versions of onnxruntime compute differently."""
    for difference in disagreements(graph, profile, tuple(profiles())):
        ledger.add(Change.UNVERIFIED, STEP, difference.node, difference.warning)


def report_declared_ranges(graph: Graph, ledger: Ledger) -> None:
    """Reports how many declared ranges are lost: ONNX has scale and zero point alone."""
    quants = ((v.name, v.type.quant) for _, each in graph.walk() for n in each for v in n.results)
    names = [name for name, quant in quants if quant is not None and quant.declared is not None]
    if names:
        others = f", and that of {len(names) - 1} more," if len(names) > 1 else ""
        ledger.add(Change.EXACT, STEP, names[0], f"the range its type declares{others} {_RANGE}")
