"""Layers of rows [batch, channels, width] as layers of images of height 1, which have kernels."""

from __future__ import annotations

from collections.abc import Mapping

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import Array, QuantType
from qir.passes.forms.group.pairs import put_pair

from .kernels import is_fused_clip

_IMAGES = {"conv1d": "conv2d", "max_pool1d": "max_pool2d", "avg_pool1d": "avg_pool2d"}
_HEIGHT = 2
"""The axis that rows get."""
_NEUTRAL = {"kernel": 1, "stride": 1, "dilation": 1}


def rows_as_images(graph: Graph) -> None:
    """Computes layers of rows on images of height 1; activations and QUANTIZE go with them.

    Rows between two such layers stay images.
    """
    images: dict[Value, Value] = {}
    for node in list(graph):
        if node.op in _IMAGES and not node.stages and node in graph:
            _compute_on_image(graph, node, images)


def _compute_on_image(graph: Graph, node: Node, images: dict[Value, Value]) -> None:
    operands = {**node.operands, "x": _image(graph, node, images)}
    if "w" in operands:
        operands["w"] = _filters(graph, node, operands["w"])
    made = graph.add(
        _IMAGES[node.op],
        operands,
        _attributes(node),
        before=node,
        origins=node.origins,
        profile=node.profile,
    ).result
    last = node
    while (use := last.result.only_use) is not None and _is_fused(use.node):
        last = use.node
        made = graph.add(last.op, {"x": made}, last.attrs, before=last, origins=last.origins).result
    quantize = _quantize_after(last)
    if quantize is not None:
        quant = quantize.result.type.quant
        assert quant is not None
        made = put_pair(graph, made, quant, quantize)
    rows = graph.add("squeeze", {"x": made}, {"axes": (_HEIGHT,)}, before=quantize or last).result
    images[rows] = made
    graph.substitute(last, rows)
    graph.prune()


def _is_fused(node: Node) -> bool:
    """Returns whether kernels of layers end in an activation."""
    return node.op == "relu" or (node.op == "clip" and is_fused_clip(node))


def _quantize_after(node: Node) -> Node | None:
    use = node.result.only_use
    if use is None or use.node.op != "quantize" or use.node.result.type.quant is None:
        return None
    return None if use.node.result.type.quant.dynamic else use.node


def _attributes(node: Node) -> dict[str, Attr]:
    """Returns the attributes of a layer of rows, of images of height 1."""
    attrs: dict[str, Attr] = {}
    for name, value in node.attrs.items():
        if name == "pad":
            assert isinstance(value, tuple)
            attrs[name] = (0, value[0], 0, value[1])
        elif name in _NEUTRAL:
            assert isinstance(value, tuple)
            attrs[name] = (_NEUTRAL[name], *value)
        else:
            attrs[name] = value
    return attrs


def _image(graph: Graph, node: Node, images: dict[Value, Value]) -> Value:
    """Returns the data of a layer as an image; quantized data in their quantized type."""
    x = node.operands["x"]
    quant: QuantType | None = None
    if x.node.op == "dequantize":
        source = x.node.operands["x"]
        quant = source.type.quant
        floats = source.node.operands.get("x") if source.node.op == "quantize" else None
        if quant is not None and quant.dynamic and floats is not None:
            # The operator quantizes its data itself.
            x, quant = floats, None
        elif floats in images and quant is not None:
            held = images[floats].node.operands["x"].type.quant
            if held is not None and held.has_same_mapping(quant):
                return images[floats]
    if x in images:
        return images[x]
    made = graph.add("unsqueeze", {"x": x}, {"axes": (_HEIGHT,)}, before=node).result
    return made if quant is None else put_pair(graph, made, quant, node)


def _filters(graph: Graph, node: Node, value: Value) -> Value:
    """Returns filters [out, in, width] as [out, in, 1, width]."""
    stored = value.node.operands["x"] if value.node.op == "dequantize" else value
    array = stored.constant
    attrs: Mapping[str, Attr] = {"axes": (_HEIGHT,)}
    if array is None:
        return graph.add("unsqueeze", {"x": value}, attrs, before=node).result
    data = array.data.reshape((*array.data.shape[:2], 1, *array.data.shape[2:]))
    kind = stored.type.with_shape(data.shape)
    name = graph.fresh(f"{stored.name}.image")
    made = graph.constant(Array(data, kind, name), name=name, before=node)
    graph.set_origins(made.node, stored.node.origins)
    if stored is value:
        return made
    return graph.add("dequantize", {"x": made}, value.node.attrs, before=node).result
