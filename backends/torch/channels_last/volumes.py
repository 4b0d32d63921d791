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
    for slot, value in node.operands.items():
        graph.set_operand(node, slot, _unsqueezed(graph, value, node, _DEPTH_AXIS))
    graph.set_attrs(node, axis=axis % 4 + 1)
    step = node
    while True:
        kind = step.result.type
        shape = (*kind.shape[:_DEPTH_AXIS], 1, *kind.shape[_DEPTH_AXIS:])
        graph.set_type(step.result, kind.with_shape(shape))
        if step is last:
            break
        (use,) = step.result.uses
        step = use.node
    made, name, lineage = last.result, last.result.name, last.result.lineage
    graph.rename(made, graph.fresh(f"{name}.volume"))
    flat = graph.add("squeeze", {"x": made}, {"axes": (_DEPTH_AXIS,)}, name=name).result
    graph.replace(made, flat, except_in=flat.node)
    graph.set_lineage(flat, lineage)
    return True


def mean_as_images(graph: Graph, node: Node) -> bool:
    """Rewrites a 1-D mean as one of images of height 1; returns whether a quantize directly
    follows it."""
    last = _final_quantize(node)
    if node.op not in _IMAGE_POOLS or last is None or last.operands["x"].node is not node:
        return False
    sides = {"kernel": (1,), "stride": (1,), "dilation": (1,), "pad": (0,)}
    attrs = {name: _with_unit_axis(held, sides.get(name)) for name, held in node.attrs.items()}
    x = _unsqueezed(graph, node.operands["x"], node, _HEIGHT_AXIS)
    pool = graph.add(_IMAGE_POOLS[node.op], {"x": x}, attrs, before=node, origins=node.origins)
    kind = pool.result.type.with_element(last.result.type.element)
    codes = graph.add(
        "quantize", {"x": pool.result}, last.attrs, types=[kind], before=node, origins=last.origins
    )
    made, name, lineage = last.result, last.result.name, last.result.lineage
    graph.rename(made, graph.fresh(f"{name}.line"))
    flat = graph.add(
        "squeeze", {"x": codes.result}, {"axes": (_HEIGHT_AXIS,)}, name=name, before=node
    )
    graph.replace(made, flat.result)
    graph.set_lineage(flat.result, lineage)
    graph.remove(last)
    graph.remove(node)
    return True


def _with_unit_axis(held: Attr, first: tuple[int, ...] | None) -> Attr:
    """Returns an attribute with the value of an axis of size 1, before those of the other axis."""
    if first is None or not isinstance(held, tuple) or not held:
        return held
    half = len(held) // 2 if first == (0,) else len(held)
    return (*first, *held[:half], *(first if first == (0,) else ()), *held[half:])


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
    back = value.node
    x = back.operands["x"] if back.op == "dequantize" else value
    made = graph.add("unsqueeze", {"x": x}, {"axes": (axis,)}, before=before).result
    if back.op != "dequantize":
        return made
    given = {**back.operands, "x": made}
    return graph.add("dequantize", given, back.attrs, before=before, origins=back.origins).result
