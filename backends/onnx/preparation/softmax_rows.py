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
        softmax_nodes = match_flattened_softmax(node) if node.op == "reshape" else None
        quantize = (
            _final_quantize(softmax_nodes.back)
            if softmax_nodes and softmax_nodes.soft.op == "softmax"
            else None
        )
        if softmax_nodes is None or quantize is None:
            continue
        dequantize, quant = softmax_nodes.flat.operands["x"].node, quantize.result.type.quant
        if dequantize.op != "dequantize" or not (
            has_one_scale(dequantize.operands["x"].type.quant) and has_one_scale(quant)
        ):
            continue
        _move_reshapes_outward(graph, softmax_nodes, dequantize, quantize)
        reason = "softmax over several axes is over rows of quantized values"
        prepared.ledger.add(Change.EXACT, prepared.name, softmax_nodes.soft.name, reason)
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
            is_static = (
                node.op == "quantize" and len(node.operands) == 1 and not node.attrs["round"]
            )
            return node if is_static else None


def _move_reshapes_outward(
    graph: Graph, softmax_nodes: SoftmaxNodes, first: Node, quantize: Node
) -> None:
    """Moves the flatten before the dequantize, and the reshape after the quantize."""
    flat, soft, back = softmax_nodes.flat, softmax_nodes.soft, softmax_nodes.back
    flattened = graph.add(
        "flatten", {"x": first.operands["x"]}, flat.attrs, before=soft, origins=flat.origins
    )
    floats = _copied_to(graph, first, flattened.result, soft)
    graph.set_operand(soft, "x", floats)
    flow, node, removed = soft.result, _only_consumer(back), [quantize]
    # Ops between softmax and quantize are copied onto the flattened rows, one after another.
    while node is not quantize:
        flow, removed = _copied_to(graph, node, flow, quantize), [*removed, node]
        node = _only_consumer(node)
    quantized = _copied_to(graph, quantize, flow, quantize)
    reshape_operands = {"x": quantized, "shape": back.operands["shape"]}
    result_types = [quantize.result.type]
    reshaped = graph.add(
        "reshape", reshape_operands, types=result_types, before=quantize, origins=back.origins
    ).result
    # Consumers are removed before their producers.
    graph.substitute(quantize, reshaped, gone=(*reversed(removed[1:]), back, flat))


def _only_consumer(node: Node) -> Node:
    use = node.result.only_use
    assert use is not None
    return use.node


def _copied_to(graph: Graph, node: Node, value: Value, before: Node) -> Value:
    """Returns the same op on another operand, with that operand's shape."""
    kind = value.type.with_element(node.result.type.element)
    copied = graph.add(
        node.op,
        {"x": value},
        node.attrs,
        types=[kind],
        name=graph.fresh(f"{node.result.name}.rows"),
        before=before,
        origins=node.origins,
        profile=node.profile,
    )
    return copied.result
