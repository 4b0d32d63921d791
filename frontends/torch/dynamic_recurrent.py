"""Dynamic LSTM and GRU: data are quantized per tensor, the state anew in each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, F64, dtype
from qir.ir.node import Value
from qir.ir.types import Array, Granularity, QuantType, TensorType, make_param

from .call import OverloadCall
from .reader import KeepCall
from .recurrent import GATES

STORAGE = dtype("u8")
SEVEN_BIT_RANGE = (0, 127)
"""The range of `reduce_range`: u8 products with 8 bits may overflow FBGEMM's i16 pair sums."""


def quantize_by_own_range(
    call: OverloadCall, x: Value, *, seven_bits: bool
) -> tuple[Value, dict[str, Value]]:
    """Quantizes data at run time by their own range; returns them with scale and zero point."""
    attrs: dict[str, Attr] = {"rule": "torch.dynamic", "storage": STORAGE, "scale_type": F64}
    if seven_bits:
        attrs["bounds"] = SEVEN_BIT_RANGE
    scale, zero = call.add_many("choose_qparams", {"x": x}, attrs)
    kind = x.type.with_element(QuantType(STORAGE, F32, None, None, scale_dtype=F64))
    data = call.add_typed("quantize", {"x": x, "scale": scale, "zero": zero}, kind)
    return data, {"x.scale": scale, "x.zero": zero}


def _layers(kind: str) -> Callable[[OverloadCall], list[Value]]:
    def read(call: OverloadCall) -> list[Value]:
        x, cells = call.value("input"), call["params"]
        directions = 2 if call.flag("bidirectional") else 1
        if x.type.rank != 3 or len(cells) != directions * call.integer("num_layers"):
            raise KeepCall("its data are no batch of sequences")
        batch_first = call.flag("batch_first")
        x = call.add("transpose", {"x": x}, {"perm": (1, 0, 2)}) if batch_first else x
        states = call.values("hx") if kind == "lstm" else [call.value("hx")]
        last_states: list[list[Value]] = [[] for _ in states]
        for begin in range(0, len(cells), directions):
            # Both directions of a layer quantize the same data, so one node serves them.
            quantized, qparams = quantize_by_own_range(call, x, seven_bits=cells[begin][4])
            data = call.add("dequantize", {"x": quantized, **qparams})
            results_by_direction = []
            for direction in range(directions):
                initial_states = [_slice_state(call, state, begin + direction) for state in states]
                y, *last = _one_direction(
                    call,
                    kind,
                    data,
                    cells[begin + direction],
                    initial_states,
                    backwards=direction == 1,
                )
                results_by_direction.append(call.add("squeeze", {"x": y}, {"axes": (1,)}))
                for states_of_layers, last_state in zip(last_states, last, strict=True):
                    states_of_layers.append(last_state)
            # The next layer reads both directions side by side.
            x = _concat(call, results_by_direction, 2)
        x = call.add("transpose", {"x": x}, {"perm": (1, 0, 2)}) if batch_first else x
        return [x, *(_concat(call, states_of_layers, 0) for states_of_layers in last_states)]

    return read


def _one_direction(
    call: OverloadCall,
    kind: str,
    x: Value,
    cell: Sequence[Any],
    states: Sequence[Value],
    *,
    backwards: bool,
) -> tuple[Value, ...]:
    """Adds one direction of a layer, whose state is quantized in each step."""
    weights, seven_bits = cell[:2], cell[4]
    operands = {
        slot: call.add("dequantize", {"x": _reordered_weights(call, kind, weight)})
        for slot, weight in zip("wr", weights, strict=True)
    }
    operands |= {"x": x, "bias": _reordered_biases(call, kind, cell[2:4])}
    operands |= dict(zip(("h0", "c0"), states, strict=False))
    attrs: dict[str, Attr] = {"direction": "reverse" if backwards else "forward"}
    if kind == "gru":
        # PyTorch's GRU resets the product with the state, not the state.
        attrs["linear_before_reset"] = True
    results = call.add_many(kind, operands, attrs)
    bounds = SEVEN_BIT_RANGE if seven_bits else None
    state = QuantType(STORAGE, F32, None, None, bounds=bounds, scale_dtype=F64)
    call.reader.graph.set_inner(results[0].node, "h", state)
    return results


def _reordered_weights(call: OverloadCall, kind: str, weight: Any) -> Value:
    """Returns quantized weights in the language's layout: one direction, gates in its order."""
    dequantized = call.reader.tensor(weight).node.operands["x"]
    array, quant = dequantized.constant, dequantized.type.quant
    if array is None or quant is None:
        raise KeepCall("its weights are computed")
    rows = _gate_rows(kind, array.data.shape[0])
    # Scales along the rows are reordered with them; the axis of directions comes first.
    if quant.granularity is not None:
        granularity = Granularity(((1, 1),))
        scale, zero = (
            make_param(numbers[rows], granularity, f"{dequantized.name}.{name}")
            for name, numbers in (("scale", quant.scales()), ("zero", quant.zeros()))
        )
        quant = replace(quant, granularity=granularity, scale=scale, zero=zero)
    data = np.ascontiguousarray(array.data[rows])[None]
    name = call.reader.graph.fresh(f"{dequantized.name}.gates")
    return call.reader.graph.constant(Array(data, TensorType(data.shape, quant), name), name=name)


def _reordered_biases(call: OverloadCall, kind: str, biases: Sequence[Any]) -> Value:
    """Returns the biases of both products, concatenated."""
    stored = [call.reader.stored_tensor(bias) for bias in biases]
    arrays = [data.detach().numpy() for pair in stored if pair is not None for data in pair[1:]]
    if len(arrays) != 2:
        raise KeepCall("its biases are computed")
    # PyTorch adds both biases in sequence, so they are not summed here.
    data = np.concatenate([array[_gate_rows(kind, len(array))] for array in arrays])[None]
    name = call.reader.graph.fresh(f"{stored[0][0]}.gates" if stored[0] else "bias")
    return call.reader.graph.constant(Array(data, TensorType(data.shape, F32), name), name=name)


def _gate_rows(kind: str, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the rows of PyTorch's weights in the order of the language's gates."""
    parts = np.arange(count).reshape(len(GATES[kind]), -1)
    return np.concatenate([parts[gate] for gate in GATES[kind]])


def _slice_state(call: OverloadCall, state: Value, index: int) -> Value:
    if state.type.shape[0] == 1:
        return state
    attrs = {"starts": (index,), "ends": (index + 1,), "axes": (0,), "steps": (1,)}
    return call.add("slice", {"x": state}, attrs)


def _concat(call: OverloadCall, parts: Sequence[Value], axis: int) -> Value:
    if len(parts) == 1:
        return parts[0]
    return call.add("concat", {f"xs.{i}": p for i, p in enumerate(parts)}, {"axis": axis})


OPS = {"quantized_lstm.input": _layers("lstm"), "quantized_gru.input": _layers("gru")}
