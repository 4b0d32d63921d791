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
from .group_bodies import BodyBuilder, add_group
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
    operand_names = OPERANDS[op.type].split()
    operands = {
        slot: reader.value(op, name)
        for slot, name in zip(operand_names, op.inputs, strict=False)
        if name
    }
    directions = DIRECTIONS.get(op.text("direction", "forward").lower())
    if directions is None:
        raise op.error(f"direction {op.text('direction', '')!r} is none that ONNX has")
    activations = _activations(op, len(directions))
    hidden = op.integer("hidden_size", 0)
    # R is [directions, hidden, 4 * hidden], transposed against R of the LSTM of ONNX.
    if hidden < 1 or operands["R"].type.shape != (len(directions), hidden, 4 * hidden):
        raise KeepOperator(f"{hidden} hidden numbers, with weights of {operands['R'].type}")
    weight_types = {s: operands[s].type for s in ("W", "R")}
    if any(
        weight_type.quant or weight_type.dtype.name not in ("u8", "i8")
        for weight_type in weight_types.values()
    ):
        raise KeepOperator("its weights are not quantized of eight bits")
    if "sequence_lens" in operands and operands["sequence_lens"].type.element != I32:
        raise KeepOperator(f"its sequence_lens are {operands['sequence_lens'].type}")
    clip, couples_gates = op.floating("clip", 0.0), op.integer("input_forget", 0) != 0
    returns_y = bool(op.outputs and op.outputs[0])

    def build(body: BodyBuilder) -> list[Value]:
        lengths = _SequenceLengths.of(body) if "sequence_lens" in body else None
        layers = [
            _RecurrentLayer(hidden, clip, couples_gates, layer_activations, lengths, returns_y)
            for layer_activations in activations
        ]
        results = [
            layers[i].one_direction(body, i, is_reversed)
            for i, is_reversed in enumerate(directions)
        ]
        # Y has its direction axis second, [steps, directions, batch, hidden]; Y_h and Y_c have it
        # first.
        rows = [
            body.op("concat", *(result[i] for result in results), axis=axis)
            if len(results) > 1
            else results[0][i]
            for i, axis in enumerate((1, 0, 0))
        ]
        return rows

    add_group(reader, op, operands, build)


def _activations(op: OnnxOp, direction_count: int) -> list[tuple[_Activation, ...]]:
    """Returns the three activations (gates, cell, hidden state) of each direction."""
    attribute = op.attribute("activations")
    texts = [t.decode("utf-8", "replace") for t in attribute.strings] if attribute else []
    names = [ACTIVATION_NAMES.get(t.lower(), t) for t in texts] or [
        *DEFAULT_ACTIVATIONS["lstm"]
    ] * direction_count
    if unknown := [n for n in names if n not in ACTIVATIONS]:
        raise KeepOperator(f"its activation {unknown[0]!r} is not known")
    if len(names) != 3 * direction_count:
        raise KeepOperator(
            f"{len(names)} activations for {direction_count} direction{'s' * (direction_count > 1)}"
        )
    # ONNX lists alpha and beta only for activations that use them, in their order.
    parameters = {
        kind: list(attribute_of.floats)
        if (attribute_of := op.attribute(f"activation_{kind}"))
        else []
        for kind in ("alpha", "beta")
    }
    activations = []
    for name in names:
        defaults = zip(parameters.values(), ACTIVATIONS[name], strict=True)
        numbers = [
            None
            if default is None
            else stated.pop(0)
            if stated
            else 0.0
            if name in _ZERO_BY_DEFAULT
            else default
            for stated, default in defaults
        ]
        activations.append(_Activation(name, tuple(n for n in numbers if n is not None)))
    return [tuple(activations[i : i + 3]) for i in range(0, len(activations), 3)]


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
            result = body.op("tanh", body.op("mul", x, self._last(body)))
            return body.op("mul", result, body.constant(self.parameters[0]))
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
        longest = body.op("reduce_max", counts, axes=(0,), keep=False)
        step_numbers = body.op("unsqueeze", steps, axes=(1, 2))
        length_column = body.op("unsqueeze", counts, axes=(1,))
        return cls(
            counts,
            body.op("less", step_numbers, length_column),
            body.op("less", zero, length_column),
            body.op("less", step_numbers, longest),
        )


