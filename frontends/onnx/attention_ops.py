"""Attention and RotaryEmbedding of ONNX, and the forms of onnxruntime's domain that equal them.

onnxruntime's forms that depend on lengths known at run time (a buffer shared by past and present,
ragged batches) are not read here; `contrib` reads some of them as groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qir.errors import TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.dims import Dim
from qir.ir.dtype import DType
from qir.ir.node import Value
from qir.ir.types import Array

from .elements import dtype_of_number
from .op import MICROSOFT, KeepOperator, OnnxOp
from .reader import OnnxReader
from .recurrent_ops import keep_unless_one_float_type, result_names

_SLOTS = ("q", "k", "v", "mask", "past_k", "past_v", "lengths")
_QK_OUTPUT_MODES = ("raw", "capped", "masked", "probs")


def _attention(reader: OnnxReader, op: OnnxOp) -> None:
    """Attention of opsets 23 and later."""
    keep_unless_one_float_type(reader, op, [0, 1, 2, 4, 5])
    _check_mask(reader, op, 3)
    operands = {s: reader.value(op, n) for s, n in zip(_SLOTS, op.inputs, strict=False) if n}
    # 3-D operands have the heads side by side in the last axis, so their count is needed.
    has_flat_heads = operands["q"].type.rank == 3
    mode = op.integer("qk_matmul_output_mode", 0)
    if not 0 <= mode < len(_QK_OUTPUT_MODES) or op.floating("softcap", 0.0) < 0:
        raise KeepOperator
    attrs: dict[str, Attr] = {
        # 4-D operands state the count of heads by axis 1.
        "heads": op.integer("q_num_heads", 0) or None if has_flat_heads else None,
        "kv_heads": op.integer("kv_num_heads", 0) or None if has_flat_heads else None,
        "causal": op.integer("is_causal", 0) != 0,
        "scale": op.floating("scale", 0.0) if op.attribute("scale") else None,
        "softcap": op.floating("softcap", 0.0),
        "left": op.integer("left_window_size", -1),
        "right": op.integer("right_window_size", -1),
        "precision": _precision(op),
        "qk": _QK_OUTPUT_MODES[mode],
    }
    _add_attention(reader, op, operands, attrs)


def _precision(op: OnnxOp) -> DType | None:
    """Returns the type that softmax computes in, if the file names one."""
    if op.attribute("softmax_precision") is None:
        return None
    stated = dtype_of_number(op.integer("softmax_precision", 0))
    if not stated.is_float:
        raise KeepOperator
    return stated


def _add_attention(
    reader: OnnxReader, op: OnnxOp, operands: Mapping[str, Value], attrs: dict[str, Attr]
) -> None:
    """Adds the node with the results that the file names."""
    outputs = [*op.proto.output, "", "", "", ""]
    # One of the two results makes the node return both.
    has_present = bool(outputs[1] or outputs[2])
    # Results are y, present key, present value, and the scores.
    result_indices = [0, *((1, 2) if has_present else ()), *((3,) if outputs[3] else ())]
    all_names = result_names(reader, op, ("y", "present_k", "present_v", "qk"))
    qk_mode = attrs.pop("qk", "raw")
    all_attrs = {**attrs, "present": has_present, "qk": qk_mode if outputs[3] else "none"}
    reader.add(op, "attention", operands, all_attrs, names=[all_names[i] for i in result_indices])


def _check_mask(reader: OnnxReader, op: OnnxOp, index: int) -> None:
    """Raises KeepOperator for a mask that is neither bool nor of q's type."""
    if not op.input(index):
        return
    mask_type, query_type = (reader.type_of(op, op.input(i)) for i in (index, 0))
    if mask_type.quant or mask_type.dtype.name not in ("bool", query_type.dtype.name):
        raise KeepOperator


def _rotary(reader: OnnxReader, op: OnnxOp) -> None:
    """RotaryEmbedding of opset 23."""
    keep_unless_one_float_type(reader, op, [0, 1, 2])
    slots = ("x", "cos", "sin", "positions")
    operands = {s: reader.value(op, n) for s, n in zip(slots, op.inputs, strict=False) if n}
    heads = op.integer("num_heads", 0) or None
    reader.add(op, "rotary", operands, _rotary_attrs(op, operands["x"], heads))


def _rotary_attrs(op: OnnxOp, x: Value, heads: int | None) -> dict[str, Attr]:
    return {
        "interleaved": op.integer("interleaved", 0) != 0,
        "dim": op.integer("rotary_embedding_dim", 0),
        "heads": heads if x.type.rank == 3 else None,
    }


# -- onnxruntime's own -----------------------------------------------------------------------------


