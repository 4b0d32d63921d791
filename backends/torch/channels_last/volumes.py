"""Rewrites ops whose kernel depends on the layout as ops with one more axis, which have one
kernel."""

from __future__ import annotations

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value

_DEPTH_AXIS = 1
_HEIGHT_AXIS = 2
_IMAGE_POOLS = {"avg_pool1d": "avg_pool2d", "global_avg_pool": "global_avg_pool"}
"""Pools of 3-D tensors, and their counterparts for images."""


def concat_as_volumes(graph: Graph, node: Node) -> bool:
    """Inserts an axis of size 1 into the operands of a concat of images, and removes it from the
    result.

    Returns whether the concat was rewritten.
    """
    axis, last = node.attrs["axis"], _final_quantize(node)
    if not isinstance(axis, int) or not axis % 4 or last is None:
        return False
    # [N, C, H, W] -> [N, 1, C, H, W]: torch has one concat kernel for volumes, in every layout.
    for slot, value in node.operands.items():
        graph.set_operand(node, slot, _unsqueezed(graph, value, node, _DEPTH_AXIS))
    graph.set_attrs(node, axis=axis % 4 + 1)
    # The types of all nodes up to the quantize get the axis, too.
    current = node
    while True:
        kind = current.result.type
        shape = (*kind.shape[:_DEPTH_AXIS], 1, *kind.shape[_DEPTH_AXIS:])
        graph.set_type(current.result, kind.with_shape(shape))
        if current is last:
            break
        (use,) = current.result.uses
        current = use.node
    result, name, lineage = last.result, last.result.name, last.result.lineage
    graph.rename(result, graph.fresh(f"{name}.volume"))
    squeezed = graph.add("squeeze", {"x": result}, {"axes": (_DEPTH_AXIS,)}, name=name).result
    graph.replace(result, squeezed, except_in=squeezed.node)
    graph.set_lineage(squeezed, lineage)
    return True


def mean_as_images(graph: Graph, node: Node) -> bool:
    """Rewrites a 1-D mean as one of images of height 1; returns whether a quantize directly
    follows it."""
    last = _final_quantize(node)
    if node.op not in _IMAGE_POOLS or last is None or last.operands["x"].node is not node:
        return False
    unit_values = {"kernel": (1,), "stride": (1,), "dilation": (1,), "pad": (0,)}
    attrs = {
        name: _with_unit_axis(value, unit_values.get(name)) for name, value in node.attrs.items()
    }
    x = _unsqueezed(graph, node.operands["x"], node, _HEIGHT_AXIS)
    pool = graph.add(_IMAGE_POOLS[node.op], {"x": x}, attrs, before=node, origins=node.origins)
    kind = pool.result.type.with_element(last.result.type.element)
    quantized = graph.add(
        "quantize", {"x": pool.result}, last.attrs, types=[kind], before=node, origins=last.origins
    )
    result, name, lineage = last.result, last.result.name, last.result.lineage
    graph.rename(result, graph.fresh(f"{name}.line"))
    squeezed = graph.add(
        "squeeze", {"x": quantized.result}, {"axes": (_HEIGHT_AXIS,)}, name=name, before=node
    )
    graph.replace(result, squeezed.result)
    graph.set_lineage(squeezed.result, lineage)
    graph.remove(last)
    graph.remove(node)
    return True


def _with_unit_axis(value: Attr, unit: tuple[int, ...] | None) -> Attr:
    """Returns an attribute with the value of an axis of size 1, before those of the other axis."""
    if unit is None or not isinstance(value, tuple) or not value:
        return value
    # pad has a begin and an end for each axis; the others have one number.
    half = len(value) // 2 if unit == (0,) else len(value)
    return (*unit, *value[:half], *(unit if unit == (0,) else ()), *value[half:])


def _final_quantize(node: Node) -> Node | None:
    """Returns the quantize that alone reads a concat, directly or after a relu."""
    use = node.result.only_use
    if use is not None and use.node.op == "relu":
        use = use.node.result.only_use
    if use is None or use.node.op != "quantize" or len(use.node.operands) > 1:
        return None
    quant = use.node.result.type.quant
    return use.node if quant is not None and quant.granularity is None else None


def _unsqueezed(graph: Graph, value: Value, before: Node, axis: int) -> Value:
    producer = value.node
    x = producer.operands["x"] if producer.op == "dequantize" else value
    unsqueezed = graph.add("unsqueeze", {"x": x}, {"axes": (axis,)}, before=before).result
    if producer.op != "dequantize":
        return unsqueezed
    operands = {**producer.operands, "x": unsqueezed}
    return graph.add(
        "dequantize", operands, producer.attrs, before=before, origins=producer.origins
    ).result
