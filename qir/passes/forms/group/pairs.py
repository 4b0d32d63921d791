"""Inserts pairs of quantize and dequantize before grouping."""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import QuantType


def put_pair(graph: Graph, value: Value, quant: QuantType, before: Node | None = None) -> Value:
    """Adds a quantize of a value and its dequantize, and returns what the latter makes."""
    tensor_type = value.type.with_element(quant)
    name = graph.fresh(f"{value.name}.codes")
    quantize = graph.add("quantize", {"x": value}, types=[tensor_type], name=name, before=before)
    return graph.add("dequantize", {"x": quantize.result}, before=before).result


def has_one_scale(quant: QuantType | None) -> bool:
    """Returns whether a tensor has one scale and zero point, known before it is computed."""
    return quant is not None and quant.granularity is None and not quant.dynamic
