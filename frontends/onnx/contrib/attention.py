"""Attention, QAttention and QEmbedLayerNormalization of onnxruntime's domain, as groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qir.ir.dtype import I64
from qir.ir.node import Value

from ..op import MICROSOFT, KeepOperator, OnnxOp
from ..reader import OnnxReader
from .group_bodies import BodyBuilder, add_group, named_operands
from .names import OPERANDS
from .operators import add_embeddings, keep_unless_float_values, sequence_lengths
from .quantized import quantized_operand


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """How the projected input is split into heads, and the values of masked scores."""

    count: int
    qkv_widths: tuple[int, int, int]
    scale: float
    causal: bool
    masked_value: float

    @property
    def head_sizes(self) -> tuple[int, int, int]:
        """Sizes of one head, of queries, keys and values."""
        q, k, v = (w // self.count for w in self.qkv_widths)
        return q, k, v


_ATTENTION_ATTRIBUTES = (
    "num_heads scale mask_filter_value unidirectional qkv_hidden_sizes past_present_share_buffer "
    "do_rotary rotary_embedding_dim"
).split()


def _heads(reader: OnnxReader, op: OnnxOp, width: object) -> AttentionHeads:
    op.allow_only(*_ATTENTION_ATTRIBUTES)
    if op.integer("past_present_share_buffer", 0) or op.integer("do_rotary", 0):
        raise KeepOperator
    count = op.integer("num_heads", 0)
    widths = op.integers("qkv_hidden_sizes", ())
    # Without `qkv_hidden_sizes`, the weights have equal parts for queries, keys and values.
    if not widths and isinstance(width, int):
        widths = (width // 3,) * 3
    if len(widths) != 3 or count < 1 or any(w % count or w < 1 for w in widths):
        raise KeepOperator(f"weights of {width} columns for {count} heads")
    if widths[0] != widths[1] or sum(widths) != width:
        raise KeepOperator(f"weights of {width} columns for queries, keys and values of {widths}")
    return AttentionHeads(
        count,
        (widths[0], widths[1], widths[2]),
        op.floating("scale", 0.0),
        op.integer("unidirectional", 0) != 0,
        op.floating("mask_filter_value", -10000.0),
    )


def _attention(reader: OnnxReader, op: OnnxOp) -> None:
    """Attention: one projection for queries, keys and values, then attention of each head."""
    operands = named_operands(reader, op)
    keep_unless_float_values(op, [v for s, v in operands.items() if s != "mask_index"])
    heads = _heads(reader, op, operands["weights"].type.shape[-1])
    if "past_sequence_length" in operands or operands["input"].type.rank != 3:
        raise KeepOperator

    def build(body: BodyBuilder) -> list[Value]:
        projected = body.op("matmul", body["input"], body["weights"])
        if "bias" in body:
            projected = body.op("add", projected, body["bias"])
        return attend_packed(body, projected, heads)

    add_group(reader, op, operands, build)


def _qattention(reader: OnnxReader, op: OnnxOp) -> None:
    """QAttention: Attention whose projection is a product of quantized values."""
    op.allow_only(
        *_ATTENTION_ATTRIBUTES[:3], "unidirectional", "past_present_share_buffer", "do_rotary"
    )
    operands = {
        **quantized_operand(reader, op, (0, 3, 6)),
        **quantized_operand(reader, op, (1, 4, 7)),
    }
    for index in (2, 5, 8):
        if op.input(index):
            operands[OPERANDS[op.type].split()[index]] = reader.value(op, op.input(index))
    heads = _heads(reader, op, operands["weight"].type.shape[-1])

    def build(body: BodyBuilder) -> list[Value]:
        slots = {"a": "input", "b": "weight", "bias": "bias"}
        for side, word in (("a", "input"), ("b", "weight")):
            slots |= {f"{side}.scale": f"{word}_scale", f"{side}.zero": f"{word}_zero_point"}
        product = body.add("matmul", {s: body[g] for s, g in slots.items() if g in body})[0]
        return attend_packed(body, product, heads)

    order = [s for s in OPERANDS[op.type].split() if s in operands]
    add_group(reader, op, {s: operands[s] for s in order}, build)


def attend_packed(body: BodyBuilder, projected: Value, heads: AttentionHeads) -> list[Value]:
    """Returns the attention over projections, and the present keys and values.

    The projections are [batch, length, q + k + v].
    """
    parts = body.add("split", {"x": projected}, {"sizes": heads.qkv_widths, "axis": 2})
    q, k, v = (
        body.op("transpose", body.reshape(part, 0, 0, heads.count, size), perm=(0, 2, 1, 3))
        for part, size in zip(parts, heads.head_sizes, strict=True)
    )
    if "past" in body:
        # `past` and `present` are [2, batch, heads, length, size]: keys, then values.
        past_parts = body.add("split", {"x": body["past"]}, {"sizes": (1, 1), "axis": 0})
        past_kv = [body.op("squeeze", x, axes=(0,)) for x in past_parts]
        k, v = (
            body.op("concat", past_count, new, axis=2)
            for past_count, new in zip(past_kv, (k, v), strict=True)
        )
    kv_rows = [body.op("unsqueeze", x, axes=(0,)) for x in (k, v)]
    present = (
        body.op("concat", *kv_rows, axis=0) if heads.head_sizes[0] == heads.head_sizes[2] else k
    )
    query_count = axis_length(body, projected, 1)
    past_count = body.op("sub", axis_length(body, k, 2), query_count)
    context, _ = scaled_dot_product(body, (q, k, v), heads, body.get("mask_index"), past_count)
    return [context, present]


def scaled_dot_product(
    body: BodyBuilder,
    qkv: tuple[Value, Value, Value],
    heads: AttentionHeads,
    mask: Value | None,
    past_count: Value,
    *,
    is_aligned: bool = True,
) -> tuple[Value, Value]:
    """Returns the context [batch, length, heads * size], and the scores before softmax.

    `qkv` are [batch, heads, length, size]; the first `past_count` keys are of the past.
    `is_aligned` says that there are as many new keys as queries.
    """
    q, k, v = qkv
    # The default scale is 1 / sqrt(head size), computed in float32.
    scale = heads.scale or 1.0 / float(np.sqrt(np.float32(heads.head_sizes[0])))
    scores = body.op("matmul", q, k, trans_b=True)
    scores = body.op("mul", scores, body.scalar_like(scores, scale))
    # Before the mask, as onnxruntime does: the large masked value would round away the bias.
    if "attention_bias" in body:
        scores = body.op("add", scores, body["attention_bias"])
    if (
        mask_term := _additive_mask(body, heads, (q, k), mask, past_count, is_aligned=is_aligned)
    ) is not None:
        scores = body.op("add", scores, body.cast(mask_term, scores.type.dtype))
    context = body.op("matmul", body.op("softmax", scores, axis=-1), v)
    result = body.reshape(
        body.op("transpose", context, perm=(0, 2, 1, 3)), 0, 0, heads.qkv_widths[2]
    )
    return result, scores


_FLOAT32_MIN = float(np.finfo(np.float32).min)


def _additive_mask(
    body: BodyBuilder,
    heads: AttentionHeads,
    qk: tuple[Value, Value],
    mask: Value | None,
    past_count: Value,
    *,
    is_aligned: bool,
) -> Value | None:
    """Returns what is added to scores for the padding mask and the causal mask; None without both.

    The last query sees all keys, however many there are, as in onnxruntime.
    """
    masked, visible = body.constant(heads.masked_value), body.constant(0.0)
    q, k = qk
    key_positions, masked_scores = _positions(body, k, 2), None
    if mask is not None:
        masked_scores = body.op(
            "where", _visible_keys(body, mask, q, key_positions), visible, masked
        )
    if heads.causal:
        query_positions = _positions(body, q, 2)
        is_later = body.op(
            "greater",
            key_positions,
            _with_query_axis(body, body.op("add", query_positions, past_count)),
        )
        if not is_aligned:
            last_query = body.op(
                "sub", axis_length(body, q, 2), body.constant(np.array(1, np.int64))
            )
            is_later = body.op(
                "logical_and",
                is_later,
                _with_query_axis(body, body.op("less", query_positions, last_query)),
            )
        masked_scores = body.op(
            "where",
            is_later,
            body.constant(_FLOAT32_MIN),
            visible if masked_scores is None else masked_scores,
        )
    return masked_scores


def _with_query_axis(body: BodyBuilder, x: Value) -> Value:
    return body.op("unsqueeze", x, axes=(1,))


def _visible_keys(body: BodyBuilder, mask: Value, q: Value, key_positions: Value) -> Value:
    """Returns where a padding mask permits keys, to broadcast with [batch, heads, length, keys]."""
    rank = mask.type.rank
    # onnxruntime's mask_index has the length of each sequence, or its end and then its start.
    if rank == 1:
        batch, size = q.type.shape[0], mask.type.shape[0]
        if isinstance(batch, int) and isinstance(size, int) and size == 2 * batch:
            ends, starts = body.add("split", {"x": mask}, {"sizes": (batch, batch), "axis": 0})
            is_after_start = body.op("greater_equal", key_positions, _column(body, starts))
            is_visible = body.op(
                "logical_and", body.op("less", key_positions, _column(body, ends)), is_after_start
            )
        elif isinstance(batch, int) and size == 3 * batch + 2:  # ends, then where rows start
            ends = body.op("slice", mask, starts=(0,), ends=(batch,), axes=(0,), steps=(1,))
            is_visible = body.op("less", key_positions, _column(body, ends))
        elif size == batch:
            is_visible = body.op("less", key_positions, _column(body, mask))
        else:
            raise KeepOperator("nobody knows whether its mask has ends alone, or starts too")
        return body.op("unsqueeze", is_visible, axes=(1, 2))
    # [batch, keys] for all queries, or [batch, queries, keys].
    if rank not in (2, 3):
        raise KeepOperator(f"its mask has {rank} axes")
    is_visible = body.op("greater", mask, body.constant(np.array(0, mask.type.dtype.carrier)))
    return body.op("unsqueeze", is_visible, axes=(1, 2) if rank == 2 else (1,))


def _column(body: BodyBuilder, x: Value) -> Value:
    return body.op("unsqueeze", body.cast(x, I64), axes=(1,))


def axis_length(body: BodyBuilder, x: Value, axis: int) -> Value:
    size = x.type.shape[axis]
    if isinstance(size, int):
        return body.constant(np.array(size, np.int64))
    return body.op("squeeze", body.op("shape", x, start=axis, end=axis + 1), axes=(0,))


_MAX_CONSTANT_POSITIONS = 1 << 16


def _positions(body: BodyBuilder, x: Value, axis: int) -> Value:
    """Returns the positions 0, 1, ... along an axis, as a constant unless there are too many."""
    size = x.type.shape[axis]
    if isinstance(size, int) and size <= _MAX_CONSTANT_POSITIONS:
        return body.constant(np.arange(size, dtype=np.int64))
    zero, one = body.constant(np.array(0, np.int64)), body.constant(np.array(1, np.int64))
    return body.op("range", zero, axis_length(body, x, axis), one)


# -- quantized embeddings -------------------------------------------------------------------------

_TABLES = ("word_embedding", "position_embedding", "segment_embedding")


def _qembed_layer_norm(reader: OnnxReader, op: OnnxOp) -> None:
    """QEmbedLayerNormalization: quantized embedding tables, dequantized, added and normalized."""
    op.allow_only("epsilon")
    operand_names = OPERANDS[op.type].split()
    operands: dict[str, Value] = {}
    for i, name in enumerate(op.inputs[:8]):
        if not name:
            continue
        if 2 <= i < 7:
            operands |= quantized_operand(reader, op, (i, i + 6, i + 11))
        else:
            operands[operand_names[i]] = reader.value(op, name)
    eps = op.floating("epsilon", 1e-12)

    def build(body: BodyBuilder) -> list[Value]:
        dequantized = {
            stem: _dequantized(body, operand_names[i + 2], stem)
            for i, stem in enumerate((*_TABLES, "gamma", "beta"))
            if operand_names[i + 2] in body
        }
        tables = {stem.partition("_")[0]: dequantized.get(stem) for stem in _TABLES}
        total = add_embeddings(body, tables, None)
        normalized = body.op(
            "layer_norm", total, dequantized["gamma"], dequantized["beta"], axis=-1, eps=eps
        )
        return [normalized, sequence_lengths(body)]

    order = [s for s in operand_names if s in operands]
    add_group(reader, op, {s: operands[s] for s in order}, build)


def _dequantized(body: BodyBuilder, slot: str, stem: str) -> Value:
    return body.dequantized(slot, f"{stem}_scale", f"{stem}_zero_point")


OPS: dict[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    (MICROSOFT, "Attention"): _attention,
    (MICROSOFT, "QAttention"): _qattention,
    (MICROSOFT, "QEmbedLayerNormalization"): _qembed_layer_norm,
}
