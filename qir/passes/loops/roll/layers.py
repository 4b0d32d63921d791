"""Scans whose body is exactly the cell of a recurrent layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.recurrent import GATES
from qir.ir.types import Array, TensorType

Rows = NDArray[np.generic]
_TURNED: Mapping[str, Attr] = {"alpha": 1.0, "beta": 1.0, "trans_a": False, "trans_b": True}


@dataclass(frozen=True, slots=True)
class _Side:
    """x @ w.T + bias, or some of its columns: those of the rows from `start` to `end` of w."""

    x: Value
    w: Value
    bias: Value | None
    start: int
    end: int


Pair = tuple[_Side, _Side]
"""What a gate reads: the side of the entry, and that of the state."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell that was read off a body."""

    op: str
    states: tuple[Value, ...]
    """What the body is given of h and c."""
    gates: tuple[Pair, ...]
    """In the layer's order."""
    attrs: Mapping[str, Attr]


# -- reading a body -------------------------------------------------------------------------------


def _pair(value: Value, op: str) -> list[tuple[Value, Value]]:
    """The operands of a commutative op, both ways round; none where it is another op."""
    if value.node.op != op:
        return []
    a, b = value.node.operands["a"], value.node.operands["b"]
    return [(a, b), (b, a)]


def _under(value: Value, op: str) -> Value | None:
    """The operand of an op of one operand."""
    return value.node.operands["x"] if value.node.op == op else None


def _linear(value: Value) -> _Side | None:
    """A product as linear or gemm writes it."""
    node, slots = value.node, ("x", "w", "bias")
    if node.op == "gemm":
        slots = ("a", "b", "c")
        if any(node.attrs[name] != wanted for name, wanted in _TURNED.items()):
            return None
    elif node.op != "linear":
        return None
    x, w = node.operands[slots[0]], node.operands[slots[1]]
    rows, bias = w.type.shape[0], node.operands.get(slots[2])
    if not isinstance(rows, int) or (bias is not None and bias.type.rank != 1):
        return None
    return _Side(x, w, bias, 0, rows)


def _part(value: Value) -> tuple[Value, int, int] | None:
    """What a value is a part of, and which columns it is."""
    node = value.node
    sizes = node.attrs["sizes"] if node.op == "split" else None
    if not isinstance(sizes, tuple) or node.attrs["axis"] not in (1, -1):
        return None
    whole = [size for size in sizes if isinstance(size, int)]
    start = sum(whole[: value.index])
    return node.operands["x"], start, start + whole[value.index]


def _side(value: Value) -> _Side | None:
    """A product, or some columns of one."""
    part = _part(value)
    if part is None:
        return _linear(value)
    whole = _linear(part[0])
    return None if whole is None else _Side(whole.x, whole.w, whole.bias, part[1], part[2])


def _sum(value: Value, x: Value, h: Value) -> Pair | None:
    """The sum of a product of x and one of h, or some columns of such a sum."""
    part = _part(value)
    for a, b in _pair(value if part is None else part[0], "add"):
        one, other = _side(a), _side(b)
        if one is None or other is None or one.x is not x or other.x is not h:
            continue
        if part is None:
            return one, other
        return _columns(one, part[1], part[2]), _columns(other, part[1], part[2])
    return None


def _columns(side: _Side, start: int, end: int) -> _Side:
    return _Side(side.x, side.w, side.bias, side.start + start, side.start + end)


def _gate(value: Value, op: str, x: Value, h: Value) -> Pair | None:
    """What a gate of that activation reads."""
    total = _under(value, op)
    return None if total is None else _sum(total, x, h)


def _rnn(made: Sequence[Value], states: Sequence[Value], x: Value) -> _Cell | None:
    (h,) = states
    for op in ("tanh", "relu"):
        if (pair := _gate(made[0], op, x, h)) is not None:
            attrs = {"activations": ("relu",)} if op == "relu" else {}
            return _Cell("rnn", (h,), (pair,), attrs)
    return None


