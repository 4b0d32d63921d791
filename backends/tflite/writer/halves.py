"""Finds the constants that a file holds as float16, with a DEQUANTIZE before their readers."""

from __future__ import annotations

import numpy as np

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec

_AXES, _ELEMENTS = 2, 64
"""Other constants with fewer axes or elements than these gain nothing by float16."""


def constants_of_halves(graph: Graph) -> frozenset[Value]:
    """Returns the constants that lose nothing in float16 and are worth storing so.

    So are weights that were rounded to float16, or came from a file that has them so. A layer has
    both its weights and its bias in float16 or neither: XNNPACK leaves others to slower kernels.
    """
    weights = [value for node in graph for value in node.operands.values() if _is_worth(value)]
    found = {value for value in weights if _is_exact(value)}
    for node in graph:
        bias = _bias(node)
        if bias is None:
            continue
        weight = _weight(node)
        if weight in found and _is_exact(bias):
            found.add(bias)
        elif weight is not None:
            found.discard(weight)
    # A weight that is read twice may have been dropped after the bias of its first reader came in.
    layers = [(_weight(node), _bias(node)) for node in graph]
    return frozenset(found - {bias for w, bias in layers if bias is not None and w not in found})


def _weight(node: Node) -> Value | None:
    return _parameter(node, weight=True)


def _bias(node: Node) -> Value | None:
    return _parameter(node, weight=False)


def _parameter(node: Node, *, weight: bool) -> Value | None:
    """Returns the weights or the bias of a layer, or of the one that a kernel begins with."""
    first, operands = (
        (node.stages[0].op, node.stage_operands(0))
        if node.stages
        else (
            node.op,
            node.operands,
        )
    )
    traits = spec(first).traits
    return operands.get((traits.weight if weight else traits.bias) or "")


def _is_worth(value: Value) -> bool:
    array = value.constant
    if array is None or value.type.quant is not None or value.type.dtype != F32:
        return False
    return value.type.rank >= _AXES and array.contents.size >= _ELEMENTS


def _is_exact(value: Value) -> bool:
    """Returns whether float16 has each number of a constant."""
    if value.constant is None or value.type.quant is not None or value.type.dtype != F32:
        return False
    data = value.constant.data
    with np.errstate(over="ignore"):
        return bool(np.array_equal(data, data.astype(np.float16)))
