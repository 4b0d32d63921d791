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
LOW = -100.0
"""A number at or below this may be a mask: exporters write -1e4, -1e9, float32's least or -inf."""
HIGH = 1e4
"""A number at or above this may be a mask that another op negates."""
_GAP_SHARE = 16 / 255
"""Observed data show a mask if all other values would get less than this share of the range."""
_ENOUGH_ROOM, _ENOUGH_ROOM_BEFORE_SOFTMAX = 1 / 8, 1 / 2
"""Share of the range from which on observed data refute a constant's mask.

More is asked before a softmax, whose exponentials magnify the error of a coarse scale.
"""
_NO_ROOM = 1 / 256
"""Below this share of the range the other values would all be one quantized value."""
_OTHERS_SHARE = 1 / 50
"""A constant is a mask if its other elements are at most this share of its extreme element."""
_MAX_ELEMENTS = 1 << 24
"""Larger constants are not searched for masks: that would take long, and masks are small."""
_SOFTMAX = frozenset({"softmax", "log_softmax"})
_POOLS = frozenset({"max_pool1d", "max_pool2d", "max_pool3d"})
_CARRYING = frozenset({"where", "add", "sub", "mul", "div", "max", "min", "clip", "cast", "log"})


@dataclass(frozen=True, slots=True)
class _MaskFact:
    """A fact about a value's elements: extreme numbers, mixed with others or not, or a choice."""

    extreme: float = 0.0
    """The mask's number, such as -1e4; 0 where there is none."""
    is_mixed: bool = False
    """Whether ordinary elements are in the same value, which then needs one scale for both."""
    is_choice: bool = False
    """Whether elements are 0 or 1, as in `(1 - mask) * -1e4`; 0 or -1 where `extreme` is -1."""


def constant_masks(graph: Graph) -> dict[Value, float]:
    """Returns the values that hold a mask's number by the graph's constants, with that number."""
    propagation = _MaskPropagation()
    for node in graph:
        propagation.visit(node)
    # A tensor of mask numbers alone has a scale of its own; only mixed ones are a problem.
    mixed = {v: k.extreme for v, k in propagation.facts.items() if k and k.is_mixed}
    return {v: extreme for v, extreme in mixed.items() if not LOW < extreme < HIGH}


def observed_masks(graph: Graph, statistics: Statistics) -> dict[Value, float]:
    """Returns the values before a softmax whose observed data show a mask, with its number."""
    out: dict[Value, float] = {}
    for value in _values_reaching(n for n in graph if n.op in _SOFTMAX):
        summary = statistics.get(Key(value.lineage.tensor))
        if summary is not None and (least := _mask_number(summary)) is not None:
            out[value] = least
    return out


def refuted_masks(graph: Graph, statistics: Statistics) -> frozenset[Value]:
    """Returns the values of `constant_masks` that hold no mask by the observed data.

    Their data reach about as far as the number, or all their readers are refuted.
    """
    rooms: dict[Value, float] = {}
    for value, far in constant_masks(graph).items():
        summary = statistics.get(Key(value.lineage.tensor))
        if summary is not None and summary.finite and math.isfinite(far):
            rooms[value] = _share_of_others(summary, far)
    heads = set(_values_reaching(n for n in graph if n.op in _SOFTMAX))
    wanted = {v: _ENOUGH_ROOM_BEFORE_SOFTMAX if v in heads else _ENOUGH_ROOM for v in rooms}
    refuted = {value for value, room in rooms.items() if room >= wanted[value]}
    # From consumers to producers: a value that holds little but the number is no mask where all
    # that is computed from it turned out to be none.
    for value in reversed(list(rooms)):
        read = [v for n in value.users for v in n.results]
        if rooms[value] < _NO_ROOM and read and refuted.issuperset(read):
            refuted.add(value)
    return frozenset(refuted)


