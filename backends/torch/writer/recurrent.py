"""Writes LSTM, GRU and RNN layers, whose gates PyTorch orders in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from qir.ir.node import Node
from qir.ir.ops.recurrent import DEFAULT_ACTIVATIONS, DIRECTIONS

from .program import FxProgram, Handler

GATES = {"lstm": (0, 2, 3, 1), "gru": (1, 0, 2), "rnn": (0,)}
"""Where each of PyTorch's gates is among ours: i o f g and z r n here, i f g o and r z n there."""
_STATES = {"lstm": ("h0", "c0"), "gru": ("h0",), "rnn": ("h0",)}
_SUPPORTED_OPERANDS = frozenset({"x", "w", "r", "bias", "h0", "c0"})


def _layer(kind: str) -> Handler:
    def write(program: FxProgram, node: Node) -> list[fx.Node]:
        if node.inner:
            reason = (
                "only formats torchscript and fx of the engines quantize its state in each step"
            )
            raise program.refuse(node, reason)
        name = operator_name(program, node, kind)
        directions = range(len(DIRECTIONS[str(node.attrs["direction"])]))

        def call(x: fx.Node, states: Any) -> fx.Node:
            params = [p for way in directions for p in _parameters(program, node, kind, way)]
            return program.call(name, x, states, params, *layer_settings(node))

        return write_layer(program, node, kind, program.operand(node, "x"), call)

    return write


def layer_settings(node: Node) -> tuple[Any, ...]:
    """Returns the arguments of PyTorch's layer after its parameters.

    They are has_biases, num_layers, dropout, train, bidirectional and batch_first.
    """
    bidirectional = node.attrs["direction"] == "bidirectional"
    return ("bias" in node.operands, 1, 0.0, False, bidirectional, bool(node.attrs["batch_first"]))


def write_layer(
    program: FxProgram,
    node: Node,
    kind: str,
    x: fx.Node,
    call: Callable[[fx.Node, Any], fx.Node],
) -> list[fx.Node]:
    """Writes a layer by a call of data and first states, and brings its results into our layout."""
    batch_first, is_reverse = bool(node.attrs["batch_first"]), node.attrs["direction"] == "reverse"
    time_axis = 1 if batch_first else 0
    # PyTorch has no reverse direction alone: a forward layer on flipped steps is the same.
    x = program.call("aten.flip", x, [time_axis]) if is_reverse else x
    states = [_first_state(program, node, slot) for slot in _STATES[kind]]
    outputs = call(x, states if kind == "lstm" else states[0])
    sizes = [program.size(dim, node) for dim in node.results[0].type.shape]
    joined = program.item(outputs, 0)
    if batch_first:
        y = program.call("aten.reshape", joined, sizes)
    # PyTorch joins the directions on the last axis; QIR has an axis of its own for them.
    else:
        count, directions, batch, hidden = sizes
        y = program.call("aten.reshape", joined, [count, batch, directions, hidden])
        y = program.call("aten.transpose", y, 1, 2)
    y = program.call("aten.flip", y, [time_axis]) if is_reverse else y
    last_states = [program.item(outputs, index) for index in range(1, len(node.results))]
    return [
        y,
        *(program.call("aten.transpose", e, 0, 1) if batch_first else e for e in last_states),
    ]


def operator_name(program: FxProgram, node: Node, kind: str) -> str:
    """Returns PyTorch's name of a layer; Refused for one that it lacks."""
    attrs, directions = node.attrs, len(DIRECTIONS[str(node.attrs["direction"])])
    if unsupported := sorted(set(node.operands) - _SUPPORTED_OPERANDS):
        raise program.refuse(node, f"PyTorch's layer takes no {unsupported[0]}")
    if attrs.get("clip") is not None or attrs.get("input_forget"):
        raise program.refuse(node, "PyTorch's layer neither clips nor couples its gates")
    if kind == "gru" and not attrs["linear_before_reset"]:
        raise program.refuse(node, "PyTorch resets what the product gives, not what it reads")
    activations = attrs["activations"] or DEFAULT_ACTIVATIONS[kind] * directions
    for function in ("tanh", "relu"):
        if kind == "rnn" and activations == (function,) * directions:
            return f"aten.rnn_{function}"
    if activations != DEFAULT_ACTIVATIONS[kind] * directions:
        raise program.refuse(node, "PyTorch's layer has other activations")
    return f"aten.{kind}"


def _first_state(program: FxProgram, node: Node, slot: str) -> fx.Node:
    """Returns the state that a layer begins with, the direction first; zeros unless it is given."""
    batch_first, value = bool(node.attrs["batch_first"]), node.operands.get(slot)
    if value is not None:
        state = program.node_of(value)
        return program.call("aten.transpose", state, 0, 1) if batch_first else state
    sizes = [program.size(dim, node) for dim in node.results[1].type.shape]
    sizes = [sizes[1], sizes[0], sizes[2]] if batch_first else sizes
    return program.call("aten.zeros", sizes)


def _parameters(program: FxProgram, node: Node, kind: str, direction: int) -> list[Any]:
    """Returns weights and biases of one direction, in PyTorch's order of gates."""
    gate_rows = node.operands["w"].type.shape[1]
    weights = [_direction_weights(program, node, kind, slot, direction) for slot in ("w", "r")]
    bias = node.operands.get("bias")
    if bias is None or not isinstance(gate_rows, int):
        return weights
    biases = program.call("aten.select", program.node_of(bias), 0, direction)
    if bias.type.shape[1] == gate_rows:
        single = _in_torch_order(program, kind, biases)
        # PyTorch's layer needs both biases: QIR's single one, and zeros.
        return [*weights, single, program.call("aten.zeros_like", single)]
    halves = program.call("aten.split_with_sizes", biases, [gate_rows, gate_rows], 0)
    return [
        *weights,
        *(_in_torch_order(program, kind, program.item(halves, index)) for index in (0, 1)),
    ]


def _direction_weights(
    program: FxProgram, node: Node, kind: str, slot: str, direction: int
) -> fx.Node:
    weights = program.call("aten.select", program.operand(node, slot), 0, direction)
    return _in_torch_order(program, kind, weights)


def _in_torch_order(program: FxProgram, kind: str, rows: fx.Node) -> fx.Node:
    order = GATES[kind]
    if len(order) == 1:
        return rows
    parts = program.call("aten.chunk", rows, len(order), 0)
    return program.call("aten.cat", [program.item(parts, index) for index in order], 0)


OPS: dict[str, Handler] = {kind: _layer(kind) for kind in GATES}
