"""GroupQueryAttention of onnxruntime's domain, with a past or with computed lengths.

Over a complete prompt of known length it is plain attention; else it is a group. Each sequence of
the batch has a past of its own length. Its new keys and values follow directly after it, and the
rest of the buffer is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import I64
from qir.ir.node import Value

from ..attention_ops import check_grouped_attributes, read_prompt_attention
from ..op import MICROSOFT, KeepOperator, OnnxOp
from ..reader import OnnxReader
from ..recurrent_ops import keep_unless_one_float_type
from .attention import axis_length
from .group_bodies import BodyBuilder, add_group, named_operands


def _grouped(reader: OnnxReader, op: OnnxOp) -> None:
    check_grouped_attributes(op)
    try:
        read_prompt_attention(reader, op)
    except KeepOperator:
        _group(reader, op)


@dataclass(frozen=True, slots=True)
class _Heads:
    """Count and size of the heads, and which keys each query sees."""

    heads: int
    kv_heads: int
    head_size: int
    causal: bool
    window: int
    scale: float | None
    softcap: float
    interleaved: bool
    has_rotary: bool

    def split_heads(self, body: BodyBuilder, x: Value, count: int) -> Value:
        """Returns [batch, length, heads * size] as [batch, heads, length, size]."""
        rows = body.reshape(x, 0, 0, count, self.head_size)
        return body.op("transpose", rows, perm=(0, 2, 1, 3))

    def qkv(self, body: BodyBuilder) -> tuple[Value, ...]:
        """Returns queries, keys and values, split if they are packed in one tensor."""
        if "key" in body:
            return body["query"], body["key"], body["value"]
        sizes = tuple(n * self.head_size for n in (self.heads, self.kv_heads, self.kv_heads))
        return body.add("split", {"x": body["query"]}, {"sizes": sizes, "axis": 2})


def _group(reader: OnnxReader, op: OnnxOp) -> None:
    keep_unless_one_float_type(reader, op, [0, 1, 2, 3, 4, 7, 8, 10])
    operands = named_operands(reader, op)
    heads = _heads_of(op, operands)
    if ("past_key" in operands) != ("past_value" in operands):
        raise KeepOperator("its past has keys or values alone")

    def build(body: BodyBuilder) -> list[Value]:
        q, k, v = heads.qkv(body)
        positions = _Positions.of(body, q)
        if heads.has_rotary:
            q, k = (
                _rotated(body, heads, x, count, positions)
                for x, count in ((q, heads.heads), (k, heads.kv_heads))
            )
        keys, values = (
            positions.with_past(body, heads, heads.split_heads(body, x, heads.kv_heads), slot)
            for x, slot in ((k, "past_key"), (v, "past_value"))
        )
        attrs: dict[str, Attr] = {"scale": heads.scale, "softcap": heads.softcap}
        attention_operands = {"q": heads.split_heads(body, q, heads.heads), "k": keys, "v": values}
        attention_operands["mask"] = positions.mask(body, heads)
        context = body.op(
            "transpose", body.add("attention", attention_operands, attrs)[0], perm=(0, 2, 1, 3)
        )
        return [body.reshape(context, 0, 0, heads.heads * heads.head_size), keys, values]

    add_group(reader, op, operands, build)


def _heads_of(op: OnnxOp, operands: dict[str, Value]) -> _Heads:
    counts = [op.integer(name, 0) for name in ("num_heads", "kv_num_heads")]
    query_type = operands["query"].type
    width = query_type.shape[-1] if query_type.rank == 3 else None
    separate_count = sum(s in operands for s in ("key", "value"))
    # Packed queries, keys and values share the last axis.
    count = counts[0] + (0 if separate_count else 2 * counts[1])
    if not isinstance(width, int) or min(counts) < 1 or width % count or separate_count == 1:
        raise KeepOperator(f"{width} numbers for {count} heads")
    window = op.integer("local_window_size", -1)
    return _Heads(
        counts[0],
        counts[1],
        width // count,
        op.integer("causal", 1) != 0,
        window if window > 0 else 0,
        op.floating("scale", 0.0) or None,
        op.floating("softcap", 0.0),
        op.integer("rotary_interleaved", 0) != 0,
        op.integer("do_rotary", 0) != 0,
    )


def _as_int64(body: BodyBuilder, x: Value, *sizes: int) -> Value:
    return body.reshape(body.cast(x, I64), *sizes)


def _rotated(
    body: BodyBuilder, heads: _Heads, x: Value, count: int, positions: _Positions
) -> Value:
    half_width, query_positions = body["cos_cache"].type.shape[-1], positions.query_positions
    if not isinstance(half_width, int):
        raise KeepOperator("nobody knows how many pairs it turns")
    if "position_ids" in body:
        query_positions = positions.stated_query_positions(body)
    attrs: dict[str, Attr] = {
        "interleaved": heads.interleaved,
        "dim": 2 * half_width,
        "heads": count,
    }
    return body.op("rotary", x, body["cos_cache"], body["sin_cache"], query_positions, **attrs)


@dataclass(frozen=True, slots=True)
class _Positions:
    """Positions of queries and keys in each sequence."""

    query_count: Value
    """Count of queries."""
    key_count: Value
    """Count of keys of the longest sequence."""
    is_prompt: Value
    """Whether no sequence has a past."""
    past_lengths: Value
    """[batch, 1]: count of past keys of each sequence; 0 for a prompt."""
    query_positions: Value
    """[batch, length]: position of each query."""
    key_positions: Value
    """Positions of the keys, up to the end of the buffer."""

    @classmethod
    def of(cls, body: BodyBuilder, q: Value) -> _Positions:
        zero, one = (body.constant(np.array(n, np.int64)) for n in (0, 1))
        query_count, total = axis_length(body, q, 1), _as_int64(body, body["total_sequence_length"])
        lengths = body.op("add", _as_int64(body, body["seqlens_k"], -1, 1), one)
        is_prompt = body.op("less_equal", total, query_count)
        past_lengths = body.op("where", is_prompt, zero, body.op("sub", lengths, query_count))
        query_positions = body.op("add", past_lengths, body.op("range", zero, query_count, one))
        # The present buffer is as long as the past one, if that is longer than what is needed.
        buffer_length = total
        if "past_key" in body:
            buffer_length = body.op("max", total, axis_length(body, body["past_key"], 2))
        return cls(
            query_count,
            total,
            is_prompt,
            past_lengths,
            query_positions,
            body.op("range", zero, buffer_length, one),
        )

    def stated_query_positions(self, body: BodyBuilder) -> Value:
        """Returns the positions that `position_ids` states; a prompt counts on from its first."""
        zero, one = (body.constant(np.array(n, np.int64)) for n in (0, 1))
        position_ids = body["position_ids"]
        first = body.op("gather", body.reshape(position_ids, -1), zero, axis=0)
        prompt_positions = body.op("add", first, body.op("range", zero, self.query_count, one))
        return body.op("where", self.is_prompt, prompt_positions, position_ids)

    def with_past(self, body: BodyBuilder, heads: _Heads, new: Value, slot: str) -> Value:
        """Returns the past of each sequence with the new keys or values after it, then zeros."""
        zero = body.constant(np.array(0, np.int64))
        past = body.get(slot)
        past_size = axis_length(body, past, 2) if past is not None else zero
        past_and_new = body.op("concat", past, new, axis=2) if past is not None else new
        new_positions = body.op(
            "add", body.op("sub", self.key_positions, self.past_lengths), past_size
        )
        # Before the past's length, positions are those of the past; then come the new keys, which
        # lie after the whole past buffer.
        positions = body.op(
            "where",
            body.op("less", self.key_positions, self.past_lengths),
            self.key_positions,
            new_positions,
        )
        is_present = body.op(
            "less", self.key_positions, body.op("add", self.past_lengths, self.query_count)
        )
        positions = body.op("unsqueeze", body.op("where", is_present, positions, zero), axes=(1, 3))
        expanded_shape = body.constant((1, heads.kv_heads, 1, heads.head_size))
        gathered = body.op(
            "gather_elements", past_and_new, body.op("expand", positions, expanded_shape), axis=2
        )
        is_present = body.op("unsqueeze", is_present, axes=(1, 3))
        return body.op("where", is_present, gathered, body.scalar_like(gathered, 0.0))

    def mask(self, body: BodyBuilder, heads: _Heads) -> Value:
        """Returns which keys each query sees, or what is added to its scores."""
        query_positions = body.op("unsqueeze", self.query_positions, axes=(2,))
        if heads.causal:
            is_visible = body.op("less_equal", self.key_positions, query_positions)
        else:
            ends = body.op(
                "unsqueeze", body.op("add", self.past_lengths, self.query_count), axes=(2,)
            )
            is_visible = body.op("logical_and", *self._all(body, query_positions, ends))
        if heads.window:
            # The window counts the query's own position.
            oldest = body.op(
                "sub", query_positions, body.constant(np.array(heads.window, np.int64))
            )
            is_visible = body.op(
                "logical_and", is_visible, body.op("greater", self.key_positions, oldest)
            )
        is_visible = body.op("unsqueeze", is_visible, axes=(1,))
        bias = body.get("attention_bias")
        if bias is None:
            return is_visible
        zero, one = (body.constant(np.array(n, np.int64)) for n in (0, 1))
        # The bias covers keys up to the longest sequence, without the rest of the buffer.
        visible_keys = body.op(
            "gather", is_visible, body.op("range", zero, self.key_count, one), axis=3
        )
        return body.op("where", visible_keys, bias, body.scalar_like(bias, -np.inf))

    def _all(self, body: BodyBuilder, query_positions: Value, ends: Value) -> tuple[Value, Value]:
        """Returns, for each query, conditions that hold for the existing keys."""
        is_started = body.op("greater_equal", query_positions, body.constant(np.array(0, np.int64)))
        return is_started, body.op("less", self.key_positions, ends)


OPS: dict[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    (MICROSOFT, "GroupQueryAttention"): _grouped
}