@dataclass(frozen=True, slots=True)
class _RecurrentLayer:
    """One direction of the layer."""

    hidden: int
    clip: float
    couples_forget_gate: bool
    activations: Sequence[_Activation]
    lengths: _SequenceLengths | None
    returns_every_state: bool
    """Whether Y, the state of every step, is a result: it is 0 after the end of a sequence."""

    def one_direction(self, body: BodyBuilder, index: int, is_reversed: bool) -> list[Value]:
        """Returns y, h and c of a direction, each with an axis of size 1 for the direction."""
        x = self._ordered_input(body, is_reversed)
        integers, scale, zero = _quantize_input(body, x)
        # The products of the input do not depend on the state: one product for all steps, before
        # the scan.
        gates = _integer_product(body, integers, scale, zero, _Weights(body, "W", index))
        if "B" in body:
            biases = body.reshape(_direction_slice(body, body["B"], index), 2, 4 * self.hidden)
            # B has the biases of W and of R one after the other, and both are added.
            gates = body.op("add", gates, body.op("reduce_sum", biases, axes=(0,), keep=False))
        initial_states = [
            self._initial_state(body, s, index, x) for s in ("initial_h", "initial_c")
        ]
        weights = _Weights(body, "R", index)
        # Operands of a scan: `vs` are carried, `ss` are sliced by step, `xs` are constant in the
        # loop.
        operands = {"vs.0": initial_states[0], "vs.1": initial_states[1], "ss.0": gates}
        if self.lengths is not None:
            operands |= {"vs.2": initial_states[0], "ss.1": self.lengths.is_step_valid}
        operands |= {"xs.0": weights.integers, "xs.1": weights.scale, "xs.2": weights.zero_point}
        if "P" in body:
            operands["xs.3"] = body.reshape(
                _direction_slice(body, body["P"], index), 3, self.hidden
            )
        step = self._scan_body(operands)
        # `last` is the state carried for ended sequences, there only with sequence lengths.
        h, c, *ended_state, y = body.add("scan", operands, {}, bodies={"body": step.graph})
        if self.lengths is not None:
            # A sequence of length 0 has the state 0, not the initial state, as in onnxruntime.
            none = body.constant(0.0)
            h, c = (
                body.op("where", self.lengths.is_not_empty, v, none) for v in (ended_state[0], c)
            )
        return [
            body.op("unsqueeze", self._reversed_if(body, y, is_reversed), axes=(1,)),
            *(body.op("unsqueeze", v, axes=(0,)) for v in (h, c)),
        ]

    def _ordered_input(self, body: BodyBuilder, is_reversed: bool) -> Value:
        """Returns the input with its steps in reading order; 0 for steps that no sequence has."""
        x = self._reversed_if(body, body["X"], is_reversed)
        if self.lengths is None:
            return x
        return body.op("where", self.lengths.is_step_read, x, body.constant(0.0))

    def _reversed_if(self, body: BodyBuilder, x: Value, is_reversed: bool) -> Value:
        if not is_reversed:
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
        zero_row = body.constant(np.zeros((1, self.hidden), np.float32))
        batch_size = body.op("shape", x, start=1, end=2)
        shape = body.op("concat", batch_size, body.constant([self.hidden]), axis=0)
        return body.op("expand", zero_row, shape)

    def _scan_body(self, operands: Mapping[str, Value]) -> BodyBuilder:
        """Returns the body of one step: gates, cell and hidden state."""
        gates_type = operands["ss.0"].type
        body = BodyBuilder({})
        types = {s: v.type for s, v in operands.items()}
        types["ss.0"] = gates_type.with_shape(gates_type.shape[1:])
        if "ss.1" in types:
            types["ss.1"] = types["ss.1"].with_shape(types["ss.1"].shape[1:])
        order = [s for p in ("vs", "ss", "xs") for s in types if s.startswith(p)]
        values = {s: body.graph.add("input", types=[types[s]]).result for s in order}
        h, c = values["vs.0"], values["vs.1"]
        integers, scale, zero = _quantize_input(body, h)
        weights = _Weights(body, "R", 0, (values["xs.0"], values["xs.1"], values["xs.2"]))
        gates = body.op(
            "add", values["ss.0"], _integer_product(body, integers, scale, zero, weights)
        )
        parts = body.add("split", {"x": gates}, {"sizes": (self.hidden,) * 4, "axis": 1})
        # ONNX's order of gates: input, output, forget, cell.
        input_gate, output_gate, forget_gate, candidate = parts
        peepholes: list[Value] = []
        # Peepholes, in ONNX's order i, o, f: the cell state reaches the gates.
        if "xs.3" in values:
            peepholes = [
                body.op("gather", values["xs.3"], body.constant(np.array(k)), axis=0)
                for k in range(3)
            ]
            input_gate = body.op("add", input_gate, body.op("mul", peepholes[0], c))
            forget_gate = body.op("add", forget_gate, body.op("mul", peepholes[2], c))
        gate, cell, state = self.activations
        input_gate = gate(body, self._clipped(body, input_gate))
        # With input_forget, the forget gate is 1 - input gate.
        forget_gate = (
            body.op("sub", body.constant(1.0), input_gate)
            if self.couples_forget_gate
            else gate(body, self._clipped(body, forget_gate))
        )
        candidate = cell(body, self._clipped(body, candidate))
        new_cell = body.op(
            "add", body.op("mul", forget_gate, c), body.op("mul", input_gate, candidate)
        )
        # The output gate sees the new cell state.
        if peepholes:
            output_gate = body.op("add", output_gate, body.op("mul", peepholes[1], new_cell))
        output_gate = gate(body, self._clipped(body, output_gate))
        new_hidden = body.op("mul", output_gate, state(body, new_cell))
        self._add_outputs(body, values, new_hidden, new_cell)
        return body

    def _add_outputs(
        self, body: BodyBuilder, values: Mapping[str, Value], new_hidden: Value, new_cell: Value
    ) -> None:
        """Adds the outputs of a step; a sequence that has ended keeps its last state.

        The next step quantizes the state of the whole batch by one range. For ended sequences, that
        state is 0 if Y is a result and their last state otherwise, as in onnxruntime.
        """
        if self.lengths is None:
            body.graph.add("output", {"h": new_hidden, "c": new_cell, "y": new_hidden})
            return
        is_valid = values["ss.1"]
        visible = body.op("where", is_valid, new_hidden, body.constant(0.0))
        last_state = body.op("where", is_valid, new_hidden, values["vs.2"])
        # The cell state of an ended sequence stays as it was.
        new_cell = body.op("where", is_valid, new_cell, values["vs.1"])
        h = visible if self.returns_every_state else body.op("identity", last_state)
        body.graph.add("output", {"h": h, "c": new_cell, "last": last_state, "y": visible})

    def _clipped(self, body: BodyBuilder, x: Value) -> Value:
        return body.op("clip", x, min=-self.clip, max=self.clip) if self.clip > 0 else x


class _Weights:
    """The integer weights of one direction, with scale and zero point."""

    def __init__(
        self,
        body: BodyBuilder,
        slot: str,
        index: int,
        sliced: tuple[Value, Value, Value] | None = None,
    ) -> None:
        if sliced is not None:
            self.integers, self.scale, self.zero_point = sliced
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
    slice_attrs: dict[str, Attr] = {
        "starts": (index,),
        "ends": (index + 1,),
        "axes": (0,),
        "steps": (1,),
    }
    return body.op("slice", x, **slice_attrs)


def _quantize_input(body: BodyBuilder, x: Value) -> tuple[Value, Value, Value]:
    """Quantizes a tensor by its own range; returns plain u8, scale and zero point."""
    quantized, scale, zero = quantize_by_own_range(body, x)
    return body.recode(quantized, U8), scale, zero


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
