"""Concat of images along an axis for which a runtime has another kernel where images lie otherwise:
said of volumes of one slice, of which there is one kernel alone."""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Node, Value

_SLICE = 1


def as_volumes(graph: Graph, node: Node) -> bool:
    """Puts an axis of one into all that a concat along the last axis joins, and takes it out of the
    codes behind it; whether there are any."""
    axis, last = node.attrs["axis"], _codes(node)
    if axis not in (3, -1) or last is None:
        return False
    for slot, value in node.operands.items():
        graph.set_operand(node, slot, _unsqueezed(graph, value, node))
    graph.set_attrs(node, axis=4)
    step = node
    while True:
        kind = step.result.type
        shape = (*kind.shape[:_SLICE], 1, *kind.shape[_SLICE:])
        graph.set_type(step.result, kind.with_shape(shape))
        if step is last:
            break
        (use,) = step.result.uses
        step = use.node
    made, name, lineage = last.result, last.result.name, last.result.lineage
    graph.rename(made, graph.fresh(f"{name}.volume"))
    flat = graph.add("squeeze", {"x": made}, {"axes": (_SLICE,)}, name=name).result
    graph.replace(made, flat, except_in=flat.node)
    graph.set_lineage(flat, lineage)
    return True


def _codes(node: Node) -> Node | None:
    """The quantize behind a concat, a relu between them or not, which alone reads it."""
    use = node.result.only_use
    if use is not None and use.node.op == "relu":
        use = use.node.result.only_use
    if use is None or use.node.op != "quantize" or len(use.node.operands) > 1:
        return None
    quant = use.node.result.type.quant
    return use.node if quant is not None and quant.grain is None else None


def _unsqueezed(graph: Graph, value: Value, before: Node) -> Value:
    back = value.node
    x = back.operands["x"] if back.op == "dequantize" else value
    made = graph.add("unsqueeze", {"x": x}, {"axes": (_SLICE,)}, before=before).result
    if back.op != "dequantize":
        return made
    given = {**back.operands, "x": made}
    return graph.add("dequantize", given, back.attrs, before=before, origins=back.origins).result
