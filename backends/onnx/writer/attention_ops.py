"""Writes attention and rotary embedding: as ONNX's operators, or onnxruntime's if the source had
these."""

from __future__ import annotations

import numpy as np

from qir.ir.dtype import DType
from qir.ir.node import Node
from qir.ir.ops.attention import SHOWN

from . import attention_parts, rotary_parts
from .elements import element_type
from .operator_table import OperatorWriter
from .recurrent_ops import placed, refuse_inner
from .writer import MICROSOFT, AttrValue, OnnxWriter, OpToWrite

_SLOTS = ("q", "k", "v", "mask", "past_k", "past_v", "lengths")
_MULTI = ("q", "k", "v", "", "", "mask", "past_k", "past_v")
_I64 = 7
FIRST_OPSET = 23
"""The first operator set that has both operators."""
_DECOMPOSABLE = {"attention": attention_parts.sayable, "rotary": rotary_parts.sayable}
"""Whether each op can be decomposed for older operator sets."""


def first_opset(node: Node) -> int:
    """Returns the first operator set that has the node's form; 0 for onnxruntime's own and other
    ops."""
    if node.op not in _DECOMPOSABLE or _microsoft_operator(node) or _DECOMPOSABLE[node.op](node):
        return 0
    return _first_standard_opset(node)


def _first_standard_opset(node: Node) -> int:
    """Returns the first operator set whose own operator expresses a node."""
    if node.op == "rotary":
        return FIRST_OPSET
    if node.attrs.get("left", -1) != -1 or node.attrs.get("right", -1) != -1:
        return 25
    return 24 if "lengths" in node.operands else FIRST_OPSET


def _microsoft_operator(node: Node) -> str:
    """Returns the operator of onnxruntime's domain that a node is written as; empty for none."""
    if node.op == "rotary":
        return "RotaryEmbedding" if _is_microsoft_rotary(node) else ""
    sources = {o.op for o in node.origins if o.framework == "onnx"}
    plain = not any(s in node.operands for s in ("lengths",)) and node.attrs["right"] == -1
    plain = plain and node.attrs["qk"] == "none" and node.attrs["precision"] is None
    mask = node.operands.get("mask")
    if mask is not None and (mask.type.rank != 4 or not mask.type.dtype.is_float):
        plain = False
    if not plain or node.operands["q"].type.rank != 3:
        return ""
    if "MultiHeadAttention" in sources and _is_multi(node):
        return "MultiHeadAttention"
    if "GroupQueryAttention" in sources and _is_grouped(node):
        return "GroupQueryAttention"
    return ""


def _is_multi(node: Node) -> bool:
    q, k = (node.operands[s].type.shape for s in "qk")
    attrs, same = node.attrs, q[1] is not None and q[1] == k[1]
    if (attrs["causal"] or "past_k" in node.operands) and not same:
        return False
    one = attrs["kv_heads"] in (None, attrs["heads"])
    return one and attrs["softcap"] == 0 and attrs["left"] == -1


def _is_grouped(node: Node) -> bool:
    q, k = (node.operands[s].type.shape for s in "qk")
    attrs = node.attrs
    known = isinstance(q[0], int) and isinstance(q[1], int) and q[1] == k[1]
    bounded = attrs["causal"] or attrs["left"] == -1
    return known and bool(bounded) and "past_k" not in node.operands


def _is_microsoft_rotary(node: Node) -> bool:
    """Returns whether onnxruntime's RotaryEmbedding expresses a node, and was asked for by its
    source."""
    if "positions" not in node.operands:
        return False
    wanted = node.operands["positions"].type.rank == 1 or any(
        o.framework == "onnx" and "X" not in dict(o.operands) for o in node.origins
    )
    return wanted and (not node.attrs["dim"] or isinstance(_heads_of(node), int))


def _heads_of(node: Node) -> object:
    shape = node.operands["x"].type.shape
    return shape[1] if len(shape) == 4 else node.attrs["heads"]


def _result_names(writer: OnnxWriter, work: OpToWrite) -> list[str]:
    """Returns the names of y, present_k, present_v and qk; empty for unused ones."""
    names = [writer.name(v) if v.uses else "" for v in work.node.results]
    names[0] = names[0] or work.out
    out = [names[0], *(names[1:3] if work.attrs["present"] else ("", ""))]
    out.append(names[-1] if work.attrs["qk"] != "none" else "")
    return out[: max(i for i, name in enumerate(out) if name) + 1]