def _contrib_rotary(reader: OnnxReader, op: OnnxOp) -> None:
    """onnxruntime's RotaryEmbedding, whose second operand are the positions."""
    op.allow_only("interleaved", "num_heads", "rotary_embedding_dim", "is_packed_batching", "scale")
    keep_unless_one_float_type(reader, op, [0, 2, 3])
    if op.integer("is_packed_batching", 0) or op.floating("scale", 1.0) != 1.0:
        raise KeepOperator
    slots = ("x", "positions", "cos", "sin")
    operands = {s: reader.value(op, n) for s, n in zip(slots, op.inputs, strict=True)}
    x, cos = operands["x"].type, operands["cos"].type
    heads = op.integer("num_heads", 0) or None
    if x.rank == 3 and heads is None:
        width, half_width = x.shape[2], cos.shape[-1]
        # The caches are half as wide as a head.
        if not isinstance(width, int) or not isinstance(half_width, int) or not half_width:
            raise KeepOperator
        heads = width // (2 * half_width)
    reader.add(op, "rotary", operands, _rotary_attrs(op, operands["x"], heads))


def _is_same_size(a: Dim, b: Dim) -> bool:
    return a is not None and a == b


def read_as_attention(reader: OnnxReader, op: OnnxOp) -> bool:
    """Reads MultiHeadAttention as attention if no bias, padding mask or cache is involved.

    Returns whether it did.
    """
    q, k, v = (_required_operand(reader, op, i) for i in range(3))
    # These operands are the bias, the padding mask and what decoding adds.
    if any(op.input(i) for i in (3, 4, 8, 9)) or any(x.type.rank != 3 for x in (q, k, v)):
        return False
    is_causal = op.integer("unidirectional", 0) != 0
    if (is_causal or op.input(6)) and not _is_same_size(q.type.shape[1], k.type.shape[1]):
        return False  # the causal mask is aligned with the other end in onnxruntime
    if bool(op.input(6)) != bool(op.input(7)) or len(op.outputs) > 3:
        return False
    operands = {"q": q, "k": k, "v": v}
    optional_operands = {"mask": 5, "past_k": 6, "past_v": 7}
    operands |= {
        s: reader.value(op, op.input(i)) for s, i in optional_operands.items() if op.input(i)
    }
    attrs: dict[str, Attr] = {
        "heads": op.integer("num_heads", 0),
        "causal": is_causal,
        "scale": op.floating("scale", 0.0) or None,
    }
    _add_attention(reader, op, operands, attrs)
    return True


def _required_operand(reader: OnnxReader, op: OnnxOp, index: int) -> Value:
    if not op.input(index):
        raise KeepOperator
    return reader.value(op, op.input(index))


_GROUPED_ATTRIBUTES = (
    "num_heads kv_num_heads scale softcap causal local_window_size do_rotary rotary_interleaved "
    "smooth_softmax qk_output k_quant_type v_quant_type kv_cache_bit_width sliding_window_cache "
    "qk_norm_epsilon"
).split()


def check_grouped_attributes(op: OnnxOp) -> None:
    """Raises KeepOperator for attributes and operands of GroupQueryAttention without a form."""
    op.allow_only(*_GROUPED_ATTRIBUTES)
    unsupported = [
        op.integer(name, 0) for name in ("qk_output", "kv_cache_bit_width", "sliding_window_cache")
    ]
    quant_types = [op.text(name, "NONE") for name in ("k_quant_type", "v_quant_type")]
    if any(unsupported) or set(quant_types) != {"NONE"} or op.integer("smooth_softmax", 0) > 0:
        raise KeepOperator
    # Operands from 11 on: head sinks, scales of quantized caches, and norms of queries and keys.
    if any(op.input(i) for i in (11, 12, 13, 14, 15)) or len(op.outputs) > 3:
        raise KeepOperator