def _share_of_others(summary: Summary, extreme: float) -> float:
    """Returns the share of a tensor's range that its values have without the extreme number.

    Values between a half and four times the number count as the mask's own.
    """
    starts, ends = summary.edges[:-1] / extreme, summary.edges[1:] / extreme
    # Bin edges as multiples of the number. A mask is often added to scores, which moves it a
    # little.
    near, beyond = np.maximum(starts, ends), np.minimum(starts, ends)
    rest = (summary.bins > 0) & ((near < 1 / 2) | (beyond > 4))
    if not rest.any():
        return 0.0
    low = min(max(float(summary.edges[:-1][rest][0]), summary.low), 0.0)
    high = max(min(float(summary.edges[1:][rest][-1]), summary.high), 0.0)
    return (high - low) / (max(high, extreme) - min(low, extreme))


def merge_masks(
    constant: Mapping[Value, float], observed: Mapping[Value, float]
) -> dict[Value, float]:
    """Returns constant and observed masks; an observed 0 marks a constant mask as refuted."""
    empty = {value for value, least in observed.items() if not least}
    return {v: least for v, least in ({**observed, **constant}).items() if v not in empty}


def possible_mask_inputs(graph: Graph, planned: Container[str]) -> tuple[str, ...]:
    """Returns the float inputs that reach a softmax planned integer.

    They may carry a mask, which only their data show.
    """
    heads = [n for n in graph if n.op in _SOFTMAX and n.name in planned]
    inputs = [
        v for v in _values_reaching(heads) if v.node.op == "input" and v.type.express.is_float
    ]
    return tuple(sorted(v.name for v in inputs))


def _values_reaching(heads: Iterable[Node]) -> Iterator[Value]:
    """Yields the values that reach these ops by sums, choices and moves alone."""
    waiting = [n.operands["x"] for n in heads]
    looked: set[Value] = set()
    while waiting:
        value = waiting.pop()
        if value in looked or value.constant is not None:
            continue
        looked.add(value)
        yield value
        if value.node.op in _CARRYING or spec(value.node.op).traits.value_preserving:
            waiting += value.node.operands.values()


def mask_reason(extreme: float) -> str:
    """Returns why a value that holds a mask's number stays float."""
    if math.isinf(extreme):
        return f"{MASKED} {extreme:g} there, which no quantized value represents"
    return f"{MASKED} {extreme:.6g} there: its scale leaves the other numbers no room"


def parse_masks(texts: str | list[str]) -> tuple[tuple[str, float], ...]:
    """Parses values with the least element of each, such as `-10000 scores`."""
    rows = [t.partition(" ") for t in ([texts] if isinstance(texts, str) else texts)]
    return tuple((name, float(least)) for least, _, name in rows)


def mask_texts(masks: object) -> list[str]:
    """Returns the texts that `parse_masks` reads."""
    pairs = masks if isinstance(masks, tuple) else ()
    return [f"{least!r} {name}" for name, least in pairs]


def _mask_number(summary: Summary) -> float | None:
    """Returns the mask's number in observed data, if a gap sets it off from the other values."""
    # -inf was observed, which before a softmax is a mask's number.
    if summary.below:
        return -math.inf
    if not summary.finite or summary.low > LOW:
        return None
    edges, used = summary.edges, summary.bins > 0
    # Bins in the upper half of the range; a gap between these and the lowest value shows a mask.
    rest = used & (edges[:-1] > summary.low / 2)
    if not rest.any():
        return None
    high = max(summary.high, 0.0)
    room = high - min(float(edges[:-1][rest][0]), 0.0)
    return summary.low if room < _GAP_SHARE * (high - summary.low) else None


class _MaskPropagation:
    """Propagates facts about mask numbers from constants along the graph."""

    def __init__(self) -> None:
        self.facts: dict[Value, _MaskFact | None] = {}

    def visit(self, node: Node) -> None:
        known = spec(node.op).traits
        if node.op in _RULES:
            fact = _RULES[node.op](node, self.of)
        elif known.value_preserving:
            moved = [v for s, v in node.operands.items() if s.split(".")[0] in known.same_params]
            fact = _union(list(map(self.of, moved)))
        else:
            return
        for value in node.results:
            self.facts[value] = fact

    def of(self, value: Value) -> _MaskFact | None:
        if value not in self.facts and value.constant is not None:
            self.facts[value] = _constant_fact(value)
        return self.facts.get(value)


