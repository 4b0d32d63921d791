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
    ours = packed_linear(kernel, kernel["w_ih"], kernel["input"], reduce_range=True)
    return ours, packed_linear(kernel, kernel["w_hh"], state, reduce_range=True)


def _lstm(kernel: QuantizedCall) -> tuple[Any, Any]:
    state, memory = kernel["hx"]
    ours, theirs = _gates(kernel, state)
    parts = kernel.add_call(
        ATEN.chunk.default, kernel.add_call(ATEN.add.Tensor, theirs, ours), 4, 1
    )
    into, forget, new, out = parts
    into, forget, out = (kernel.add_call(ATEN.sigmoid.default, g) for g in (into, forget, out))
    kept = kernel.add_call(ATEN.mul.Tensor, forget, memory)
    made = kernel.add_call(ATEN.mul.Tensor, into, kernel.add_call(ATEN.tanh.default, new))
    memory = kernel.add_call(ATEN.add.Tensor, kept, made)
    state = kernel.add_call(ATEN.mul.Tensor, out, kernel.add_call(ATEN.tanh.default, memory))
    return state, memory


def _gru(kernel: QuantizedCall) -> Any:
    state = kernel["hx"]
    ours, theirs = (kernel.add_call(ATEN.chunk.default, g, 3, 1) for g in _gates(kernel, state))
    reset, update = (
        kernel.add_call(ATEN.sigmoid.default, kernel.add_call(ATEN.add.Tensor, a, b))
        for a, b in zip(theirs[:2], ours[:2], strict=True)
    )
    held = kernel.add_call(ATEN.mul.Tensor, theirs[2], reset)
    new = kernel.add_call(ATEN.tanh.default, kernel.add_call(ATEN.add.Tensor, held, ours[2]))
    step = kernel.add_call(ATEN.mul.Tensor, kernel.add_call(ATEN.sub.Tensor, state, new), update)
    return kernel.add_call(ATEN.add.Tensor, step, new)


def _rnn(target: Callable[..., Any]) -> Callable[[QuantizedCall], Any]:
    def read(kernel: QuantizedCall) -> Any:
        ours, theirs = _gates(kernel, kernel["hx"])
        return kernel.add_call(target, kernel.add_call(ATEN.add.Tensor, theirs, ours))

    return read


CELLS: dict[str, Callable[[QuantizedCall], Any]] = {
    "quantized::quantized_lstm_cell_dynamic": _lstm,
    "quantized::quantized_gru_cell_dynamic": _gru,
    "quantized::quantized_rnn_tanh_cell_dynamic": _rnn(ATEN.tanh.default),
    "quantized::quantized_rnn_relu_cell_dynamic": _rnn(ATEN.relu.default),
}

__all__ = ["CELLS"]
