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
from qir.ir.ops.layers import MATRIX_PRODUCTS
from qir.ir.ops.recurrent import GATE_COUNTS
from qir.reference.interpreter import rules_of, run_node

Rows = NDArray[np.generic]
_CANDIDATE_ACTIVATIONS = ("tanh", "relu")
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
    peephole_state: Value | None = None
    peephole: Rows | None = None


@dataclass(frozen=True)
class RecurrentCell:
    """A cell: what it reads and makes, and its gates in the order of the layer."""

    op: str
    x: Value
    states: tuple[Value, ...]
    outputs: tuple[Value, ...]
    gates: tuple[Gate, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    proj: Rows | None = None

    def weights(self) -> dict[str, Rows] | None:
        """Returns the operands of the layer; None where the gates are not of one size."""
        w, r = ([getattr(gate, slot) for gate in self.gates] for slot in "wr")
        assert len(self.gates) == len(GATE_COUNTS[self.op])
        hidden = {len(rows) for rows in (*w, *r)}
        # Gates of several sizes are no layer: its operands stack them as rows of one matrix.
        if len(hidden) != 1:
            return None
        (size,) = hidden
        state_size = size if self.proj is None else len(self.proj)
        if any(rows.shape[1] != state_size for rows in r):
            return None
        operands = {"w": np.concatenate(w)[None], "r": np.concatenate(r)[None]}
        no_bias = np.zeros(size, operands["w"].dtype)
        bias_sides = [[gate.w_bias for gate in self.gates], [gate.r_bias for gate in self.gates]]
        if any(bias is not None for side in bias_sides for bias in side):
            biases = [no_bias if bias is None else bias for side in bias_sides for bias in side]
            operands["bias"] = np.concatenate(biases)[None]
        # The first three gates of an lstm are i, o and f; g looks at no state.
        if any(gate.peephole is not None for gate in self.gates):
            peepholes = [
                no_bias if gate.peephole is None else gate.peephole for gate in self.gates[:3]
            ]
            operands["peephole"] = np.concatenate(peepholes)[None]
        if self.proj is not None:
            operands["proj"] = self.proj[None]
        return operands


class CellReader:
    """Reads cells off a body."""

    def __init__(self, body: Graph, outside: Mapping[Value, Value]) -> None:
        self.body, self.outside = body, outside

    def find(
        self, x: Value, states: Sequence[Value], outputs: Sequence[Value]
    ) -> RecurrentCell | None:
        """Returns the cell that reads an entry and these states; None where it is none."""
        if len(states) == 2:
            return self._lstm(x, (states[0], states[1]), (outputs[0], outputs[1]))
        # Two states are those of an lstm; with one state the simpler cell is tried first.
        return self._rnn(x, states[0], outputs[0]) or self._gru(x, states[0], outputs[0])

    # -- columns and constants --------------------------------------------------------------------

    def all_columns(self, value: Value) -> Columns | None:
        """Returns all columns of a matrix, as part of what it is cut from."""
        size = value.type.shape[-1] if value.type.rank == 2 else None
        return self._resolve(Columns(value, 0, size)) if isinstance(size, int) else None

    def _resolve(self, part: Columns) -> Columns:
        """Follows splits and slices of columns to what they cut."""
        node, start = part.value.node, part.start
        x = node.operands.get("x")
        if x is None:
            return part
        if node.op == "identity":
            return self._resolve(Columns(x, start, part.end))
        # Columns of a part are those of the whole, shifted by the sizes of the parts before.
        if node.op == "split" and node.attrs["axis"] in (1, -1):
            start += sum(_ints(node.attrs["sizes"])[: part.value.index])
        elif node.op == "slice" and x.type.rank == 2:
            bounds = [_ints(node.attrs[name]) for name in ("starts", "axes", "steps")]
            size = x.type.shape[1]
            if bounds[1:] not in ([(1,), (1,)], [(-1,), (1,)]) or not isinstance(size, int):
                return part
            start += bounds[0][0] + (size if bounds[0][0] < 0 else 0)
        else:
            return part
        return self._resolve(Columns(x, start, start + part.count))

    def _constant_elements(self, value: Value, depth: int = 0) -> Rows | None:
        """Returns the elements of a value that is a constant, or is computed from constants."""
        source = self.outside.get(value, value)
        if (constant := source.constant) is not None:
            return None if constant.type.quant else constant.data
        node = source.node
        # A weight may be a transpose or cast of a constant; deeper computations are left alone.
        if depth > 4 or not node.operands or node.bodies or source.type.quant:
            return None
        operands = {
            slot: self._constant_elements(operand, depth + 1)
            for slot, operand in node.operands.items()
        }
        arrays = {slot: data for slot, data in operands.items() if data is not None}
        if len(arrays) < len(operands):
            return None
        try:
            return run_node(node, arrays, rules_of(self.body, node))[source.index]
        except QirError:
            return None

    # -- patterns ---------------------------------------------------------------------------------

    def _under(self, part: Columns, op: str) -> Columns | None:
        """Returns the same columns of what an op of one operand reads."""
        node = part.value.node
        if node.op != op:
            return None
        return self._resolve(Columns(node.operands["x"], part.start, part.end))

    def _operand_pairs(self, part: Columns, op: str) -> Iterator[tuple[Columns, Columns]]:
        """Yields the operands of an op of two, both ways round where it is commutative."""
        node = part.value.node
        if node.op != op:
            return
        a, b = (self._operand_columns(part, node.operands[slot]) for slot in "ab")
        yield a, b
        if op != "sub":
            yield b, a

    def _operand_columns(self, part: Columns, operand: Value) -> Columns:
        """Returns the columns of an operand; one that is broadcast stays whole."""
        shape = operand.type.shape
        size = shape[-1] if shape else 1
        if operand.type.rank == 2 and size == part.value.type.shape[-1]:
            return self._resolve(Columns(operand, part.start, part.end))
        if size == 1:
            return Columns(operand, 0, 1)
        return Columns(operand, part.start, part.end)

    def _is_all_of(self, part: Columns, value: Value) -> bool:
        return part == self.all_columns(value)

    def _gate(
        self, part: Columns, x: Value | None, h: Value | None, peephole_state: Value | None = None
    ) -> Gate | None:
        """Returns the sum that columns are: of products of x and h, biases, and a peephole."""
        gate = Gate(peephole_state=peephole_state)
        biases: list[Rows] = []
        if not self._add_terms(gate, biases, part, x, h):
            return None
        if (gate.w is None) != (x is None) or (gate.r is None) != (h is None):
            return None
        for bias in biases:
            # A gate has two biases; in the sum of both products it makes no difference which of
            # them a constant is.
            side = "r_bias" if x is None or (gate.w_bias is not None) else "w_bias"
            before = getattr(gate, side)
            setattr(gate, side, bias if before is None else before + bias)
        return gate

    def _add_terms(
        self, gate: Gate, biases: list[Rows], part: Columns, x: Value | None, h: Value | None
    ) -> bool:
        """Adds the terms of a sum to a gate; returns whether all were known."""
        if (constant := self._constant_elements(part.value)) is not None:
            row = (
                constant.reshape(-1)[part.start : part.end]
                if constant.size > 1
                else constant.reshape(-1)
            )
            if constant.size not in (1, constant.shape[-1] if constant.ndim else 1):
                return False
            biases.append(row)
            return True
        for a, b in self._operand_pairs(part, "add"):
            return self._add_both_terms(gate, biases, part, (a, b), x, h)
        for a, b in self._operand_pairs(part, "mul"):
            peephole, state = self._constant_elements(b.value), gate.peephole_state
            if (
                peephole is None
                or state is None
                or gate.peephole is not None
                or not self._is_all_of(a, state)
            ):
                continue
            if peephole.size != part.count:
                return False
            gate.peephole = peephole.reshape(-1)
            return True
        return self._add_product(gate, part, x, h)

    def _add_both_terms(
        self,
        gate: Gate,
        biases: list[Rows],
        part: Columns,
        sides: tuple[Columns, Columns],
        x: Value | None,
        h: Value | None,
    ) -> bool:
        first = len(biases)
        if not all(self._add_terms(gate, biases, side, x, h) for side in sides):
            return False
        for i, row in enumerate(biases[first:], first):
            biases[i] = np.broadcast_to(row, (part.count,)) if row.size == 1 else row
        return True

    def _add_product(self, gate: Gate, part: Columns, x: Value | None, h: Value | None) -> bool:
        """Adds a product with a constant matrix, of x, of h, or of both side by side."""
        linear = self._product_of(part)
        if linear is None:
            return False
        operand, rows, bias = linear
        node = operand.node
        parts = node.variadic("xs") if node.op == "concat" and node.attrs["axis"] in (1, -1) else ()
        offset = 0
        for piece in parts or (operand,):
            size = piece.type.shape[-1]
            slot = "w" if _is_same_value(piece, x) else "r" if _is_same_value(piece, h) else ""
            if not slot or getattr(gate, slot) is not None or not isinstance(size, int):
                return False
            setattr(gate, slot, rows[:, offset : offset + size])
            offset += size
        if bias is not None:
            side = "r_bias" if _is_same_value(operand, h) else "w_bias"
            if getattr(gate, side) is not None:
                return False
            setattr(gate, side, bias)
        return True

    def _product_of(self, part: Columns) -> tuple[Value, Rows, Rows | None] | None:
        """Returns what a product reads, its rows for these columns, and its bias."""
        node, op = part.value.node, part.value.node.op
        slots = ("x", "w", "bias") if op == "linear" else ("a", "b", "c")
        if op not in MATRIX_PRODUCTS:
            return None
        transposed = op == "linear" or (op == "gemm" and node.attrs["trans_b"] is True)
        defaults = {"alpha": 1.0, "beta": 1.0, "trans_a": False} if op == "gemm" else {}
        if any(node.attrs[name] != default for name, default in defaults.items()):
            return None
        matrix = self._constant_elements(node.operands[slots[1]])
        bias_value = node.operands.get(slots[2])
        bias = None if bias_value is None else self._constant_elements(bias_value)
        if matrix is None or matrix.ndim != 2 or (bias_value is not None and bias is None):
            return None
        rows = matrix if transposed else matrix.T
        if bias is not None and bias.size != len(rows):
            return None
        columns = slice(part.start, part.end)
        return (
            node.operands[slots[0]],
            rows[columns],
            None if bias is None else bias.reshape(-1)[columns],
        )

    # -- cells ------------------------------------------------------------------------------------

    def _activated(
        self, part: Columns | None, op: str, x: Value, h: Value, looks_at: Value | None = None
    ) -> Gate | None:
        inner = None if part is None else self._under(part, op)
        return None if inner is None else self._gate(inner, x, h, looks_at)

    def _candidate_gate(self, part: Columns, x: Value, h: Value) -> tuple[Gate, str] | None:
        """Returns the gate of what is new, and its activation."""
        candidates = ((self._activated(part, op, x, h), op) for op in _CANDIDATE_ACTIVATIONS)
        return next(((gate, op) for gate, op in candidates if gate is not None), None)

    def _rnn(self, x: Value, h: Value, output: Value) -> RecurrentCell | None:
        columns = self.all_columns(output)
        if columns is None or (candidate := self._candidate_gate(columns, x, h)) is None:
            return None
        return RecurrentCell("rnn", x, (h,), (output,), (candidate[0],), _activations(candidate[1]))

    def _lstm(
        self, x: Value, states: tuple[Value, Value], outputs: tuple[Value, Value]
    ) -> RecurrentCell | None:
        """Reads h' = o * tanh(c'), or a product of it, and c' = f * c + i * g."""
        (h, c), new_c, hidden = states, self.all_columns(outputs[1]), self.all_columns(outputs[0])
        if new_c is None or hidden is None:
            return None
        proj = None
        if (projection := self._product_of(hidden)) is not None:
            inner, proj, bias = projection
            hidden = self.all_columns(inner)
            if hidden is None or bias is not None:
                return None
        for a, b in self._operand_pairs(hidden, "mul"):
            output_activation = next(
                (op for op in _CANDIDATE_ACTIVATIONS if self._under(b, op) == new_c), None
            )
            o = self._activated(a, "sigmoid", x, h, outputs[1]) if output_activation else None
            for kept_part, new_part in self._operand_pairs(new_c, "add") if o is not None else ():
                f = next(
                    (
                        self._activated(p, "sigmoid", x, h, c)
                        for p, q in self._operand_pairs(kept_part, "mul")
                        if self._is_all_of(q, c)
                    ),
                    None,
                )
                for p, q in self._operand_pairs(new_part, "mul") if f is not None else ():
                    i, g = self._activated(p, "sigmoid", x, h, c), self._candidate_gate(q, x, h)
                    if f and o and output_activation and i is not None and g is not None:
                        attrs = _activations("sigmoid", g[1], output_activation)
                        return RecurrentCell(
                            "lstm", x, states, outputs, (i, o, f, g[0]), attrs, proj
                        )
        return None

    def _gru(self, x: Value, h: Value, output: Value) -> RecurrentCell | None:
        """Reads h' = (1 - z) * n + z * h, or n + z * (h - n)."""
        new = self.all_columns(output)
        for a, b in () if new is None else self._operand_pairs(new, "add"):
            for z, q in self._operand_pairs(b, "mul"):
                n = self._candidate_of(a, z) if self._is_all_of(q, h) else None
                n = a if n is None and self._is_state_minus(q, h, a) else n
                update = None if n is None else self._activated(z, "sigmoid", x, h)
                found = None if n is None or update is None else self._reset_candidate(n, x, h)
                if update is not None and found is not None:
                    reset, gate, before, last = found
                    attrs = {**_activations("sigmoid", last), "linear_before_reset": before}
                    return RecurrentCell("gru", x, (h,), (output,), (update, reset, gate), attrs)
        return None

    def _is_state_minus(self, part: Columns, h: Value, n: Columns) -> bool:
        """Reports whether it is h - n."""
        return any(self._is_all_of(a, h) and b == n for a, b in self._operand_pairs(part, "sub"))

    def _candidate_of(self, part: Columns, z: Columns) -> Columns | None:
        """Returns the n of (1 - z) * n."""
        for rest, n in self._operand_pairs(part, "mul"):
            for one, less in self._operand_pairs(rest, "sub"):
                held = self._constant_elements(one.value)
                if less == z and held is not None and (held == 1).all():
                    return n
        return None

    def _reset_candidate(
        self, n: Columns, x: Value, h: Value
    ) -> tuple[Gate, Gate, bool, str] | None:
        """Returns the gates r and n, whether r multiplies the product of h, and n's activation."""
        last = n.value.node.op
        total = self._under(n, last) if last in _CANDIDATE_ACTIVATIONS else None
        if total is None:
            return None
        for a, b in self._operand_pairs(total, "add"):
            for r, q in self._operand_pairs(b, "mul"):
                reset = self._activated(r, "sigmoid", x, h)
                one = self._gate(a, x, None) if reset is not None else None
                other = self._gate(q, None, h) if one is not None else None
                if reset is not None and one is not None and other is not None:
                    both = Gate(one.w, other.r, one.w_bias, other.r_bias)
                    return reset, both, True, last
        # The other form: r multiplies h before the product, which then reads r * h.
        for held in self._products(total):
            whole = self.all_columns(held)
            for r, q in () if whole is None else self._operand_pairs(whole, "mul"):
                reset = self._activated(r, "sigmoid", x, h) if self._is_all_of(q, h) else None
                gate = self._gate(total, x, held) if reset is not None else None
                if reset is not None and gate is not None:
                    return reset, gate, False, last
        return None

    def _products(self, part: Columns) -> Iterator[Value]:
        """Yields what the products of a sum read, one next to the other too."""
        for a, b in self._operand_pairs(part, "add"):
            yield from self._products(a)
            yield from self._products(b)
            return
        if (linear := self._product_of(part)) is not None:
            node = linear[0].node
            yield from node.variadic("xs") if node.op == "concat" else [linear[0]]


def _activations(*names: str) -> dict[str, Attr]:
    """Returns the attribute of a layer whose activations are not the usual ones."""
    return {} if "relu" not in names else {"activations": names}


def _ints(value: Attr) -> tuple[int, ...]:
    return tuple(n for n in value if isinstance(n, int)) if isinstance(value, tuple) else ()


def _is_same_value(value: Value, expected: Value | None) -> bool:
    return expected is not None and value is expected
