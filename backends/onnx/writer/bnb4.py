"""Writes products with 4-bit lookup-table weights as onnxruntime's MatMulBnb4."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.lazy_arrays import reshape
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import Array, Granularity, QuantType, TensorType
from qir.ledger import Change, Ledger

from .writer import STEP

KERNEL = "onnx:com.microsoft.MatMulBnb4"
_LEAST_BLOCK_SIZE = 16
_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_TABLES = (
    np.array([*_FP4, *(-v for v in _FP4)], np.float32),
    np.array(_NF4, np.float32),
)
"""The tables of the kernel's quant_type 0 and 1: fp4 and nf4."""
_SUM_ORDER_NOTE = "written as MatMulBnb4, which adds up in an order of its own"


@dataclass(frozen=True, slots=True)
class Bnb4Weights:
    """Weights of a product: rows of integers by a table, and the kernel's number of that table."""

    codes: Value
    rows: int
    depth: int
    size: int
    table: int


def weights(node: Node) -> Bnb4Weights | str | None:
    """Returns the weights of a product in the kernel's form, or the reason why they have none.

    Returns None where they are no quantized constants by a table.
    """
    # The kernel's B is [rows, depth], which is `linear`'s weight, or a matmul's with trans_b.
    value, is_transposed = node.operands[spec(node.op).traits.weight or ""], node.op == "linear"
    is_transposed |= node.attrs.get("trans_b") is True
    if value.node.op == "transpose" and value.node.attrs["perm"] == (1, 0):
        value, is_transposed = value.node.operands["x"], not is_transposed
    shape = value.type.shape
    # bitsandbytes flattens weights before it quantizes them, so a reshape may follow.
    if value.node.op == "reshape":
        value = value.node.operands["x"]
    if value.node.op != "dequantize" or len(value.node.operands) > 1:
        return None
    quantized = value.node.operands["x"]
    quant = quantized.type.quant
    if quantized.constant is None or quant is None or quant.kind != "lut":
        return None
    rows, depth = shape if len(shape) == 2 else (None, None)
    if not is_transposed or not isinstance(rows, int) or not isinstance(depth, int):
        return "MatMulBnb4 takes rows of weights, one for each result"
    if node.attrs.get("trans_a") is True or node.attrs.get("alpha", 1.0) != 1.0:
        return "MatMulBnb4 neither turns its left side nor multiplies"
    if node.operands.keys() & {"c", "bias"} and node.attrs.get("beta", 1.0) != 1.0:
        return "MatMulBnb4 does not multiply its bias"
    table, size = _table(quant), _block_size(quant, quantized.type, depth)
    if table is None:
        return "MatMulBnb4 has the tables nf4 and fp4, whose scales are f32, and no others"
    if size is None:
        return f"MatMulBnb4 takes blocks of {_LEAST_BLOCK_SIZE}, 32, 64 ... values along an axis"
    return Bnb4Weights(quantized, rows, depth, size, table)


def _table(quant: QuantType) -> int | None:
    entries = quant.codes.data if isinstance(quant.codes, Array) else np.asarray(quant.codes)
    float32_scales = (
        quant.plus is None and quant.express == F32 and quant.scale_dtype in (None, F32)
    )
    if quant.storage.name != "u4" or quant.bounds or not float32_scales or quant.dynamic:
        return None
    if any(a.type.quant is not None for a in quant.arrays()):
        return None
    equal_tables = (
        i for i, t in enumerate(_TABLES) if np.array_equal(entries.astype(np.float32), t)
    )
    return next(equal_tables, None)


def _block_size(quant: QuantType, kind: TensorType, depth: int) -> int | None:
    """Returns the block size, where rows are flattened one after another."""
    if quant.granularity is None or quant.granularity.by is not None:
        return None
    blocks = quant.granularity.blocks
    is_flat = kind.rank == 1 and len(blocks) == 1
    # Blocks of one row's values, of which each row has a whole number: flat order is the same.
    along_rows = kind.rank == 2 and [a for a, _ in blocks] == [0, 1] and blocks[0][1] == 1
    size = blocks[-1][1]
    if not is_flat and not (along_rows and depth % size == 0):
        return None
    # The kernel's block sizes are powers of two.
    return size if size >= _LEAST_BLOCK_SIZE and not size & (size - 1) else None


def group(graph: Graph, node: Node, packed: Bnb4Weights, ledger: Ledger) -> None:
    """Replaces a product by the kernel's group; its bias is added after it."""
    flat = _flat_weights(graph, node, packed)
    traits = spec(node.op).traits
    data, bias = node.operands[traits.data], node.operands.get(traits.bias or "")
    # The body says what the kernel computes: dequantize the flat weights, reshape, multiply.
    body = Graph("body", "")
    ins = {
        s: body.add("input", types=[v.type], name=s).result for s, v in (("A", data), ("B", flat))
    }
    dequantized = body.add("dequantize", {"x": ins["B"]}).result
    shape = body.constant(Array.of(np.array([packed.rows, packed.depth], np.int64), "shape"))
    reshaped = body.add("reshape", {"x": dequantized, "shape": shape}).result
    product = body.add("matmul", {"a": ins["A"], "b": reshaped}, {"trans_b": True}).result
    body.add("output", {"output": product})
    sizes = (("K", packed.depth), ("N", packed.rows), ("block_size", packed.size))
    result = graph.add(
        "fused",
        {"A": data, "B": flat},
        {
            "kernel": KERNEL,
            "slots": ((0, 1), (0,)),
            "attrs": (*sizes, ("quant_type", packed.table)),
        },
        types=[product.type],
        name=graph.fresh(f"{node.name}.bnb4"),
        before=node,
        profile=node.profile,
        bodies={"body": body},
    ).result
    if bias is not None:
        result = graph.add("add", {"a": result, "b": bias}, before=node).result
    graph.substitute(node, result)
    ledger.add(Change.REGROUPED, STEP, result.name, _SUM_ORDER_NOTE)


def _flat_weights(graph: Graph, node: Node, packed: Bnb4Weights) -> Value:
    """Returns the quantized values as one flat row, with one scale per block."""
    array, quant = packed.codes.constant, packed.codes.type.quant
    assert array is not None
    assert quant is not None
    if packed.codes.type.rank == 1:
        return packed.codes
    scale = Array.of(np.asarray(quant.scales()).reshape(-1), f"{array.name}.scales")
    flat_type = QuantType(
        quant.storage,
        F32,
        scale,
        (),
        Granularity(((0, packed.size),)),
        kind="lut",
        codes=quant.codes,
    )
    shape = (packed.rows * packed.depth,)
    flattened = Array(reshape(array.contents, shape), TensorType(shape, flat_type), array.name)
    constant = graph.constant(flattened, name=graph.fresh(f"{array.name}.rows"), before=node)
    graph.set_lineage(constant, packed.codes.lineage)
    return constant
