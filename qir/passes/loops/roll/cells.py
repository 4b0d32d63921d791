"""Matches loop bodies that are the cell of a recurrent layer, and collects its weights.

A gate reads a sum: products of the entry, of the state, or of both side by side, biases, and a
peephole. Splits and slices of columns are followed through activations and sums, so that it does
not matter whether a model cuts before or after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.ops.recurrent import GATE_COUNTS
from qir.reference.interpreter import profile_name_of, run_node

Rows = NDArray[np.generic]
_LAST = ("tanh", "relu")
"""What a cell may apply last; Keras lets its user choose."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Some columns of a matrix."""

    value: Value
    start: int
    end: int

    @property
    def count(self) -> int:
        """How many columns there are."""
        return self.end - self.start


@dataclass
class Gate:
    """The sum that an activation reads: rows of w and r, biases of both, and a peephole."""

    w: Rows | None = None
    r: Rows | None = None
    w_bias: Rows | None = None
    r_bias: Rows | None = None
    looks_at: Value | None = None
    look: Rows | None = None


@dataclass(frozen=True)
class RecurrentCell:
    """A cell: what it reads and makes, and its gates in the order of the layer."""

    op: str
    x: Value
    states: tuple[Value, ...]
    made: tuple[Value, ...]
    gates: tuple[Gate, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    proj: Rows | None = None

    def weights(self) -> dict[str, Rows] | None:
        """Returns the operands of the layer; None where the gates are not of one size."""
        w, r = ([getattr(gate, slot) for gate in self.gates] for slot in "wr")
        assert len(self.gates) == len(GATE_COUNTS[self.op])
        hidden = {len(rows) for rows in (*w, *r)}
        if len(hidden) != 1:
            return None
        (size,) = hidden
        out = size if self.proj is None else len(self.proj)
        if any(rows.shape[1] != out for rows in r):
            return None
        found = {"w": np.concatenate(w)[None], "r": np.concatenate(r)[None]}
        none = np.zeros(size, found["w"].dtype)
        sides = [[gate.w_bias for gate in self.gates], [gate.r_bias for gate in self.gates]]
        if any(bias is not None for side in sides for bias in side):
            biases = [none if bias is None else bias for side in sides for bias in side]
            found["bias"] = np.concatenate(biases)[None]
        if any(gate.look is not None for gate in self.gates):
            looks = [none if gate.look is None else gate.look for gate in self.gates[:3]]
            found["peephole"] = np.concatenate(looks)[None]
        if self.proj is not None:
            found["proj"] = self.proj[None]
        return found


class CellReader:
    """Reads cells off a body."""

    def __init__(self, body: Graph, outside: Mapping[Value, Value]) -> None:
        self.body, self.outside = body, outside

    def find(
        self, x: Value, states: Sequence[Value], made: Sequence[Value]
    ) -> RecurrentCell | None:
        """Returns the cell that reads an entry and these states; None where it is none."""
        if len(states) == 2:
            return self._lstm(x, (states[0], states[1]), (made[0], made[1]))
        return self._rnn(x, states[0], made[0]) or self._gru(x, states[0], made[0])

    # -- columns and constants --------------------------------------------------------------------

    def whole(self, value: Value) -> Columns | None:
        """Returns all columns of a matrix, as part of what it is cut from."""
        size = value.type.shape[-1] if value.type.rank == 2 else None
        return self._resolved(Columns(value, 0, size)) if isinstance(size, int) else None

    def _resolved(self, part: Columns) -> Columns:
        """Follows splits and slices of columns to what they cut."""
        node, start = part.value.node, part.start
        x = node.operands.get("x")
        if x is None:
            return part
        if node.op == "identity":
            return self._resolved(Columns(x, start, part.end))
        if node.op == "split" and node.attrs["axis"] in (1, -1):
            start += sum(_wholes(node.attrs["sizes"])[: part.value.index])
        elif node.op == "slice" and x.type.rank == 2:
            cut = [_wholes(node.attrs[name]) for name in ("starts", "axes", "steps")]
            size = x.type.shape[1]
            if cut[1:] not in ([(1,), (1,)], [(-1,), (1,)]) or not isinstance(size, int):
                return part
            start += cut[0][0] + (size if cut[0][0] < 0 else 0)
        else:
            return part
        return self._resolved(Columns(x, start, start + part.count))

    def _held(self, value: Value, depth: int = 0) -> Rows | None:
        """Returns the elements of a value that is a constant, or is computed from constants."""
        found = self.outside.get(value, value)
        if (held := found.constant) is not None:
            return None if held.type.quant else held.data
        node = found.node
        if depth > 4 or not node.operands or node.bodies or found.type.quant:
            return None
        given = {slot: self._held(each, depth + 1) for slot, each in node.operands.items()}
        arrays = {slot: data for slot, data in given.items() if data is not None}
        if len(arrays) < len(given):
            return None
        try:
            return run_node(node, arrays, profile_name_of(self.body, node))[found.index]
        except QirError:
            return None

    # -- patterns ---------------------------------------------------------------------------------

    def _under(self, part: Columns, op: str) -> Columns | None:
        """Returns the same columns of what an op of one operand reads."""
        node = part.value.node
        if node.op != op:
            return None
        return self._resolved(Columns(node.operands["x"], part.start, part.end))

    def _sides(self, part: Columns, op: str) -> Iterator[tuple[Columns, Columns]]:
        """Yields the operands of an op of two, both ways round where it is commutative."""
        node = part.value.node
        if node.op != op:
            return
        a, b = (self._side(part, node.operands[slot]) for slot in "ab")
        yield a, b
        if op != "sub":
            yield b, a

    def _side(self, part: Columns, operand: Value) -> Columns:
        """Returns the columns of an operand; one that is broadcast stays whole."""
        shape = operand.type.shape
        size = shape[-1] if shape else 1
        if operand.type.rank == 2 and size == part.value.type.shape[-1]:
            return self._resolved(Columns(operand, part.start, part.end))
        if size == 1:
            return Columns(operand, 0, 1)
        return Columns(operand, part.start, part.end)

    def _is(self, part: Columns, value: Value) -> bool:
        return part == self.whole(value)

    def _gate(
        self, part: Columns, x: Value | None, h: Value | None, looks_at: Value | None = None
    ) -> Gate | None:
        """Returns the sum that columns are: of products of x and h, biases, and a peephole."""
        found = Gate(looks_at=looks_at)
        loose: list[Rows] = []
        if not self._add(found, loose, part, x, h):
            return None
        if (found.w is None) != (x is None) or (found.r is None) != (h is None):
            return None
        for bias in loose:
            side = "r_bias" if x is None or (found.w_bias is not None) else "w_bias"
            before = getattr(found, side)
            setattr(found, side, bias if before is None else before + bias)
        return found

    def _add(
        self, found: Gate, loose: list[Rows], part: Columns, x: Value | None, h: Value | None
    ) -> bool:
        """Adds the terms of a sum to a gate; returns whether all were known."""
        if (held := self._held(part.value)) is not None:
            row = held.reshape(-1)[part.start : part.end] if held.size > 1 else held.reshape(-1)
            if held.size not in (1, held.shape[-1] if held.ndim else 1):
                return False
            loose.append(row)
            return True
        for a, b in self._sides(part, "add"):
            return self._spread(found, loose, part, (a, b), x, h)
        for a, b in self._sides(part, "mul"):
            look, at = self._held(b.value), found.looks_at
            if look is None or at is None or found.look is not None or not self._is(a, at):
                continue
            if look.size != part.count:
                return False
            found.look = look.reshape(-1)
            return True
        return self._product(found, part, x, h)

    def _spread(
        self,
        found: Gate,
        loose: list[Rows],
        part: Columns,
        sides: tuple[Columns, Columns],
        x: Value | None,
        h: Value | None,
    ) -> bool:
        first = len(loose)
        if not all(self._add(found, loose, side, x, h) for side in sides):
            return False
        for i, row in enumerate(loose[first:], first):
            loose[i] = np.broadcast_to(row, (part.count,)) if row.size == 1 else row
        return True

    def _product(self, found: Gate, part: Columns, x: Value | None, h: Value | None) -> bool:
        """Adds a product with a constant matrix, of x, of h, or of both side by side."""
        linear = self._linear(part)
        if linear is None:
            return False
        operand, rows, bias = linear
        node = operand.node
        parts = node.variadic("xs") if node.op == "concat" and node.attrs["axis"] in (1, -1) else ()
        at = 0
        for one in parts or (operand,):
            size = one.type.shape[-1]
            slot = "w" if _same(one, x) else "r" if _same(one, h) else ""
            if not slot or getattr(found, slot) is not None or not isinstance(size, int):
                return False
            setattr(found, slot, rows[:, at : at + size])
            at += size
        if bias is not None:
            side = "r_bias" if _same(operand, h) else "w_bias"
            if getattr(found, side) is not None:
                return False
            setattr(found, side, bias)
        return True

    def _linear(self, part: Columns) -> tuple[Value, Rows, Rows | None] | None:
        """Returns what a product reads, its rows for these columns, and its bias."""
        node, op = part.value.node, part.value.node.op
        slots = ("x", "w", "bias") if op == "linear" else ("a", "b", "c")
        if op not in ("linear", "gemm", "matmul"):
            return None
        turned = op == "linear" or (op == "gemm" and node.attrs["trans_b"] is True)
        usual = {"alpha": 1.0, "beta": 1.0, "trans_a": False} if op == "gemm" else {}
        if any(node.attrs[name] != wanted for name, wanted in usual.items()):
            return None
        held = self._held(node.operands[slots[1]])
        given = node.operands.get(slots[2])
        bias = None if given is None else self._held(given)
        if held is None or held.ndim != 2 or (given is not None and bias is None):
            return None
        rows = held if turned else held.T
        if bias is not None and bias.size != len(rows):
            return None
        cut = slice(part.start, part.end)
        return node.operands[slots[0]], rows[cut], None if bias is None else bias.reshape(-1)[cut]

    # -- cells ------------------------------------------------------------------------------------

    def _activated(
        self, part: Columns | None, op: str, x: Value, h: Value, looks_at: Value | None = None
    ) -> Gate | None:
        under = None if part is None else self._under(part, op)
        return None if under is None else self._gate(under, x, h, looks_at)

    def _last(self, part: Columns, x: Value, h: Value) -> tuple[Gate, str] | None:
        """Returns the gate of what is new, and its activation."""
        found = ((self._activated(part, op, x, h), op) for op in _LAST)
        return next(((gate, op) for gate, op in found if gate is not None), None)

    def _rnn(self, x: Value, h: Value, made: Value) -> RecurrentCell | None:
        whole = self.whole(made)
        if whole is None or (found := self._last(whole, x, h)) is None:
            return None
        return RecurrentCell("rnn", x, (h,), (made,), (found[0],), _activations(found[1]))

    def _lstm(
        self, x: Value, states: tuple[Value, Value], made: tuple[Value, Value]
    ) -> RecurrentCell | None:
        """Reads h' = o * tanh(c'), or a product of it, and c' = f * c + i * g."""
        (h, c), new_c, hidden = states, self.whole(made[1]), self.whole(made[0])
        if new_c is None or hidden is None:
            return None
        proj = None
        if (turned := self._linear(hidden)) is not None:
            inner, proj, bias = turned
            hidden = self.whole(inner)
            if hidden is None or bias is not None:
                return None
        for a, b in self._sides(hidden, "mul"):
            last = next((op for op in _LAST if self._under(b, op) == new_c), None)
            o = self._activated(a, "sigmoid", x, h, made[1]) if last else None
            for kept, fresh in self._sides(new_c, "add") if o is not None else ():
                f = next(
                    (
                        self._activated(p, "sigmoid", x, h, c)
                        for p, q in self._sides(kept, "mul")
                        if self._is(q, c)
                    ),
                    None,
                )
                for p, q in self._sides(fresh, "mul") if f is not None else ():
                    i, g = self._activated(p, "sigmoid", x, h, c), self._last(q, x, h)
                    if f and o and last and i is not None and g is not None:
                        attrs = _activations("sigmoid", g[1], last)
                        return RecurrentCell("lstm", x, states, made, (i, o, f, g[0]), attrs, proj)
        return None

    def _gru(self, x: Value, h: Value, made: Value) -> RecurrentCell | None:
        """Reads h' = (1 - z) * n + z * h, or n + z * (h - n)."""
        new = self.whole(made)
        for a, b in () if new is None else self._sides(new, "add"):
            for z, q in self._sides(b, "mul"):
                n = self._fresh(a, z) if self._is(q, h) else None
                n = a if n is None and self._less(q, h, a) else n
                update = None if n is None else self._activated(z, "sigmoid", x, h)
                found = None if n is None or update is None else self._new(n, x, h)
                if update is not None and found is not None:
                    reset, gate, before, last = found
                    attrs = {**_activations("sigmoid", last), "linear_before_reset": before}
                    return RecurrentCell("gru", x, (h,), (made,), (update, reset, gate), attrs)
        return None

    def _less(self, part: Columns, h: Value, n: Columns) -> bool:
        """Reports whether it is h - n."""
        return any(self._is(a, h) and b == n for a, b in self._sides(part, "sub"))

    def _fresh(self, part: Columns, z: Columns) -> Columns | None:
        """Returns the n of (1 - z) * n."""
        for rest, n in self._sides(part, "mul"):
            for one, less in self._sides(rest, "sub"):
                held = self._held(one.value)
                if less == z and held is not None and (held == 1).all():
                    return n
        return None

    def _new(self, n: Columns, x: Value, h: Value) -> tuple[Gate, Gate, bool, str] | None:
        """Returns the gates r and n, whether r multiplies the product of h, and n's activation."""
        last = n.value.node.op
        total = self._under(n, last) if last in _LAST else None
        if total is None:
            return None
        for a, b in self._sides(total, "add"):
            for r, q in self._sides(b, "mul"):
                reset = self._activated(r, "sigmoid", x, h)
                one = self._gate(a, x, None) if reset is not None else None
                other = self._gate(q, None, h) if one is not None else None
                if reset is not None and one is not None and other is not None:
                    both = Gate(one.w, other.r, one.w_bias, other.r_bias)
                    return reset, both, True, last
        for held in self._products(total):
            whole = self.whole(held)
            for r, q in () if whole is None else self._sides(whole, "mul"):
                reset = self._activated(r, "sigmoid", x, h) if self._is(q, h) else None
                gate = self._gate(total, x, held) if reset is not None else None
                if reset is not None and gate is not None:
                    return reset, gate, False, last
        return None

    def _products(self, part: Columns) -> Iterator[Value]:
        """Yields what the products of a sum read, one next to the other too."""
        for a, b in self._sides(part, "add"):
            yield from self._products(a)
            yield from self._products(b)
            return
        if (linear := self._linear(part)) is not None:
            node = linear[0].node
            yield from node.variadic("xs") if node.op == "concat" else [linear[0]]


def _activations(*names: str) -> dict[str, Attr]:
    """Returns the attribute of a layer whose activations are not the usual ones."""
    return {} if "relu" not in names else {"activations": names}


def _wholes(given: Attr) -> tuple[int, ...]:
    return tuple(n for n in given if isinstance(n, int)) if isinstance(given, tuple) else ()


def _same(value: Value, wanted: Value | None) -> bool:
    return wanted is not None and value is wanted
