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
        quantized = _quantized_result(node) if node.op == "pad" else None
        padding = _spatial_padding(node) if quantized is not None else None
        if quantized is None or padding is None:
            continue
        readers = [d for d in quantized.users if d.op == "dequantize"]
        layers = [use for d in readers for use in d.result.uses]
        only_dequantized = len(readers) == len(quantized.users)
        if (
            only_dequantized
            and layers
            and all((u.node.op, u.slot) == (_CONVOLUTION, "x") for u in layers)
        ):
            _fuse_pad(graph, node, quantized, readers, padding)


def _quantized_result(node: Node) -> Value | None:
    """Returns the integers that are all that is read of padded data, if their zero point is 0."""
    use = node.result.only_use
    if use is None or use.node.op != "quantize":
        return None
    quant = use.node.result.type.quant
    return use.node.result if quant is not None and _has_no_zero_point(quant) else None


def _has_no_zero_point(quant: QuantType) -> bool:
    is_unusual = (
        quant.dynamic or quant.kind != "uniform" or quant.has_float_zero or quant.plus is not None
    )
    return not is_unusual and quant.granularity is None and not np.any(quant.zeros())


def _spatial_padding(node: Node) -> tuple[int, ...] | None:
    """Returns the rows and columns before and after an image; None for other padding."""
    pads, x = node.attrs["pads"], node.operands["x"]
    if node.attrs["mode"] != "constant" or node.attrs["value"] != 0 or x.type.rank != 4:
        return None
    assert isinstance(pads, tuple)
    int_pads = [p for p in pads if isinstance(p, int)]
    if len(node.operands) != 1 or len(int_pads) != 8 or min(int_pads) < 0:
        return None
    # Positions 0, 1, 4 and 5 pad batch and channels, which a convolution cannot.
    if any(int_pads[i] for i in (0, 1, 4, 5)):
        return None
    return int_pads[2], int_pads[3], int_pads[6], int_pads[7]


def _fuse_pad(
    graph: Graph, node: Node, quantized: Value, readers: list[Node], padding: tuple[int, ...]
) -> None:
    x, kind = node.operands["x"], quantized.type
    integers = x.node.operands["x"] if x.node.op == "dequantize" else None
    # Data in another type are quantized to that of the padded tensor.
    if integers is None or integers.type.quant != kind.quant:
        quantized_type = x.type.with_element(kind.quant) if kind.quant else x.type
        attrs = quantized.node.attrs
        integers = graph.add(
            "quantize", {"x": x}, attrs, types=[quantized_type], before=node
        ).result
    floats = graph.add("dequantize", {"x": integers}, before=node).result
    for reader in readers:
        for use in list(reader.result.uses):
            own_pad = use.node.attrs["pad"]
            assert isinstance(own_pad, tuple)
            total_pad = tuple(int(a) + b for a, b in zip(own_pad, padding, strict=True))  # type: ignore[arg-type]
            graph.set_operand(use.node, "x", floats)
            graph.set_attrs(use.node, pad=total_pad)
