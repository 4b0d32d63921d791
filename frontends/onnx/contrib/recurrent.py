"""DynamicQuantizeLSTM: input and state are quantized at run time, each by its own range."""

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
from ..recurrent_ops import ACTIVATION_NAMES
from .body import BodyBuilder, add_group
from .names import OPERANDS
from .quantized import quantize_by_own_range

_ATTRIBUTES = (
    "activation_alpha activation_beta activations clip direction hidden_size input_forget".split()
)
_ZERO_BY_DEFAULT = frozenset({"affine", "scaled_tanh", "thresholded_relu"})
"""Activations whose alpha and beta onnxruntime takes for 0 where the file gives none."""

_MOST_ZEROS = 1 << 20
"""Elements of an initial state of zeros that is a constant.

Larger ones are expanded at run time.
"""


def _lstm(reader: OnnxReader, op: OnnxOp) -> None:
    """Adds the layer as a scan over steps, with integer products inside."""
    op.allow_only(*_ATTRIBUTES)
    formal = OPERANDS[op.type].split()
    operands = {
        slot: reader.value(op, name) for slot, name in zip(formal, op.inputs, strict=False) if name
    }
    sides = DIRECTIONS.get(op.text("direction", "forward").lower())
    if sides is None:
        raise op.error(f"direction {op.text('direction', '')!r} is none that ONNX has")
    curves = _activations(op, len(sides))
    hidden = op.integer("hidden_size", 0)
    # R is [directions, hidden, 4 * hidden], transposed against R of the LSTM of ONNX.
    if hidden < 1 or operands["R"].type.shape != (len(sides), hidden, 4 * hidden):
        raise KeepOperator(f"{hidden} hidden numbers, with weights of {operands['R'].type}")
    kinds = {s: operands[s].type for s in ("W", "R")}
    if any(k.quant or k.dtype.name not in ("u8", "i8") for k in kinds.values()):
        raise KeepOperator("its weights are not quantized of eight bits")
    if "sequence_lens" in operands and operands["sequence_lens"].type.element != I32:
        raise KeepOperator(f"its sequence_lens are {operands['sequence_lens'].type}")
    clip, forget = op.floating("clip", 0.0), op.integer("input_forget", 0) != 0
    handed = bool(op.outputs and op.outputs[0])

    def build(body: BodyBuilder) -> list[Value]:
        ends = _SequenceLengths.of(body) if "sequence_lens" in body else None
        layers = [_Layer(hidden, clip, forget, row, ends, handed) for row in curves]
        made = [layers[i].one_direction(body, i, back) for i, back in enumerate(sides)]
        # Y has its direction axis second, [steps, directions, batch, hidden]; Y_h and Y_c have it
        # first.
        rows = [
            body.op("concat", *(one[i] for one in made), axis=axis) if len(made) > 1 else made[0][i]
            for i, axis in enumerate((1, 0, 0))
        ]
        return rows

    add_group(reader, op, operands, build)


def _activations(op: OnnxOp, sides: int) -> list[tuple[_Activation, ...]]:
    """Returns the three activations (gates, cell, hidden state) of each direction."""
    found = op.attribute("activations")
    texts = [t.decode("utf-8", "replace") for t in found.strings] if found else []
    names = [ACTIVATION_NAMES.get(t.lower(), t) for t in texts] or [
        *DEFAULT_ACTIVATIONS["lstm"]
    ] * sides
    if unknown := [n for n in names if n not in ACTIVATIONS]:
        raise KeepOperator(f"its activation {unknown[0]!r} is not known")
    if len(names) != 3 * sides:
        raise KeepOperator(f"{len(names)} activations for {sides} direction{'s' * (sides > 1)}")
    # ONNX lists alpha and beta only for activations that use them, in their order.
    given = {
        which: list(held.floats) if (held := op.attribute(f"activation_{which}")) else []
        for which in ("alpha", "beta")
    }
    rows = []
    for name in names:
        usual = zip(given.values(), ACTIVATIONS[name], strict=True)
        numbers = [
            None if u is None else own.pop(0) if own else 0.0 if name in _ZERO_BY_DEFAULT else u
            for own, u in usual
        ]
        rows.append(_Activation(name, tuple(n for n in numbers if n is not None)))
    return [tuple(rows[i : i + 3]) for i in range(0, len(rows), 3)]


@dataclass(frozen=True, slots=True)
class _Activation:
    """An activation and its parameters."""

    name: str
    parameters: Sequence[float]

    def __call__(self, body: BodyBuilder, x: Value) -> Value:
        # The language has no affine and scaled_tanh as ops of their own; they are composed here.
        if self.name == "affine":
            return body.op(
                "add", body.op("mul", x, body.constant(self.parameters[0])), self._last(body)
            )
        if self.name == "scaled_tanh":
            made = body.op("tanh", body.op("mul", x, self._last(body)))
            return body.op("mul", made, body.constant(self.parameters[0]))
        return body.op(self.name, x, **dict(zip(("alpha", "beta"), self.parameters, strict=False)))

    def _last(self, body: BodyBuilder) -> Value:
        return body.constant(self.parameters[-1])


