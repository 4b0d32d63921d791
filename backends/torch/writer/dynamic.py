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
from .recurrent import GATES, laid_out, operator_name, settings

SEVEN_BITS = (0, 127)
"""The range of data and state that PyTorch's reduce_range asks for."""


def _layer(kind: str) -> Handler:
    def write(program: FxProgram, node: Node) -> list[fx.Node]:
        operator_name(program, node, kind)
        data, reduced = _data(program, node)
        ways = range(len(DIRECTIONS[str(node.attrs["direction"])]))
        cells = [_cell(program, node, kind, way, reduced=reduced) for way in ways]
        named = {"dtype": torch.qint8, "use_dynamic": True} if kind == "lstm" else {}

        def call(x: fx.Node, states: Any) -> fx.Node:
            end = (True, *settings(node)[1:])  # packed weights have a bias, if of zeros
            return program.call(f"aten.quantized_{kind}", x, states, cells, *end, **named)

        return laid_out(program, node, kind, program.node_of(data), call)

    return write


def _data(program: FxProgram, node: Node) -> tuple[Value, bool]:
    """Returns the floats that the kernel quantizes itself, and whether it does so to seven bits."""
    made, state = node.operands["x"].node, node.inner.get("h")
    codes = made.operands["x"].node if made.op == "dequantize" else made
    chosen = codes.operands["scale"].node if codes.op == "quantize" else codes
    if chosen.op != "choose_qparams" or chosen.attrs["rule"] != "torch.dynamic":
        raise program.refuse(node, "its kernel chooses scale and zero point of its data itself")
    bounds = chosen.attrs["bounds"] or None
    held = state if isinstance(state, QuantType) and set(node.inner) == {"h"} else None
    if held is None or str(held.storage) != "u8" or not held.dynamic or held.bounds != bounds:
        raise program.refuse(node, "its kernel quantizes its state as it quantizes its data")
    if bounds not in (None, SEVEN_BITS):
        raise program.refuse(node, f"its kernel quantizes to eight bits or seven, not to {bounds}")
    return codes.operands["x"], bounds == SEVEN_BITS


def _cell(program: FxProgram, node: Node, kind: str, way: int, *, reduced: bool) -> fx.Node:
    """Returns the packed weights of one direction."""
    ops, biases = torch.ops.quantized, _biases(program, node, kind, way)
    packed = [
        ops.linear_prepack(_weights(program, node, kind, slot, way), bias)
        for slot, bias in zip("wr", biases, strict=True)
    ]
    made = ops.make_quantized_cell_params_dynamic(*packed, *biases, reduced)
    return program.add_attribute(made, f"{node.name}.cell")


def _weights(program: FxProgram, node: Node, kind: str, slot: str, way: int) -> torch.Tensor:
    """Returns the weights of one direction as a quantized tensor, with PyTorch's order of gates."""
    made = node.operands[slot].node
    held = made.operands["x"] if made.op == "dequantize" else node.operands[slot]
    array, quant = held.constant, held.type.quant
    if array is None or quant is None or not fits(quant) or str(quant.storage) != "i8":
        raise program.refuse(node, f"its kernel takes {slot} as constants of i8")
    rows = _rows(kind, array.data.shape[1])
    scales, zeros = np.asarray(quant.scales()), np.asarray(quant.zeros())
    if quant.axis == 0:
        scales, zeros = scales[way], zeros[way]
    elif quant.axis == 1:
        scales, zeros = scales[rows], zeros[rows]
    elif quant.axis is not None:
        raise program.refuse(node, f"its kernel has no scales along axis {quant.axis} of {slot}")
    return scaled(tensor(array.data[way][rows]), scales, zeros)


def _biases(program: FxProgram, node: Node, kind: str, way: int) -> list[torch.Tensor]:
    """Returns what is added to each product; zeros where there is none."""
    size = node.operands["r"].type.shape[1]
    assert isinstance(size, int)
    rows = _rows(kind, size)
    bias = node.operands.get("bias")
    if bias is None:
        return [torch.zeros(size), torch.zeros(size)]
    held = torch.split(program.constant(bias)[way], size)
    both = [*held, torch.zeros(size)][:2]
    return [one[torch.from_numpy(rows)].contiguous() for one in both]


def _rows(kind: str, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns where the rows of PyTorch's gates are among ours."""
    parts = np.arange(count).reshape(len(GATES[kind]), -1)
    return np.concatenate([parts[gate] for gate in GATES[kind]])


OPS: dict[str, Handler] = {"lstm": _layer("lstm"), "gru": _layer("gru")}