def read_prompt_attention(reader: OnnxReader, op: OnnxOp) -> None:
    """Reads GroupQueryAttention over a complete prompt, without past and padding, as attention."""
    keep_unless_one_float_type(reader, op, [0, 1, 2, 7, 8, 10])
    # These operands are the past keys and values, and the positions.
    if any(op.input(i) for i in (3, 4, 9)):
        raise KeepOperator
    heads, kv_heads = op.integer("num_heads", 0), op.integer("kv_num_heads", 0)
    _check_lengths(reader, op)
    if bool(op.input(1)) != bool(op.input(2)):
        raise KeepOperator
    window = op.integer("local_window_size", -1)
    attrs: dict[str, Attr] = {
        "heads": heads,
        "kv_heads": kv_heads,
        "causal": op.integer("causal", 1) != 0,
        "scale": op.floating("scale", 0.0) or None,
        "softcap": op.floating("softcap", 0.0),
        # onnxruntime counts the current position in its window, the language does not.
        "left": window - 1 if window > 0 else -1,
    }
    has_rotary = op.integer("do_rotary", 0) != 0
    if has_rotary and not all(isinstance(_rotary_width(reader, op, i), int) for i in (7, 8)):
        raise KeepOperator
    mask = reader.value(op, op.input(10)) if op.input(10) else None
    q, k, v = _split_qkv(reader, op, heads, kv_heads)
    if has_rotary:
        q, k = (_rotated(reader, op, s, x, n) for s, x, n in (("q", q, heads), ("k", k, kv_heads)))
    operands = {"q": q, "k": k, "v": v}
    if mask is not None:
        operands["mask"] = mask
    _add_attention(reader, op, operands, attrs)


def _check_lengths(reader: OnnxReader, op: OnnxOp) -> None:
    """Raises KeepOperator unless all sequences fill the tensors of queries and keys."""
    # onnxruntime has the index of each sequence's last element, not its length.
    last_indices, total = (reader.constant_data(op.input(i)).reshape(-1) for i in (5, 6))
    shapes = [_required_operand(reader, op, 0).type.shape]
    if op.input(1):
        shapes.append(_required_operand(reader, op, 1).type.shape)
    # Padded sequences would need a mask that depends on the data.
    if len(total) != 1 or any(len(s) != 3 or s[1] != total[0] for s in shapes):
        raise KeepOperator
    if last_indices.tolist() != [int(total[0]) - 1] * len(last_indices) or shapes[0][0] != len(
        last_indices
    ):
        raise KeepOperator


def _split_qkv(
    reader: OnnxReader, op: OnnxOp, heads: int, kv_heads: int
) -> tuple[Value, Value, Value]:
    """Returns q, k and v, split if they are packed in one tensor."""
    q = _required_operand(reader, op, 0)
    if op.input(1):
        return q, _required_operand(reader, op, 1), _required_operand(reader, op, 2)
    width, count = q.type.shape[2], heads + 2 * kv_heads
    if not isinstance(width, int) or count < 1 or width % count:
        raise KeepOperator
    size = width // count
    attrs: dict[str, Attr] = {
        "sizes": (heads * size, kv_heads * size, kv_heads * size),
        "axis": 2,
    }
    names = [reader.unused_name(f"{op.outputs[0]}.{s}") for s in "qkv"]
    q_part, k_part, v_part = _add_before(reader, op, "split", {"x": q}, attrs, names)
    return q_part, k_part, v_part


def _rotated(reader: OnnxReader, op: OnnxOp, slot: str, x: Value, heads: int) -> Value:
    """Returns q or k with rotary embedding, from position 0 on."""
    half_width = _rotary_width(reader, op, 7)
    assert isinstance(half_width, int)
    stem = f"{op.outputs[0]}.{slot}"
    # A single start makes the positions count from it.
    zero = np.zeros(1, np.int64)
    start = reader.graph.constant(Array.of(zero), name=reader.unused_name(f"{stem}.start"))
    attrs: dict[str, Attr] = {
        "interleaved": op.integer("rotary_interleaved", 0) != 0,
        "dim": 2 * half_width,
        "heads": heads,
    }
    # The caches are operands 7 and 8, as wide as half of what is rotated.
    cos, sin = (reader.value(op, op.input(i)) for i in (7, 8))
    operands = {"x": x, "cos": cos, "sin": sin, "positions": start}
    return _add_before(
        reader, op, "rotary", operands, attrs, [reader.unused_name(f"{stem}.turned")]
    )[0]


def _rotary_width(reader: OnnxReader, op: OnnxOp, index: int) -> Dim:
    """Returns the width of the cosine or sine cache: half of what is rotated."""
    if not op.input(index):
        raise KeepOperator
    shape = reader.type_of(op, op.input(index)).shape
    return shape[-1] if shape else None


def _add_before(
    reader: OnnxReader,
    op: OnnxOp,
    kind: str,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    names: Sequence[str],
) -> tuple[Value, ...]:
    """Adds a node before the operator's own, with its origin; raises InputError if that fails."""
    try:
        origin = [op.origin()]
        return reader.graph.add(kind, operands, attrs, name=names, origins=origin).results
    except TypeRuleError as error:
        raise op.error(str(error)) from error


OPS: dict[str, Callable[[OnnxReader, OnnxOp], None]] = {
    "Attention": _attention,
    "RotaryEmbedding": _rotary,
}
CONTRIB: dict[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    (MICROSOFT, "RotaryEmbedding"): _contrib_rotary,
}
