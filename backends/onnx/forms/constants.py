"""Quantizes constants to types that QuantizeLinear lacks: ONNX holds the integers themselves."""

from __future__ import annotations

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.types import Array
from qir.ledger import Change, Ledger
from qir.reference.constants import compute_constants
from qir.reference.interpreter import profile_name_of

from ..writer import custom
from ..writer.writer import STEP
from . import qcdq

_QUANTIZED_NOTE = "quantized when written: QuantizeLinear has no such type"


def quantize_constants(graph: Graph, ledger: Ledger) -> int:
    """Replaces the quantize of a constant by its integers, where QuantizeLinear lacks the type.

    Weights of fake quantization leave out the lowest integer, for example, and QuantizeLinear
    cannot. onnxruntime would inline a function for it, fold it to float, and quantize that with a
    scale of its own.
    """
    count = sum(
        _quantize_constant(graph, node, ledger)
        for node in list(graph)
        if _needs_function_to_quantize(node)
    )
    if count:
        graph.prune()
    return count


def _needs_function_to_quantize(node: Node) -> bool:
    """Returns whether a constant's quantize needs a function, while DequantizeLinear reads the
    result."""
    if node.op != "quantize" or node.operands["x"].constant is None or len(node.operands) > 1:
        return False
    kind = node.result.type
    quant = kind.quant
    if (
        quant is None
        or qcdq.clip_origin(node) is not None
        or node.operands["x"].type.quant is not None
    ):
        return False
    quantize_unsupported, dequantize_unsupported = (
        custom.needs_function(quant, kind.shape, constant=is_constant)
        for is_constant in (False, True)
    )
    return quantize_unsupported and not dequantize_unsupported


def _quantize_constant(graph: Graph, node: Node, ledger: Ledger) -> bool:
    """Replaces one quantize by its integers; returns whether the reference could compute them."""
    constant, old = node.operands["x"].constant, node.result
    assert constant is not None
    results = compute_constants(node, {"x": constant.data}, profile_name_of(graph, node))
    if not results:
        return False
    name = old.name
    # The old value gives its name up, so that the integers have the name of the source's tensor.
    graph.rename(old, graph.fresh(f"{name}.made"))
    array = Array(np.ascontiguousarray(results[0]), old.type, name)
    quantized = graph.constant(array, name=name, before=node)
    graph.set_origins(quantized.node, node.origins)
    graph.set_lineage(quantized, old.lineage)
    graph.replace(old, quantized)
    ledger.add(Change.EXACT, STEP, name, _QUANTIZED_NOTE)
    return True
