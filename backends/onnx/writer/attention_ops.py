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
from .recurrent_ops import ordered_operands, refuse_inner
from .writer import MICROSOFT, AttrValue, OnnxWriter, OpToWrite

_ATTENTION_SLOTS = ("q", "k", "v", "mask", "past_k", "past_v", "lengths")
_MULTI_HEAD_SLOTS = ("q", "k", "v", "", "", "mask", "past_k", "past_v")
_I64 = 7
FIRST_OPSET = 23
"""The first operator set that has both operators."""
_DECOMPOSABLE = {
    "attention": attention_parts.is_decomposable,
    "rotary": rotary_parts.is_decomposable,
}
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
    """Returns the com.microsoft operator that expresses a node; empty where there is none."""
    if node.op == "rotary":
        return "RotaryEmbedding" if _is_microsoft_rotary(node) else ""
    # onnxruntime's operators are only for models that had them: other runtimes lack the domain.
    sources = {o.op for o in node.origins if o.framework == "onnx"}
    # None of them has lengths per batch entry, scores as a result or a softmax precision.
    expressible = not any(s in node.operands for s in ("lengths",)) and node.attrs["right"] == -1
    expressible = expressible and node.attrs["qk"] == "none" and node.attrs["precision"] is None
    # The mask is MultiHeadAttention's attention_bias, which is a float tensor of rank 4.
    mask = node.operands.get("mask")
    if mask is not None and (mask.type.rank != 4 or not mask.type.dtype.is_float):
        expressible = False
    if not expressible or node.operands["q"].type.rank != 3:
        return ""
    if "MultiHeadAttention" in sources and _is_multi(node):
        return "MultiHeadAttention"
    if "GroupQueryAttention" in sources and _is_grouped(node):
        return "GroupQueryAttention"
    return ""


def _is_multi(node: Node) -> bool:
    q, k = (node.operands[s].type.shape for s in "qk")
    # Past keys make the total length differ from the query's; causal needs the two to be equal.
    attrs, same_length = node.attrs, q[1] is not None and q[1] == k[1]
    if (attrs["causal"] or "past_k" in node.operands) and not same_length:
        return False
    equal_heads = attrs["kv_heads"] in (None, attrs["heads"])
    return equal_heads and attrs["softcap"] == 0 and attrs["left"] == -1


def _is_grouped(node: Node) -> bool:
    q, k = (node.operands[s].type.shape for s in "qk")
    attrs = node.attrs
    known_lengths = isinstance(q[0], int) and isinstance(q[1], int) and q[1] == k[1]
    # Without causal, a sliding window has no lower triangle that bounds it.
    bounded = attrs["causal"] or attrs["left"] == -1
    return known_lengths and bool(bounded) and "past_k" not in node.operands


def _is_microsoft_rotary(node: Node) -> bool:
    """Returns whether onnxruntime's RotaryEmbedding expresses a node, and was asked for by its
    source."""
    # onnxruntime's operator requires position_ids, ONNX's has them as an optional operand.
    if "positions" not in node.operands:
        return False
    from_microsoft = node.operands["positions"].type.rank == 1 or any(
        o.framework == "onnx" and "X" not in dict(o.operands) for o in node.origins
    )
    return from_microsoft and (not node.attrs["dim"] or isinstance(_heads_of(node), int))


def _heads_of(node: Node) -> object:
    shape = node.operands["x"].type.shape
    return shape[1] if len(shape) == 4 else node.attrs["heads"]


def _result_names(writer: OnnxWriter, work: OpToWrite) -> list[str]:
    """Returns the names of y, present_k, present_v and qk; empty for unused ones."""
    # The op's results are y, present_k, present_v and qk; a trailing unused one is left out.
    names = [writer.name(v) if v.uses else "" for v in work.node.results]
    names[0] = names[0] or work.out
    out = [names[0], *(names[1:3] if work.attrs["present"] else ("", ""))]
    out.append(names[-1] if work.attrs["qk"] != "none" else "")
    return out[: max(i for i, name in enumerate(out) if name) + 1]