def _attention(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    refuse_inner(writer, work)
    form, outs = _microsoft_operator(work.node), _result_names(writer, work)
    if form and not (writer.standard and attention_parts.sayable(work.node)):
        row = _multi_head if form == "MultiHeadAttention" else _grouped
        operands, attrs = row(writer, work, ins)
        writer.emit(form, operands, outs, attrs, domain=MICROSOFT, origins=work.origins)
        return
    if "lengths" in ins:
        ins["lengths"] = _whole(writer, work, ins["lengths"], "lengths")
    if writer.opset < _first_standard_opset(work.node) and attention_parts.sayable(work.node):
        attention_parts.write(writer, work, ins, outs)
        return
    names = {"left": "left_window_size", "right": "right_window_size"}
    out: dict[str, AttrValue] = {
        theirs: work.int_attr(ours) for ours, theirs in names.items() if work.attrs[ours] != -1
    }
    if work.operands["q"].type.rank == 3:
        heads = work.int_attr("heads")
        kv_heads = work.attrs["kv_heads"]
        out["q_num_heads"] = heads
        out["kv_num_heads"] = kv_heads if isinstance(kv_heads, int) else heads
    if work.attrs["causal"]:
        out["is_causal"] = 1
    if work.attrs["qk"] not in ("none", "raw"):
        out["qk_matmul_output_mode"] = SHOWN.index(str(work.attrs["qk"])) - 1
    if isinstance(precision := work.attrs["precision"], DType):
        out["softmax_precision"] = element_type(precision)
    out |= _scaled(work)
    writer.emit("Attention", placed(ins, _SLOTS), outs, out, origins=work.origins)


def _scaled(work: OpToWrite) -> dict[str, AttrValue]:
    out: dict[str, AttrValue] = {}
    if isinstance(scale := work.attrs["scale"], float):
        out["scale"] = scale
    if work.attrs["softcap"]:
        out["softcap"] = work.float_attr("softcap")
    return out


def _multi_head(
    writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]
) -> tuple[list[str], dict[str, AttrValue]]:
    attrs: dict[str, AttrValue] = {"num_heads": work.int_attr("heads"), **_scaled(work)}
    if work.attrs["causal"]:
        attrs["unidirectional"] = 1
    return placed(ins, _MULTI), attrs


def _grouped(
    writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]
) -> tuple[list[str], dict[str, AttrValue]]:
    batch, length, _ = work.operands["q"].type.shape
    assert isinstance(batch, int)
    assert isinstance(length, int)
    heads, kv_heads = work.int_attr("heads"), work.attrs["kv_heads"]
    attrs: dict[str, AttrValue] = {
        "num_heads": heads,
        "kv_num_heads": kv_heads if isinstance(kv_heads, int) else heads,
        **_scaled(work),
    }
    if not work.attrs["causal"]:
        attrs["causal"] = 0
    if work.attrs["left"] != -1:
        attrs["local_window_size"] = work.int_attr("left") + 1
    given = {s: n for o in work.origins for s, n in o.operands if o.op == "GroupQueryAttention"}
    ends = np.full(batch, length - 1, np.int32)
    total = np.array(length, np.int32)
    operands = [
        *(ins[s] for s in "qkv"),
        "",
        "",
        writer.parameter(ends, f"{work.out}_ends", given.get("seqlens_k")),
        writer.parameter(total, f"{work.out}_total", given.get("total_sequence_length")),
    ]
    return [*operands, "", "", "", ins["mask"]] if "mask" in ins else operands, attrs


def _rotary(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    attrs: dict[str, AttrValue] = {"interleaved": 1} if work.attrs["interleaved"] else {}
    if work.attrs["dim"]:
        attrs["rotary_embedding_dim"] = work.int_attr("dim")
    if "positions" in ins:
        ins["positions"] = _whole(writer, work, ins["positions"], "positions")
    heads = _heads_of(work.node)
    said = rotary_parts.sayable(work.node)
    if not _microsoft_operator(work.node) or (writer.standard and said):
        several = "positions" not in ins or work.operands["positions"].type.rank == 2
        if said and (writer.opset < FIRST_OPSET or not several):
            rotary_parts.write(writer, work, ins)
            return
        if work.operands["x"].type.rank == 3:
            attrs["num_heads"] = work.int_attr("heads")
        if not several:
            raise writer.refuse(work.node, "onnxruntime wants to know the heads of what is turned")
        writer.emit("RotaryEmbedding", ins.values(), [work.out], attrs, origins=work.origins)
        return
    if work.attrs["dim"] and isinstance(heads, int):
        attrs["num_heads"] = heads
    operands = [ins[s] for s in ("x", "positions", "cos", "sin")]
    writer.emit(
        "RotaryEmbedding", operands, [work.out], attrs, domain=MICROSOFT, origins=work.origins
    )


def _whole(writer: OnnxWriter, work: OpToWrite, source: str, slot: str) -> str:
    """Returns the operand as the i64 that ONNX takes."""
    if work.operands[slot].type.dtype.name == "i64":
        return source
    out = writer.fresh(f"{work.out}_{slot}")
    writer.emit("Cast", [source], [out], {"to": _I64})
    return out


OPS: dict[str, OperatorWriter] = {"attention": _attention, "rotary": _rotary}
