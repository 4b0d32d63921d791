"""Widens types with narrow bounds to their whole storage type, where ONNX cannot clamp."""

from __future__ import annotations

from dataclasses import replace

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Change, Ledger
from qir.profiles import quantize_query
from qir.reference.interpreter import rules_of

from ..writer import custom
from ..writer.elements import QUANTIZABLE
from ..writer.writer import STEP
from . import qcdq


def widen_bounds(graph: Graph, ledger: Ledger) -> None:
    """Removes the bounds of integers that a quantize makes and only dequantizes read.

    Models trained with fake quantization use 0..127 for kernels that add pairs of products in 16
    bits (pmaddubsw). PyTorch drops the bounds, too, when it converts such a model.
    """
    for node in graph:
        if not _has_unsupported_bounds(node) or not _has_no_function(graph, node):
            continue
        value = node.result
        quant = value.type.quant
        assert quant is not None
        graph.set_type(value, value.type.with_element(replace(quant, bounds=None)))
        reason = (
            f"values beyond {quant.low}..{quant.high} are not clamped: ONNX uses the whole range"
        )
        ledger.add(Change.APPROXIMATED, STEP, value.name, reason)


def _has_unsupported_bounds(node: Node) -> bool:
    if node.op != "quantize" or qcdq.clip_origin(node) is not None:
        return False
    quant = node.result.type.quant
    if quant is None or not quant.bounds or quant.storage.name not in QUANTIZABLE:
        return False
    return all(use.node.op == "dequantize" for use in node.result.uses)


def _has_no_function(graph: Graph, node: Node) -> bool:
    """Returns whether no function of primitive operators quantizes as the profile does."""
    quant = node.result.type.quant
    assert quant is not None
    return bool(
        custom.unsupported_rule_reason(rules_of(graph, node).resolve(quantize_query(quant)))
    )
