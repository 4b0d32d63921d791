"""Rounds data to eight bits before blockwise low-bit weights, as a runtime does.

onnxruntime makes MatMulNBits of a product whose weights are dequantized, and computes it at an
accuracy level that rounds the left side, a block of the sum at a time.
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
from qir.rewrite.fusing import TAILS
from qir.rewrite.preparation import Preparation

from .gemms import joined

PRODUCTS = frozenset({"matmul", "gemm"})
_STORAGES = frozenset({"i4", "u4", "i8", "u8"})
_USUAL = 32
"""The block where the scales have none along the sum."""
_SIZES = (16, 32, 64, 128, 256)
"""The blocks that every version takes."""
_MOST = 256
"""The data that share a scale at most, in larger blocks of weights too."""


def round_data(graph: Graph, prepared: Preparation) -> int:
    """Rounds the data of each such product but those with default weights, whose quantized values
    the runtime makes later; returns how many there are."""
    return _round(graph, prepared, wide=False)


def round_wide_data(graph: Graph, prepared: Preparation) -> int:
    """Rounds also the data of products between quantized values of 16 bits, and next to larger
    blocks; returns how many there are."""
    return _round(graph, prepared, wide=True)


def _round(graph: Graph, prepared: Preparation, *, wide: bool) -> int:
    count = 0
    for node in list(graph):
        size = None if node in prepared.default_weights else _block(node, wide=wide)
        if size is None or _quantized_here(node):
            continue
        graph.set_operand(node, "a", _rounded(graph, node, node.operands["a"], size))
        said = f"its data are rounded to 8 bits, {size} at a time, as for weights of few bits"
        prepared.ledger.add(Change.NUDGED, prepared.name, node.name, said, codes=0.5)
        count += 1
    return count


def rounding(graph: Graph, *, wide: bool = False) -> list[Node]:
    """The products whose data are rounded so, those among them that are joined with what is added
    between reshapes, where numbers of the data are computed."""
    found = [n for n in graph if _block(n, wide=wide) is not None or _reshaped(n, wide=wide)]
    return [node for node in found if not _quantized_here(node)]


def _reshaped(node: Node, *, wide: bool) -> bool:
    """Returns whether an addition makes of a product one between reshapes, whose data are float
    then.

    Scales that are constants go after a reshape, and data have quantized values there too.
    """
    if joined(node) is None:
        return False
    a = node.operands["a"]
    quant = a.node.operands["x"].type.quant if a.node.op == "dequantize" else None
    computed = quant is not None and quant.dynamic
    return computed and a.type.rank != 2 and _beside(node, wide=wide) is not None


def _block(node: Node, *, wide: bool) -> int | None:
    """Returns how many numbers of the data share a scale; None where the runtime rounds none."""
    if node.op not in PRODUCTS or node.stages or not _plain(node):
        return None
    a = node.operands["a"]
    if a.type.element != F32 or a.type.rank < 1:
        return None
    if a.node.op == "dequantize" and not (wide and _of_16_bits(a.node.operands["x"])):
        return None
    return None if _kept(node, wide=wide) else _beside(node, wide=wide)


def needs_fence(node: Node) -> bool:
    """Returns whether data of 16 bits would be rounded unless the writer fenced the weights."""
    return node.op in PRODUCTS and _quantized_here(node) and _block(node, wide=True) is not None


def _quantized_here(node: Node) -> bool:
    """Whether a product has data of 16 bits, and weights that were quantized after they were read;
    those of a file are written as they were."""
    a, w = node.operands["a"].node, node.operands["b"].node
    wide = a.op == "dequantize" and _of_16_bits(a.operands["x"])
    return wide and w.op == "dequantize" and not w.origins


def _of_16_bits(value: Value) -> bool:
    quant = value.type.quant
    return quant is not None and quant.storage in (I16, U16)


def _beside(node: Node, *, wide: bool) -> int | None:
    """Returns how many numbers share a scale next to the weights of a product; None for other
    weights."""
    w = node.operands["b"].node
    if w.op != "dequantize" or w.result.only_use is None or len(w.operands) > 1:
        return None
    array = w.operands["x"].constant
    if array is None or array.contents.ndim != 2:
        return None
    quant = array.type.quant
    assert quant is not None
    whole = quant.kind == "uniform" and quant.plus is None and not quant.has_float_zero
    if not whole or quant.express != F32 or quant.storage.name not in _STORAGES:
        return None
    return _size(quant, wide=wide)


def _kept(node: Node, *, wide: bool) -> bool:
    """Returns whether what reads a product keeps its data from being rounded: a quantize, or
    nothing but an activation that is read once.

    `wide`: neither does where all that is made of the product is quantized of 16 bits. An addition
    that is made one gemm with the product is read in its place.
    """
    added = joined(node)
    if added is not None and not _row(added[1], node):
        return True
    result = node.result if added is None else added[0].result
    readers = [user for user in result.users if user.op != "output"]
    shown = len(readers) < len(result.users)
    made = [reader for reader in readers if reader.op == "quantize"]
    if added is not None and node.operands["a"].type.rank != 2:
        if shown or made != readers or len(made) != 1:
            return False  # a reshape reads the gemm, and stays before these
    elif len(readers) == 1 and _is_tail(readers[0]):
        last = readers[0].result.only_use
        if last is None or last.node.op == "output":
            return False
        if last.node.op != "quantize" or _cuts(readers[0], last.node):
            return True
        made = readers = [last.node]
    if not made:
        return False
    return not wide or shown or made != readers or not all(_of_16_bits(q.result) for q in made)


def _is_tail(node: Node) -> bool:
    """Returns whether it is an activation, also a foreign one, whose ends are computed."""
    name = str(node.attrs["op"]).lower() if node.op == "foreign" else node.op
    return name in TAILS


def _cuts(tail: Node, node: Node) -> bool:
    """Returns whether an activation leaves out numbers that a quantize has quantized values for."""
    quant = node.result.type.quant
    if tail.op == "foreign" or quant is None or quant.dynamic or quant.granularity is not None:
        return True
    ends = (0.0, None) if tail.op == "relu" else (tail.attrs.get("min"), tail.attrs.get("max"))
    codes = zip(ends, (quant.low, quant.high), strict=True)
    rule = profile("native").resolve(query_for_node(node))
    return any(
        isinstance(end, float)
        and quantize(np.asarray([end], np.float32), affine_of(quant), rule)[0] != code
        for end, code in codes
    )


def _plain(node: Node) -> bool:
    """Returns whether the kernel takes the product: not transposed, no gain, a bias each column."""
    attrs = node.attrs
    if attrs.get("trans_a") is True or attrs.get("trans_b") is True:
        return False
    if (attrs.get("alpha", 1.0), attrs.get("beta", 1.0)) != (1.0, 1.0):
        return False
    bias = node.operands.get("c") or node.operands.get("bias")
    return bias is None or _row(bias, node)


def _row(value: Value, node: Node) -> bool:
    """Returns whether a value has one number for each column of a product."""
    return value.type.shape == node.operands["b"].type.shape[-1:]


def _size(quant: QuantType, *, wide: bool) -> int | None:
    if quant.granularity is None:
        return _USUAL
    blocks = dict(quant.granularity.blocks)
    if quant.granularity.by is not None or blocks.get(1) != 1:
        return None
    size = blocks.get(0, _USUAL)
    if wide and size > _MOST and size.bit_count() == 1:
        return _MOST
    return size if size in _SIZES else None


def _rounded(graph: Graph, node: Node, a: Value, size: int) -> Value:
    """Returns the float values of 8-bit integers of which the greatest of each block is 127, or
    -127."""

    def op(name: str, attrs: dict[str, Attr] | None = None, **operands: Value) -> Value:
        return graph.add(name, operands, attrs, before=node, origins=node.origins).result

    def number(value: object, kind: type[np.generic] = np.float32) -> Value:
        name = graph.fresh(f"{node.name}.rounding")
        return graph.constant(Array.of(np.asarray(value, kind), name), name=name, before=node)

    depth = node.operands["b"].type.shape[0]
    assert isinstance(depth, int)
    rank, count = a.type.rank, -(-depth // size)
    wide, lead = count * size, [0] * (a.type.rank - 1)
    if wide > depth:
        a = op("pad", {"pads": (0,) * (2 * rank - 1) + (wide - depth,)}, x=a)
    parts = op("reshape", x=a, shape=number([*lead, count, size], np.int64))
    most = op("reduce_max", {"axes": (rank,), "keep": True}, x=op("abs", x=parts))
    none = op("equal", a=most, b=number(0.0))
    gain = op("div", a=number(127.0), b=most)
    gain = op("where", condition=none, a=number(0.0), b=gain)
    codes = op("round", x=op("mul", a=parts, b=gain))
    scale = op("mul", a=most, b=number(np.float32(1) / np.float32(127)))
    back = op("mul", a=codes, b=scale)
    back = op("reshape", x=back, shape=number([*lead, wide], np.int64))
    if wide == depth:
        return back
    cut: dict[str, Attr] = {"starts": (0,), "ends": (depth,), "axes": (rank - 1,), "steps": (1,)}
    return op("slice", cut, x=back)
