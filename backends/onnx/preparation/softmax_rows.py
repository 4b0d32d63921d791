"""Rewrites softmax over several axes as onnxruntime computes it on quantized values."""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ledger import Change
from qir.passes.forms.group.flattened_softmax import SoftmaxNodes, match_flattened_softmax
from qir.passes.forms.group.pairs import has_one_scale
from qir.rewrite.fusing import ACTIVATIONS
from qir.rewrite.preparation import Preparation


def flattened_softmax(graph: Graph, prepared: Preparation) -> int:
    """Moves flatten and reshape around a softmax out of the QDQ region; returns how many.

    The softmax is between a dequantize and a quantize, with activations before the latter.
    """
    count = 0
    for node in list(graph):
        found = match_flattened_softmax(node) if node.op == "reshape" else None
        end = _final_quantize(found.back) if found and found.soft.op == "softmax" else None
        if found is None or end is None:
            continue
        back, quant = found.flat.operands["x"].node, end.result.type.quant
        if back.op != "dequantize" or not (
            has_one_scale(back.operands["x"].type.quant) and has_one_scale(quant)
        ):
            continue
        _move_reshapes_outward(graph, found, back, end)
        said = "softmax over several axes is over rows of quantized values"
        prepared.ledger.add(Change.EXACT, prepared.name, found.soft.name, said)
        count += 1
    return count


def _final_quantize(node: Node) -> Node | None:
    """Returns the quantize that alone reads a node, or the activations after it."""
    while True:
        use = node.result.only_use
        if use is None or use.node.stages or use.node.schemes:
            return None
        node = use.node
        if node.op not in ACTIVATIONS:
            plain = node.op == "quantize" and len(node.operands) == 1 and not node.attrs["round"]
            return node if plain else None


def _move_reshapes_outward(graph: Graph, found: SoftmaxNodes, first: Node, end: Node) -> None:
    """Moves the flatten before the dequantize, and the reshape after the quantize."""
    flat, soft, back = found.flat, found.soft, found.back
    laid = graph.add(
        "flatten", {"x": first.operands["x"]}, flat.attrs, before=soft, origins=flat.origins
    )
    real = _copied_to(graph, first, laid.result, soft)
    graph.set_operand(soft, "x", real)
    flow, node, gone = soft.result, _only_consumer(back), [end]
    while node is not end:
        flow, gone = _copied_to(graph, node, flow, end), [*gone, node]
        node = _only_consumer(node)
    codes = _copied_to(graph, end, flow, end)
    shaped = {"x": codes, "shape": back.operands["shape"]}
    kind = [end.result.type]
    made = graph.add("reshape", shaped, types=kind, before=end, origins=back.origins).result
    graph.substitute(end, made, gone=(*reversed(gone[1:]), back, flat))


def _only_consumer(node: Node) -> Node:
    use = node.result.only_use
    assert use is not None
    return use.node


def _copied_to(graph: Graph, node: Node, value: Value, before: Node) -> Value:
    """Returns the same op on another operand, with that operand's shape."""
    kind = value.type.with_element(node.result.type.element)
    made = graph.add(
        node.op,
        {"x": value},
        node.attrs,
        types=[kind],
        name=graph.fresh(f"{node.result.name}.rows"),
        before=before,
        origins=node.origins,
        profile=node.profile,
    )
    return made.result
