"""Detects attention-mask constants (such as -1e4 or -inf) that would dominate a quantization range.

They are found in a graph by the constants that they come from, and in statistics by the gap; and
statistics show which constants are none, since the data reach as far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from qir.calibration import Key, Statistics, Summary
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec

MASKED = "a mask puts"
"""What the reason of a masked op starts with."""
FAR = -100.0
"""From where on downwards a number may be a mask's."""
HIGH = 1e4
"""From where on upwards."""
_FEW = 16 / 255
"""The part of all quantized values that is no room."""
_ROOM, _ROOM_BEFORE_SOFTMAX = 1 / 8, 1 / 2
"""The part of all quantized values from which on others have room next to a constant's number."""
_ALONE = 1 / 256
"""The part of a range below which nothing is next to such a number."""
_NEAR = 1 / 50
"""How far others reach at most, next to a constant's mask."""
_MOST = 1 << 24
"""Elements of a constant that are looked at."""
_SOFTMAX = frozenset({"softmax", "log_softmax"})
_POOLS = frozenset({"max_pool1d", "max_pool2d", "max_pool3d"})
_SUMS = frozenset({"where", "add", "sub", "mul", "div", "max", "min", "clip", "cast", "log"})


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is known of a value: far numbers alone, or next to others; or a choice of 0 and 1."""

    far: float = 0.0
    beside: bool = False
    choice: bool = False
    """Whether it is 0 or 1, or what may be that; of `far` -1 it is 0 or -1."""


def masks(graph: Graph) -> dict[Value, float]:
    """Returns the values in which constants of a graph put numbers of a mask, and the farthest of
    these."""
    found = _Found()
    for node in graph:
        found.take(node)
    beside = {v: k.far for v, k in found.kinds.items() if k and k.beside}
    return {v: far for v, far in beside.items() if not FAR < far < HIGH}


def seen(graph: Graph, statistics: Statistics) -> dict[Value, float]:
    """Returns the values before a softmax in which numbers of a mask were seen, and the least of
    these."""
    out: dict[Value, float] = {}
    for value in _reaching(n for n in graph if n.op in _SOFTMAX):
        summary = statistics.get(Key(value.lineage.tensor))
        if summary is not None and (least := _apart(summary)) is not None:
            out[value] = least
    return out


def refuted(graph: Graph, statistics: Statistics) -> frozenset[Value]:
    """Returns the values of `masks` that hold none by what was seen: the data reach about as far,
    or what is alone with the number is read for such values only."""
    rooms: dict[Value, float] = {}
    for value, far in masks(graph).items():
        summary = statistics.get(Key(value.lineage.tensor))
        if summary is not None and summary.finite and math.isfinite(far):
            rooms[value] = _room(summary, far)
    heads = set(_reaching(n for n in graph if n.op in _SOFTMAX))
    wanted = {v: _ROOM_BEFORE_SOFTMAX if v in heads else _ROOM for v in rooms}
    found = {value for value, room in rooms.items() if room >= wanted[value]}
    for value in reversed(list(rooms)):
        read = [v for n in value.users for v in n.results]
        if rooms[value] < _ALONE and read and found.issuperset(read):
            found.add(value)
    return frozenset(found)


def _room(summary: Summary, far: float) -> float:
    """Returns the part of the range with a number that others take."""
    starts, ends = summary.edges[:-1] / far, summary.edges[1:] / far
    near, beyond = np.maximum(starts, ends), np.minimum(starts, ends)
    rest = (summary.bins > 0) & ((near < 1 / 2) | (beyond > 4))
    if not rest.any():
        return 0.0
    low = min(max(float(summary.edges[:-1][rest][0]), summary.low), 0.0)
    high = max(min(float(summary.edges[1:][rest][-1]), summary.high), 0.0)
    return (high - low) / (max(high, far) - min(low, far))


def merged(found: Mapping[Value, float], seen: Mapping[Value, float]) -> dict[Value, float]:
    """Returns the masks of constants and those of statistics, without those that statistics
    refute."""
    none = {value for value, least in seen.items() if not least}
    return {v: least for v, least in ({**seen, **found}).items() if v not in none}


def unseen(graph: Graph, planned: Container[str]) -> tuple[str, ...]:
    """Returns the inputs that reach the softmax of an integer op, where only data show a mask."""
    heads = [n for n in graph if n.op in _SOFTMAX and n.name in planned]
    found = [v for v in _reaching(heads) if v.node.op == "input" and v.type.express.is_float]
    return tuple(sorted(v.name for v in found))


def _reaching(heads: Iterable[Node]) -> Iterator[Value]:
    """Yields what the graph computes or reads and sums, choices and moves alone carry to these
    ops."""
    waiting = [n.operands["x"] for n in heads]
    looked: set[Value] = set()
    while waiting:
        value = waiting.pop()
        if value in looked or value.constant is not None:
            continue
        looked.add(value)
        yield value
        if value.node.op in _SUMS or spec(value.node.op).traits.value_preserving:
            waiting += value.node.operands.values()


def told(far: float) -> str:
    """Returns why a value has no quantized values in which a mask puts numbers."""
    if math.isinf(far):
        return f"{MASKED} {far:g} there, which no quantized value represents"
    return f"{MASKED} {far:.6g} there: its scale leaves the other numbers no room"


def of_text(texts: str | list[str]) -> tuple[tuple[str, float], ...]:
    """Parses values with the least element of each, such as `-10000 scores`."""
    rows = [t.partition(" ") for t in ([texts] if isinstance(texts, str) else texts)]
    return tuple((name, float(least)) for least, _, name in rows)


def with_text(rows: object) -> list[str]:
    """Returns the texts of which `of_text` makes these."""
    held = rows if isinstance(rows, tuple) else ()
    return [f"{least!r} {name}" for name, least in held]


def _apart(summary: Summary) -> float | None:
    """Returns the least number of a mask among those that were seen, if there is one."""
    if summary.below:
        return -math.inf
    if not summary.finite or summary.low > FAR:
        return None
    edges, used = summary.edges, summary.bins > 0
    rest = used & (edges[:-1] > summary.low / 2)
    if not rest.any():
        return None
    high = max(summary.high, 0.0)
    room = high - min(float(edges[:-1][rest][0]), 0.0)
    return summary.low if room < _FEW * (high - summary.low) else None


class _Found:
    """What is known of values, in the order of the graph."""

    def __init__(self) -> None:
        self.kinds: dict[Value, _Kind | None] = {}

    def take(self, node: Node) -> None:
        known = spec(node.op).traits
        if node.op in _RULES:
            made = _RULES[node.op](node, self.of)
        elif known.value_preserving:
            moved = [v for s, v in node.operands.items() if s.split(".")[0] in known.same_params]
            made = _joined(list(map(self.of, moved)))
        else:
            return
        for value in node.results:
            self.kinds[value] = made

    def of(self, value: Value) -> _Kind | None:
        if value not in self.kinds and value.constant is not None:
            self.kinds[value] = _constant(value)
        return self.kinds.get(value)


_Of = Callable[[Value], "_Kind | None"]


def _constant(value: Value) -> _Kind | None:
    size = math.prod(d for d in value.type.shape if isinstance(d, int))
    if value.constant is None or not value.type.express.is_float or not 0 < size <= _MOST:
        return None
    if value.type.quant is not None:
        return None
    return _numbers(np.asarray(value.constant.data))


def _numbers(data: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> _Kind | None:
    data = np.asarray(data, np.float32).reshape(-1)
    low, high = float(data.min()), float(data.max())
    if 0 <= low and high <= 1:
        return _Kind(choice=True)
    if not low <= FAR:
        if low >= -FAR:
            return _Kind(high)
        few = data[data < high / 2] if high >= HIGH else data[:0]
        near = bool(few.size) and float(np.abs(few).max()) <= high * _NEAR
        return _Kind(high, beside=True) if near else None
    rest = data[data > low / 2] if low > -math.inf else data[data > low]
    if not rest.size:
        return _Kind(low)
    near = low == -math.inf or float(np.abs(rest).max()) <= -low * _NEAR
    return _Kind(low, beside=True) if near else None


def _joined(kinds: Iterable[_Kind | None]) -> _Kind | None:
    """Returns what is known of all elements of several values."""
    kinds = list(kinds)
    known = [k for k in kinds if k is not None and k.far]
    if not known:
        return _Kind(choice=True) if all(kinds) else None
    least = min(known, key=lambda k: k.far)
    beside = any(k.beside for k in known) or len(known) < len(kinds)
    return _Kind(least.far, beside, all(k is not None and k.choice for k in kinds))


def _where(node: Node, of: _Of) -> _Kind | None:
    return _joined([of(node.operands["a"]), of(node.operands["b"])])


def _max(node: Node, of: _Of) -> _Kind | None:
    found = [k for k in map(of, node.operands.values()) if k and k.beside]
    kind = max(found, key=lambda k: k.far, default=None)
    return _between(kind, max(map(_factor, _ones(node)), default=-math.inf), math.inf)


def _min(node: Node, of: _Of) -> _Kind | None:
    found = [k for k in map(of, node.operands.values()) if k and k.beside]
    kind = min(found, key=lambda k: k.far, default=None)
    return _between(kind, -math.inf, min(map(_factor, _ones(node)), default=math.inf))


def _clip(node: Node, of: _Of) -> _Kind | None:
    low, high = (node.attrs.get(name) for name in ("min", "max"))
    least = low if isinstance(low, float) else -math.inf
    return _between(of(node.operands["x"]), least, high if isinstance(high, float) else math.inf)


def _pool(node: Node, of: _Of) -> _Kind | None:
    """Numbers of a pad are next to others in each window, which are greater."""
    x = node.operands["x"]
    return of(x.node.operands["x"] if x.node.op == "pad" else x)


def _between(kind: _Kind | None, low: float, high: float) -> _Kind | None:
    """Returns what is known of numbers after bounds."""
    if kind is None or kind.choice:
        return kind if kind and low <= min(kind.far, 0.0) and high >= 1 else None
    return replace(kind, far=min(max(kind.far, low), high))


def _pad(node: Node, of: _Of) -> _Kind | None:
    inside, value = of(node.operands["x"]), node.attrs["value"]
    if node.attrs["mode"] != "constant" or not isinstance(value, float) or FAR < value < HIGH:
        return inside
    if value == -math.inf and all(n.op in _POOLS for n in node.result.users):
        return inside  # the least quantized value stands for it
    return _joined([inside, _Kind(value)])


def _filled(node: Node, of: _Of) -> _Kind | None:
    value = node.attrs["value"]
    data = np.asarray(getattr(value, "data", value))
    return _numbers(data) if data.dtype.kind == "f" and data.size else None


def _triangle(node: Node, of: _Of) -> _Kind | None:
    kind = of(node.operands["x"])
    return _Kind(kind.far, beside=True) if kind and kind.far and not kind.choice else kind


def _cast(node: Node, of: _Of) -> _Kind | None:
    x = node.operands["x"]
    return of(x) if x.type.express.is_float else _Kind(choice=True)


def _add(node: Node, of: _Of) -> _Kind | None:
    found = [k for k in map(of, node.operands.values()) if k and k.beside]
    return min(found, key=lambda k: k.far, default=None)


def _sub(node: Node, of: _Of) -> _Kind | None:
    a, b = node.operands["a"], node.operands["b"]
    left, right = of(a), of(b)
    if left and left.beside:
        return left
    if right and right.beside:
        return _Kind(-right.far, beside=True)
    one = (left and left.choice and a.constant, right and right.choice and b.constant)
    if one[0] and (b.node.op == "input" or (right and right.choice)):
        return _Kind(choice=True)
    if one[1] and (a.node.op == "input" or (left and left.choice)):
        return _Kind(-1.0, choice=True)
    return None


def _mul(node: Node, of: _Of) -> _Kind | None:
    values = list(node.operands.values())
    for value, other in (values, values[::-1]):
        kind, beside = of(value), of(other)
        if kind and kind.beside and (_one(other) or (beside and beside.choice)):
            return _Kind(kind.far * _factor(other), beside=True)
        if kind and kind.choice and beside and beside.far and not beside.choice:
            return _Kind(beside.far * (kind.far or 1.0), beside=True)
    return _joined([*map(of, values)]) if all((k := of(v)) and k.choice for v in values) else None


def _div(node: Node, of: _Of) -> _Kind | None:
    kind, by = of(node.operands["a"]), _factor(node.operands["b"])
    return _Kind(kind.far / by, beside=True) if kind and kind.beside and by else None


def _neg(node: Node, of: _Of) -> _Kind | None:
    kind = of(node.operands["x"])
    return _Kind(-kind.far, kind.beside) if kind and kind.far else None


def _one(value: Value) -> bool:
    """Returns whether it is one number, that the graph holds."""
    return value.constant is not None and value.constant.data.size == 1


def _ones(node: Node) -> list[Value]:
    return [v for v in node.operands.values() if _one(v)]


def _factor(value: Value) -> float:
    """Returns the number that a constant of one element is; 1 for others."""
    if value.constant is None or not _one(value):
        return 1.0
    return float(np.asarray(value.constant.data).reshape(()))


_RULES: Mapping[str, Callable[[Node, _Of], _Kind | None]] = {
    "where": _where,
    "max": _max,
    "min": _min,
    "clip": _clip,
    "pad": _pad,
    **dict.fromkeys(_POOLS, _pool),
    "constant_of_shape": _filled,
    "trilu": _triangle,
    "cast": _cast,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
}
