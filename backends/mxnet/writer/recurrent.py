"""LSTM, GRU and RNN layers, whose parameters MXNet keeps in one flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.ir.node import Node
from qir.ir.ops.layers import RECURRENT_OPS

from .symbol import Entry
from .writer import OpWriter, SymbolWriter

_GATES = {"lstm": (0, 2, 3, 1), "gru": (1, 0, 2), "rnn": (0,)}
"""Where each gate of MXNet's is among the language's: i f c o for i o f c, r z h for z r h."""
_STATE_SLOTS = ("h0", "c0")
Weights = NDArray[Any]


def _flat_parameters(node: Node, writer: SymbolWriter, size: int) -> Weights:
    """Returns the parameters of a layer as one vector: all weights, then all biases."""
    gates = len(_GATES[node.op])

    def ordered(part: Weights) -> Weights:
        return part.reshape(gates, size, -1)[list(_GATES[node.op])].reshape(-1)

    w, r = writer.constant_operand(node, "w"), writer.constant_operand(node, "r")
    bias: Weights = np.zeros((len(w), 2 * gates * size), w.dtype)
    if "bias" in node.operands:
        stated_bias = writer.constant_operand(node, "bias")
        bias[:, : stated_bias.shape[1]] = stated_bias
    directions = range(len(w))
    # MXNet's flat vector: weights of all directions (w then r), then biases in the same order.
    vectors = [ordered(each[way]) for way in directions for each in (w, r)]
    vectors += [ordered(half) for way in directions for half in np.split(bias[way], 2)]
    return np.concatenate(vectors)


def _layer(writer: SymbolWriter, node: Node) -> Sequence[Entry]:
    kind, attrs = node.op, node.attrs
    for slot in ("lengths", "peephole", "proj"):
        if slot in node.operands:
            raise writer.refuse(node, f"MXNet's RNN has no {slot} here")
    if attrs["batch_first"] or attrs["clip"] is not None or attrs["direction"] == "reverse":
        raise writer.refuse(
            node, "MXNet's RNN has steps first, no clip, and goes forward or both ways"
        )
    mode = _mode(writer, node)
    directions = 2 if attrs["direction"] == "bidirectional" else 1
    size = writer.size(node, node.operands["r"], 2)
    parameters = writer.constant(
        f"{node.results[0].name}_parameters", _flat_parameters(node, writer, size), node
    )
    operands = [writer.operand(node), parameters]
    states = _STATE_SLOTS if kind == "lstm" else _STATE_SLOTS[:1]
    for slot in states:
        if slot in node.operands:
            operands.append(writer.operand(node, slot))
        else:  # MXNet infers the batch of zeros
            zeros = {"shape": (directions, 0, size), "dtype": "float32"}
            operands.append(writer.add_intermediate(node, "_zeros", [], zeros))
    rnn_attrs = {
        "mode": mode,
        "state_size": size,
        "num_layers": 1,
        "bidirectional": directions == 2,
        "state_outputs": True,
    }
    index, _ = writer.add_intermediate(node, "RNN", operands, rnn_attrs, results=1 + len(states))
    # MXNet concatenates the directions on the last axis: [steps, batch, ways * hidden]
    split = writer.add_intermediate(
        node, "Reshape", [(index, 0)], {"shape": (0, 0, -4, directions, -1)}
    )
    axes_attr = {"axes": (0, 2, 1, 3)}
    outputs = writer.add_result(node, "transpose", [split], axes_attr)
    return [outputs, *((index, 1 + i) for i in range(len(states)))]


def _mode(writer: SymbolWriter, node: Node) -> str:
    activations = node.attrs["activations"]
    assert isinstance(activations, tuple)
    if node.op == "rnn":
        functions = {str(kind) for kind in activations} or {"tanh"}
        if len(functions) == 1 and functions <= {"tanh", "relu"}:
            return f"rnn_{functions.pop()}"
    elif node.op == "gru":
        if not node.attrs["linear_before_reset"]:
            raise writer.refuse(node, "MXNet's GRU resets after its product (linear_before_reset)")
        if set(activations) <= {"sigmoid", "tanh"}:
            return "gru"
    elif set(activations) <= {"sigmoid", "tanh"} and not node.attrs["input_forget"]:
        return "lstm"
    raise writer.refuse(node, "MXNet's RNN has other functions")


OPS: dict[str, OpWriter] = dict.fromkeys(RECURRENT_OPS, _layer)
