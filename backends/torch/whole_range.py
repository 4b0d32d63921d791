"""Widens bounded integers to their whole storage, where kernels clamp to the storage only."""

from __future__ import annotations

from dataclasses import replace

from qir.capability import Capability
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Change, Ledger
from qir.rewrite.fusing import ACTIVATIONS

_FLOAT_CONSUMERS = frozenset({"dequantize", "output"})


def widen_bounds(graph: Graph, table: Capability, ledger: Ledger) -> None:
    """Removes the bounds of all quantized data, if a kernel makes some of these.

    Fake quantization of the engines x86 and fbgemm bounds data to 0..127, for kernels that add
    pairs of products in 16 bits. torch.ao's convert drops these bounds: the kernels saturate at the
    ends of the storage. Bounds stay if only float ops make the data: aten.clamp can apply them.
    """
    narrow = [node for node in graph if _has_bounds(node)]
    if not any(_is_from_kernel(node, table) for node in narrow):
        return
    for node in narrow:
        value, quant = node.result, node.result.type.quant
        assert quant is not None
        graph.set_type(value, value.type.with_element(replace(quant, bounds=None)))
        reason = (
            f"values beyond {quant.low}..{quant.high} are not clamped: PyTorch's kernels use the "
            "whole range, as after torch.ao's convert"
        )
        ledger.add(Change.APPROXIMATED, "write torch", value.name, reason)


def _has_bounds(node: Node) -> bool:
    """Returns whether a quantize has narrower bounds than its storage, and only floats are read
    from it."""
    quant = node.result.type.quant if node.op == "quantize" else None
    if (
        quant is None
        or not quant.bounds
        or quant.dynamic
        or node.operands["x"].constant is not None
    ):
        return False
    is_full_range = (quant.low, quant.high) == quant.storage.bounds
    return not is_full_range and all(use.node.op in _FLOAT_CONSUMERS for use in node.result.uses)


def _is_from_kernel(node: Node, table: Capability) -> bool:
    """Returns whether the quantized value is computed by an op that may be a kernel."""
    producer = node.operands["x"].node
    # An activation may be fused to the op before it, which then is the kernel.
    if producer.op in ACTIVATIONS and producer.operands["x"].node.op != "dequantize":
        producer = producer.operands["x"].node
    reads_quantized = any(value.node.op == "dequantize" for value in producer.operands.values())
    return reads_quantized and producer.op in table.ops


__all__ = ["widen_bounds"]
