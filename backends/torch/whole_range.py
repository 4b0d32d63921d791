"""Gives quantized data the whole range of their storage, where kernels clamp them to no less."""

from __future__ import annotations

from dataclasses import replace

from qir.capability import Capability
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Change, Ledger

_CLAMPED_BY = frozenset({"relu", "clip"})
"""Functions that a kernel computes last; what is quantized is then the result of the op before."""
_READERS = frozenset({"dequantize", "output"})


def widen(graph: Graph, table: Capability, ledger: Ledger) -> None:
    """Removes bounds from all quantized data, if a kernel makes some that have bounds.

    Fake quantization of the engines x86 and fbgemm bounds data to 0..127, for kernels that add
    pairs of products in 16 bits. torch.ao's convert drops these bounds: kernels saturate at the
    ends of the storage. Bounds stay where only floats from elsewhere are quantized, which can be
    clamped.
    """
    narrow = [node for node in graph if _is_narrow(node)]
    if not any(_of_kernel(node, table) for node in narrow):
        return
    for node in narrow:
        value, quant = node.result, node.result.type.quant
        assert quant is not None
        graph.set_type(value, value.type.with_element(replace(quant, bounds=None)))
        said = (
            f"values beyond {quant.low}..{quant.high} are not clamped: PyTorch's kernels use the "
            "whole range, as after torch.ao's convert"
        )
        ledger.add(Change.APPROXIMATED, "write torch", value.name, said)


def _is_narrow(node: Node) -> bool:
    """Returns whether data are quantized to less than their storage holds, for floats to read."""
    quant = node.result.type.quant if node.op == "quantize" else None
    if (
        quant is None
        or not quant.bounds
        or quant.dynamic
        or node.operands["x"].constant is not None
    ):
        return False
    whole = (quant.low, quant.high) == quant.storage.bounds
    return not whole and all(use.node.op in _READERS for use in node.result.uses)


def _of_kernel(node: Node, table: Capability) -> bool:
    """Returns whether what is quantized is computed by an op that may be a kernel."""
    maker = node.operands["x"].node
    if maker.op in _CLAMPED_BY and maker.operands["x"].node.op != "dequantize":
        maker = maker.operands["x"].node
    reads = any(value.node.op == "dequantize" for value in maker.operands.values())
    return reads and maker.op in table.ops


__all__ = ["widen"]
