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
_LEAST = 16
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
"""What the kernel's types of quantized values mean: fp4 and nf4."""
_SAID = "written as MatMulBnb4, which adds up in an order of its own"


@dataclass(frozen=True, slots=True)
class Bnb4Weights:
    """Weights of a product: rows of integers by a table, and which of the kernel's it is."""

    codes: Value
    rows: int
    depth: int
    size: int
    table: int


def weights(node: Node) -> Bnb4Weights | str | None:
    """Returns the weights of a product as the kernel takes them, or why it does not.

    Nothing where they are no quantized constants by a table.
    """
    value, turned = node.operands[spec(node.op).traits.weight or ""], node.op == "linear"
    turned |= node.attrs.get("trans_b") is True
    if value.node.op == "transpose" and value.node.attrs["perm"] == (1, 0):
        value, turned = value.node.operands["x"], not turned
    shape = value.type.shape
    if value.node.op == "reshape":
        value = value.node.operands["x"]
    if value.node.op != "dequantize" or len(value.node.operands) > 1:
        return None
    codes = value.node.operands["x"]
    quant = codes.type.quant
    if codes.constant is None or quant is None or quant.kind != "lut":
        return None
    rows, depth = shape if len(shape) == 2 else (None, None)
    if not turned or not isinstance(rows, int) or not isinstance(depth, int):
        return "MatMulBnb4 takes rows of weights, one for each result"
    if node.attrs.get("trans_a") is True or node.attrs.get("alpha", 1.0) != 1.0:
        return "MatMulBnb4 neither turns its left side nor multiplies"
    if node.operands.keys() & {"c", "bias"} and node.attrs.get("beta", 1.0) != 1.0:
        return "MatMulBnb4 does not multiply its bias"
    table, size = _table(quant), _size(quant, codes.type, depth)
    if table is None:
        return "MatMulBnb4 has the tables nf4 and fp4, whose scales are f32, and no others"
    if size is None:
        return f"MatMulBnb4 takes blocks of {_LEAST}, 32, 64 ... values along an axis"
    return Bnb4Weights(codes, rows, depth, size, table)


def _table(quant: QuantType) -> int | None:
    held = quant.codes.data if isinstance(quant.codes, Array) else np.asarray(quant.codes)
    plain = quant.plus is None and quant.express == F32 and quant.scale_dtype in (None, F32)
    if quant.storage.name != "u4" or quant.bounds or not plain or quant.dynamic:
        return None
    if any(a.type.quant is not None for a in quant.arrays()):
        return None
    same = (i for i, t in enumerate(_TABLES) if np.array_equal(held.astype(np.float32), t))
    return next(same, None)


def _size(quant: QuantType, kind: TensorType, depth: int) -> int | None:
    """Returns the block size, where rows are flattened one after another."""
    if quant.granularity is None or quant.granularity.by is not None:
        return None
    blocks = quant.granularity.blocks
    whole = kind.rank == 1 and len(blocks) == 1
    even = kind.rank == 2 and [a for a, _ in blocks] == [0, 1] and blocks[0][1] == 1
    size = blocks[-1][1]
    if not whole and not (even and depth % size == 0):
        return None
    return size if size >= _LEAST and not size & (size - 1) else None


def group(graph: Graph, node: Node, found: Bnb4Weights, ledger: Ledger) -> None:
    """Puts the kernel in the place of a product; its bias is added after."""
    made = _held(graph, node, found)
    traits = spec(node.op).traits
    data, bias = node.operands[traits.data], node.operands.get(traits.bias or "")
    body = Graph("body", "")
    ins = {
        s: body.add("input", types=[v.type], name=s).result for s, v in (("A", data), ("B", made))
    }
    real = body.add("dequantize", {"x": ins["B"]}).result
    shape = body.constant(Array.of(np.array([found.rows, found.depth], np.int64), "shape"))
    laid = body.add("reshape", {"x": real, "shape": shape}).result
    end = body.add("matmul", {"a": ins["A"], "b": laid}, {"trans_b": True}).result
    body.add("output", {"output": end})
    sizes = (("K", found.depth), ("N", found.rows), ("block_size", found.size))
    new = graph.add(
        "fused",
        {"A": data, "B": made},
        {"kernel": KERNEL, "slots": ((0, 1), (0,)), "attrs": (*sizes, ("quant_type", found.table))},
        types=[end.type],
        name=graph.fresh(f"{node.name}.bnb4"),
        before=node,
        profile=node.profile,
        bodies={"body": body},
    ).result
    if bias is not None:
        new = graph.add("add", {"a": new, "b": bias}, before=node).result
    graph.substitute(node, new)
    ledger.add(Change.REGROUPED, STEP, new.name, _SAID)


def _held(graph: Graph, node: Node, found: Bnb4Weights) -> Value:
    """Returns the quantized values in one row, with a scale a block."""
    array, quant = found.codes.constant, found.codes.type.quant
    assert array is not None
    assert quant is not None
    if found.codes.type.rank == 1:
        return found.codes
    scale = Array.of(np.asarray(quant.scales()).reshape(-1), f"{array.name}.scales")
    flat = QuantType(
        quant.storage,
        F32,
        scale,
        (),
        Granularity(((0, found.size),)),
        kind="lut",
        codes=quant.codes,
    )
    shape = (found.rows * found.depth,)
    held = Array(reshape(array.contents, shape), TensorType(shape, flat), array.name)
    made = graph.constant(held, name=graph.fresh(f"{array.name}.rows"), before=node)
    graph.set_lineage(made, found.codes.lineage)
    return made
