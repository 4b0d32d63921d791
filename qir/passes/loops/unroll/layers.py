"""The steps of a recurrent layer, written out in ops on matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.recurrent import ACTIVATIONS, DEFAULT_ACTIVATIONS, DIRECTIONS, GATE_COUNTS
from qir.ir.types import Array, TensorType

_SIMPLE_ACTIVATIONS = frozenset("relu tanh sigmoid softsign softplus".split())
_PARAMETRIC_ACTIVATIONS = {
    "leaky_relu": ("alpha",),
    "elu": ("alpha",),
    "hard_sigmoid": ("alpha", "beta"),
}
"""Activations that are ops, with the attributes that they take."""
_NODES_PER_STEP = {"rnn": 6, "lstm": 20, "gru": 20}
Apply: TypeAlias = "Callable[[Value], Value]"


@dataclass(frozen=True, slots=True)
class RunCount:
    """How often something runs, and about how many nodes that makes."""

    count: int
    nodes: int


def is_expressible(node: Node) -> bool:
    """Reports whether the steps of a layer can be written as ops: no lengths, nothing quantized."""
    if any(v.type.quant for v in (*node.operands.values(), *node.results)) or node.schemes:
        return False
    if "lengths" in node.operands or any(spec(node.op).is_companion(s) for s in node.operands):
        return False
    sizes = (*node.operands["w"].type.shape, *node.operands["r"].type.shape)
    activations_known = all(
        name in _SIMPLE_ACTIVATIONS or name in _PARAMETRIC_ACTIVATIONS
        for name in _activation_names(node)
    )
    return activations_known and all(isinstance(size, int) for size in sizes)


def hidden_size(node: Node) -> int:
    """Returns how many numbers a gate of a layer has; its weights have known sizes."""
    rows = node.operands["w"].type.shape[1]
    assert isinstance(rows, int)
    return rows // len(GATE_COUNTS[node.op])


def layer_size(node: Node) -> RunCount | None:
    """Returns the steps of a layer; None where they are not known, or cannot be written as ops."""
    x = node.operands["x"].type.shape
    batch, steps = (x[0], x[1]) if node.attrs["batch_first"] is True else (x[1], x[0])
    state_slots = [slot for slot in ("h0", "c0") if spec(node.op).slot(slot)]
    # Without an initial state, zeros of the size of the batch take its place.
    if not isinstance(batch, int) and any(slot not in node.operands for slot in state_slots):
        return None
    if not is_expressible(node) or not isinstance(steps, int):
        return None
    directions = len(DIRECTIONS[str(node.attrs["direction"])])
    return RunCount(steps, steps * directions * _NODES_PER_STEP[node.op])


def _activation_names(node: Node) -> list[str]:
    listed = node.attrs["activations"]
    names = [str(name) for name in listed] if isinstance(listed, tuple) else []
    return names or list(DEFAULT_ACTIVATIONS[node.op]) * len(
        DIRECTIONS[str(node.attrs["direction"])]
    )


def write_step(
    body: Graph,
    node: Node,
    weights: Mapping[str, Value],
    direction: int,
    x: Value,
    state: tuple[Value, ...],
) -> tuple[Value, ...]:
    """Writes one step of a direction of a layer into another graph; returns the states after it."""
    return _LayerWriter(body, node, weights).cell(direction)(x, state)


def write_layer(graph: Graph, node: Node) -> list[Value | None]:
    """Writes the steps before a layer; gives what stands for each of its results that is used."""
    return _LayerWriter(graph, node).write()


class _LayerWriter:
    """Builds in the place of one layer, or one step at the end of another graph."""

    def __init__(
        self, graph: Graph, node: Node, weights: Mapping[str, Value] | None = None
    ) -> None:
        self.graph = graph
        self.node = node
        self.parameters = node.operands if weights is None else weights
        self.before = node if weights is None else None
        self.op = node.op
        self.batch_first = node.attrs["batch_first"] is True
        self.directions = DIRECTIONS[str(node.attrs["direction"])]
        shape = node.operands["x"].type.shape
        self.steps = shape[1] if self.batch_first else shape[0]
        self.batch = shape[0] if self.batch_first else shape[1]
        self.gates, self.hidden = len(GATE_COUNTS[self.op]), hidden_size(node)
        self.one_constant: Value | None = None

    def add(self, op: str, attrs: Mapping[str, Attr] | None = None, **operands: Value) -> Value:
        """Returns one op before the layer, with its origins and profile."""
        node = self.node
        return self.graph.add(
            op, operands, attrs, before=self.before, origins=node.origins, profile=node.profile
        ).result

    def join(self, parts: list[Value], axis: int) -> Value:
        """Parts along one axis; a single one is that itself."""
        if len(parts) == 1:
            return parts[0]
        operands = {f"xs.{i}": part for i, part in enumerate(parts)}
        node = self.node
        joined = self.graph.add(
            "concat", operands, {"axis": axis}, before=self.before, origins=node.origins
        )
        return joined.result

    def add_constant(
        self, data: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str
    ) -> Value:
        dtype = self.node.operands["x"].type.dtype
        fresh_name = self.graph.fresh(f"{self.node.name}.{name}")
        array = Array(data.astype(dtype.carrier), TensorType(data.shape, dtype), fresh_name)
        return self.graph.constant(array, name=fresh_name, before=self.before)

    def write(self) -> list[Value | None]:
        entries = self.step_inputs()
        states: list[tuple[Value, ...]] = []
        hidden_states: list[list[Value]] = []
        for direction, is_reverse in enumerate(self.directions):
            step, state = self.cell(direction), self.initial_state(direction)
            hidden: list[Value] = []
            for x in reversed(entries) if is_reverse else entries:
                state = step(x, state)
                hidden.append(state[0])
            # States are in the order of the sequence, whichever way a direction reads it.
            hidden_states.append(hidden[::-1] if is_reverse else hidden)
            states.append(state)
        results: list[Value | None] = []
        for i, result in enumerate(self.node.results):
            if not result.uses:
                results.append(None)
            else:
                results.append(
                    self.stack_states(hidden_states)
                    if i == 0
                    else self.stack_last([s[i - 1] for s in states])
                )
        return results

    def step_inputs(self) -> list[Value]:
        """x step by step."""
        axis = 1 if self.batch_first else 0
        assert isinstance(self.steps, int)
        return [
            self.part(self.node.operands["x"], axis, i, name=f"x.{i}") for i in range(self.steps)
        ]

    def part(self, value: Value, axis: int, index: int, *, name: str = "") -> Value:
        """Returns one entry of an axis."""
        if (constant := value.constant) is not None and not name:
            return self.add_constant(np.take(constant.data, index, axis), f"{value.name}.{index}")
        attrs = {"starts": (index,), "ends": (index + 1,), "axes": (axis,), "steps": (1,)}
        return self.add("squeeze", {"axes": (axis,)}, x=self.add("slice", attrs, x=value))

    def initial_state(self, direction: int) -> tuple[Value, ...]:
        slots = ("h0", "c0") if self.op == "lstm" else ("h0",)
        sizes = (self.node.operands["r"].type.shape[2], self.hidden)
        states: list[Value] = []
        for slot, size in zip(slots, sizes, strict=False):
            initial = self.node.operands.get(slot)
            if initial is not None:
                states.append(self.part(initial, 1 if self.batch_first else 0, direction))
            else:
                assert isinstance(self.batch, int)
                assert isinstance(size, int)
                states.append(self.add_constant(np.zeros((self.batch, size)), slot))
        return tuple(states)

    def stack_states(self, hidden_states: list[list[Value]]) -> Value:
        """Returns the states of all steps and directions."""
        axes, step, direction_axis = ((1, 2), 1, 2) if self.batch_first else ((0, 1), 0, 1)
        expanded = [
            [self.add("unsqueeze", {"axes": axes}, x=part) for part in parts]
            for parts in hidden_states
        ]
        return self.join([self.join(parts, step) for parts in expanded], direction_axis)

    def stack_last(self, parts: list[Value]) -> Value:
        """Returns the last states of the directions."""
        axis = 1 if self.batch_first else 0
        return self.join([self.add("unsqueeze", {"axes": (axis,)}, x=p) for p in parts], axis)

    # -- cells --------------------------------------------------------------------------------

    def cell(self, direction: int) -> Callable[[Value, tuple[Value, ...]], tuple[Value, ...]]:
        cells = {"rnn": self.rnn, "lstm": self.lstm, "gru": self.gru}
        return cells[self.op](direction)

    def weights(self, direction: int) -> tuple[Value, Value, Value | None, Value | None]:
        """Both matrices and both biases of one direction."""
        w, r = (self.part(self.parameters[slot], 0, direction) for slot in "wr")
        bias = self.parameters.get("bias")
        if bias is None:
            return w, r, None, None
        rows, size = self.gates * self.hidden, bias.type.shape[1]
        bias_row = self.part(bias, 0, direction)
        # One bias for both products, or one each.
        if size == rows:
            return w, r, bias_row, None
        return w, r, self.rows(bias_row, 0, rows), self.rows(bias_row, rows, 2 * rows)

    def rows(self, value: Value, start: int, end: int) -> Value:
        """Some rows of a weight."""
        if (constant := value.constant) is not None:
            return self.add_constant(constant.data[start:end], f"{value.name}.{start}")
        attrs = {"starts": (start,), "ends": (end,), "axes": (0,), "steps": (1,)}
        return self.add("slice", attrs, x=value)

    def add_linear(self, x: Value, w: Value, bias: Value | None) -> Value:
        if bias is None:
            return self.add("linear", x=x, w=w)
        return self.add("linear", x=x, w=w, bias=bias)

    def functions(self, direction: int) -> list[Apply]:
        """Returns the activations of one direction."""
        per_direction, names = len(DEFAULT_ACTIVATIONS[self.op]), _activation_names(self.node)
        return [
            self.function(i, names[i])
            for i in range(direction * per_direction, (direction + 1) * per_direction)
        ]

    def function(self, index: int, name: str) -> Apply:
        attrs: dict[str, Attr] = {}
        for parameter, default in zip(("alpha", "beta"), ACTIVATIONS[name], strict=True):
            listed = self.node.attrs[parameter]
            if parameter in _PARAMETRIC_ACTIVATIONS.get(name, ()):
                attrs[parameter] = (
                    listed[index] if isinstance(listed, tuple) and listed else default
                )
        return lambda x: self.add(name, attrs, x=x)

    def apply_gate(self, function: Apply, total: Value) -> Value:
        clip = self.node.attrs["clip"]
        if isinstance(clip, float):
            total = self.add("clip", {"min": -clip, "max": clip}, x=total)
        return function(total)

    def split(self, value: Value) -> list[Value]:
        """Returns the sums of the gates."""
        attrs: dict[str, Attr] = {"sizes": (self.hidden,) * self.gates, "axis": 1}
        split_node = self.graph.add(
            "split",
            {"x": value},
            attrs,
            before=self.before,
            origins=self.node.origins,
            profile=self.node.profile,
        )
        return list(split_node.results)

    def rnn(self, direction: int) -> Callable[[Value, tuple[Value, ...]], tuple[Value, ...]]:
        w, r, w_bias, r_bias = self.weights(direction)
        (activation,) = self.functions(direction)

        def step(x: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
            a, b = self.add_linear(x, w, w_bias), self.add_linear(state[0], r, r_bias)
            return (self.apply_gate(activation, self.add("add", a=a, b=b)),)

        return step

    def lstm(self, direction: int) -> Callable[[Value, tuple[Value, ...]], tuple[Value, ...]]:
        w, r, w_bias, r_bias = self.weights(direction)
        gate_function, cell_function, output_function = self.functions(direction)
        peepholes = self.peepholes(direction)
        proj = self.parameters.get("proj")
        projection = None if proj is None else self.part(proj, 0, direction)
        coupled = self.node.attrs["input_forget"] is True

        def step(x: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
            h, c = state
            sums = self.add("add", a=self.add_linear(x, w, w_bias), b=self.add_linear(h, r, r_bias))
            # Gates are in ONNX's order: input, output, forget, cell; peepholes have the first
            # three.
            input_gate, output_gate, forget_sum, candidate = self.split(sums)
            if peepholes:
                input_gate, forget_sum = (
                    self.add_peephole(input_gate, peepholes[0], c),
                    self.add_peephole(forget_sum, peepholes[2], c),
                )
            input_gate = self.apply_gate(gate_function, input_gate)
            forget_gate = (
                self.one_minus(input_gate)
                if coupled
                else self.apply_gate(gate_function, forget_sum)
            )
            candidate = self.add("mul", a=input_gate, b=self.apply_gate(cell_function, candidate))
            c = self.add("add", a=self.add("mul", a=forget_gate, b=c), b=candidate)
            # The output gate sees the new state of the cell, the other two the old one.
            output_gate = (
                self.add_peephole(output_gate, peepholes[1], c) if peepholes else output_gate
            )
            h = self.add("mul", a=self.apply_gate(gate_function, output_gate), b=output_function(c))
            return (h if projection is None else self.add_linear(h, projection, None), c)

        return step

    def peepholes(self, direction: int) -> list[Value]:
        peephole = self.parameters.get("peephole")
        if peephole is None:
            return []
        row, size = self.part(peephole, 0, direction), self.hidden
        return [self.rows(row, i * size, (i + 1) * size) for i in range(3)]

    def add_peephole(self, total: Value, weight: Value, cell: Value) -> Value:
        return self.add("add", a=total, b=self.add("mul", a=cell, b=weight))

    def one_minus(self, value: Value) -> Value:
        """1 - value."""
        if self.one_constant is None:
            self.one_constant = self.add_constant(np.ones(()), "one")
        return self.add("sub", a=self.one_constant, b=value)

    def gru(self, direction: int) -> Callable[[Value, tuple[Value, ...]], tuple[Value, ...]]:
        w, r, w_bias, r_bias = self.weights(direction)
        gate_function, candidate_function = self.functions(direction)
        linear_before_reset = self.node.attrs["linear_before_reset"] is True
        size = self.hidden
        parts = (0, 2 * size), (2 * size, 3 * size)
        # With the reset before the product, the candidate's rows of r multiply another state.
        first, second = (r, r) if linear_before_reset else (self.rows(r, *p) for p in parts)
        biases = [r_bias if r_bias is None else self.rows(r_bias, *p) for p in parts]

        def step(x: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
            (h,) = state
            update, reset, candidate = self.split(self.add_linear(x, w, w_bias))
            if linear_before_reset:
                z_recurrent, reset_recurrent, new_recurrent = self.split(
                    self.add_linear(h, first, r_bias)
                )
            else:
                both = self.add_linear(h, first, biases[0])
                attrs: dict[str, Attr] = {"sizes": (size, size), "axis": 1}
                z_recurrent, reset_recurrent = self.graph.add(
                    "split", {"x": both}, attrs, before=self.before
                ).results
            update = self.apply_gate(gate_function, self.add("add", a=update, b=z_recurrent))
            reset = self.apply_gate(gate_function, self.add("add", a=reset, b=reset_recurrent))
            if linear_before_reset:
                # As PyTorch and cuDNN do: the gate multiplies the product with the state, not the
                # state.
                recurrent = self.add("mul", a=reset, b=new_recurrent)
            else:
                recurrent = self.add_linear(self.add("mul", a=reset, b=h), second, biases[1])
            candidate = self.apply_gate(
                candidate_function, self.add("add", a=candidate, b=recurrent)
            )
            new_share = self.add("mul", a=self.one_minus(update), b=candidate)
            return (self.add("add", a=new_share, b=self.add("mul", a=update, b=h)),)

        return step
