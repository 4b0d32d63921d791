"""DynamicQuantizeLSTM: input and state are quantized as the layer runs, each by its own range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I32, I64, U8
from qir.ir.node import Value
from qir.ir.ops.recurrent import ACTIVATIONS, DEFAULT_ACTIVATIONS, DIRECTIONS

from ..op import MICROSOFT, KeepOperator, OnnxOp
from ..reader import OnnxReader
from .body import BodyBuilder, group
from .names import OPERANDS
from .quantized import ranged

_OWN = (
    "activation_alpha activation_beta activations clip direction hidden_size input_forget".split()
)
_KNOWN = {name.replace("_", ""): name for name in ACTIVATIONS}
_NOTHING = frozenset({"affine", "scaled_tanh", "thresholded_relu"})
"""Activations whose numbers onnxruntime takes for 0 where the file gives none."""

_MOST_ZEROS = 1 << 20
"""Of a state at the start; more of them are made when the model runs."""


def _lstm(reader: OnnxReader, op: OnnxOp) -> None:
    """The layer as a scan over steps whose products are integer sums."""
    op.only(*_OWN)
    formal = OPERANDS[op.type].split()
    operands = {
        slot: reader.value(op, name) for slot, name in zip(formal, op.inputs, strict=False) if name
    }
    sides = DIRECTIONS.get(op.text("direction", "forward").lower())
    if sides is None:
        raise op.fail(f"direction {op.text('direction', '')!r} is none that ONNX has")
    curves = _curves(op, len(sides))
    hidden = op.integer("hidden_size", 0)
    if hidden < 1 or operands["R"].type.shape != (len(sides), hidden, 4 * hidden):
        raise KeepOperator(f"{hidden} hidden numbers, with weights of {operands['R'].type}")
    kinds = {s: operands[s].type for s in ("W", "R")}
    if any(k.quant or k.dtype.name not in ("u8", "i8") for k in kinds.values()):
        raise KeepOperator("its weights are not quantized of eight bits")
    if "sequence_lens" in operands and operands["sequence_lens"].type.element != I32:
        raise KeepOperator(f"its sequence_lens are {operands['sequence_lens'].type}")
    clip, forget = op.real("clip", 0.0), op.integer("input_forget", 0) != 0
    handed = bool(op.outputs and op.outputs[0])

    def build(body: BodyBuilder) -> list[Value]:
        ends = _Ends.of(body) if "sequence_lens" in body else None
        layers = [_Layer(hidden, clip, forget, row, ends, handed) for row in curves]
        made = [layers[i].side(body, i, back) for i, back in enumerate(sides)]
        rows = [
            body.op("concat", *(one[i] for one in made), axis=axis) if len(made) > 1 else made[0][i]
            for i, axis in enumerate((1, 0, 0))
        ]
        return rows

    group(reader, op, operands, build)


def _curves(op: OnnxOp, sides: int) -> list[tuple[_Curve, ...]]:
    """Returns the activations of each direction, of the gates, of the new cell and of the state."""
    found = op.attribute("activations")
    texts = [t.decode("utf-8", "replace") for t in found.strings] if found else []
    names = [_KNOWN.get(t.lower(), t) for t in texts] or [*DEFAULT_ACTIVATIONS["lstm"]] * sides
    if unknown := [n for n in names if n not in ACTIVATIONS]:
        raise KeepOperator(f"its activation {unknown[0]!r} is not known")
    if len(names) != 3 * sides:
        raise KeepOperator(f"{len(names)} activations for {sides} direction{'s' * (sides > 1)}")
    given = {
        which: list(held.floats) if (held := op.attribute(f"activation_{which}")) else []
        for which in ("alpha", "beta")
    }
    rows = []
    for name in names:
        usual = zip(given.values(), ACTIVATIONS[name], strict=True)
        numbers = [
            None if u is None else own.pop(0) if own else 0.0 if name in _NOTHING else u
            for own, u in usual
        ]
        rows.append(_Curve(name, tuple(n for n in numbers if n is not None)))
    return [tuple(rows[i : i + 3]) for i in range(0, len(rows), 3)]


@dataclass(frozen=True, slots=True)
class _Curve:
    """One activation and its numbers."""

    name: str
    numbers: Sequence[float]

    def __call__(self, body: BodyBuilder, x: Value) -> Value:
        if self.name == "affine":
            return body.op(
                "add", body.op("mul", x, body.constant(self.numbers[0])), self._last(body)
            )
        if self.name == "scaled_tanh":
            made = body.op("tanh", body.op("mul", x, self._last(body)))
            return body.op("mul", made, body.constant(self.numbers[0]))
        return body.op(self.name, x, **dict(zip(("alpha", "beta"), self.numbers, strict=False)))

    def _last(self, body: BodyBuilder) -> Value:
        return body.constant(self.numbers[-1])


@dataclass(frozen=True, slots=True)
class _Ends:
    """How many steps each sequence of the batch has."""

    counts: Value
    on: Value
    """[steps, batch, 1]: whether a sequence has that step."""
    some: Value
    """[batch, 1]: whether it has any."""
    read: Value
    """[steps, 1, 1]: whether any sequence has that step."""

    @classmethod
    def of(cls, body: BodyBuilder) -> _Ends:
        counts = body.cast(body["sequence_lens"], I64)
        size = body.op("shape", body["X"], start=0, end=1)
        zero, one = (body.constant(np.array(n, np.int64)) for n in (0, 1))
        steps = body.op("range", zero, body.op("squeeze", size, axes=(0,)), one)
        most = body.op("reduce_max", counts, axes=(0,), keep=False)
        each = body.op("unsqueeze", steps, axes=(1, 2))
        wide = body.op("unsqueeze", counts, axes=(1,))
        return cls(
            counts,
            body.op("less", each, wide),
            body.op("less", zero, wide),
            body.op("less", each, most),
        )


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one direction computes, and how."""

    hidden: int
    clip: float
    forget: bool
    curves: Sequence[_Curve]
    ends: _Ends | None
    handed: bool
    """Whether each step's state is a result: that of a sequence that is over is 0 then."""

    def side(self, body: BodyBuilder, index: int, back: bool) -> list[Value]:
        """y, h and c of one direction, each with an axis for it."""
        x = self._given(body, back)
        codes, scale, zero = _ranged(body, x)
        gates = _product(body, codes, scale, zero, _Weights(body, "W", index))
        if "B" in body:
            both = body.reshaped(_part(body, body["B"], index), 2, 4 * self.hidden)
            gates = body.op("add", gates, body.op("reduce_sum", both, axes=(0,), keep=False))
        start = [self._start(body, s, index, x) for s in ("initial_h", "initial_c")]
        weights = _Weights(body, "R", index)
        taken = {"vs.0": start[0], "vs.1": start[1], "ss.0": gates}
        if self.ends is not None:
            taken |= {"vs.2": start[0], "ss.1": self.ends.on}
        taken |= {"xs.0": weights.codes, "xs.1": weights.scale, "xs.2": weights.zero}
        if "P" in body:
            taken["xs.3"] = body.reshaped(_part(body, body["P"], index), 3, self.hidden)
        inner = self._step(taken)
        h, c, *last, y = body.many("scan", taken, {}, bodies={"body": inner.graph})
        if self.ends is not None:
            none = body.constant(0.0)
            h, c = (body.op("where", self.ends.some, v, none) for v in (last[0], c))
        return [
            body.op("unsqueeze", self._turned(body, y, back), axes=(1,)),
            *(body.op("unsqueeze", v, axes=(0,)) for v in (h, c)),
        ]

    def _given(self, body: BodyBuilder, back: bool) -> Value:
        """Returns the input, its steps in the order in which they are read; 0 where no sequence has
        any."""
        x = self._turned(body, body["X"], back)
        if self.ends is None:
            return x
        return body.op("where", self.ends.read, x, body.constant(0.0))

    def _turned(self, body: BodyBuilder, x: Value, back: bool) -> Value:
        if not back:
            return x
        if self.ends is None:
            return body.op("flip", x, axes=(0,))
        return body.op("reverse_sequence", x, self.ends.counts)

    def _start(self, body: BodyBuilder, slot: str, index: int, x: Value) -> Value:
        if slot in body:
            return body.op("squeeze", _part(body, body[slot], index), axes=(0,))
        batch = x.type.shape[1]
        if isinstance(batch, int) and batch * self.hidden <= _MOST_ZEROS:
            return body.constant(np.zeros((batch, self.hidden), np.float32))
        wide = body.constant(np.zeros((1, self.hidden), np.float32))
        rows = body.op("shape", x, start=1, end=2)
        shape = body.op("concat", rows, body.constant([self.hidden]), axis=0)
        return body.op("expand", wide, shape)

    def _step(self, taken: Mapping[str, Value]) -> BodyBuilder:
        """Returns one step: the gates, and the state after them."""
        first = taken["ss.0"].type
        one = BodyBuilder({})
        kinds = {s: v.type for s, v in taken.items()}
        kinds["ss.0"] = first.with_shape(first.shape[1:])
        if "ss.1" in kinds:
            kinds["ss.1"] = kinds["ss.1"].with_shape(kinds["ss.1"].shape[1:])
        order = [s for p in ("vs", "ss", "xs") for s in kinds if s.startswith(p)]
        values = {s: one.graph.add("input", types=[kinds[s]]).result for s in order}
        h, c = values["vs.0"], values["vs.1"]
        codes, scale, zero = _ranged(one, h)
        weights = _Weights(one, "R", 0, (values["xs.0"], values["xs.1"], values["xs.2"]))
        gates = one.op("add", values["ss.0"], _product(one, codes, scale, zero, weights))
        parts = one.many("split", {"x": gates}, {"sizes": (self.hidden,) * 4, "axis": 1})
        i, o, f, g = parts
        peeps: list[Value] = []
        if "xs.3" in values:
            peeps = [
                one.op("gather", values["xs.3"], one.constant(np.array(k)), axis=0)
                for k in range(3)
            ]
            i = one.op("add", i, one.op("mul", peeps[0], c))
            f = one.op("add", f, one.op("mul", peeps[2], c))
        gate, cell, state = self.curves
        i = gate(one, self._kept(one, i))
        f = one.op("sub", one.constant(1.0), i) if self.forget else gate(one, self._kept(one, f))
        g = cell(one, self._kept(one, g))
        new = one.op("add", one.op("mul", f, c), one.op("mul", i, g))
        if peeps:
            o = one.op("add", o, one.op("mul", peeps[1], new))
        o = gate(one, self._kept(one, o))
        out = one.op("mul", o, state(one, new))
        self._finish(one, values, out, new)
        return one

    def _finish(
        self, one: BodyBuilder, values: Mapping[str, Value], out: Value, new: Value
    ) -> None:
        """Gives the state, the cell, and what the step hands on; a sequence that is over keeps it.

        What is quantized next is the state of each, 0 for those that are over, or the last of each
        where nobody asks for that of every step.
        """
        if self.ends is None:
            one.graph.add("output", {"h": out, "c": new, "y": out})
            return
        on = values["ss.1"]
        shown = one.op("where", on, out, one.constant(0.0))
        last = one.op("where", on, out, values["vs.2"])
        new = one.op("where", on, new, values["vs.1"])
        h = shown if self.handed else one.op("identity", last)
        one.graph.add("output", {"h": h, "c": new, "last": last, "y": shown})

    def _kept(self, body: BodyBuilder, x: Value) -> Value:
        return body.op("clip", x, min=-self.clip, max=self.clip) if self.clip > 0 else x


