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

from .fixed import SHORT, shift_right_rounding

Whole = NDArray[np.int64]
Arrays = Mapping[str, Integers]
Results = tuple[TensorType, ...]
_PLAIN = {"direction": "forward", "activations": (), "clip": None, "input_forget": False}
_ELSE = "; of others no runtime's numbers are known, and profile native computes them in float"
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
        first = _short(multiply_fixed_point(x @ self.w.T + self.bias, *self.from_x, rule))
        return _short(first + multiply_fixed_point(h @ self.r.T, *self.from_h, rule))


def fixed_cell(call: MethodCall, arrays: Arrays, results: Results) -> tuple[Integers, ...]:
    """Returns all states, the last one, and the cell's extreme quantized values."""
    state, cell = (_map(call, kind) for kind in (results[0], results[2]))
    _check(call, arrays, results, state)
    exponent = round(math.log2(float(cell.scale)))
    if 2.0**exponent != float(cell.scale) or int(cell.zero) or not -15 <= exponent <= -9:
        raise OpError(f"{call.op}: the cell's scale is a power of two from 2^-15 to 2^-9, about 0")
    steps = arrays["x"].astype(np.int64) - int(call.affine("x").zero)
    steps = steps.swapaxes(0, 1) if call.attrs["batch_first"] else steps
    gates = _gates(call, arrays, state)
    shape = (steps.shape[1], gates[0].r.shape[1])
    h, c = (_first(arrays, slot, shape) for slot in ("h0", "c0"))
    h = h - int(state.zero) if "h0" in arrays else h
    by = to_fixed_point(
        float(float32(float32(2.0**-15) / float32(state.scale)) * float32(2.0**-15))
    )
    made = np.zeros((len(steps), *shape), np.int64)
    for number, x in enumerate(steps):
        i, o, f, new = (gate.sums(x, h, call.rule) for gate in gates)
        i, o, f = (SHORT.logistic(part, 3) for part in (i, o, f))
        kept = shift_right_rounding(f * c, np.array(15))
        c = _short(
            kept + SHORT.wrap(shift_right_rounding(i * SHORT.tanh(new, 3), np.array(30 + exponent)))
        )
        out = multiply_fixed_point(o * SHORT.tanh(c, 15 + exponent), *by, call.rule) + int(
            state.zero
        )
        made[number] = np.clip(out, state.low, state.high)
        h = made[number] - int(state.zero)
    last = made[-1] if len(made) else h + int(state.zero)
    every, ends = made[:, None], [last[None], c[None]]
    if call.attrs["batch_first"]:
        every, ends = every.transpose(2, 0, 1, 3), [part.swapaxes(0, 1) for part in ends]
    carriers = (state.carrier, state.carrier, cell.carrier)
    return tuple(part.astype(kind) for part, kind in zip((every, *ends), carriers, strict=True))


def _map(call: MethodCall, kind: TensorType) -> Affine:
    if kind.quant is None:
        raise OpError(f"{call.op}: fixed_cell quantizes all three results")
    return affine_of(kind.quant)


def _check(call: MethodCall, arrays: Arrays, results: Results, state: Affine) -> None:
    """Raises OpError for a layer that the kernel does not have."""
    for name, plain in _PLAIN.items():
        if call.attrs[name] != plain:
            raise OpError(f"{call.op}: fixed_cell takes {name} = {plain!r} alone{_ELSE}")
    for slot in ("lengths", "peephole", "proj"):
        if slot in arrays:
            raise OpError(f"{call.op}: fixed_cell takes no {slot}{_ELSE}")
    given = [_map(call, results[1]), *(call.affine(s) for s in ("h0",) if s in arrays)]
    if not all(state.same_map(of) for of in given) or state.storage.bits != 8:
        raise OpError(f"{call.op}: fixed_cell has one 8-bit quantized type for y, h and h0")
    if "c0" in arrays and not call.affine("c0").same_map(_map(call, results[2])):
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
    found = []
    for gate in range(4):
        rows = slice(gate * hidden, (gate + 1) * hidden)
        w, r = (_one(call, slot, rows) for slot in ("w", "r"))
        units = (
            float32(float32(w * float32(of.scale)) / float32(2.0**-12))
            for w, of in ((w, x), (r, state))
        )
        by = [to_fixed_point(float(unit)) for unit in units]
        ws, rs = (arrays[slot][0, rows].astype(np.int64) for slot in ("w", "r"))
        found.append(_Gate(ws, rs, bias[rows], by[0], by[1]))
    return found


def _one(call: MethodCall, slot: str, rows: slice) -> np.float32:
    """Returns the one scale of a gate's rows."""
    of = call.affine(slot)
    scales = np.broadcast_to(of.scale, (rows.stop,))[rows] if of.axis is None else of.scale[rows]
    if of.axis not in (None, 1) or np.any(of.zero) or np.any(scales != scales[:1]):
        raise OpError(f"{call.op}: fixed_cell has one scale a gate for {slot}, about 0")
    return float32(scales[0])


def _first(arrays: Arrays, slot: str, shape: tuple[int, int]) -> Whole:
    if slot not in arrays:
        return np.zeros(shape, np.int64)
    return arrays[slot].astype(np.int64).reshape(shape)


def _short(x: Whole) -> Whole:
    return np.clip(x, _LOW, _HIGH)


def _one_result(call: MethodCall, arrays: Arrays) -> Integers:
    raise OpError(f"{call.op}: fixed_cell gives all results of an lstm whose x is quantized")


METHODS: Mapping[str, PluginMethod] = {
    "fixed_cell": PluginMethod(_one_result, ("lstm",), reads=("requant",), every_result=fixed_cell),
}
"""The methods of this module, by the name that profiles use."""
