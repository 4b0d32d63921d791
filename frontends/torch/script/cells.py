"""Dynamic LSTM, GRU and RNN cells as two dynamic linear layers and float gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .quantized import packed_linear
from .quantized_tensors import QuantizedCall

ATEN = torch.ops.aten


def _gates(kernel: QuantizedCall, state: Any) -> tuple[Any, Any]:
    """Returns the linear layers of the data and of the state."""
    # Cells quantize with `reduce_range` always; QNNPACK ignores it.
    input_gates = packed_linear(kernel, kernel["w_ih"], kernel["input"], reduce_range=True)
    return input_gates, packed_linear(kernel, kernel["w_hh"], state, reduce_range=True)


def _lstm(kernel: QuantizedCall) -> tuple[Any, Any]:
    state, memory = kernel["hx"]
    input_gates, state_gates = _gates(kernel, state)
    # The order of operands and of operations is that of ATen's cells in RNN.cpp: float sums round
    # otherwise.
    parts = kernel.add_call(
        ATEN.chunk.default, kernel.add_call(ATEN.add.Tensor, state_gates, input_gates), 4, 1
    )
    input_gate, forget_gate, candidate, output_gate = parts
    input_gate, forget_gate, output_gate = (
        kernel.add_call(ATEN.sigmoid.default, g) for g in (input_gate, forget_gate, output_gate)
    )
    remembered = kernel.add_call(ATEN.mul.Tensor, forget_gate, memory)
    added = kernel.add_call(
        ATEN.mul.Tensor, input_gate, kernel.add_call(ATEN.tanh.default, candidate)
    )
    memory = kernel.add_call(ATEN.add.Tensor, remembered, added)
    state = kernel.add_call(
        ATEN.mul.Tensor, output_gate, kernel.add_call(ATEN.tanh.default, memory)
    )
    return state, memory


def _gru(kernel: QuantizedCall) -> Any:
    state = kernel["hx"]
    input_gates, state_gates = (
        kernel.add_call(ATEN.chunk.default, g, 3, 1) for g in _gates(kernel, state)
    )
    reset, update = (
        kernel.add_call(ATEN.sigmoid.default, kernel.add_call(ATEN.add.Tensor, a, b))
        for a, b in zip(state_gates[:2], input_gates[:2], strict=True)
    )
    gated = kernel.add_call(ATEN.mul.Tensor, state_gates[2], reset)
    candidate = kernel.add_call(
        ATEN.tanh.default, kernel.add_call(ATEN.add.Tensor, gated, input_gates[2])
    )
    # h' = (h - n) * z + n, as ATen computes it.
    step = kernel.add_call(
        ATEN.mul.Tensor, kernel.add_call(ATEN.sub.Tensor, state, candidate), update
    )
    return kernel.add_call(ATEN.add.Tensor, step, candidate)


def _rnn(target: Callable[..., Any]) -> Callable[[QuantizedCall], Any]:
    def read(kernel: QuantizedCall) -> Any:
        input_gates, state_gates = _gates(kernel, kernel["hx"])
        return kernel.add_call(target, kernel.add_call(ATEN.add.Tensor, state_gates, input_gates))

    return read


CELLS: dict[str, Callable[[QuantizedCall], Any]] = {
    "quantized::quantized_lstm_cell_dynamic": _lstm,
    "quantized::quantized_gru_cell_dynamic": _gru,
    "quantized::quantized_rnn_tanh_cell_dynamic": _rnn(ATEN.tanh.default),
    "quantized::quantized_rnn_relu_cell_dynamic": _rnn(ATEN.relu.default),
}

__all__ = ["CELLS"]
