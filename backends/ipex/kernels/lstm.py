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
_PLAIN = {"activations": (), "clip": None, "input_forget": False}


@dataclass(frozen=True, slots=True)
class _Way:
    """One direction's weights, and what its sums are divided by and added to."""

    w: Whole
    r: Whole
    unit: Float32Array
    bias: Float32Array

    def gates(self, x: Whole, h: Whole) -> list[Float32Array]:
        """Returns what the curves read, in the order i, o, f, c."""
        sums = (x @ self.w.T + h @ self.r.T).astype(float32) / self.unit + self.bias
        return np.split(sums, 4, axis=-1)


def float_cell(call: MethodCall, arrays: Arrays, results: Results) -> tuple[Integers, ...]:
    """Returns the quantized values of all states; the last state and the cell in float."""
    of = _checked(call, arrays, results)
    x = arrays["x"].astype(np.int64)
    x = x.swapaxes(0, 1) if call.attrs["batch_first"] else x
    made = []
    for number, back in enumerate(DIRECTIONS[str(call.attrs["direction"])]):
        steps = x[::-1] if back else x
        every, h, c = _run(_way(call, arrays, of, number), steps, of, _starts(call, arrays, number))
        made.append((every[::-1] if back else every, h, c))
    every, h, c = (
        np.stack(part, axis) for part, axis in zip(zip(*made, strict=True), (1, 0, 0), strict=True)
    )
    if call.attrs["batch_first"]:
        every, h, c = every.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)
    return every.astype(of.carrier), h, c


def _run(
    way: _Way, steps: Whole, of: Affine, starts: tuple[Float32Array | None, Float32Array | None]
) -> tuple[Whole, Float32Array, Float32Array]:
    """Returns all states as quantized values, the last as floats, and the cell."""
    gain, zero, shape = (
        float32(1) / float32(of.scale),
        float32(of.zero),
        (steps.shape[1], way.r.shape[1]),
    )

    def coded(x: Float32Array) -> Whole:
        codes: Whole = np.clip(np.rint(x * gain + zero), of.low, of.high).astype(np.int64)
        return codes

    h, c = (np.zeros(shape, float32) if start is None else start for start in starts)
    state, every = coded(h), np.zeros((len(steps), *shape), np.int64)
    for number, x in enumerate(steps):
        i, o, f, new = way.gates(x, state)
        c = fma(_logistic(i), _tanh(new), _logistic(f) * c)
        every[number] = state = coded(_tanh(c) * _logistic(o))
    return every, ((state - int(of.zero)).astype(float32) / gain).astype(float32), c


def _logistic(x: Float32Array) -> Float32Array:
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float64)))).astype(float32)


def _tanh(x: Float32Array) -> Float32Array:
    return np.tanh(x.astype(np.float64)).astype(float32)


def _starts(
    call: MethodCall, arrays: Arrays, number: int
) -> tuple[Float32Array | None, Float32Array | None]:
    """Returns the first state and cell of a direction, where given."""
    axis = 1 if call.attrs["batch_first"] else 0
    h, c = (
        np.take(arrays[s], number, axis).astype(float32) if s in arrays else None for s in _FIRST
    )
    return h, c


_FIRST = ("h0", "c0")


def _way(call: MethodCall, arrays: Arrays, of: Affine, number: int) -> _Way:
    w, r = (arrays[slot][number].astype(np.int64) for slot in ("w", "r"))
    bias = np.zeros(len(w), float32)
    if "bias" in arrays:
        bias = np.asarray(
            arrays["bias"][number].astype(float32).reshape(-1, len(w)).sum(0, dtype=float32)
        )
    scales = call.affine("w").scale
    unit = (float32(1) / np.broadcast_to(scales, len(w)).astype(float32)) * (
        float32(1) / float32(of.scale)
    )
    shift = (w.sum(1) + r.sum(1)).astype(float32) * float32(of.zero)
    return _Way(w, r, unit, bias - shift / unit)


def _checked(call: MethodCall, arrays: Arrays, results: Results) -> Affine:
    """Returns the quantized type of x and of the states; raises OpError for a layer that the kernel
    does not have."""
    for name, plain in _PLAIN.items():
        if call.attrs[name] != plain:
            raise OpError(f"{call.op}: float_cell takes {name} = {plain!r} alone")
    for slot in ("lengths", "peephole", "proj"):
        if slot in arrays:
            raise OpError(f"{call.op}: float_cell takes no {slot}")
    for slot in ("bias", *_FIRST):
        if slot in arrays and call.types[slot].quant is not None:
            raise OpError(f"{call.op}: float_cell takes {slot} as floats")
    kinds = [kind.quant for kind in results]
    if kinds[0] is None or any(kinds[1:]):
        raise OpError(
            f"{call.op}: float_cell quantizes all states, and gives the last ones as floats"
        )
    of, (w, r) = call.affine("x"), (call.affine(slot) for slot in ("w", "r"))
    if not of.same_map(affine_of(kinds[0])) or of.axis is not None:
        raise OpError(f"{call.op}: float_cell has one map for x and all states")
    if w.axis not in (None, 1) or np.any(w.zero) or not w.same_map(r):
        raise OpError(f"{call.op}: float_cell has one scale a gate's row, the same for w and r")
    return of


def _one_result(call: MethodCall, arrays: Arrays) -> Integers:
    raise OpError(f"{call.op}: float_cell gives all results of an lstm whose x is quantized")


METHODS: Mapping[str, PluginMethod] = {
    "float_cell": PluginMethod(_one_result, ("lstm",), every_result=float_cell),
}
"""The methods of this module, by the name that profiles use."""