_Of = Callable[[Value], "_MaskFact | None"]


def _constant_fact(value: Value) -> _MaskFact | None:
    size = math.prod(d for d in value.type.shape if isinstance(d, int))
    if value.constant is None or not value.type.express.is_float or not 0 < size <= _MAX_ELEMENTS:
        return None
    if value.type.quant is not None:
        return None
    return _numbers_fact(np.asarray(value.constant.data))


def _numbers_fact(data: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> _MaskFact | None:
    """Returns the fact that the elements of a constant show."""
    data = np.asarray(data, np.float32).reshape(-1)
    low, high = float(data.min()), float(data.max())
    if 0 <= low and high <= 1:
        return _MaskFact(is_choice=True)
    # No large negative number: a mask may still be one large positive number, as for a minimum.
    if not low <= LOW:
        # All elements are large and positive, so nothing next to them would lose its resolution.
        if low >= -LOW:
            return _MaskFact(high)
        few = data[data < high / 2] if high >= HIGH else data[:0]
        near = bool(few.size) and float(np.abs(few).max()) <= high * _OTHERS_SHARE
        return _MaskFact(high, is_mixed=True) if near else None
    # The elements that are not the mask's number; they must be small next to it.
    rest = data[data > low / 2] if low > -math.inf else data[data > low]
    if not rest.size:
        return _MaskFact(low)
    near = low == -math.inf or float(np.abs(rest).max()) <= -low * _OTHERS_SHARE
    return _MaskFact(low, is_mixed=True) if near else None


def _union(kinds: Iterable[_MaskFact | None]) -> _MaskFact | None:
    """Returns the fact of a value that holds elements of several values, as `where` does."""
    kinds = list(kinds)
    known = [k for k in kinds if k is not None and k.extreme]
    if not known:
        return _MaskFact(is_choice=True) if all(kinds) else None
    least = min(known, key=lambda k: k.extreme)
    is_mixed = any(k.is_mixed for k in known) or len(known) < len(kinds)
    return _MaskFact(least.extreme, is_mixed, all(k is not None and k.is_choice for k in kinds))


def _where(node: Node, of: _Of) -> _MaskFact | None:
    return _union([of(node.operands["a"]), of(node.operands["b"])])


def _max(node: Node, of: _Of) -> _MaskFact | None:
    facts = [k for k in map(of, node.operands.values()) if k and k.is_mixed]
    highest = max(facts, key=lambda k: k.extreme, default=None)
    return _clamped(
        highest, max(map(_factor, _scalar_constants(node)), default=-math.inf), math.inf
    )


def _min(node: Node, of: _Of) -> _MaskFact | None:
    facts = [k for k in map(of, node.operands.values()) if k and k.is_mixed]
    lowest = min(facts, key=lambda k: k.extreme, default=None)
    return _clamped(lowest, -math.inf, min(map(_factor, _scalar_constants(node)), default=math.inf))


def _clip(node: Node, of: _Of) -> _MaskFact | None:
    low, high = (node.attrs.get(name) for name in ("min", "max"))
    least = low if isinstance(low, float) else -math.inf
    return _clamped(of(node.operands["x"]), least, high if isinstance(high, float) else math.inf)


def _pool(node: Node, of: _Of) -> _MaskFact | None:
    # A max pool never yields the -inf of its padding: each window has a greater element.
    x = node.operands["x"]
    return of(x.node.operands["x"] if x.node.op == "pad" else x)


def _clamped(kind: _MaskFact | None, low: float, high: float) -> _MaskFact | None:
    """Returns a fact after a clamp to low..high."""
    if kind is None or kind.is_choice:
        return kind if kind and low <= min(kind.extreme, 0.0) and high >= 1 else None
    return replace(kind, extreme=min(max(kind.extreme, low), high))


def _pad(node: Node, of: _Of) -> _MaskFact | None:
    inside, value = of(node.operands["x"]), node.attrs["value"]
    if node.attrs["mode"] != "constant" or not isinstance(value, float) or LOW < value < HIGH:
        return inside
    if value == -math.inf and all(n.op in _POOLS for n in node.result.users):
        return inside  # The lowest quantized value is padded instead, which no window prefers.
    return _union([inside, _MaskFact(value)])


def _filled(node: Node, of: _Of) -> _MaskFact | None:
    value = node.attrs["value"]
    data = np.asarray(getattr(value, "data", value))
    return _numbers_fact(data) if data.dtype.kind == "f" and data.size else None


def _triangle(node: Node, of: _Of) -> _MaskFact | None:
    kind = of(node.operands["x"])
    return (
        _MaskFact(kind.extreme, is_mixed=True)
        if kind and kind.extreme and not kind.is_choice
        else kind
    )


def _cast(node: Node, of: _Of) -> _MaskFact | None:
    x = node.operands["x"]
    return of(x) if x.type.express.is_float else _MaskFact(is_choice=True)


def _add(node: Node, of: _Of) -> _MaskFact | None:
    facts = [k for k in map(of, node.operands.values()) if k and k.is_mixed]
    return min(facts, key=lambda k: k.extreme, default=None)


def _sub(node: Node, of: _Of) -> _MaskFact | None:
    a, b = node.operands["a"], node.operands["b"]
    left, right = of(a), of(b)
    if left and left.is_mixed:
        return left
    if right and right.is_mixed:
        return _MaskFact(-right.extreme, is_mixed=True)
    # `1 - mask` and `mask - 1`, for an input that the model treats as 0 or 1.
    one = (left and left.is_choice and a.constant, right and right.is_choice and b.constant)
    if one[0] and (b.node.op == "input" or (right and right.is_choice)):
        return _MaskFact(is_choice=True)
    if one[1] and (a.node.op == "input" or (left and left.is_choice)):
        return _MaskFact(-1.0, is_choice=True)
    return None


def _mul(node: Node, of: _Of) -> _MaskFact | None:
    values = list(node.operands.values())
    for value, other in (values, values[::-1]):
        fact, other_fact = of(value), of(other)
        if (
            fact
            and fact.is_mixed
            and (_is_scalar_constant(other) or (other_fact and other_fact.is_choice))
        ):
            return _MaskFact(fact.extreme * _factor(other), is_mixed=True)
        if (
            fact
            and fact.is_choice
            and other_fact
            and other_fact.extreme
            and not other_fact.is_choice
        ):
            return _MaskFact(other_fact.extreme * (fact.extreme or 1.0), is_mixed=True)
    return _union([*map(of, values)]) if all((k := of(v)) and k.is_choice for v in values) else None


def _div(node: Node, of: _Of) -> _MaskFact | None:
    kind, by = of(node.operands["a"]), _factor(node.operands["b"])
    return _MaskFact(kind.extreme / by, is_mixed=True) if kind and kind.is_mixed and by else None


def _neg(node: Node, of: _Of) -> _MaskFact | None:
    kind = of(node.operands["x"])
    return _MaskFact(-kind.extreme, kind.is_mixed) if kind and kind.extreme else None


def _is_scalar_constant(value: Value) -> bool:
    """Returns whether a value is a constant of one element."""
    return value.constant is not None and value.constant.data.size == 1


def _scalar_constants(node: Node) -> list[Value]:
    return [v for v in node.operands.values() if _is_scalar_constant(v)]


def _factor(value: Value) -> float:
    """Returns the number of a one-element constant, or 1 for other values."""
    if value.constant is None or not _is_scalar_constant(value):
        return 1.0
    return float(np.asarray(value.constant.data).reshape(()))


_RULES: Mapping[str, Callable[[Node, _Of], _MaskFact | None]] = {
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
