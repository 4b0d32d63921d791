"""The long short-term memory of unsigned integers under Intel's extension for PyTorch, by oneDNN.

Integer sums with x and with the state are one whole number; gates, curves and cell are float32,
and the state is rounded to the quantized values that x has after each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.ops.recurrent import DIRECTIONS
from qir.ir.types import TensorType
from qir.numerics import Affine, affine_of
from qir.numerics.rounding import fma
from qir.profiles.methods import PluginMethod
from qir.reference.method import Float32Array, Integers, MethodCall, float32

Whole = NDArray[np.int64]
Arrays = Mapping[str, Integers]
Results = tuple[TensorType, ...]
_SUPPORTED_ATTRS = {"activations": (), "clip": None, "input_forget": False}


@dataclass(frozen=True, slots=True)
class _Direction:
    """One direction's weights, and what its sums are divided by and added to."""

    w: Whole
    r: Whole
    unit: Float32Array
    bias: Float32Array

    def gates(self, x: Whole, h: Whole) -> list[Float32Array]:
        """Returns what the curves read, in the order i, o, f, c."""
        # Both products are summed as integers, then dequantized by one division.
        sums = (x @ self.w.T + h @ self.r.T).astype(float32) / self.unit + self.bias
        return np.split(sums, 4, axis=-1)


def float_cell(call: MethodCall, arrays: Arrays, results: Results) -> tuple[Integers, ...]:
    """Returns the quantized values of all states; the last state and the cell in float."""
    data_type = _checked_type(call, arrays, results)
    x = arrays["x"].astype(np.int64)
    x = x.swapaxes(0, 1) if call.attrs["batch_first"] else x
    directions = []
    for index, is_reverse in enumerate(DIRECTIONS[str(call.attrs["direction"])]):
        steps = x[::-1] if is_reverse else x
        all_states, h, c = _run(
            _direction(call, arrays, data_type, index),
            steps,
            data_type,
            _initial_states(call, arrays, index),
        )
        directions.append((all_states[::-1] if is_reverse else all_states, h, c))
    all_states, h, c = (
        np.stack(stacked, axis)
        for stacked, axis in zip(zip(*directions, strict=True), (1, 0, 0), strict=True)
    )
    if call.attrs["batch_first"]:
        all_states, h, c = all_states.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)
    return all_states.astype(data_type.carrier), h, c


def _run(
    direction: _Direction,
    steps: Whole,
    data_type: Affine,
    initial: tuple[Float32Array | None, Float32Array | None],
) -> tuple[Whole, Float32Array, Float32Array]:
    """Returns all states as quantized values, the last as floats, and the cell."""
    gain, zero, shape = (
        float32(1) / float32(data_type.scale),
        float32(data_type.zero),
        (steps.shape[1], direction.r.shape[1]),
    )

    def quantize_state(x: Float32Array) -> Whole:
        integers: Whole = np.clip(np.rint(x * gain + zero), data_type.low, data_type.high).astype(
            np.int64
        )
        return integers

    h, c = (np.zeros(shape, float32) if start is None else start for start in initial)
    state, all_states = quantize_state(h), np.zeros((len(steps), *shape), np.int64)
    for number, x in enumerate(steps):
        i, o, f, candidate = direction.gates(x, state)
        c = fma(_logistic(i), _tanh(candidate), _logistic(f) * c)
        # The state is quantized after each step, in the type of x.
        all_states[number] = state = quantize_state(_tanh(c) * _logistic(o))
    return all_states, ((state - int(data_type.zero)).astype(float32) / gain).astype(float32), c


def _logistic(x: Float32Array) -> Float32Array:
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float64)))).astype(float32)


def _tanh(x: Float32Array) -> Float32Array:
    return np.tanh(x.astype(np.float64)).astype(float32)


def _initial_states(
    call: MethodCall, arrays: Arrays, index: int
) -> tuple[Float32Array | None, Float32Array | None]:
    """Returns the first state and cell of a direction, where given."""
    axis = 1 if call.attrs["batch_first"] else 0
    h, c = (
        np.take(arrays[s], index, axis).astype(float32) if s in arrays else None
        for s in _STATE_SLOTS
    )
    return h, c


_STATE_SLOTS = ("h0", "c0")


def _direction(call: MethodCall, arrays: Arrays, data_type: Affine, index: int) -> _Direction:
    w, r = (arrays[slot][index].astype(np.int64) for slot in ("w", "r"))
    bias = np.zeros(len(w), float32)
    if "bias" in arrays:
        bias = np.asarray(
            arrays["bias"][index].astype(float32).reshape(-1, len(w)).sum(0, dtype=float32)
        )
    scales = call.affine("w").scale
    unit = (float32(1) / np.broadcast_to(scales, len(w)).astype(float32)) * (
        float32(1) / float32(data_type.scale)
    )
    # The zero point of x and of the state, times the weights' sums, is subtracted by the bias.
    zero_point_sums = (w.sum(1) + r.sum(1)).astype(float32) * float32(data_type.zero)
    return _Direction(w, r, unit, bias - zero_point_sums / unit)


def _checked_type(call: MethodCall, arrays: Arrays, results: Results) -> Affine:
    """Returns the quantized type of x and of the states.

    Raises OpError for a layer that the kernel does not have.
    """
    for name, default in _SUPPORTED_ATTRS.items():
        if call.attrs[name] != default:
            raise OpError(f"{call.op}: float_cell takes {name} = {default!r} alone")
    for slot in ("lengths", "peephole", "proj"):
        if slot in arrays:
            raise OpError(f"{call.op}: float_cell takes no {slot}")
    for slot in ("bias", *_STATE_SLOTS):
        if slot in arrays and call.types[slot].quant is not None:
            raise OpError(f"{call.op}: float_cell takes {slot} as floats")
    result_types = [kind.quant for kind in results]
    if result_types[0] is None or any(result_types[1:]):
        raise OpError(
            f"{call.op}: float_cell quantizes all states, and gives the last ones as floats"
        )
    data_type, (w, r) = call.affine("x"), (call.affine(slot) for slot in ("w", "r"))
    if not data_type.same_map(affine_of(result_types[0])) or data_type.axis is not None:
        raise OpError(f"{call.op}: float_cell has one map for x and all states")
    if w.axis not in (None, 1) or np.any(w.zero) or not w.same_map(r):
        raise OpError(f"{call.op}: float_cell has one scale a gate's row, the same for w and r")
    return data_type


def _refuse_single_result(call: MethodCall, arrays: Arrays) -> Integers:
    raise OpError(f"{call.op}: float_cell gives all results of an lstm whose x is quantized")


METHODS: Mapping[str, PluginMethod] = {
    "float_cell": PluginMethod(_refuse_single_result, ("lstm",), every_result=float_cell),
}
"""The methods of this module, by the name that profiles use."""
