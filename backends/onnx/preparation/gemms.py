"""Fuses matrix products with an add or a transpose into gemm.

onnxruntime's MatMulAddFusion and GemmTransposeFusion do so when it loads a model.
"""

from __future__ import annotations

import math

import numpy as np

from qir.ir import dims
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import Array
from qir.ledger import Change
from qir.rewrite.preparation import Preparation


def join_gemms(graph: Graph, prepared: Preparation) -> int:
    """Fuses matmul and add, and gemm and transpose, into one gemm; returns how many.

    The add is of a row or matrix, and the matmul's only consumer. Data that are not 2-D get a
    reshape before and after. A gemm before a transpose has no addend.
    """
    count = 0
    for node in list(graph):
        if last := _fusible_transpose(node):
            gemm, reason = _fuse_transpose(graph, node, last), "gemm and transpose are one gemm"
        elif added := fusible_addition(node):
            gemm, reason = _fuse_addition(graph, node, *added), "matmul and add are one gemm"
        else:
            continue
        prepared.ledger.add(Change.REGROUPED, prepared.name, gemm.name, reason)
        count += 1
    return count


def _fusible_transpose(node: Node) -> Node | None:
    """Returns the transpose that is fused into a gemm."""
    use = node.result.only_use if node.op == "gemm" and "c" not in node.operands else None
    if use is None or use.node.op != "transpose" or use.node.attrs["perm"] != (1, 0):
        return None
    is_plain = not any(n.stages or n.schemes for n in (node, use.node))
    reads_dequantized = any(v.node.op == "dequantize" for v in node.operands.values())
    return use.node if is_plain and reads_dequantized and use.node.profile == node.profile else None


def _fuse_transpose(graph: Graph, node: Node, last: Node) -> Node:
    """Replaces a gemm and a transpose by a gemm of transposed operands: (A B)^T = B^T A^T."""
    flags = {"trans_a": not node.attrs["trans_b"], "trans_b": not node.attrs["trans_a"]}
    gemm = graph.add(
        "gemm",
        {"a": node.operands["b"], "b": node.operands["a"]},
        {**node.attrs, **flags},
        before=last,
        origins=[*node.origins, *last.origins],
        profile=node.profile,
    )
    graph.substitute(last, gemm.result, gone=(node,))
    return gemm


def fusible_addition(node: Node) -> tuple[Node, Value] | None:
    """Returns the add that is fused with a matmul, and its other operand."""
    if node.op != "matmul" or node.stages or node.schemes or "bias" in node.operands:
        return None
    a, b, use = node.operands["a"], node.operands["b"], node.result.only_use
    # Without a dequantize next to it, the product stays float and how it is grouped does not
    # matter.
    if "dequantize" not in (a.node.op, b.node.op) or a.type.element != F32:
        return None
    if use is None or use.node.op != "add" or use.node.stages or use.node.schemes:
        return None
    other = use.node.operands["b" if use.slot == "a" else "a"]
    if other.type.element != F32 or use.node.profile != node.profile:
        return None
    return (use.node, other) if _has_gemm_shapes(node, a, b, other) else None


def _has_gemm_shapes(node: Node, a: Value, b: Value, other: Value) -> bool:
    """Returns whether the shapes are those of a gemm."""
    if b.type.rank != 2 or any(node.attrs.get(flag) is True for flag in ("trans_a", "trans_b")):
        return False
    columns, shape = b.type.shape[1], other.type.shape
    # Gemm broadcasts its C: one row, one column, or a whole matrix.
    if a.type.rank == 2:
        rows = a.type.shape[0]
        return shape in ((columns,), (1, columns), (rows, columns), (rows, 1))
    has_known_shapes = (
        dims.known_shape(a.type.shape) is not None and dims.known_shape(b.type.shape) is not None
    )
    return has_known_shapes and a.type.rank > 0 and shape == (columns,)


def _fuse_addition(graph: Graph, node: Node, last: Node, other: Value) -> Node:
    """Replaces a matmul and an add by a gemm."""
    a, b, kind = node.operands["a"], node.operands["b"], last.result.type
    needs_reshape = a.type.rank != 2
    if needs_reshape:
        # [..., depth] -> [rows, depth]: Gemm takes matrices alone.
        a = _reshaped(graph, a, (_row_count(a), _size(b, 0)), last)
    gemm = graph.add(
        "gemm",
        {"a": a, "b": b, "c": other},
        before=last,
        origins=[*node.origins, *last.origins],
        profile=node.profile,
    )
    result = gemm.result
    if needs_reshape:
        result_shape = dims.known_shape(kind.shape)
        assert result_shape is not None
        result = _reshaped(graph, result, result_shape, last)
    graph.substitute(last, result, gone=(node,))
    return gemm


def _row_count(value: Value) -> int:
    return math.prod(dims.known_shape(value.type.shape[:-1]) or ())


def _size(value: Value, axis: int) -> int:
    size = value.type.shape[axis]
    assert isinstance(size, int)
    return size


def _reshaped(graph: Graph, value: Value, shape: tuple[int, ...], before: Node) -> Value:
    name = graph.fresh(f"{value.name}.shape")
    sizes = graph.constant(Array.of(np.asarray(shape, np.int64), name), name=name, before=before)
    operands = {"x": value, "shape": sizes}
    return graph.add("reshape", operands, before=before, origins=value.node.origins).result
