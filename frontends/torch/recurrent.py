"""LSTM, GRU and RNN layers; the language has the order of gates of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import OverloadCall
from .reader import KeepCall

GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
"""For each gate of the language, its index in PyTorch.

PyTorch has i f g o and r z n, the language i o f g and z r n.
"""


def _reorder_gates(call: OverloadCall, kind: str, value: Value) -> Value:
    """Returns weights or biases with their gates in the language's order."""
    gates = GATES[kind]
    if len(gates) == 1:
        return value
    rows = value.type.shape[0]
    if not isinstance(rows, int):
        raise KeepCall
    size = rows // len(gates)
    parts = call.add_many("split", {"x": value}, {"sizes": (size,) * len(gates), "axis": 0})
    return call.add("concat", {f"xs.{i}": parts[g] for i, g in enumerate(gates)}, {"axis": 0})


def _stack_directions(call: OverloadCall, parts: Sequence[Value]) -> Value:
    """Returns the directions of a layer along a new first axis."""
    rows = [call.add("unsqueeze", {"x": part}, {"axes": (0,)}) for part in parts]
    if len(rows) == 1:
        return rows[0]
    return call.add("concat", {f"xs.{i}": r for i, r in enumerate(rows)}, {"axis": 0})


def _layers(kind: str, activation: str = "") -> Callable[[OverloadCall], list[Value]]:
    def read(call: OverloadCall) -> list[Value]:
        x, params = call.value("input"), call.values("params")
        directions = 2 if call.flag("bidirectional") else 1
        has_biases, count = call.flag("has_biases"), call.integer("num_layers")
        params_per_direction = 4 if has_biases else 2
        # A rank of 2 is a single sequence; `train` adds dropout; a projection adds a parameter.
        if (
            x.type.rank != 3
            or len(params) != params_per_direction * directions * count
            or call.flag("train")
        ):
            raise KeepCall
        batch_first = call.flag("batch_first")
        if batch_first:
            x = call.add("transpose", {"x": x}, {"perm": (1, 0, 2)})
        states = call.values("hx") if kind == "lstm" else [call.value("hx")]
        attrs: dict[str, Attr] = {"direction": "bidirectional" if directions == 2 else "forward"}
        if kind == "gru":
            attrs["linear_before_reset"] = True
        if activation:
            attrs["activations"] = (activation,) * directions
        last: list[list[Value]] = [[] for _ in states]
        for layer in range(count):
            layer_params = params[
                layer * directions * params_per_direction : (layer + 1)
                * directions
                * params_per_direction
            ]
            x, ends = _layer(call, kind, x, layer_params, states, layer, directions, attrs)
            for states_of_layers, last_state in zip(last, ends, strict=True):
                states_of_layers.append(last_state)
        if batch_first:
            x = call.add("transpose", {"x": x}, {"perm": (1, 0, 2)})
        joined = [
            states_of_layers[0]
            if count == 1
            else call.add(
                "concat", {f"xs.{i}": v for i, v in enumerate(states_of_layers)}, {"axis": 0}
            )
            for states_of_layers in last
        ]
        return [x, *joined]

    return read


def _layer(
    call: OverloadCall,
    kind: str,
    x: Value,
    params: Sequence[Value],
    states: Sequence[Value],
    layer: int,
    directions: int,
    attrs: dict[str, Attr],
) -> tuple[Value, tuple[Value, ...]]:
    """Adds one layer; returns the results of all steps, and the last states."""
    params_per_direction = len(params) // directions
    arranged = [_reorder_gates(call, kind, value) for value in params]
    operands: dict[str, Value | None] = {
        "x": x,
        "w": _stack_directions(call, arranged[0::params_per_direction]),
        "r": _stack_directions(call, arranged[1::params_per_direction]),
    }
    if params_per_direction == 4:
        biases = [
            (arranged[4 * direction + 2], arranged[4 * direction + 3])
            for direction in range(directions)
        ]
        joined_biases = [call.add("concat", {"xs.0": a, "xs.1": b}, {"axis": 0}) for a, b in biases]
        operands["bias"] = _stack_directions(call, joined_biases)
    for slot, state in zip(("h0", "c0"), states, strict=False):
        bounds = {"starts": (layer * directions,), "ends": ((layer + 1) * directions,)}
        slice_attrs = {**bounds, "axes": (0,), "steps": (1,)}
        is_all = state.type.shape[0] == directions
        operands[slot] = state if is_all else call.add("slice", {"x": state}, slice_attrs)
    y, *ends = call.add_many(kind, operands, attrs)
    # y is [steps, directions, batch, hidden]; PyTorch concatenates directions along the last axis.
    if directions == 1:
        return call.add("squeeze", {"x": y}, {"axes": (1,)}), tuple(ends)
    y = call.add("transpose", {"x": y}, {"perm": (0, 2, 1, 3)})
    parts = call.add_many("split", {"x": y}, {"sizes": (1, 1), "axis": 2})
    flat = [call.add("squeeze", {"x": part}, {"axes": (2,)}) for part in parts]
    joined = call.add("concat", {"xs.0": flat[0], "xs.1": flat[1]}, {"axis": 2})
    return joined, tuple(ends)


OPS = {
    "lstm.input": _layers("lstm"),
    "gru.input": _layers("gru"),
    "rnn_tanh.input": _layers("rnn", "tanh"),
    "rnn_relu.input": _layers("rnn", "relu"),
}
