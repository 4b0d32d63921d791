"""GroupQueryAttention of onnxruntime's own domain, with a past or lengths that are computed.

Over a whole prompt whose length is known it is attention and no more; else it is a group. Keys and
values are after as much of the past as each sequence has, and what is after them is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import I64
from qir.ir.node import Value

from ..attention_ops import check_grouped, grouped
from ..op import MICROSOFT, KeepOperator, OnnxOp
from ..reader import OnnxReader
from ..recurrent_ops import all_floats
from .attention import length
from .body import BodyBuilder, given, group


def _grouped(reader: OnnxReader, op: OnnxOp) -> None:
    check_grouped(op)
    try:
        grouped(reader, op)
    except KeepOperator:
        _group(reader, op)


@dataclass(frozen=True, slots=True)
class _Heads:
    """How many heads there are and how large, and what each query sees."""

    heads: int
    kv_heads: int
    size: int
    causal: bool
    window: int
    scale: float | None
    softcap: float
    paired: bool
    turned: bool

    def apart(self, body: BodyBuilder, x: Value, count: int) -> Value:
        """[batch, length, wide] as [batch, heads, length, size]."""
        rows = body.reshaped(x, 0, 0, count, self.size)
        return body.op("transpose", rows, perm=(0, 2, 1, 3))

    def parts(self, body: BodyBuilder) -> tuple[Value, ...]:
        """Queries, keys and values, where one tensor holds them all too."""
        if "key" in body:
            return body["query"], body["key"], body["value"]
        sizes = tuple(n * self.size for n in (self.heads, self.kv_heads, self.kv_heads))
        return body.many("split", {"x": body["query"]}, {"sizes": sizes, "axis": 2})


def _group(reader: OnnxReader, op: OnnxOp) -> None:
    all_floats(reader, op, [0, 1, 2, 3, 4, 7, 8, 10])
    operands = given(reader, op)
    heads = _read(op, operands)
    if ("past_key" in operands) != ("past_value" in operands):
        raise KeepOperator("its past has keys or values alone")

    def build(body: BodyBuilder) -> list[Value]:
        q, k, v = heads.parts(body)
        places = _Places.of(body, q)
        if heads.turned:
            q, k = (
                _turned(body, heads, x, count, places)
                for x, count in ((q, heads.heads), (k, heads.kv_heads))
            )
        keys, values = (
            places.stored(body, heads, heads.apart(body, x, heads.kv_heads), slot)
            for x, slot in ((k, "past_key"), (v, "past_value"))
        )
        attrs: dict[str, Attr] = {"scale": heads.scale, "softcap": heads.softcap}
        taken = {"q": heads.apart(body, q, heads.heads), "k": keys, "v": values}
        taken["mask"] = places.mask(body, heads)
        out = body.op("transpose", body.many("attention", taken, attrs)[0], perm=(0, 2, 1, 3))
        return [body.reshaped(out, 0, 0, heads.heads * heads.size), keys, values]

    group(reader, op, operands, build)


def _read(op: OnnxOp, operands: dict[str, Value]) -> _Heads:
    counts = [op.integer(name, 0) for name in ("num_heads", "kv_num_heads")]
    kind = operands["query"].type
    wide = kind.shape[-1] if kind.rank == 3 else None
    both = sum(s in operands for s in ("key", "value"))
    count = counts[0] + (0 if both else 2 * counts[1])
    if not isinstance(wide, int) or min(counts) < 1 or wide % count or both == 1:
        raise KeepOperator(f"{wide} numbers for {count} heads")
    window = op.integer("local_window_size", -1)
    return _Heads(
        counts[0],
        counts[1],
        wide // count,
        op.integer("causal", 1) != 0,
        window if window > 0 else 0,
        op.real("scale", 0.0) or None,
        op.real("softcap", 0.0),
        op.integer("rotary_interleaved", 0) != 0,
        op.integer("do_rotary", 0) != 0,
    )


def _whole(body: BodyBuilder, x: Value, *sizes: int) -> Value:
    return body.reshaped(body.cast(x, I64), *sizes)


def _turned(body: BodyBuilder, heads: _Heads, x: Value, count: int, places: _Places) -> Value:
    half, at = body["cos_cache"].type.shape[-1], places.at
    if not isinstance(half, int):
        raise KeepOperator("nobody knows how many pairs it turns")
    if "position_ids" in body:
        at = places.given(body)
    attrs: dict[str, Attr] = {"interleaved": heads.paired, "dim": 2 * half, "heads": count}
    return body.op("rotary", x, body["cos_cache"], body["sin_cache"], at, **attrs)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where queries and keys stand, in each sequence."""

    own: Value
    """How many queries there are."""
    total: Value
    """How many keys the longest sequence has."""
    new: Value
    """Whether there is no past."""
    before: Value
    """[batch, 1]: how many keys of the past each sequence has; none where all is new."""
    at: Value
    """[batch, length]: where each query stands."""
    keys: Value
    """Where the keys stand, as many as there is room for."""

    @classmethod
    def of(cls, body: BodyBuilder, q: Value) -> _Places:
        zero, one = (body.constant(np.array(n, np.int64)) for n in (0, 1))
        own, total = length(body, q, 1), _whole(body, body["total_sequence_length"])
        lengths = body.op("add", _whole(body, body["seqlens_k"], -1, 1), one)
        new = body.op("less_equal", total, own)
        before = body.op("where", new, zero, body.op("sub", lengths, own))
        at = body.op("add", before, body.op("range", zero, own, one))
        room = total
        if "past_key" in body:
            room = body.op("max", total, length(body, body["past_key"], 2))
        return cls(own, total, new, before, at, body.op("range", zero, room, one))

    def given(self, body: BodyBuilder) -> Value:
        """Returns where it is said that queries stand: of a prompt, from the first number on."""
        zero, one = (body.constant(np.array(n, np.int64)) for n in (0, 1))
        said = body["position_ids"]
        first = body.op("gather", body.reshaped(said, -1), zero, axis=0)
        row = body.op("add", first, body.op("range", zero, self.own, one))
        return body.op("where", self.new, row, said)

    def stored(self, body: BodyBuilder, heads: _Heads, new: Value, slot: str) -> Value:
        """What is new after as much of the past as there is."""
        zero = body.constant(np.array(0, np.int64))
        past = body.get(slot)
        size = length(body, past, 2) if past is not None else zero
        held = body.op("concat", past, new, axis=2) if past is not None else new
        behind = body.op("add", body.op("sub", self.keys, self.before), size)
        found = body.op("where", body.op("less", self.keys, self.before), self.keys, behind)
        there = body.op("less", self.keys, body.op("add", self.before, self.own))
        found = body.op("unsqueeze", body.op("where", there, found, zero), axes=(1, 3))
        wide = body.constant((1, heads.kv_heads, 1, heads.size))
        made = body.op("gather_elements", held, body.op("expand", found, wide), axis=2)
        there = body.op("unsqueeze", there, axes=(1, 3))
        return body.op("where", there, made, body.like(made, 0.0))

    def mask(self, body: BodyBuilder, heads: _Heads) -> Value:
        """Returns what each query sees, or what is added to its scores."""
        at = body.op("unsqueeze", self.at, axes=(2,))
        if heads.causal:
            seen = body.op("less_equal", self.keys, at)
        else:
            ends = body.op("unsqueeze", body.op("add", self.before, self.own), axes=(2,))
            seen = body.op("logical_and", *self._all(body, at, ends))
        if heads.window:
            last = body.op("sub", at, body.constant(np.array(heads.window, np.int64)))
            seen = body.op("logical_and", seen, body.op("greater", self.keys, last))
        seen = body.op("unsqueeze", seen, axes=(1,))
        bias = body.get("attention_bias")
        if bias is None:
            return seen
        zero, one = (body.constant(np.array(n, np.int64)) for n in (0, 1))
        known = body.op("gather", seen, body.op("range", zero, self.total, one), axis=3)
        return body.op("where", known, bias, body.like(bias, -np.inf))

    def _all(self, body: BodyBuilder, at: Value, ends: Value) -> tuple[Value, Value]:
        """For each query, the keys that there are."""
        start = body.op("greater_equal", at, body.constant(np.array(0, np.int64)))
        return start, body.op("less", self.keys, ends)


OPS: dict[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    (MICROSOFT, "GroupQueryAttention"): _grouped
}
