"""The axes of a resize by name, where it leaves images and channels as they are."""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.types import Array, TensorType

RESIZES = frozenset({"resize", "resize_nearest"})


def name_axes(graph: Graph, node: Node) -> bool:
    """Names the axes after channels where none is named and the first two keep their sizes.

    Says whether it did; scales and sizes of the first two go.
    """
    if node.op not in RESIZES or node.attrs["axes"] or node.attrs["roi"] or node.schemes:
        return False
    x, made = node.operands["x"].type, node.result.type
    if x.rank < 3 or x.shape[:2] != made.shape[:2]:
        return False
    scales, sizes = node.attrs["scales"], node.operands.get("sizes")
    assert isinstance(scales, tuple)
    if sizes is not None and (sizes.constant is None or node.attrs["policy"] != "stretch"):
        return False
    if sizes is not None and None in x.shape[:2]:
        return False
    if sizes is None and scales[:2] != (1.0, 1.0):
        return False
    axes = tuple(range(2, x.rank))
    if sizes is not None and sizes.constant is not None:
        data = sizes.constant.data[2:]
        array = Array(data, TensorType(data.shape, sizes.type.element), sizes.constant.name)
        held = graph.constant(array, name=graph.fresh(sizes.name), before=node)
        graph.set_origins(held.node, sizes.node.origins)
        graph.set_operand(node, "sizes", held)
        if sizes.node.op == "constant" and not sizes.node.used:
            graph.remove(sizes.node)
    graph.set_attrs(node, axes=axes, scales=scales[2:])
    return True
