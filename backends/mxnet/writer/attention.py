"""Attention, which MXNet has as products, a mask that is added, and a softmax."""

from __future__ import annotations

import math

import numpy as np

from qir.ir.node import Node, Value

from .symbol import Entry
from .writer import OpWriter, SymbolWriter

_MASKED_SCORE = -1e30
"""Added to scores that must not count: large, and finite, since -inf - -inf is NaN."""


def _head_count(writer: SymbolWriter, node: Node) -> int:
    """Returns the number of heads; raises Refused for attention that MXNet's operators do not
    compute."""
    attrs = node.attrs
    cached = [s for s in ("past_k", "past_v", "lengths") if s in node.operands]
    if cached or attrs["present"] or attrs["qk"] != "none":
        raise writer.refuse(node, "it keeps keys and values of the past, or shows its scores")
    if attrs["softcap"] or (attrs["left"], attrs["right"]) != (-1, -1):
        raise writer.refuse(node, "it caps scores, or looks through a window")
    q, k = node.operands["q"], node.operands["k"]
    is_3d = q.type.rank == 3
    heads = attrs["heads"] if is_3d else writer.size(node, q, 1)
    has_fewer_key_heads = (
        attrs["kv_heads"] not in (None, heads) if is_3d else writer.size(node, k, 1) != heads
    )
    if has_fewer_key_heads or not isinstance(heads, int):
        raise writer.refuse(node, "its keys have fewer heads than its queries")
    return heads


def _with_head_axis(writer: SymbolWriter, node: Node, slot: str, heads: int) -> Entry:
    """Returns an operand as [batch, heads, length, size]."""
    x = node.operands[slot]
    if x.type.rank == 4:
        return writer.entry(x)
    # -4 splits an axis in two: [batch, length, wide] -> [batch, length, heads, size].
    reshape_attrs = {"shape": (0, 0, -4, heads, -1)}
    split = writer.add_intermediate(node, "Reshape", [writer.entry(x)], reshape_attrs)
    return writer.add_intermediate(node, "transpose", [split], {"axes": (0, 2, 1, 3)})


def _with_mask(writer: SymbolWriter, node: Node, scores: Entry, mask: Value) -> Entry:
    addend = writer.entry(mask)
    if str(mask.type.dtype) == "bool":
        # true -> 0, false -> -1e30.
        minus_one = writer.add_intermediate(node, "_minus_scalar", [addend], {"scalar": 1.0})
        addend = writer.add_intermediate(
            node, "_mul_scalar", [minus_one], {"scalar": -_MASKED_SCORE}
        )
    return writer.add_intermediate(node, "broadcast_add", [scores, addend])


def _attention(writer: SymbolWriter, node: Node) -> Entry:
    heads = _head_count(writer, node)
    q = node.operands["q"]
    is_3d = q.type.rank == 3
    scale = node.attrs["scale"]
    if scale is None:
        width = writer.size(node, q, q.type.rank - 1)
        scale = 1 / math.sqrt(width // heads if is_3d else width)
    queries, keys, values = (_with_head_axis(writer, node, slot, heads) for slot in "qkv")
    attrs = {"transpose_a": False, "transpose_b": True, "alpha": scale}
    scores = writer.add_intermediate(node, "_linalg_gemm2", [queries, keys], attrs)
    if (mask := node.operands.get("mask")) is not None:
        scores = _with_mask(writer, node, scores, mask)
    if node.attrs["causal"]:
        rows, columns = (writer.size(node, node.operands[s], -2) for s in "qk")
        causal_mask = np.triu(np.full((1, 1, rows, columns), _MASKED_SCORE, np.float32), 1)
        scores = writer.add_intermediate(
            node, "broadcast_add", [scores, writer.constant("later", causal_mask, node)]
        )
    scores = writer.add_intermediate(node, "softmax", [scores], {"axis": -1})
    emit = writer.add_intermediate if is_3d else writer.add_result
    scores = emit(
        node, "_linalg_gemm2", [scores, values], {"transpose_a": False, "transpose_b": False}
    )
    if not is_3d:
        return scores
    scores = writer.add_intermediate(node, "transpose", [scores], {"axes": (0, 2, 1, 3)})
    # -3 joins the next two axes.
    return writer.add_result(node, "Reshape", [scores], {"shape": (0, 0, -3)})


OPS: dict[str, OpWriter] = {"attention": _attention}
