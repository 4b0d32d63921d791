"""Rounds data to 8 bits before low-bit weights, as onnxruntime's MatMulNBits does.

onnxruntime makes MatMulNBits of a product whose weights are dequantized, and computes it at an
accuracy level that rounds the left operand, a block of the sum at a time.
"""

from __future__ import annotations

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I16, U16
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import Array, QuantType
from qir.ledger import Change
from qir.numerics import affine_of, quantize
from qir.profiles import profile, query_for_node
from qir.rewrite.fusing import ACTIVATIONS
from qir.rewrite.preparation import Preparation

from .gemms import fusible_addition

PRODUCTS = frozenset({"matmul", "gemm"})
"""Products that may become MatMulNBits."""
_STORAGES = frozenset({"i4", "u4", "i8", "u8"})
DEFAULT_BLOCK = 32
"""The block size for scales without blocks along the sum."""
SUPPORTED_BLOCKS = (16, 32, 64, 128, 256)
"""Block sizes that every version supports."""
MAX_ROUNDED_BLOCK = 256
"""At most so many data share a scale, in larger blocks of weights, too."""


def round_data(graph: Graph, prepared: Preparation) -> int:
    """Rounds the data of each product that becomes MatMulNBits; returns how many.

    Those with default weights stay: the runtime quantizes these later.
    """
    return _round_products(graph, prepared, wide=False)


def round_wide_data(graph: Graph, prepared: Preparation) -> int:
    """Rounds also the data of products between 16-bit values, and next to larger blocks; returns
    how many."""
    return _round_products(graph, prepared, wide=True)


def _round_products(graph: Graph, prepared: Preparation, *, wide: bool) -> int:
    count = 0
    for node in list(graph):
        size = None if node in prepared.default_weights else _rounding_block(node, wide=wide)
        # The writer adds a barrier after QIR's own weights next to 16-bit data: see needs_fence.
        if size is None or _has_qir_weights(node):
            continue
        graph.set_operand(node, "a", _rounded_data(graph, node, node.operands["a"], size))
        reason = f"its data are rounded to 8 bits, {size} at a time, as for weights of few bits"
        prepared.ledger.add(Change.NUDGED, prepared.name, node.name, reason, codes=0.5)
        count += 1
    return count


def rounded_products(graph: Graph, *, wide: bool = False) -> list[Node]:
    """Returns the products whose data are rounded.

    They include those that an addition turns into a gemm between reshapes, where parameters of the
    data are computed.
    """
    candidates = [
        n
        for n in graph
        if _rounding_block(n, wide=wide) is not None or _becomes_reshaped_gemm(n, wide=wide)
    ]
    return [node for node in candidates if not _has_qir_weights(node)]


def _becomes_reshaped_gemm(node: Node, *, wide: bool) -> bool:
    """Returns whether an addition turns a product into a gemm between reshapes, whose data are then
    float.

    A constant scale moves past the reshape, and the data stay quantized.
    """
    if fusible_addition(node) is None:
        return False
    a = node.operands["a"]
    quant = a.node.operands["x"].type.quant if a.node.op == "dequantize" else None
    is_computed = quant is not None and quant.dynamic
    return is_computed and a.type.rank != 2 and _weight_block(node, wide=wide) is not None


def _rounding_block(node: Node, *, wide: bool) -> int | None:
    """Returns how many data share a scale; None where the runtime does not round."""
    if node.op not in PRODUCTS or node.stages or not _has_kernel_attributes(node):
        return None
    a = node.operands["a"]
    if a.type.element != F32 or a.type.rank < 1:
        return None
    # Dequantized 8-bit data make it an integer product instead.
    if a.node.op == "dequantize" and not (wide and _has_16_bits(a.node.operands["x"])):
        return None
    return None if _is_kept_by_consumers(node, wide=wide) else _weight_block(node, wide=wide)


def needs_fence(node: Node) -> bool:
    """Returns whether data of 16 bits would be rounded unless the writer adds a barrier after
    the weights."""
    return (
        node.op in PRODUCTS
        and _has_qir_weights(node)
        and _rounding_block(node, wide=True) is not None
    )


def _has_qir_weights(node: Node) -> bool:
    """Returns whether a product has data of 16 bits, and weights that QIR quantized.

    Those of a source file are written as they were.
    """
    a, w = node.operands["a"].node, node.operands["b"].node
    has_wide_data = a.op == "dequantize" and _has_16_bits(a.operands["x"])
    return has_wide_data and w.op == "dequantize" and not w.origins


def _has_16_bits(value: Value) -> bool:
    quant = value.type.quant
    return quant is not None and quant.storage in (I16, U16)


def _weight_block(node: Node, *, wide: bool) -> int | None:
    """Returns how many values share a scale in a product's weights; None for other weights."""
    w = node.operands["b"].node
    if w.op != "dequantize" or w.result.only_use is None or len(w.operands) > 1:
        return None
    array = w.operands["x"].constant
    if array is None or array.contents.ndim != 2:
        return None
    quant = array.type.quant
    assert quant is not None
    is_uniform = quant.kind == "uniform" and quant.plus is None and not quant.has_float_zero
    if not is_uniform or quant.express != F32 or quant.storage.name not in _STORAGES:
        return None
    return _block_size(quant, wide=wide)


