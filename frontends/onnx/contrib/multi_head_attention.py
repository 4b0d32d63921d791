"""MultiHeadAttention of onnxruntime's domain: queries, keys and values are separate operands.

Without bias and padding it is the op `attention`. With them, or with keys that are already split by
heads, it is a group, which is written back unchanged.
"""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.dims import Dim
from qir.ir.node import Value

from ..attention_ops import read_as_attention
from ..op import MICROSOFT, KeepOperator, OnnxOp
from ..reader import OnnxReader
from ..recurrent_ops import keep_unless_one_float_type
from .attention import AttentionHeads, axis_length, scaled_dot_product
from .group_bodies import BodyBuilder, add_group, named_operands

_FLOAT_PLACES = (0, 1, 2, 3, 5, 6, 7)
_SLOTS = ("query", "key", "value")
_SHARED_BUFFER_OPERANDS = {8: "past_sequence_length", 9: "cache_indirection"}


def _multi_head(reader: OnnxReader, op: OnnxOp) -> None:
    op.allow_only("num_heads", "scale", "unidirectional", "mask_filter_value")
    keep_unless_one_float_type(reader, op, _FLOAT_PLACES)
    if shared_buffer := [
        name for index, name in _SHARED_BUFFER_OPERANDS.items() if op.input(index)
    ]:
        raise KeepOperator(f"its {shared_buffer[0]} speaks of a buffer that past and present share")
    ranks = [reader.type_of(op, op.input(i)).rank if op.input(i) else None for i in range(3)]
    if 5 in ranks:
        raise KeepOperator(
            "what it reads is packed in one tensor, which onnxruntime runs on no CPU"
        )
    # Keys and values of rank 4 are split by heads already, as those of cross attention.
    if ranks not in ([3, 3, 3], [3, 4, 4]):
        raise KeepOperator(f"its queries, keys and values have {ranks} axes")
    if not read_as_attention(reader, op):
        _group(reader, op, split_by_heads=ranks[1] == 4)


def _group(reader: OnnxReader, op: OnnxOp, *, split_by_heads: bool) -> None:
    operands = named_operands(reader, op)
    count = op.integer("num_heads", 0)
    q, k, v = (operands[s].type.shape for s in _SLOTS)
    heads = AttentionHeads(
        count,
        (
            _known_width(q[2]),
            _known_width(q[2]),
            _value_width(v, count) if split_by_heads else _known_width(v[2]),
        ),
        op.floating("scale", 0.0),
        op.integer("unidirectional", 0) != 0,
        op.floating("mask_filter_value", -10000.0),
    )
    if count < 1 or any(width % count for width in heads.qkv_widths):
        raise KeepOperator(f"{heads.qkv_widths} numbers for {count} heads")
    past = [s for s in ("past_key", "past_value") if s in operands]
    if len(past) == 1 or (split_by_heads and (past or "bias" in operands)):
        raise KeepOperator(f"it has no {'bias' if not past else 'past'} of its form")
    # If the counts may differ, the last query sees all keys (`_additive_mask`).
    is_aligned = not split_by_heads and q[1] is not None and q[1] == k[1]

    def build(body: BodyBuilder) -> list[Value]:
        q, k, v = _split_heads(body, heads, split_by_heads=split_by_heads)
        new_count = axis_length(body, k, 2)
        if past:
            k, v = (
                body.op("concat", body[s], x, axis=2) for s, x in zip(past, (k, v), strict=True)
            )
        past_count = body.op("sub", axis_length(body, k, 2), new_count)
        context, scores = scaled_dot_product(
            body, (q, k, v), heads, body.get("key_padding_mask"), past_count, is_aligned=is_aligned
        )
        return [context, k, v, scores]

    add_group(reader, op, operands, build)


def _split_heads(
    body: BodyBuilder, heads: AttentionHeads, *, split_by_heads: bool
) -> tuple[Value, Value, Value]:
    """Returns q, k and v as [batch, heads, length, size], each with its part of the bias."""
    values = [body[s] for s in _SLOTS]
    if "bias" in body:
        parts = body.add("split", {"x": body["bias"]}, {"sizes": heads.qkv_widths, "axis": 0})
        values = [body.op("add", x, part) for x, part in zip(values, parts, strict=True)]
    q, k, v = (
        x
        if split_by_heads and i
        else body.op("transpose", body.reshape(x, 0, 0, heads.count, size), perm=(0, 2, 1, 3))
        for i, (x, size) in enumerate(zip(values, heads.head_sizes, strict=True))
    )
    return q, k, v


def _known_width(size: Dim) -> int:
    if not isinstance(size, int) or size < 1:
        raise KeepOperator("nobody knows how wide its heads are")
    return size


def _value_width(shape: tuple[Dim, ...], count: int) -> int:
    return _known_width(shape[3]) * count


OPS: dict[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    (MICROSOFT, "MultiHeadAttention"): _multi_head
}