@dataclass(frozen=True, slots=True)
class _SequenceLengths:
    """The length of each sequence of the batch, and masks that follow from it."""

    lengths: Value
    is_step_valid: Value
    """[steps, batch, 1]: whether the step is inside the sequence."""
    is_not_empty: Value
    """[batch, 1]: whether the sequence has any step."""
    is_step_read: Value
    """[steps, 1, 1]: whether any sequence has the step."""

    @classmethod
    def of(cls, body: BodyBuilder) -> _SequenceLengths:
        counts = body.cast(body["sequence_lens"], I64)
        size = body.op("shape", body["X"], start=0, end=1)
        # X is [steps, batch, input].
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
    """One direction of the layer."""

    hidden: int
    clip: float
    couples_forget_gate: bool
    activations: Sequence[_Activation]
    lengths: _SequenceLengths | None
    returns_every_state: bool
    """Whether Y, the state of every step, is a result: it is 0 after the end of a sequence."""

    def one_direction(self, body: BodyBuilder, index: int, back: bool) -> list[Value]:
        """Returns y, h and c of a direction, each with an axis of size 1 for the direction."""
        x = self._ordered_input(body, back)
        integers, scale, zero = _quantize_input(body, x)
        # The products of the input do not depend on the state: one product for all steps, before
        # the scan.
        gates = _integer_product(body, integers, scale, zero, _Weights(body, "W", index))
        if "B" in body:
            both = body.reshape(_direction_slice(body, body["B"], index), 2, 4 * self.hidden)
            # B has the biases of W and of R one after the other, and both are added.
            gates = body.op("add", gates, body.op("reduce_sum", both, axes=(0,), keep=False))
        start = [self._initial_state(body, s, index, x) for s in ("initial_h", "initial_c")]
        weights = _Weights(body, "R", index)
        # Operands of a scan: `vs` are carried, `ss` are sliced by step, `xs` are constant in the
        # loop.
        operands = {"vs.0": start[0], "vs.1": start[1], "ss.0": gates}
        if self.lengths is not None:
            operands |= {"vs.2": start[0], "ss.1": self.lengths.is_step_valid}
        operands |= {"xs.0": weights.integers, "xs.1": weights.scale, "xs.2": weights.zero_point}
        if "P" in body:
            operands["xs.3"] = body.reshape(
                _direction_slice(body, body["P"], index), 3, self.hidden
            )
        inner = self._scan_body(operands)
        # `last` is the state carried for ended sequences, there only with sequence lengths.
        h, c, *last, y = body.add("scan", operands, {}, bodies={"body": inner.graph})
        if self.lengths is not None:
            # A sequence of length 0 has the state 0, not the initial state, as in onnxruntime.
            none = body.constant(0.0)
            h, c = (body.op("where", self.lengths.is_not_empty, v, none) for v in (last[0], c))
        return [
            body.op("unsqueeze", self._reversed_if(body, y, back), axes=(1,)),
            *(body.op("unsqueeze", v, axes=(0,)) for v in (h, c)),
        ]

    def _ordered_input(self, body: BodyBuilder, back: bool) -> Value:
        """Returns the input with its steps in reading order; 0 for steps that no sequence has."""
        x = self._reversed_if(body, body["X"], back)
        if self.lengths is None:
            return x
        return body.op("where", self.lengths.is_step_read, x, body.constant(0.0))

    def _reversed_if(self, body: BodyBuilder, x: Value, back: bool) -> Value:
        if not back:
            return x
        if self.lengths is None:
            # With lengths, only the valid part of a sequence is reversed, as ONNX specifies.
            return body.op("flip", x, axes=(0,))
        return body.op("reverse_sequence", x, self.lengths.lengths)

    def _initial_state(self, body: BodyBuilder, slot: str, index: int, x: Value) -> Value:
        if slot in body:
            return body.op("squeeze", _direction_slice(body, body[slot], index), axes=(0,))
        # onnxruntime takes an absent initial state for 0.
        batch = x.type.shape[1]
        if isinstance(batch, int) and batch * self.hidden <= _MOST_ZEROS:
            return body.constant(np.zeros((batch, self.hidden), np.float32))
        wide = body.constant(np.zeros((1, self.hidden), np.float32))
        rows = body.op("shape", x, start=1, end=2)
        shape = body.op("concat", rows, body.constant([self.hidden]), axis=0)
        return body.op("expand", wide, shape)

    def _scan_body(self, operands: Mapping[str, Value]) -> BodyBuilder:
        """Returns the body of one step: gates, cell and hidden state."""
        first = operands["ss.0"].type
        body = BodyBuilder({})
        kinds = {s: v.type for s, v in operands.items()}
        kinds["ss.0"] = first.with_shape(first.shape[1:])
        if "ss.1" in kinds:
            kinds["ss.1"] = kinds["ss.1"].with_shape(kinds["ss.1"].shape[1:])
        order = [s for p in ("vs", "ss", "xs") for s in kinds if s.startswith(p)]
        values = {s: body.graph.add("input", types=[kinds[s]]).result for s in order}
        h, c = values["vs.0"], values["vs.1"]
        integers, scale, zero = _quantize_input(body, h)
        weights = _Weights(body, "R", 0, (values["xs.0"], values["xs.1"], values["xs.2"]))
        gates = body.op(
            "add", values["ss.0"], _integer_product(body, integers, scale, zero, weights)
        )
        parts = body.add("split", {"x": gates}, {"sizes": (self.hidden,) * 4, "axis": 1})
        # ONNX's order of gates: input, output, forget, cell.
        i, o, f, g = parts
        peeps: list[Value] = []
        # Peepholes, in ONNX's order i, o, f: the cell state reaches the gates.
        if "xs.3" in values:
            peeps = [
                body.op("gather", values["xs.3"], body.constant(np.array(k)), axis=0)
                for k in range(3)
            ]
            i = body.op("add", i, body.op("mul", peeps[0], c))
            f = body.op("add", f, body.op("mul", peeps[2], c))
        gate, cell, state = self.activations
        i = gate(body, self._clipped(body, i))
        # With input_forget, the forget gate is 1 - input gate.
        f = (
            body.op("sub", body.constant(1.0), i)
            if self.couples_forget_gate
            else gate(body, self._clipped(body, f))
        )
        g = cell(body, self._clipped(body, g))
        new = body.op("add", body.op("mul", f, c), body.op("mul", i, g))
        # The output gate sees the new cell state.
        if peeps:
            o = body.op("add", o, body.op("mul", peeps[1], new))
        o = gate(body, self._clipped(body, o))
        out = body.op("mul", o, state(body, new))
        self._add_outputs(body, values, out, new)
        return body

    def _add_outputs(
        self, body: BodyBuilder, values: Mapping[str, Value], out: Value, new: Value
    ) -> None:
        """Adds the outputs of a step; a sequence that has ended keeps its last state.

        The next step quantizes the state of the whole batch by one range. For ended sequences, that
        state is 0 if Y is a result and their last state otherwise, as in onnxruntime.
        """
        if self.lengths is None:
            body.graph.add("output", {"h": out, "c": new, "y": out})
            return
        is_valid = values["ss.1"]
        shown = body.op("where", is_valid, out, body.constant(0.0))
        last = body.op("where", is_valid, out, values["vs.2"])
        new = body.op("where", is_valid, new, values["vs.1"])
        h = shown if self.returns_every_state else body.op("identity", last)
        body.graph.add("output", {"h": h, "c": new, "last": last, "y": shown})

    def _clipped(self, body: BodyBuilder, x: Value) -> Value:
        return body.op("clip", x, min=-self.clip, max=self.clip) if self.clip > 0 else x


