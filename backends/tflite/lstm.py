"""A long short-term memory of 8-bit integers as TensorFlow Lite has it: one operator, gate
by gate."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
FILE_GATE_ORDER = (0, 2, 3, 1)
"""Where the gates of the file's order, in, forget, cell and out, are in QIR's."""


class QuantizedArray(Protocol):
    """Quantized values with their map."""

    @property
    def data(self) -> Array: ...
    @property
    def scale(self) -> float | NDArray[np.float32] | None: ...
    @property
    def zero(self) -> int: ...


def layer(
    s: ModuleType, operands: Mapping[str, QuantizedArray], out: QuantizedArray, cell: int, add: Any
) -> tuple[Any, Any]:
    """Returns the file's operands and intermediate tensors; `add` makes a tensor of data and its
    quantized type.

    Scales of a gate's rows are one scale; the cell's quantized values are in units of 2^cell.
    """
    x, w, r = operands["x"], operands["w"], operands["r"]
    hidden = w.data.shape[1] // 4
    rows = [slice(g * hidden, (g + 1) * hidden) for g in FILE_GATE_ORDER]
    # Each gate has tensors of its own, with the scale of its first row.
    gate_weights = []
    for weights in (w, r):
        scales = np.asarray(weights.scale, np.float32)
        gate_weights += [add(weights.data[0, part], float(scales[part.start]), 0) for part in rows]
    bias, bias_scales = operands["bias"], np.asarray(operands["bias"].scale, np.float32)
    biases = [add(bias.data[0, part], float(bias_scales[part.start]), 0) for part in rows]
    batch = x.data.shape[1]
    scale = out.scale
    assert isinstance(scale, float)
    # Variable tensors: the interpreter keeps their values between runs.
    state = add(np.zeros((batch, hidden), np.int8), scale, out.zero, kept=True)
    cell_state = add(np.zeros((batch, hidden), np.int16), 2.0**cell, 0, kept=True)
    # -1 stands for an absent operand: peepholes, projection and normalization.
    inputs = [add(x.data, x.scale, x.zero, fed=True), *gate_weights, -1, -1, -1, *biases, -1, -1]
    sums = [add(np.zeros(0, np.int16), 2.0**-12, 0, kept=True) for _ in FILE_GATE_ORDER]
    intermediates = [*sums, add(np.zeros(0, np.int8), scale, out.zero, kept=True)]
    return [*inputs, state, cell_state, -1, -1, -1, -1], intermediates


def options(s: ModuleType) -> tuple[str, Any]:
    """Returns the operator's options: steps come first."""
    lstm_options = s.UnidirectionalSequenceLSTMOptionsT()
    lstm_options.fusedActivationFunction = 4  # tanh
    lstm_options.timeMajor = True
    return "UnidirectionalSequenceLSTMOptions", lstm_options
