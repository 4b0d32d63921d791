"""Writes recurrent layers that quantize data and state at run time: aten::quantized_lstm."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from qir.ir.node import Node, Value
from qir.ir.ops.recurrent import DIRECTIONS
from qir.ir.types import QuantType

from .elements import fits, scaled, tensor
from .program import FxProgram, Handler
from .recurrent import GATES, layer_settings, operator_name, write_layer

SEVEN_BITS = (0, 127)
"""The range of data and state that PyTorch's reduce_range asks for."""


def _layer(kind: str) -> Handler:
    def write(program: FxProgram, node: Node) -> list[fx.Node]:
        operator_name(program, node, kind)
        data, is_reduced = _data(program, node)
        directions = range(len(DIRECTIONS[str(node.attrs["direction"])]))
        cells = [_cell(program, node, kind, way, reduce_range=is_reduced) for way in directions]
        options = {"dtype": torch.qint8, "use_dynamic": True} if kind == "lstm" else {}

        def call(x: fx.Node, states: Any) -> fx.Node:
            # Packed weights always have a bias, of zeros where the layer has none.
            arguments = (True, *layer_settings(node)[1:])
            return program.call(f"aten.quantized_{kind}", x, states, cells, *arguments, **options)

        return write_layer(program, node, kind, program.node_of(data), call)

    return write


def _data(program: FxProgram, node: Node) -> tuple[Value, bool]:
    """Returns the floats that the kernel quantizes itself, and whether it does so to seven bits."""
    # The layer's data are dequantized again after a quantize whose parameters are chosen at run
    # time.
    producer, state = node.operands["x"].node, node.inner.get("h")
    quantize = producer.operands["x"].node if producer.op == "dequantize" else producer
    qparams = quantize.operands["scale"].node if quantize.op == "quantize" else quantize
    if qparams.op != "choose_qparams" or qparams.attrs["rule"] != "torch.dynamic":
        raise program.refuse(node, "its kernel chooses scale and zero point of its data itself")
    bounds = qparams.attrs["bounds"] or None
    state_type = state if isinstance(state, QuantType) and set(node.inner) == {"h"} else None
    if (
        state_type is None
        or str(state_type.storage) != "u8"
        or not state_type.dynamic
        or state_type.bounds != bounds
    ):
        raise program.refuse(node, "its kernel quantizes its state as it quantizes its data")
    if bounds not in (None, SEVEN_BITS):
        raise program.refuse(node, f"its kernel quantizes to eight bits or seven, not to {bounds}")
    return quantize.operands["x"], bounds == SEVEN_BITS


def _cell(
    program: FxProgram, node: Node, kind: str, direction: int, *, reduce_range: bool
) -> fx.Node:
    """Returns the packed weights of one direction."""
    ops, biases = torch.ops.quantized, _biases(program, node, kind, direction)
    packed = [
        ops.linear_prepack(_weights(program, node, kind, slot, direction), bias)
        for slot, bias in zip("wr", biases, strict=True)
    ]
    cell = ops.make_quantized_cell_params_dynamic(*packed, *biases, reduce_range)
    return program.add_attribute(cell, f"{node.name}.cell")


def _weights(program: FxProgram, node: Node, kind: str, slot: str, direction: int) -> torch.Tensor:
    """Returns the weights of one direction as a quantized tensor, with PyTorch's order of gates."""
    producer = node.operands[slot].node
    weight = producer.operands["x"] if producer.op == "dequantize" else node.operands[slot]
    array, quant = weight.constant, weight.type.quant
    if array is None or quant is None or not fits(quant) or str(quant.storage) != "i8":
        raise program.refuse(node, f"its kernel takes {slot} as constants of i8")
    # PyTorch and QIR order the gates of a layer differently.
    gate_rows = _gate_row_indices(kind, array.data.shape[1])
    scales, zeros = np.asarray(quant.scales()), np.asarray(quant.zeros())
    if quant.axis == 0:
        scales, zeros = scales[direction], zeros[direction]
    elif quant.axis == 1:
        scales, zeros = scales[gate_rows], zeros[gate_rows]
    elif quant.axis is not None:
        raise program.refuse(node, f"its kernel has no scales along axis {quant.axis} of {slot}")
    return scaled(tensor(array.data[direction][gate_rows]), scales, zeros)


def _biases(program: FxProgram, node: Node, kind: str, direction: int) -> list[torch.Tensor]:
    """Returns what is added to each product; zeros where there is none."""
    size = node.operands["r"].type.shape[1]
    assert isinstance(size, int)
    gate_rows = _gate_row_indices(kind, size)
    bias = node.operands.get("bias")
    if bias is None:
        return [torch.zeros(size), torch.zeros(size)]
    # ONNX's layout: both biases one after the other; PyTorch has one for each product.
    halves = torch.split(program.constant(bias)[direction], size)
    two_biases = [*halves, torch.zeros(size)][:2]
    return [half[torch.from_numpy(gate_rows)].contiguous() for half in two_biases]


def _gate_row_indices(kind: str, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns where the rows of PyTorch's gates are among ours."""
    by_gate = np.arange(count).reshape(len(GATES[kind]), -1)
    return np.concatenate([by_gate[gate] for gate in GATES[kind]])


OPS: dict[str, Handler] = {"lstm": _layer("lstm"), "gru": _layer("gru")}
