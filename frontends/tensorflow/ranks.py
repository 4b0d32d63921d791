"""Infers the shapes of inputs that a file leaves open from the ops that consume them."""

from __future__ import annotations

from collections import deque

from .elements import shape_of
from .graphdef import GraphDefNode, GraphSource

_SHAPE_KEEPING = frozenset(
    "Identity Cast Relu Relu6 Add AddV2 Sub Mul RealDiv BiasAdd QuantizeV2".split()
)
"""Ops whose result has the rank and channels of their first operand."""
_LAYER_RANKS = {
    "Conv2D": 4,
    "DepthwiseConv2dNative": 4,
    "MatMul": 2,
    "_FusedQuantizedConv2D": 4,
    "_FusedQuantizedDepthwiseConv2D": 4,
    "_QuantizedMatMul": 2,
}
"""Layers with a constant filter as second operand, and the rank of their data."""


def inferred_shape(source: GraphSource, name: str) -> tuple[int, ...] | None:
    """Returns the shape that consumers require of an input, -1 for open sizes; None if unknown."""
    readers: dict[str, list[tuple[GraphDefNode, int]]] = {}
    for node in source.nodes.values():
        for index, (operand, _) in enumerate(node.inputs):
            readers.setdefault(operand, []).append((node, index))
    waiting, visited = deque([name]), {name}
    while waiting:
        for node, index in readers.get(waiting.popleft(), ()):
            shape = _layer_operand_shape(source, node, index)
            if shape is not None:
                return shape
            # Breadth first: the nearest layer decides.
            if node.op in _SHAPE_KEEPING and node.name not in visited:
                visited.add(node.name)
                waiting.append(node.name)
    return None


def _layer_operand_shape(
    source: GraphSource, node: GraphDefNode, index: int
) -> tuple[int, ...] | None:
    """Returns the shape of a layer's operand; its last size follows from the filter."""
    is_legacy = node.op.startswith("QuantizedConv2D") or node.op.startswith("QuantizedDepthwise")
    rank = (
        4
        if is_legacy
        else 2
        if node.op.startswith("QuantizedMatMul")
        else _LAYER_RANKS.get(node.op)
    )
    if rank is None or len(node.inputs) < 2:
        return None
    filter_node = source.nodes.get(node.inputs[1][0])
    while filter_node is not None and filter_node.op == "Identity":
        filter_node = source.nodes.get(filter_node.inputs[0][0])
    if filter_node is None or filter_node.op != "Const":
        return None
    weights = shape_of(filter_node.attrs["value"].tensor.tensor_shape)
    if weights is None or len(weights) != rank:
        return None
    is_depthwise = "Depthwise" in node.op
    output_channels = weights[-1] * weights[-2] if is_depthwise else weights[-1]
    return (*(-1,) * (rank - 1), weights[-2] if index == 0 else output_channels)
