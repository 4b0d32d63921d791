"""LSTM, GRU and RNN layers, whose parameters MXNet stores in one flat vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.node import Value
from qir.ir.types import Array
from qir.reference.constants import compute_constants

from .call import SymbolCall
from .results import Result, ShapelessZeros, Unsupported

_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
"""For each gate of the language, its index in MXNet.

MXNet has i f g o and r z n, the language i o f g and z r n.
"""
Weights = NDArray[Any]


@dataclass(frozen=True)
class _Layer:
    """Weights of all directions of one layer, in the language's layout."""

    w: Weights
    r: Weights
    bias: Weights


def _parameter_vector(value: Value) -> Weights:
    """Returns a parameter, or a concatenation of parameters, which Gluon writes."""
    node = value.node
    data = node.attrs.get("data") if node.op == "constant" else None
    if isinstance(data, Array):
        return data.data
    if node.op not in ("concat", "reshape", "flatten"):
        raise Unsupported("its parameters are computed; only those of the file are read")
    results = compute_constants(
        node, {slot: _parameter_vector(v) for slot, v in node.operands.items()}, "native"
    )
    if not results:
        raise Unsupported("its parameters cannot be joined")
    return results[0]


def _layers(
    vector: Weights, kind: str, size: int, width: int, count: int, directions: int
) -> list[_Layer]:
    """Splits the flat vector: the weights of all layers come first, then all biases."""
    gates, offset = len(_GATES[kind]), 0
    # Each gate has width + size weights and two biases, for each of `size` hidden numbers.
    total = gates * size * directions * (width + size + 2)
    total += (count - 1) * gates * size * directions * (size * directions + size + 2)
    if vector.size != total:
        raise Unsupported(f"its parameters are {vector.size} numbers, {total} are needed")

    def take(*shape: int) -> Weights:
        nonlocal offset
        length = int(np.prod(shape))
        taken = vector[offset : offset + length].reshape(shape)
        offset += length
        return taken

    def ordered(part: Weights) -> Weights:
        return part.reshape(gates, size, -1)[list(_GATES[kind])].reshape(part.shape)

    weights: list[tuple[list[Weights], list[Weights]]] = []
    for layer in range(count):
        columns = width if layer == 0 else size * directions
        direction_weights: tuple[list[Weights], list[Weights]] = ([], [])
        for _ in range(directions):
            direction_weights[0].append(ordered(take(gates * size, columns)))
            direction_weights[1].append(ordered(take(gates * size, size)))
        weights.append(direction_weights)
    layers = []
    for w, r in weights:
        biases = [
            np.concatenate([ordered(take(gates * size)), ordered(take(gates * size))])
            for _ in range(directions)
        ]
        layers.append(_Layer(np.stack(w), np.stack(r), np.stack(biases)))
    return layers


def _rnn(call: SymbolCall) -> list[Result]:
    mode = call.choice("mode", "", "lstm", "gru", "rnn_tanh", "rnn_relu")
    kind, _, activation = mode.partition("_")
    size, count = call.attrs.integer("state_size"), call.attrs.integer("num_layers")
    directions = 2 if call.attrs.flag("bidirectional") else 1
    call.ignore("p", "state_outputs", "lstm_state_clip_nan")
    for name in ("projection_size", "lstm_state_clip_min", "lstm_state_clip_max"):
        if call.attrs.is_given(name):
            raise Unsupported(f"{name} is not read")
    if call.attrs.flag("use_sequence_length"):
        raise Unsupported("use_sequence_length is not read")
    if not 1 <= count <= 1000 or not 1 <= size <= 1 << 24:
        raise Unsupported(f"it has {count} layers of {size}")
    x = call.value(0)
    vector = _parameter_vector(call.value(1)).reshape(-1)
    gate_numbers = len(_GATES[kind]) * size * directions
    # The width of the data follows from the length of the vector: MXNet stores no shapes.
    width = vector.size // gate_numbers - size - 2 - (count - 1) * (size * directions + size + 2)
    layers = _layers(vector, kind, size, max(width, 0), count, directions)
    attrs: dict[str, Attr] = {"direction": "bidirectional" if directions == 2 else "forward"}
    if kind == "gru":
        attrs["linear_before_reset"] = True
    if activation:
        attrs["activations"] = (activation,) * directions
    states = [
        None if isinstance(call.inputs[i], ShapelessZeros) else call.value(i)
        for i in range(2, 4 if kind == "lstm" else 3)
    ]
    states_by_slot: list[list[Value]] = [[] for _ in states]
    for index, layer in enumerate(layers):
        x, last_states = _layer(call, kind, x, layer, states, index, directions, count, attrs)
        for states_of_layers, last_state in zip(states_by_slot, last_states, strict=True):
            states_of_layers.append(last_state)
    joined = [
        states_of_layers[0]
        if count == 1
        else call.add("concat", {f"xs.{i}": v for i, v in enumerate(states_of_layers)}, {"axis": 0})
        for states_of_layers in states_by_slot
    ]
    return [x, *joined]


def _layer(
    call: SymbolCall,
    kind: str,
    x: Value,
    layer: _Layer,
    states: list[Value | None],
    index: int,
    directions: int,
    count: int,
    attrs: dict[str, Attr],
) -> tuple[Value, tuple[Value, ...]]:
    """Adds one layer; returns the results of all steps, and the last states."""
    operands: dict[str, Value | None] = {
        "x": x,
        "w": call.constant(layer.w, f"{index}.w"),
        "r": call.constant(layer.r, f"{index}.r"),
        "bias": call.constant(layer.bias, f"{index}.bias"),
    }
    for slot, state in zip(("h0", "c0"), states, strict=False):
        if state is None or count == 1:
            operands[slot] = state
            continue
        bounds = {"starts": (index * directions,), "ends": ((index + 1) * directions,)}
        operands[slot] = call.add("slice", {"x": state}, {**bounds, "axes": (0,), "steps": (1,)})
    y, *last_states = call.add_many(kind, operands, attrs)
    # y is [steps, directions, batch, hidden]; MXNet concatenates directions along the last axis.
    if directions == 1:
        return call.add("squeeze", {"x": y}, {"axes": (1,)}), tuple(last_states)
    parts = call.add_many("split", {"x": y}, {"sizes": (1, 1), "axis": 1})
    squeezed = [call.add("squeeze", {"x": part}, {"axes": (1,)}) for part in parts]
    return call.add("concat", {"xs.0": squeezed[0], "xs.1": squeezed[1]}, {"axis": 2}), tuple(
        last_states
    )


OPS = {"RNN": _rnn}
