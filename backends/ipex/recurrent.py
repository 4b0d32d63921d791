"""LSTM layers whose data and states are quantized while the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Change, Ledger

from .calls import plain

_GATES = (0, 2, 3, 1)
"""Where each of PyTorch's gates i, f, g, o is among those of the language: i, o, f, c."""
_STATES = "IPEX quantizes its state too, in each step"
Reals = NDArray[np.floating]


@dataclass(frozen=True)
class Layer:
    """The integer weights of a layer, row by row, and its biases, in PyTorch's order of gates."""

    weights: tuple[Any, Any]
    biases: tuple[Any, Any]

    def packed(self) -> Any:
        """Returns them as the kernel takes them: data have 127 steps."""
        pairs = zip(self.weights, self.biases, strict=True)
        held = [torch.ops.quantized.linear_prepack(w, bias) for w, bias in pairs]
        make = torch.ops.quantized.make_quantized_cell_params_dynamic
        return make(*held, *self.biases, True)


def opened(graph: Graph, ledger: Ledger) -> list[Layer | None]:
    """Makes LSTM layers float in a graph, and returns the quantized weights of each.

    None stands for a layer that was float. The ledger names what the graph does not say.
    """
    found: list[Layer | None] = []
    for node in [node for node in graph if node.op == "lstm"]:
        if node.operands["w"].node.op != "dequantize":
            found.append(None)
            continue
        weights = tuple(_weight(node, slot) for slot in ("w", "r"))
        found.append(Layer((weights[0], weights[1]), _biases(node)))
        ledger.add(Change.APPROXIMATED, "write ipex", node.results[0].name, f"lstm: {_STATES}")
        data = node.operands["x"].node
        if data.op == "dequantize" and "x.scale" in data.operands:
            graph.set_operand(node, "x", plain(node.operands["x"]))
    graph.prune()
    return found


def quantized(module: Any, layers: Sequence[Layer | None]) -> None:
    """Puts the quantized layers in the place of the float ones of a module."""
    calls = [node for node in module.graph.nodes if str(node.target).startswith("aten.lstm")]
    for number, (node, layer) in enumerate(zip(calls, layers, strict=True)):
        if layer is not None:
            _replace(module, node, layer.packed(), f"lstm_{number}_packed")


def _replace(module: Any, node: fx.Node, packed: Any, name: str) -> None:
    setattr(module, name, packed)
    x, states, _, _, count, dropout, train, ways, first = node.args
    with module.graph.inserting_before(node):
        held = module.graph.create_node("get_attr", name)
        given = (x, states, [held], True, count, dropout, train, ways, first)
        more = {"dtype": torch.qint8, "use_dynamic": True}
        made = module.graph.call_function(torch.ops.aten.quantized_lstm.input, given, more)
    node.replace_all_uses_with(made)
    module.graph.erase_node(node)


def _weight(node: Node, slot: str) -> Any:
    """Returns the integers of a weight as a quantized tensor of PyTorch."""
    codes = node.operands[slot].node.operands["x"]
    held, quant = codes.constant, codes.type.quant
    if held is None or quant is None or str(quant.storage) != "i8" or quant.axis != 1:
        raise Refused(f"{node.name}: IPEX has LSTM weights of i8 with one scale a row")
    rows = torch.from_numpy(_ordered(held.data[0]))
    scales = torch.from_numpy(_ordered(quant.scales().reshape(-1)).astype(np.float64))
    zeros = torch.zeros(len(rows), dtype=torch.long)
    return torch._make_per_channel_quantized_tensor(rows, scales, zeros, 0)


def _biases(node: Node) -> tuple[Any, Any]:
    rows = node.operands["w"].type.shape[1]
    assert isinstance(rows, int)
    bias = node.operands.get("bias")
    held = np.zeros(rows, np.float32)
    if bias is not None:
        if bias.constant is None:
            raise Refused(f"{node.name}: its biases are computed; IPEX has constant ones")
        held = np.asarray(bias.constant.data[0], np.float32)
    both = np.concatenate([held, np.zeros(2 * rows - len(held), np.float32)])
    made = [torch.from_numpy(_ordered(part)) for part in (both[:rows], both[rows:])]
    return made[0], made[1]


def _ordered(rows: NDArray[Any]) -> NDArray[Any]:
    parts = np.split(np.asarray(rows), len(_GATES))
    return np.ascontiguousarray(np.concatenate([parts[index] for index in _GATES]))


__all__ = ["Layer", "opened", "quantized"]