def _attention(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    refuse_inner(writer, work)
    form, outs = _microsoft_operator(work.node), _result_names(writer, work)
    # Under `standard`, what products and a softmax express is written so, in place of the operator.
    if form and not (writer.standard and attention_parts.is_decomposable(work.node)):
        write_operands = (
            _multi_head_operands if form == "MultiHeadAttention" else _grouped_query_operands
        )
        operands, attrs = write_operands(writer, work, ins)
        writer.emit(form, operands, outs, attrs, domain=MICROSOFT, origins=work.origins)
        return
    if "lengths" in ins:
        ins["lengths"] = _as_int64(writer, work, ins["lengths"], "lengths")
    if writer.opset < _first_standard_opset(work.node) and attention_parts.is_decomposable(
        work.node
    ):
        attention_parts.write(writer, work, ins, outs)
        return
    window_attributes = {"left": "left_window_size", "right": "right_window_size"}
    out: dict[str, AttrValue] = {
        theirs: work.int_attr(ours)
        for ours, theirs in window_attributes.items()
        if work.attrs[ours] != -1
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
    out |= _scale_attributes(work)
    writer.emit(
        "Attention", ordered_operands(ins, _ATTENTION_SLOTS), outs, out, origins=work.origins
    )


def _scale_attributes(work: OpToWrite) -> dict[str, AttrValue]:
    out: dict[str, AttrValue] = {}
    if isinstance(scale := work.attrs["scale"], float):
        out["scale"] = scale
    if work.attrs["softcap"]:
        out["softcap"] = work.float_attr("softcap")
    return out


def _multi_head_operands(
    writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]
) -> tuple[list[str], dict[str, AttrValue]]:
    attrs: dict[str, AttrValue] = {"num_heads": work.int_attr("heads"), **_scale_attributes(work)}
    if work.attrs["causal"]:
        attrs["unidirectional"] = 1
    return ordered_operands(ins, _MULTI_HEAD_SLOTS), attrs


def _grouped_query_operands(
    writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]
) -> tuple[list[str], dict[str, AttrValue]]:
    batch, length, _ = work.operands["q"].type.shape
    assert isinstance(batch, int)
    assert isinstance(length, int)
    heads, kv_heads = work.int_attr("heads"), work.attrs["kv_heads"]
    attrs: dict[str, AttrValue] = {
        "num_heads": heads,
        "kv_num_heads": kv_heads if isinstance(kv_heads, int) else heads,
        **_scale_attributes(work),
    }
    if not work.attrs["causal"]:
        attrs["causal"] = 0
    if work.attrs["left"] != -1:
        attrs["local_window_size"] = work.int_attr("left") + 1
    # The source's own names for the two length tensors, which QIR has as shapes.
    source_names = {
        s: n for o in work.origins for s, n in o.operands if o.op == "GroupQueryAttention"
    }
    # seqlens_k holds the last index of each sequence, that is its length minus one.
    last_positions = np.full(batch, length - 1, np.int32)
    total = np.array(length, np.int32)
    operands = [
        *(ins[s] for s in "qkv"),
        "",
        "",
        writer.parameter(last_positions, f"{work.out}_ends", source_names.get("seqlens_k")),
        writer.parameter(total, f"{work.out}_total", source_names.get("total_sequence_length")),
    ]
    # attention_bias is the eleventh operand; past_k, past_v and the rotary caches are absent.
    return [*operands, "", "", "", ins["mask"]] if "mask" in ins else operands, attrs


def _rotary(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    attrs: dict[str, AttrValue] = {"interleaved": 1} if work.attrs["interleaved"] else {}
    if work.attrs["dim"]:
        attrs["rotary_embedding_dim"] = work.int_attr("dim")
    if "positions" in ins:
        ins["positions"] = _as_int64(writer, work, ins["positions"], "positions")
    heads = _heads_of(work.node)
    decomposable = rotary_parts.is_decomposable(work.node)
    if not _microsoft_operator(work.node) or (writer.standard and decomposable):
        has_positions_per_batch = (
            "positions" not in ins or work.operands["positions"].type.rank == 2
        )
        if decomposable and (writer.opset < FIRST_OPSET or not has_positions_per_batch):
            rotary_parts.write(writer, work, ins)
            return
        if work.operands["x"].type.rank == 3:
            attrs["num_heads"] = work.int_attr("heads")
        if not has_positions_per_batch:
            raise writer.refuse(work.node, "onnxruntime wants to know the heads of what is turned")
        writer.emit("RotaryEmbedding", ins.values(), [work.out], attrs, origins=work.origins)
        return
    if work.attrs["dim"] and isinstance(heads, int):
        attrs["num_heads"] = heads
    operands = [ins[s] for s in ("x", "positions", "cos", "sin")]
    writer.emit(
        "RotaryEmbedding", operands, [work.out], attrs, domain=MICROSOFT, origins=work.origins
    )


def _as_int64(writer: OnnxWriter, work: OpToWrite, source: str, slot: str) -> str:
    """Returns the operand as the i64 that ONNX takes."""
    if work.operands[slot].type.dtype.name == "i64":
        return source
    out = writer.fresh(f"{work.out}_{slot}")
    writer.emit("Cast", [source], [out], {"to": _I64})
    return out


OPS: dict[str, OperatorWriter] = {"attention": _attention, "rotary": _rotary}