class _Weights:
    """The integer weights of one direction, with scale and zero point."""

    def __init__(
        self,
        body: BodyBuilder,
        slot: str,
        index: int,
        given: tuple[Value, Value, Value] | None = None,
    ) -> None:
        if given is not None:
            self.integers, self.scale, self.zero_point = given
            return
        self.integers = body.op("squeeze", _direction_slice(body, body[slot], index), axes=(0,))
        scale, zero = body[f"{slot}_scale"], body[f"{slot}_zero_point"]
        self.scale = _as_vector_or_scalar(body, _direction_slice(body, scale, index))
        self.zero_point = _as_vector_or_scalar(body, _direction_slice(body, zero, index))


def _as_vector_or_scalar(body: BodyBuilder, x: Value) -> Value:
    """Returns a vector, or a scalar for a single element."""
    shape = x.type.shape
    if all(d == 1 for d in shape):
        return body.reshape(x)
    return body.reshape(x, -1)


def _direction_slice(body: BodyBuilder, x: Value, index: int) -> Value:
    # A single direction, or parameters that all directions share.
    if x.type.rank == 0 or x.type.shape[0] == 1:
        return x
    cut: dict[str, Attr] = {"starts": (index,), "ends": (index + 1,), "axes": (0,), "steps": (1,)}
    return body.op("slice", x, **cut)


def _quantize_input(body: BodyBuilder, x: Value) -> tuple[Value, Value, Value]:
    """Quantizes a tensor by its own range; returns plain u8, scale and zero point."""
    codes, scale, zero = quantize_by_own_range(body, x)
    return body.recode(codes, U8), scale, zero


def _integer_product(
    body: BodyBuilder, integers: Value, scale: Value, zero_point: Value, weights: _Weights
) -> Value:
    """Returns the integer product times both scales."""
    operands = {
        "a": integers,
        "b": weights.integers,
        "a.zero": zero_point,
        "b.zero": weights.zero_point,
    }
    sums = body.add("matmul_integer", operands)[0]
    return body.op("mul", body.cast(sums, F32), body.op("mul", scale, weights.scale))


OPS = {(MICROSOFT, "DynamicQuantizeLSTM"): _lstm}
