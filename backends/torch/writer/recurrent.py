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
_TAKEN = frozenset({"x", "w", "r", "bias", "h0", "c0"})


def _layer(kind: str) -> Handler:
    def write(program: FxProgram, node: Node) -> list[fx.Node]:
        if node.inner:
            said = "only formats torchscript and fx of the engines quantize its state in each step"
            raise program.refuse(node, said)
        name = operator_name(program, node, kind)
        ways = range(len(DIRECTIONS[str(node.attrs["direction"])]))

        def call(x: fx.Node, states: Any) -> fx.Node:
            params = [p for way in ways for p in _parameters(program, node, kind, way)]
            return program.call(name, x, states, params, *settings(node))

        return laid_out(program, node, kind, program.operand(node, "x"), call)

    return write


def settings(node: Node) -> tuple[Any, ...]:
    """Returns what PyTorch's layer is given after its parameters: has_biases, num_layers, dropout,
    train, bidirectional and batch_first."""
    both = node.attrs["direction"] == "bidirectional"
    return ("bias" in node.operands, 1, 0.0, False, both, bool(node.attrs["batch_first"]))


def laid_out(
    program: FxProgram,
    node: Node,
    kind: str,
    x: fx.Node,
    call: Callable[[fx.Node, Any], fx.Node],
) -> list[fx.Node]:
    """Writes a layer by a call of data and first states, and brings its results into our layout."""
    first, turned = bool(node.attrs["batch_first"]), node.attrs["direction"] == "reverse"
    steps = 1 if first else 0
    x = program.call("aten.flip", x, [steps]) if turned else x
    states = [_first_state(program, node, slot) for slot in _STATES[kind]]
    made = call(x, states if kind == "lstm" else states[0])
    sizes = [program.size(dim, node) for dim in node.results[0].type.shape]
    flat = program.item(made, 0)
    if first:
        y = program.call("aten.reshape", flat, sizes)
    else:
        count, many, batch, hidden = sizes
        y = program.call("aten.reshape", flat, [count, batch, many, hidden])
        y = program.call("aten.transpose", y, 1, 2)
    y = program.call("aten.flip", y, [steps]) if turned else y
    ends = [program.item(made, index) for index in range(1, len(node.results))]
    return [y, *(program.call("aten.transpose", e, 0, 1) if first else e for e in ends)]


def operator_name(program: FxProgram, node: Node, kind: str) -> str:
    """Returns PyTorch's name of a layer; Refused for one that it lacks."""
    attrs, ways = node.attrs, len(DIRECTIONS[str(node.attrs["direction"])])
    if more := sorted(set(node.operands) - _TAKEN):
        raise program.refuse(node, f"PyTorch's layer takes no {more[0]}")
    if attrs.get("clip") is not None or attrs.get("input_forget"):
        raise program.refuse(node, "PyTorch's layer neither clips nor couples its gates")
    if kind == "gru" and not attrs["linear_before_reset"]:
        raise program.refuse(node, "PyTorch resets what the product gives, not what it reads")
    named = attrs["activations"] or DEFAULT_ACTIVATIONS[kind] * ways
    for only in ("tanh", "relu"):
        if kind == "rnn" and named == (only,) * ways:
            return f"aten.rnn_{only}"
    if named != DEFAULT_ACTIVATIONS[kind] * ways:
        raise program.refuse(node, "PyTorch's layer has other activations")
    return f"aten.{kind}"


def _first_state(program: FxProgram, node: Node, slot: str) -> fx.Node:
    """Returns the state that a layer begins with, the direction first; zeros unless it is given."""
    first, value = bool(node.attrs["batch_first"]), node.operands.get(slot)
    if value is not None:
        given = program.node_of(value)
        return program.call("aten.transpose", given, 0, 1) if first else given
    sizes = [program.size(dim, node) for dim in node.results[1].type.shape]
    sizes = [sizes[1], sizes[0], sizes[2]] if first else sizes
    return program.call("aten.zeros", sizes)


def _parameters(program: FxProgram, node: Node, kind: str, way: int) -> list[Any]:
    """Returns weights and biases of one direction, in PyTorch's order of gates."""
    rows = node.operands["w"].type.shape[1]
    made = [_ordered(program, node, kind, slot, way) for slot in ("w", "r")]
    bias = node.operands.get("bias")
    if bias is None or not isinstance(rows, int):
        return made
    held = program.call("aten.select", program.node_of(bias), 0, way)
    if bias.type.shape[1] == rows:
        one = _gates(program, kind, held)
        return [*made, one, program.call("aten.zeros_like", one)]
    halves = program.call("aten.split_with_sizes", held, [rows, rows], 0)
    return [*made, *(_gates(program, kind, program.item(halves, index)) for index in (0, 1))]


def _ordered(program: FxProgram, node: Node, kind: str, slot: str, way: int) -> fx.Node:
    held = program.call("aten.select", program.operand(node, slot), 0, way)
    return _gates(program, kind, held)


def _gates(program: FxProgram, kind: str, held: fx.Node) -> fx.Node:
    order = GATES[kind]
    if len(order) == 1:
        return held
    parts = program.call("aten.chunk", held, len(order), 0)
    return program.call("aten.cat", [program.item(parts, index) for index in order], 0)


OPS: dict[str, Handler] = {kind: _layer(kind) for kind in GATES}
