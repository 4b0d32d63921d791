"""Attention of onnxruntime's own domain, in float and on quantized values, as groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qir.ir.dtype import I64
from qir.ir.node import Value

from ..op import MICROSOFT, KeepOperator, OnnxOp
from ..reader import OnnxReader
from .body import BodyBuilder, given, group
from .names import OPERANDS
from .operators import counted, embedded, floats
from .quantized import codes


@dataclass(frozen=True, slots=True)
class Heads:
    """How the product of all weights is split into heads, and which positions are masked."""

    count: int
    widths: tuple[int, int, int]
    scale: float
    causal: bool
    hidden: float

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers a head, of queries, keys and values."""
        q, k, v = (w // self.count for w in self.widths)
        return q, k, v


_ATTENTION = (
    "num_heads scale mask_filter_value unidirectional qkv_hidden_sizes past_present_share_buffer "
    "do_rotary rotary_embedding_dim"
).split()


def _heads(reader: OnnxReader, op: OnnxOp, width: object) -> Heads:
    op.only(*_ATTENTION)
    if op.integer("past_present_share_buffer", 0) or op.integer("do_rotary", 0):
        raise KeepOperator
    count = op.integer("num_heads", 0)
    widths = op.integers("qkv_hidden_sizes", ())
    if not widths and isinstance(width, int):
        widths = (width // 3,) * 3
    if len(widths) != 3 or count < 1 or any(w % count or w < 1 for w in widths):
        raise KeepOperator(f"weights of {width} columns for {count} heads")
    if widths[0] != widths[1] or sum(widths) != width:
        raise KeepOperator(f"weights of {width} columns for queries, keys and values of {widths}")
    return Heads(
        count,
        (widths[0], widths[1], widths[2]),
        op.real("scale", 0.0),
        op.integer("unidirectional", 0) != 0,
        op.real("mask_filter_value", -10000.0),
    )


def _attention(reader: OnnxReader, op: OnnxOp) -> None:
    """Attention: one product for queries, keys and values, then heads."""
    operands = given(reader, op)
    floats(op, [v for s, v in operands.items() if s != "mask_index"])
    heads = _heads(reader, op, operands["weights"].type.shape[-1])
    if "past_sequence_length" in operands or operands["input"].type.rank != 3:
        raise KeepOperator

    def build(body: BodyBuilder) -> list[Value]:
        made = body.op("matmul", body["input"], body["weights"])
        if "bias" in body:
            made = body.op("add", made, body["bias"])
        return attend(body, made, heads)

    group(reader, op, operands, build)


def _quantized(reader: OnnxReader, op: OnnxOp) -> None:
    """QAttention: the product is one of quantized values."""
    op.only(*_ATTENTION[:3], "unidirectional", "past_present_share_buffer", "do_rotary")
    operands = {**codes(reader, op, (0, 3, 6)), **codes(reader, op, (1, 4, 7))}
    for place in (2, 5, 8):
        if op.input(place):
            operands[OPERANDS[op.type].split()[place]] = reader.value(op, op.input(place))
    heads = _heads(reader, op, operands["weight"].type.shape[-1])

    def build(body: BodyBuilder) -> list[Value]:
        slots = {"a": "input", "b": "weight", "bias": "bias"}
        for side, word in (("a", "input"), ("b", "weight")):
            slots |= {f"{side}.scale": f"{word}_scale", f"{side}.zero": f"{word}_zero_point"}
        made = body.many("matmul", {s: body[g] for s, g in slots.items() if g in body})[0]
        return attend(body, made, heads)

    order = [s for s in OPERANDS[op.type].split() if s in operands]
    group(reader, op, {s: operands[s] for s in order}, build)


def attend(body: BodyBuilder, made: Value, heads: Heads) -> list[Value]:
    """Returns what heads see of [batch, length, all], and keys and values with those of the
    past."""
    parts = body.many("split", {"x": made}, {"sizes": heads.widths, "axis": 2})
    q, k, v = (
        body.op("transpose", body.reshaped(part, 0, 0, heads.count, size), perm=(0, 2, 1, 3))
        for part, size in zip(parts, heads.sizes, strict=True)
    )
    if "past" in body:
        old = body.many("split", {"x": body["past"]}, {"sizes": (1, 1), "axis": 0})
        before = [body.op("squeeze", x, axes=(0,)) for x in old]
        k, v = (
            body.op("concat", past, new, axis=2) for past, new in zip(before, (k, v), strict=True)
        )
    rows = [body.op("unsqueeze", x, axes=(0,)) for x in (k, v)]
    present = body.op("concat", *rows, axis=0) if heads.sizes[0] == heads.sizes[2] else k
    own = length(body, made, 1)
    past = body.op("sub", length(body, k, 2), own)
    out, _ = seen(body, (q, k, v), heads, body.get("mask_index"), past)
    return [out, present]


def seen(
    body: BodyBuilder,
    qkv: tuple[Value, Value, Value],
    heads: Heads,
    mask: Value | None,
    past: Value,
    *,
    even: bool = True,
) -> tuple[Value, Value]:
    """Returns what each query finds in the values, heads side by side, and the scores before
    softmax.

    All three are [batch, heads, length, size]; so many of the keys are of the past, and the others
    are as many as the queries where they are even.
    """
    q, k, v = qkv
    scale = heads.scale or 1.0 / float(np.sqrt(np.float32(heads.sizes[0])))
    scores = body.op("matmul", q, k, trans_b=True)
    scores = body.op("mul", scores, body.like(scores, scale))
    if "attention_bias" in body:  # before what hides, a great number that takes its last bits
        scores = body.op("add", scores, body["attention_bias"])
    if (found := _mask(body, heads, (q, k), mask, past, even=even)) is not None:
        scores = body.op("add", scores, body.cast(found, scores.type.dtype))
    made = body.op("matmul", body.op("softmax", scores, axis=-1), v)
    out = body.reshaped(body.op("transpose", made, perm=(0, 2, 1, 3)), 0, 0, heads.widths[2])
    return out, scores


_LOWEST = float(np.finfo(np.float32).min)


def _mask(
    body: BodyBuilder,
    heads: Heads,
    qk: tuple[Value, Value],
    mask: Value | None,
    past: Value,
    *,
    even: bool,
) -> Value | None:
    """Returns what is added to scores where a mask hides something, and where only the past may be
    seen.

    The last query sees all keys, however many they are, as onnxruntime has it.
    """
    hidden, shown = body.constant(heads.hidden), body.constant(0.0)
    q, k = qk
    places, out = _count(body, k, 2), None
    if mask is not None:
        out = body.op("where", _shown(body, mask, q, places), shown, hidden)
    if heads.causal:
        own = _count(body, q, 2)
        late = body.op("greater", places, _row(body, body.op("add", own, past)))
        if not even:
            last = body.op("sub", length(body, q, 2), body.constant(np.array(1, np.int64)))
            late = body.op("logical_and", late, _row(body, body.op("less", own, last)))
        out = body.op("where", late, body.constant(_LOWEST), shown if out is None else out)
    return out


def _row(body: BodyBuilder, x: Value) -> Value:
    return body.op("unsqueeze", x, axes=(1,))


def _shown(body: BodyBuilder, mask: Value, q: Value, places: Value) -> Value:
    """Where a mask lets look, for [batch, heads, length, all]."""
    rank = mask.type.rank
    if rank == 1:
        batch, size = q.type.shape[0], mask.type.shape[0]
        if isinstance(batch, int) and isinstance(size, int) and size == 2 * batch:
            ends, starts = body.many("split", {"x": mask}, {"sizes": (batch, batch), "axis": 0})
            after = body.op("greater_equal", places, _column(body, starts))
            found = body.op("logical_and", body.op("less", places, _column(body, ends)), after)
        elif isinstance(batch, int) and size == 3 * batch + 2:  # ends, then where rows start
            ends = body.op("slice", mask, starts=(0,), ends=(batch,), axes=(0,), steps=(1,))
            found = body.op("less", places, _column(body, ends))
        elif size == batch:
            found = body.op("less", places, _column(body, mask))
        else:
            raise KeepOperator("nobody knows whether its mask has ends alone, or starts too")
        return body.op("unsqueeze", found, axes=(1, 2))
    if rank not in (2, 3):
        raise KeepOperator(f"its mask has {rank} axes")
    found = body.op("greater", mask, body.constant(np.array(0, mask.type.dtype.carrier)))
    return body.op("unsqueeze", found, axes=(1, 2) if rank == 2 else (1,))


def _column(body: BodyBuilder, x: Value) -> Value:
    return body.op("unsqueeze", body.cast(x, I64), axes=(1,))


def length(body: BodyBuilder, x: Value, axis: int) -> Value:
    size = x.type.shape[axis]
    if isinstance(size, int):
        return body.constant(np.array(size, np.int64))
    return body.op("squeeze", body.op("shape", x, start=axis, end=axis + 1), axes=(0,))


_HELD = 1 << 16


def _count(body: BodyBuilder, x: Value, axis: int) -> Value:
    """Returns the places along an axis: 0, 1, ...; many of them are computed and not held."""
    size = x.type.shape[axis]
    if isinstance(size, int) and size <= _HELD:
        return body.constant(np.arange(size, dtype=np.int64))
    zero, one = body.constant(np.array(0, np.int64)), body.constant(np.array(1, np.int64))
    return body.op("range", zero, length(body, x, axis), one)


# -- embeddings of codes --------------------------------------------------------------------------

_TABLES = ("word_embedding", "position_embedding", "segment_embedding")


def _embedded(reader: OnnxReader, op: OnnxOp) -> None:
    """QEmbedLayerNormalization: rows of tables of integers, added as floats and brought to
    mean 0."""
    op.only("epsilon")
    formal = OPERANDS[op.type].split()
    operands: dict[str, Value] = {}
    for i, name in enumerate(op.inputs[:8]):
        if not name:
            continue
        if 2 <= i < 7:
            operands |= codes(reader, op, (i, i + 6, i + 11))
        else:
            operands[formal[i]] = reader.value(op, name)
    eps = op.real("epsilon", 1e-12)

    def build(body: BodyBuilder) -> list[Value]:
        reals = {
            stem: _real(body, formal[i + 2], stem)
            for i, stem in enumerate((*_TABLES, "gamma", "beta"))
            if formal[i + 2] in body
        }
        rows = {stem.partition("_")[0]: reals.get(stem) for stem in _TABLES}
        total = embedded(body, rows, None)
        out = body.op("layer_norm", total, reals["gamma"], reals["beta"], axis=-1, eps=eps)
        return [out, counted(body)]

    order = [s for s in formal if s in operands]
    group(reader, op, {s: operands[s] for s in order}, build)


def _real(body: BodyBuilder, slot: str, stem: str) -> Value:
    return body.real(slot, f"{stem}_scale", f"{stem}_zero_point")


OPS: dict[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    (MICROSOFT, "Attention"): _attention,
    (MICROSOFT, "QAttention"): _quantized,
    (MICROSOFT, "QEmbedLayerNormalization"): _embedded,
}