class _Weights:
    """The quantized values of one direction as plain numbers, and what they count in."""

    def __init__(
        self,
        body: BodyBuilder,
        slot: str,
        index: int,
        given: tuple[Value, Value, Value] | None = None,
    ) -> None:
        if given is not None:
            self.codes, self.scale, self.zero = given
            return
        self.codes = body.op("squeeze", _part(body, body[slot], index), axes=(0,))
        scale, zero = body[f"{slot}_scale"], body[f"{slot}_zero_point"]
        self.scale = _flat(body, _part(body, scale, index))
        self.zero = _flat(body, _part(body, zero, index))


def _flat(body: BodyBuilder, x: Value) -> Value:
    """Numbers in a row; one alone as a number."""
    shape = x.type.shape
    if all(d == 1 for d in shape):
        return body.reshaped(x)
    return body.reshaped(x, -1)


def _part(body: BodyBuilder, x: Value, index: int) -> Value:
    if x.type.rank == 0 or x.type.shape[0] == 1:
        return x
    cut: dict[str, Attr] = {"starts": (index,), "ends": (index + 1,), "axes": (0,), "steps": (1,)}
    return body.op("slice", x, **cut)


def _ranged(body: BodyBuilder, x: Value) -> tuple[Value, Value, Value]:
    """Plain quantized values of a whole tensor by its own range, and their scale and zero point."""
    codes, scale, zero = ranged(body, x)
    return body.recoded(codes, U8), scale, zero


def _product(
    body: BodyBuilder, codes: Value, scale: Value, zero: Value, weights: _Weights
) -> Value:
    """Returns the integer sums times both scales."""
    operands = {"a": codes, "b": weights.codes, "a.zero": zero, "b.zero": weights.zero}
    sums = body.many("matmul_integer", operands)[0]
    return body.op("mul", body.cast(sums, F32), body.op("mul", scale, weights.scale))


OPS = {(MICROSOFT, "DynamicQuantizeLSTM"): _lstm}
