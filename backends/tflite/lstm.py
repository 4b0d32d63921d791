"""A long short-term memory of 8-bit integers as TensorFlow Lite has it: one operator, gate
by gate."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
GATES = (0, 2, 3, 1)
"""Where the gates of the file's order, in, forget, cell and out, are in QIR's."""


class Held(Protocol):
    """Quantized values with their map."""

    @property
    def data(self) -> Array: ...
    @property
    def scale(self) -> float | NDArray[np.float32] | None: ...
    @property
    def zero(self) -> int: ...


def layer(s: ModuleType, of: Mapping[str, Held], out: Held, cell: int, add: Any) -> tuple[Any, Any]:
    """Returns the file's operands and intermediate tensors; `add` makes a tensor of data and its
    quantized type.

    Scales of a gate's rows are one scale; the cell's quantized values are in units of 2^cell.
    """
    x, w, r = of["x"], of["w"], of["r"]
    hidden = w.data.shape[1] // 4
    rows = [slice(g * hidden, (g + 1) * hidden) for g in GATES]
    parts = []
    for held in (w, r):
        scales = np.asarray(held.scale, np.float32)
        parts += [add(held.data[0, part], float(scales[part.start]), 0) for part in rows]
    bias, units = of["bias"], np.asarray(of["bias"].scale, np.float32)
    biases = [add(bias.data[0, part], float(units[part.start]), 0) for part in rows]
    batch = x.data.shape[1]
    scale = out.scale
    assert isinstance(scale, float)
    state = add(np.zeros((batch, hidden), np.int8), scale, out.zero, kept=True)
    memory = add(np.zeros((batch, hidden), np.int16), 2.0**cell, 0, kept=True)
    inputs = [add(x.data, x.scale, x.zero, fed=True), *parts, -1, -1, -1, *biases, -1, -1]
    sums = [add(np.zeros(0, np.int16), 2.0**-12, 0, kept=True) for _ in GATES]
    inside = [*sums, add(np.zeros(0, np.int8), scale, out.zero, kept=True)]
    return [*inputs, state, memory, -1, -1, -1, -1], inside


def options(s: ModuleType) -> tuple[str, Any]:
    """Returns the operator's options: steps come first."""
    o = s.UnidirectionalSequenceLSTMOptionsT()
    o.fusedActivationFunction = 4  # tanh
    o.timeMajor = True
    return "UnidirectionalSequenceLSTMOptions", o