def _lstm(made: Sequence[Value], states: Sequence[Value], x: Value) -> _Cell | None:
    """h' = o * tanh(c'), c' = f * c + i * g."""
    (new_h, new_c), (h, c) = made, states
    for a, b in _pair(new_h, "mul"):
        o = _gate(a, "sigmoid", x, h)
        if o is None or _under(b, "tanh") is not new_c:
            continue
        for kept, fresh in _pair(new_c, "add"):
            f = next((_gate(p, "sigmoid", x, h) for p, q in _pair(kept, "mul") if q is c), None)
            for p, q in _pair(fresh, "mul"):
                i, g = _gate(p, "sigmoid", x, h), _gate(q, "tanh", x, h)
                if f is not None and i is not None and g is not None:
                    return _Cell("lstm", (h, c), (i, o, f, g), {})
    return None


def _gru(made: Sequence[Value], states: Sequence[Value], x: Value) -> _Cell | None:
    """h' = (1 - z) * n + z * h, or n + z * (h - n)."""
    (new,), (h,) = made, states
    for a, b in _pair(new, "add"):
        for z, q in _pair(b, "mul"):
            n = _fresh(a, z) if q is h else (a if _less(q, h, a) else None)
            update = _gate(z, "sigmoid", x, h)
            found = None if n is None else _new(n, x, h)
            if update is not None and found is not None:
                reset, pair, before = found
                attrs = {"linear_before_reset": before}
                return _Cell("gru", (h,), (update, reset, pair), attrs)
    return None


def _less(value: Value, a: Value, b: Value) -> bool:
    """Whether it is a - b."""
    operands = value.node.operands
    return value.node.op == "sub" and operands["a"] is a and operands["b"] is b


def _fresh(value: Value, z: Value) -> Value | None:
    """The n of (1 - z) * n."""
    for rest, n in _pair(value, "mul"):
        if rest.node.op == "sub" and rest.node.operands["b"] is z:
            held = rest.node.operands["a"].constant
            if held is not None and held.held.size == 1 and held.data.reshape(()) == 1:
                return n
    return None


def _new(n: Value, x: Value, h: Value) -> tuple[Pair, Pair, bool] | None:
    """The gates r and n, and whether r multiplies the product of h."""
    total = _under(n, "tanh")
    for a, b in [] if total is None else _pair(total, "add"):
        side = _side(a)
        if side is None or side.x is not x:
            continue
        for r, q in _pair(b, "mul"):
            reset, other = _gate(r, "sigmoid", x, h), _side(q)
            if reset is not None and other is not None and other.x is h:
                return reset, (side, other), True
        after = _side(b)
        for r, q in [] if after is None else _pair(after.x, "mul"):
            reset = _gate(r, "sigmoid", x, h)
            if reset is not None and after is not None and q is h:
                return reset, (side, after), False
    return None


# -- from the scan to the layer -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """A scan that is a layer, with its weights."""

    node: Node
    op: str
    operands: Mapping[str, Rows]
    attrs: Mapping[str, Attr]
    starts: tuple[Value, ...]
    """h and c before the first step."""
    order: tuple[int, ...]
    """Which of them each carried value is."""

    def put(self, graph: Graph) -> list[Value | None]:
        """Adds the layer; gives what stands for each result of the scan that is used."""
        node, first = self.node, self.attrs["batch_first"] is True
        operands = {"x": node.operands["ss.0"]}
        for slot, rows in self.operands.items():
            free = graph.fresh(f"{node.name}.{slot}")
            kind = TensorType(rows.shape, operands["x"].type.dtype)
            held = Array(rows.astype(kind.dtype.carrier), kind, free)
            operands[slot] = graph.constant(held, name=free, before=node)
        axis, way = (1, 2) if first else (0, 1)
        for slot, value in zip(("h0", "c0"), self.starts, strict=False):
            wide = graph.add("unsqueeze", {"x": value}, {"axes": (axis,)}, before=node)
            operands[slot] = wide.result
        made = graph.add(
            self.op,
            operands,
            self.attrs,
            before=node,
            origins=node.origins,
            profile=node.profile,
        )
        out: list[Value | None] = []
        for i, old in enumerate(node.results):
            which = 1 + self.order[i] if i < len(self.order) else 0
            attrs: Mapping[str, Attr] = {"axes": (axis if which else way,)}
            value = made.results[which]
            out.append(
                graph.add("squeeze", {"x": value}, attrs, before=node).result if old.uses else None
            )
        return out