def _is_kept_by_consumers(node: Node, *, wide: bool) -> bool:
    """Returns whether the consumers of a product prevent the fusion to MatMulNBits.

    A quantize does, also after an activation that is read once. With `wide`, quantizes to 16 bits
    do not. An addition that is fused with the product is followed to its own consumers.
    """
    fused = fusible_addition(node)
    if fused is not None and not _is_column_vector(fused[1], node):
        return True
    result = node.result if fused is None else fused[0].result
    readers = [user for user in result.users if user.op != "output"]
    is_output = len(readers) < len(result.users)
    quantizes = [reader for reader in readers if reader.op == "quantize"]
    if fused is not None and node.operands["a"].type.rank != 2:
        if is_output or quantizes != readers or len(quantizes) != 1:
            return False  # a reshape reads the gemm, and stays before these
    elif len(readers) == 1 and _is_activation(readers[0]):
        last = readers[0].result.only_use
        if last is None or last.node.op == "output":
            return False
        if last.node.op != "quantize" or _clamps_values(readers[0], last.node):
            return True
        quantizes = readers = [last.node]
    if not quantizes:
        return False
    return (
        not wide
        or is_output
        or quantizes != readers
        or not all(_has_16_bits(q.result) for q in quantizes)
    )


def _is_activation(node: Node) -> bool:
    """Returns whether a node is an activation, also a foreign one, whose bounds are computed."""
    name = str(node.attrs["op"]).lower() if node.op == "foreign" else node.op
    return name in ACTIVATIONS


def _clamps_values(activation: Node, node: Node) -> bool:
    """Returns whether an activation clamps floats that a quantize has integers for."""
    quant = node.result.type.quant
    if (
        activation.op == "foreign"
        or quant is None
        or quant.dynamic
        or quant.granularity is not None
    ):
        return True
    ends = (
        (0.0, None)
        if activation.op == "relu"
        else (activation.attrs.get("min"), activation.attrs.get("max"))
    )
    clamps = zip(ends, (quant.low, quant.high), strict=True)
    # Which integers the activation's bounds become decides whether it clamps any of them.
    rule = profile("native").resolve(query_for_node(node))
    return any(
        isinstance(end, float)
        and quantize(np.asarray([end], np.float32), affine_of(quant), rule)[0] != integer
        for end, integer in clamps
    )


def _has_kernel_attributes(node: Node) -> bool:
    """Returns whether the kernel supports a product: not transposed, unscaled, one bias per
    column."""
    attrs = node.attrs
    if attrs.get("trans_a") is True or attrs.get("trans_b") is True:
        return False
    if (attrs.get("alpha", 1.0), attrs.get("beta", 1.0)) != (1.0, 1.0):
        return False
    bias = node.operands.get("c") or node.operands.get("bias")
    return bias is None or _is_column_vector(bias, node)


def _is_column_vector(value: Value, node: Node) -> bool:
    """Returns whether a value has one element for each column of a product."""
    return value.type.shape == node.operands["b"].type.shape[-1:]


def _block_size(quant: QuantType, *, wide: bool) -> int | None:
    if quant.granularity is None:
        return DEFAULT_BLOCK
    blocks = dict(quant.granularity.blocks)
    if quant.granularity.by is not None or blocks.get(1) != 1:
        return None
    size = blocks.get(0, DEFAULT_BLOCK)
    # Larger blocks of a power of two are processed in pieces of 256, which share the weights'
    # scale.
    if wide and size > MAX_ROUNDED_BLOCK and size.bit_count() == 1:
        return MAX_ROUNDED_BLOCK
    return size if size in SUPPORTED_BLOCKS else None


def _rounded_data(graph: Graph, node: Node, a: Value, size: int) -> Value:
    """Returns data rounded to integers of 8 bits, whose absolute maximum in each block is 127."""

    def op(name: str, attrs: dict[str, Attr] | None = None, **operands: Value) -> Value:
        return graph.add(name, operands, attrs, before=node, origins=node.origins).result

    def number(value: object, kind: type[np.generic] = np.float32) -> Value:
        name = graph.fresh(f"{node.name}.rounding")
        return graph.constant(Array.of(np.asarray(value, kind), name), name=name, before=node)

    depth = node.operands["b"].type.shape[0]
    assert isinstance(depth, int)
    rank, count = a.type.rank, -(-depth // size)
    padded_depth, leading = count * size, [0] * (a.type.rank - 1)
    # The last block is filled with zeros up to its size, which change no maximum.
    if padded_depth > depth:
        a = op("pad", {"pads": (0,) * (2 * rank - 1) + (padded_depth - depth,)}, x=a)
    blocks = op("reshape", x=a, shape=number([*leading, count, size], np.int64))
    maxima = op("reduce_max", {"axes": (rank,), "keep": True}, x=op("abs", x=blocks))
    # A block of zeros has no scale: its gain is 0 and not infinite.
    is_zero = op("equal", a=maxima, b=number(0.0))
    gain = op("div", a=number(127.0), b=maxima)
    gain = op("where", condition=is_zero, a=number(0.0), b=gain)
    rounded = op("round", x=op("mul", a=blocks, b=gain))
    # Quantize x * (127 / max), dequantize with max * (1 / 127): both factors rounded to float32.
    scale = op("mul", a=maxima, b=number(np.float32(1) / np.float32(127)))
    restored = op("mul", a=rounded, b=scale)
    restored = op("reshape", x=restored, shape=number([*leading, padded_depth], np.int64))
    if padded_depth == depth:
        return restored
    slice_attrs: dict[str, Attr] = {
        "starts": (0,),
        "ends": (depth,),
        "axes": (rank - 1,),
        "steps": (1,),
    }
    return op("slice", slice_attrs, x=restored)
