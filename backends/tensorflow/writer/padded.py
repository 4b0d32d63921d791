"""Fuses padding before a quantized convolution into the convolution.

Frameworks pad images in a layer of their own, as Keras does before strides. TensorFlow has no pad
of quantized data, which would therefore be computed in float. Convolution kernels pad by the
integer 0, which means the float 0 if there is no zero point.
"""

from __future__ import annotations

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import QuantType

_CONVOLUTION = "conv2d"


def fuse_pads(graph: Graph) -> None:
    """Moves padding with zeros into the convolutions that alone read it, in QDQ form."""
    for node in list(graph):
        coded = _quantized_result(node) if node.op == "pad" else None
        sides = _spatial_padding(node) if coded is not None else None
        if coded is None or sides is None:
            continue
        readers = [d for d in coded.users if d.op == "dequantize"]
        layers = [use for d in readers for use in d.result.uses]
        plain = len(readers) == len(coded.users)
        if plain and layers and all((u.node.op, u.slot) == (_CONVOLUTION, "x") for u in layers):
            _fuse_pad(graph, node, coded, readers, sides)


def _quantized_result(node: Node) -> Value | None:
    """Returns the integers that are all that is read of padded data, if their zero point is 0."""
    use = node.result.only_use
    if use is None or use.node.op != "quantize":
        return None
    quant = use.node.result.type.quant
    return use.node.result if quant is not None and _has_no_zero_point(quant) else None


def _has_no_zero_point(quant: QuantType) -> bool:
    odd = quant.dynamic or quant.kind != "uniform" or quant.has_float_zero or quant.plus is not None
    return not odd and quant.granularity is None and not np.any(quant.zeros())


def _spatial_padding(node: Node) -> tuple[int, ...] | None:
    """Returns the rows and columns before and after an image; None for other padding."""
    pads, x = node.attrs["pads"], node.operands["x"]
    if node.attrs["mode"] != "constant" or node.attrs["value"] != 0 or x.type.rank != 4:
        return None
    assert isinstance(pads, tuple)
    whole = [p for p in pads if isinstance(p, int)]
    if len(node.operands) != 1 or len(whole) != 8 or min(whole) < 0:
        return None
    if any(whole[i] for i in (0, 1, 4, 5)):
        return None
    return whole[2], whole[3], whole[6], whole[7]


def _fuse_pad(
    graph: Graph, node: Node, coded: Value, readers: list[Node], sides: tuple[int, ...]
) -> None:
    x, kind = node.operands["x"], coded.type
    held = x.node.operands["x"] if x.node.op == "dequantize" else None
    if held is None or held.type.quant != kind.quant:
        type_ = x.type.with_element(kind.quant) if kind.quant else x.type
        attrs = coded.node.attrs
        held = graph.add("quantize", {"x": x}, attrs, types=[type_], before=node).result
    floats = graph.add("dequantize", {"x": held}, before=node).result
    for reader in readers:
        for use in list(reader.result.uses):
            own = use.node.attrs["pad"]
            assert isinstance(own, tuple)
            more = tuple(int(a) + b for a, b in zip(own, sides, strict=True))  # type: ignore[arg-type]
            graph.set_operand(use.node, "x", floats)
            graph.set_attrs(use.node, pad=more)