def find_layer(graph: Graph, node: Node) -> Layer | None:
    """The layer that a scan is; None where it is none, or has other weights than constants."""
    body, count = graph.body(node), len(node.variadic("vs"))
    axes, reverse = _numbers(node, "axes", 1), _numbers(node, "reverse", 1)
    sequence = node.operands["ss.0"]
    if len(node.variadic("ss")) != 1 or sequence.type.rank != 3 or count not in (1, 2):
        return None
    axis, parts = axes[0] % 3, len(node.results) - count
    along = [a % 3 for a in _numbers(node, "out_axes", parts)]
    if axis > 1 or any(a != axis for a in along):
        return None
    if any(back != reverse[0] for back in _numbers(node, "out_reverse", parts)):
        return None
    outside = dict(zip(body.inputs[count + 1 :], node.variadic("xs"), strict=True))
    found = _cell(body, count)
    if found is None or node.schemes:
        return None
    cell, order = found
    operands = _weights(cell, outside)
    if operands is None:
        return None
    attrs = {
        **cell.attrs,
        "direction": "reverse" if reverse[0] else "forward",
        "batch_first": axis == 1,
    }
    given = node.variadic("vs")
    starts = tuple(given[order.index(i)] for i in range(count))
    return Layer(node, cell.op, operands, attrs, () if _zeros(starts) else starts, order)


def _numbers(node: Node, name: str, count: int) -> list[int]:
    given = node.attrs[name]
    found = [n for n in given if isinstance(n, int)] if isinstance(given, tuple) else []
    return found or [0] * count


def _zeros(values: Sequence[Value]) -> bool:
    return all(v.constant is not None and not v.constant.data.any() for v in values)


def _cell(body: Graph, count: int) -> tuple[_Cell, tuple[int, ...]] | None:
    """The cell that a body is, and which of h and c each carried value is."""
    states, x = body.inputs[:count], body.inputs[count]
    outputs = list(body.outputs.values())
    made, parts = outputs[:count], outputs[count:]
    readers = (_rnn, _gru) if count == 1 else (_lstm,)
    for order in ((0,),) if count == 1 else ((0, 1), (1, 0)):
        ends = [made[order.index(i)] for i in range(count)]
        begins = [states[order.index(i)] for i in range(count)]
        for read in readers:
            cell = read(ends, begins, x)
            if cell is not None and all(part is ends[0] for part in parts):
                return cell, order
    return None


def _weights(cell: _Cell, outside: Mapping[Value, Value]) -> dict[str, Rows] | None:
    """The weights as the layer takes them, gate by gate; None where one is no constant of reals."""
    rows: dict[str, list[Rows]] = {"w": [], "r": []}
    shifts: dict[str, list[Rows]] = {"w": [], "r": []}
    biased = any(side.bias is not None for pair in cell.gates for side in pair)
    assert len(cell.gates) == len(GATES[cell.op])
    for pair in cell.gates:
        for slot, side in zip("wr", pair, strict=True):
            held, shift = _held(side.w, outside), _held(side.bias, outside)
            if held is None or (side.bias is not None and shift is None):
                return None
            rows[slot].append(held[side.start : side.end])
            usual = np.zeros(side.end - side.start, held.dtype)
            shifts[slot].append(usual if shift is None else shift[side.start : side.end])
    hidden = {len(part) for parts in rows.values() for part in parts}
    if len(hidden) != 1 or rows["r"][0].shape[1] not in hidden:
        return None
    out = {slot: np.concatenate(parts)[None] for slot, parts in rows.items()}
    if biased:
        out["bias"] = np.concatenate([*shifts["w"], *shifts["r"]])[None]
    return out


def _held(value: Value | None, outside: Mapping[Value, Value]) -> Rows | None:
    found = None if value is None else outside.get(value, value)
    held = None if found is None else found.constant
    return None if held is None or held.type.quant else held.data
