"""Quantizes the constant branch of a where, since QLinearWhere accepts integers alone."""

from __future__ import annotations

import numpy as np

from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import Array, QuantType
from qir.ledger import Change, Ledger
from qir.reference.constants import compute_constants

from .writer import STEP

_SIDES = (("a", "b"), ("b", "a"))
_QUANTIZED_BRANCH_NOTE = "the float operand is quantized by the parameters of the result"


def quantize_branches(graph: Graph, ledger: Ledger) -> None:
    """Quantizes constant branches by the type of the following quantize.

    Nothing else reads the result, so the integers stay the same.
    """
    for node in [n for n in graph if n.op == "where"]:
        quantize = _only_quantize(node)
        for slot, other in _SIDES:
            if quantize is None or _branch_type(node.operands[other], quantize) is None:
                # One side is quantized already in the storage of the result: only then the other
                # one is worth it.
                continue
            branch = _quantized_constant(graph, node, slot, quantize)
            if branch is not None:
                graph.set_operand(node, slot, branch)
                ledger.add(Change.EXACT, STEP, node.name, _QUANTIZED_BRANCH_NOTE)
                break


def _only_quantize(node: Node) -> Node | None:
    """Returns the per-tensor quantize that alone reads a where."""
    use = node.result.only_use
    if use is None or use.node.op != "quantize" or use.node.attrs["round"]:
        return None
    return use.node if _is_plain_byte_type(use.node.result.type.quant) else None


def _is_plain_byte_type(quant: QuantType | None) -> bool:
    if quant is None or quant.dynamic or quant.granularity is not None or quant.kind != "uniform":
        return False
    return quant.storage in (U8, I8) and not quant.has_float_zero and quant.plus is None


def _branch_type(value: Value, end: Node) -> QuantType | None:
    """Returns the type of the integers that the other branch dequantizes, if its storage is the
    result's."""
    quant = value.node.operands["x"].type.quant if value.node.op == "dequantize" else None
    result = end.result.type.quant
    same_storage = result is not None and quant is not None and quant.storage == result.storage
    return quant if same_storage and _is_plain_byte_type(quant) else None


def _quantized_constant(graph: Graph, node: Node, slot: str, end: Node) -> Value | None:
    """Returns a constant quantized and dequantized; None for computed values, and those with a
    NaN."""
    value = node.operands[slot]
    array = value.constant
    # A default may be replaced at run time; NaN has no integer.
    if array is None or value.node.attrs["default"] or value.type.quant is not None:
        return None
    if not value.type.dtype.is_float or np.isnan(array.data).any():
        return None
    quantized = compute_constants(end, {"x": array.data}, end.profile or graph.profile)
    if len(quantized) != 1 or not isinstance(end.result.type.element, QuantType):
        return None
    kind = value.type.with_element(end.result.type.element)
    name = graph.fresh(f"{value.name}.q")
    constant = graph.constant(Array(quantized[0], kind, name), name=name, before=node)
    graph.set_origins(constant.node, value.node.origins)
    graph.set_lineage(constant, value.lineage.then("coded"))
    name = graph.fresh(f"{value.name}.dq")
    dequantized = graph.add("dequantize", {"x": constant}, name=name, before=node).result
    graph.set_lineage(dequantized, value.lineage)
    return dequantized
