"""TensorFlow Lite's long short-term memory of 8-bit integers: gates and cell in 16 bits.

A gate's sums are brought to units of 2^-12 by a 31-bit multiplier each, those with x and those with
the state, and added in 16 bits that saturate. Its curve is made of powers of e and Newton's
division. The cell's scale is a power of two; the state is in the quantized type of the results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.types import TensorType
from qir.numerics import Affine, affine_of
from qir.numerics.fields import Rule
from qir.profiles.methods import PluginMethod
from qir.reference.fixed_point import multiply_fixed_point, to_fixed_point
from qir.reference.method import Integers, MethodCall, float32

from .fixed_point import SHORT, shift_right_rounding

Whole = NDArray[np.int64]
Arrays = Mapping[str, Integers]
Results = tuple[TensorType, ...]
_SUPPORTED_ATTRS = {"direction": "forward", "activations": (), "clip": None, "input_forget": False}
_REMEDY = "; of others no runtime's numbers are known, and profile native computes them in float"
_LOW, _HIGH = -(1 << 15), (1 << 15) - 1


@dataclass(frozen=True, slots=True)
class _Gate:
    """One gate's weights and what its sums are multiplied with."""

    w: Whole
    r: Whole
    bias: Whole
    from_x: tuple[int, int]
    from_h: tuple[int, int]

    def sums(self, x: Whole, h: Whole, rule: Rule) -> Whole:
        """Returns what the gate's curve reads, in units of 2^-12."""
        first = _clip_to_16_bits(multiply_fixed_point(x @ self.w.T + self.bias, *self.from_x, rule))
        return _clip_to_16_bits(first + multiply_fixed_point(h @ self.r.T, *self.from_h, rule))


def fixed_cell(call: MethodCall, arrays: Arrays, results: Results) -> tuple[Integers, ...]:
    """Returns all states, the last one, and the cell's extreme quantized values."""
    state, cell = (_affine_of_result(call, kind) for kind in (results[0], results[2]))
    _require_supported(call, arrays, results, state)
    exponent = round(math.log2(float(cell.scale)))
    if 2.0**exponent != float(cell.scale) or int(cell.zero) or not -15 <= exponent <= -9:
        # States are [steps, batch, size] here, whatever the layout of x.
        raise OpError(f"{call.op}: the cell's scale is a power of two from 2^-15 to 2^-9, about 0")
    steps = arrays["x"].astype(np.int64) - int(call.affine("x").zero)
    steps = steps.swapaxes(0, 1) if call.attrs["batch_first"] else steps
    gates = _gates(call, arrays, state)
    shape = (steps.shape[1], gates[0].r.shape[1])
    h, c = (_initial_state(arrays, slot, shape) for slot in ("h0", "c0"))
    h = h - int(state.zero) if "h0" in arrays else h
    # The product of two 16-bit fractions has scale 2^-30, brought to the state's.
    output_multiplier = to_fixed_point(
        float(float32(float32(2.0**-15) / float32(state.scale)) * float32(2.0**-15))
    )
    states = np.zeros((len(steps), *shape), np.int64)
    for number, x in enumerate(steps):
        i, o, f, candidate = (gate.sums(x, h, call.rule) for gate in gates)
        i, o, f = (SHORT.logistic(value, 3) for value in (i, o, f))
        # c' = f * c + i * tanh(new): 15 fraction bits are dropped from the first product.
        forgotten = shift_right_rounding(f * c, np.array(15))
        c = _clip_to_16_bits(
            forgotten
            + SHORT.wrap(
                shift_right_rounding(i * SHORT.tanh(candidate, 3), np.array(30 + exponent))
            )
        )
        hidden = multiply_fixed_point(
            o * SHORT.tanh(c, 15 + exponent), *output_multiplier, call.rule
        ) + int(state.zero)
        states[number] = np.clip(hidden, state.low, state.high)
        h = states[number] - int(state.zero)
    last = states[-1] if len(states) else h + int(state.zero)
    all_states, last_states = states[:, None], [last[None], c[None]]
    if call.attrs["batch_first"]:
        all_states, last_states = (
            all_states.transpose(2, 0, 1, 3),
            [value.swapaxes(0, 1) for value in last_states],
        )
    carriers = (state.carrier, state.carrier, cell.carrier)
    return tuple(
        value.astype(kind) for value, kind in zip((all_states, *last_states), carriers, strict=True)
    )


