"""Attention, which MXNet has as products, a mask that is added, and a softmax."""

from __future__ import annotations

import math

import numpy as np

from qir.ir.node import Node, Value

from .symbol import Entry
from .writer import OpWriter, SymbolWriter

_NEVER = -1e30
"""What is added where nothing may be seen."""


def _plain(writer: SymbolWriter, node: Node) -> int:
    """Returns how many heads there are; Refused for what MXNet's operators do not make up."""
    attrs = node.attrs
    more = [s for s in ("past_k", "past_v", "lengths") if s in node.operands]
    if more or attrs["present"] or attrs["qk"] != "none":
        raise writer.refuse(node, "it keeps keys and values of the past, or shows its scores")
    if attrs["softcap"] or (attrs["left"], attrs["right"]) != (-1, -1):
        raise writer.refuse(node, "it caps scores, or looks through a window")
    q, k = node.operands["q"], node.operands["k"]
    flat = q.type.rank == 3
    heads = attrs["heads"] if flat else writer.size(node, q, 1)
    fewer = attrs["kv_heads"] not in (None, heads) if flat else writer.size(node, k, 1) != heads
    if fewer or not isinstance(heads, int):
        raise writer.refuse(node, "its keys have fewer heads than its queries")
    return heads


def _headed(writer: SymbolWriter, node: Node, slot: str, heads: int) -> Entry:
    """Returns an operand as [batch, heads, length, size]."""
    x = node.operands[slot]
    if x.type.rank == 4:
        return writer.entry(x)
    codes = {"shape": (0, 0, -4, heads, -1)}
    split = writer.add_intermediate(node, "Reshape", [writer.entry(x)], codes)
    return writer.add_intermediate(node, "transpose", [split], {"axes": (0, 2, 1, 3)})


def _masked(writer: SymbolWriter, node: Node, scores: Entry, mask: Value) -> Entry:
    added = writer.entry(mask)
    if str(mask.type.dtype) == "bool":
        below = writer.add_intermediate(node, "_minus_scalar", [added], {"scalar": 1.0})
        added = writer.add_intermediate(node, "_mul_scalar", [below], {"scalar": -_NEVER})
    return writer.add_intermediate(node, "broadcast_add", [scores, added])


def _attention(writer: SymbolWriter, node: Node) -> Entry:
    heads = _plain(writer, node)
    q = node.operands["q"]
    flat = q.type.rank == 3
    scale = node.attrs["scale"]
    if scale is None:
        width = writer.size(node, q, q.type.rank - 1)
        scale = 1 / math.sqrt(width // heads if flat else width)
    asked, keys, values = (_headed(writer, node, slot, heads) for slot in "qkv")
    attrs = {"transpose_a": False, "transpose_b": True, "alpha": scale}
    made = writer.add_intermediate(node, "_linalg_gemm2", [asked, keys], attrs)
    if (mask := node.operands.get("mask")) is not None:
        made = _masked(writer, node, made, mask)
    if node.attrs["causal"]:
        rows, columns = (writer.size(node, node.operands[s], -2) for s in "qk")
        later = np.triu(np.full((1, 1, rows, columns), _NEVER, np.float32), 1)
        made = writer.add_intermediate(
            node, "broadcast_add", [made, writer.constant("later", later, node)]
        )
    made = writer.add_intermediate(node, "softmax", [made], {"axis": -1})
    emit = writer.add_intermediate if flat else writer.add_result
    made = emit(node, "_linalg_gemm2", [made, values], {"transpose_a": False, "transpose_b": False})
    if not flat:
        return made
    made = writer.add_intermediate(node, "transpose", [made], {"axes": (0, 2, 1, 3)})
    return writer.add_result(node, "Reshape", [made], {"shape": (0, 0, -3)})


ROWS: dict[str, OpWriter] = {"attention": _attention}
