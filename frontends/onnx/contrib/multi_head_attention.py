"""MultiHeadAttention of onnxruntime's own domain: queries, keys and values apart.

What is attention and nothing else is that op; with a bias, with padding, or with keys laid out by
heads it is a group, which comes back as it was.
"""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.dims import Dim
from qir.ir.node import Value

from ..attention_ops import multi_head
from ..op import MICROSOFT, KeepOperator, OnnxOp
from ..reader import OnnxReader
from ..recurrent_ops import all_floats
from .attention import Heads, length, seen
from .body import BodyBuilder, given, group

_REALS = (0, 1, 2, 3, 5, 6, 7)
_SLOTS = ("query", "key", "value")
_SHARED = {8: "past_sequence_length", 9: "cache_indirection"}


def _multi_head(reader: OnnxReader, op: OnnxOp) -> None:
    op.only("num_heads", "scale", "unidirectional", "mask_filter_value")
    all_floats(reader, op, _REALS)
    if shared := [name for place, name in _SHARED.items() if op.input(place)]:
        raise KeepOperator(f"its {shared[0]} speaks of a buffer that past and present share")
    ranks = [reader.type_of(op, op.input(i)).rank if op.input(i) else None for i in range(3)]
    if 5 in ranks:
        raise KeepOperator(
            "what it reads is packed in one tensor, which onnxruntime runs on no CPU"
        )
    if ranks not in ([3, 3, 3], [3, 4, 4]):
        raise KeepOperator(f"its queries, keys and values have {ranks} axes")
    if not multi_head(reader, op):
        _group(reader, op, laid_out=ranks[1] == 4)


def _group(reader: OnnxReader, op: OnnxOp, *, laid_out: bool) -> None:
    operands = given(reader, op)
    count = op.integer("num_heads", 0)
    q, k, v = (operands[s].type.shape for s in _SLOTS)
    heads = Heads(
        count,
        (_wide(q[2]), _wide(q[2]), _heads(v, count) if laid_out else _wide(v[2])),
        op.real("scale", 0.0),
        op.integer("unidirectional", 0) != 0,
        op.real("mask_filter_value", -10000.0),
    )
    if count < 1 or any(width % count for width in heads.widths):
        raise KeepOperator(f"{heads.widths} numbers for {count} heads")
    past = [s for s in ("past_key", "past_value") if s in operands]
    if len(past) == 1 or (laid_out and (past or "bias" in operands)):
        raise KeepOperator(f"it has no {'bias' if not past else 'past'} of its form")
    even = not laid_out and q[1] is not None and q[1] == k[1]

    def build(body: BodyBuilder) -> list[Value]:
        q, k, v = _apart(body, heads, laid_out=laid_out)
        new = length(body, k, 2)
        if past:
            k, v = (
                body.op("concat", body[s], x, axis=2) for s, x in zip(past, (k, v), strict=True)
            )
        old = body.op("sub", length(body, k, 2), new)
        out, scores = seen(body, (q, k, v), heads, body.get("key_padding_mask"), old, even=even)
        return [out, k, v, scores]

    group(reader, op, operands, build)


def _apart(body: BodyBuilder, heads: Heads, *, laid_out: bool) -> tuple[Value, Value, Value]:
    """Returns the three as [batch, heads, length, size], each with its part of the bias."""
    values = [body[s] for s in _SLOTS]
    if "bias" in body:
        parts = body.many("split", {"x": body["bias"]}, {"sizes": heads.widths, "axis": 0})
        values = [body.op("add", x, part) for x, part in zip(values, parts, strict=True)]
    q, k, v = (
        x
        if laid_out and i
        else body.op("transpose", body.reshaped(x, 0, 0, heads.count, size), perm=(0, 2, 1, 3))
        for i, (x, size) in enumerate(zip(values, heads.sizes, strict=True))
    )
    return q, k, v


def _wide(size: Dim) -> int:
    if not isinstance(size, int) or size < 1:
        raise KeepOperator("nobody knows how wide its heads are")
    return size


def _heads(shape: tuple[Dim, ...], count: int) -> int:
    return _wide(shape[3]) * count


OPS: dict[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    (MICROSOFT, "MultiHeadAttention"): _multi_head
}