def _affine_of_result(call: MethodCall, kind: TensorType) -> Affine:
    if kind.quant is None:
        raise OpError(f"{call.op}: fixed_cell quantizes all three results")
    return affine_of(kind.quant)


def _require_supported(call: MethodCall, arrays: Arrays, results: Results, state: Affine) -> None:
    """Raises OpError for a layer that the kernel does not have."""
    for name, default in _SUPPORTED_ATTRS.items():
        if call.attrs[name] != default:
            raise OpError(f"{call.op}: fixed_cell takes {name} = {default!r} alone{_REMEDY}")
    for slot in ("lengths", "peephole", "proj"):
        if slot in arrays:
            raise OpError(f"{call.op}: fixed_cell takes no {slot}{_REMEDY}")
    state_types = [
        _affine_of_result(call, results[1]),
        *(call.affine(s) for s in ("h0",) if s in arrays),
    ]
    if not all(state.same_map(of) for of in state_types) or state.storage.bits != 8:
        raise OpError(f"{call.op}: fixed_cell has one 8-bit quantized type for y, h and h0")
    if "c0" in arrays and not call.affine("c0").same_map(_affine_of_result(call, results[2])):
        raise OpError(f"{call.op}: fixed_cell has one map for c and c0")


def _gates(call: MethodCall, arrays: Arrays, state: Affine) -> list[_Gate]:
    """Returns the gates in, out, forget and cell, each of one scale."""
    hidden = arrays["r"].shape[2]
    bias = np.zeros(4 * hidden, np.int64)
    if "bias" in arrays:
        bias = arrays["bias"][0].astype(np.int64)
    if bias.size != 4 * hidden or ("bias" in arrays and call.types["bias"].quant is None):
        raise OpError(f"{call.op}: fixed_cell takes a bias a gate's row, in units of x * w")
    x = call.affine("x")
    gates = []
    for gate in range(4):
        rows = slice(gate * hidden, (gate + 1) * hidden)
        w, r = (_gate_scale(call, slot, rows) for slot in ("w", "r"))
        units = (
            float32(float32(w * float32(of.scale)) / float32(2.0**-12))
            for w, of in ((w, x), (r, state))
        )
        multipliers = [to_fixed_point(float(unit)) for unit in units]
        gate_weights, recurrent_weights = (
            arrays[slot][0, rows].astype(np.int64) for slot in ("w", "r")
        )
        gates.append(
            _Gate(gate_weights, recurrent_weights, bias[rows], multipliers[0], multipliers[1])
        )
    return gates


def _gate_scale(call: MethodCall, slot: str, rows: slice) -> np.float32:
    """Returns the one scale of a gate's rows."""
    affine = call.affine(slot)
    scales = (
        np.broadcast_to(affine.scale, (rows.stop,))[rows]
        if affine.axis is None
        else affine.scale[rows]
    )
    if affine.axis not in (None, 1) or np.any(affine.zero) or np.any(scales != scales[:1]):
        raise OpError(f"{call.op}: fixed_cell has one scale a gate for {slot}, about 0")
    return float32(scales[0])


def _initial_state(arrays: Arrays, slot: str, shape: tuple[int, int]) -> Whole:
    if slot not in arrays:
        return np.zeros(shape, np.int64)
    return arrays[slot].astype(np.int64).reshape(shape)


def _clip_to_16_bits(x: Whole) -> Whole:
    return np.clip(x, _LOW, _HIGH)


def _refuse_single_result(call: MethodCall, arrays: Arrays) -> Integers:
    raise OpError(f"{call.op}: fixed_cell gives all results of an lstm whose x is quantized")


METHODS: Mapping[str, PluginMethod] = {
    "fixed_cell": PluginMethod(
        _refuse_single_result, ("lstm",), reads=("requant",), every_result=fixed_cell
    ),
}
"""The methods of this module, by the name that profiles use."""
