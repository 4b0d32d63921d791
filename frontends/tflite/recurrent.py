"""UNIDIRECTIONAL_SEQUENCE_LSTM, of floats and of 8-bit integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.node import Value
from qir.ir.ops import spec
from qir.ir.types import Array, TensorType, uniform

from .call import OperatorCall
from .reader import Unread

_FILE_GATES, _GATES = "ifco", "iofc"
"""The gates in the order of the file's operands, and in that of the language's rows."""
_W, _R, _PEEPHOLES, _BIASES, _PROJECTION = 1, 5, 9, 12, 16
_STATE, _CELL, _NORMS = 18, 19, 20
"""Where an operand, or the first of several, is in the file."""
_TANH = 4


def _lstm(call: OperatorCall) -> Value:
    if call.integer("fused_activation_function", _TANH) != _TANH:
        raise Unread("its activation is not tanh")
    absent = (*range(_PEEPHOLES, _BIASES), _PROJECTION, *range(_NORMS, _NORMS + 4))
    if any(call.optional(index) is not None for index in absent):
        raise Unread("it has peepholes, a projection or norms, which are not read")
    if call.real("cell_clip"):
        raise Unread("it clips its cell, which the language's lstm does not")
    if call.optional(_W) is None:
        raise Unread("its input gate is one minus its forget gate, which is not read")
    x, major = call[0], call.flag("time_major")
    operands: dict[str, Value | None] = {
        "x": x,
        "w": _gates(call, _W, "w"),
        "r": _gates(call, _R, "r"),
        "bias": _gates(call, _BIASES, "bias"),
        "h0": _state(call, _STATE),
        "c0": _state(call, _CELL),
    }
    # The language has batch first in states as well, where x has.
    attrs: dict[str, Attr] = {"batch_first": not major}
    held = {slot: value for slot, value in operands.items() if value is not None}
    if x.type.quant is not None:
        return _integer_lstm(call, held, attrs)
    node = call.reader.add(call.operator, "lstm", held, attrs)
    return _without_direction(call, node.results[0], major)


def _without_direction(call: OperatorCall, y: Value, major: bool) -> Value:
    """Returns the states of all steps without the axis of directions."""
    return call.add("squeeze", {"x": y}, {"axes": (1 if major else 2,)})


def _gates(call: OperatorCall, first: int, what: str) -> Value:
    """Returns the weights, or biases, of all gates as one constant: [1, 4 * hidden, ...]."""
    arrays = [call[first + _FILE_GATES.index(gate)].constant for gate in _GATES]
    held = [array for array in arrays if array is not None]
    if len(held) != len(_GATES):
        raise Unread("its weights are computed while the network runs")
    data = np.concatenate([array.data for array in held])[None]
    tensors = [call.operator.inputs[first + _FILE_GATES.index(gate)] for gate in _GATES]
    scales = [call.reader.scales(tensor) for tensor in tensors]
    if call[0].type.quant is None:
        if any(scale.size for scale in scales):
            raise Unread("it computes floats by quantized weights")
        return call.constant(data, what)
    if any(scale.size != 1 for scale in scales):
        raise Unread("its weights have a scale for each row")
    rows = np.repeat(np.concatenate(scales), len(held[0].data))
    element = uniform(held[0].type.dtype, rows, axis=1)
    name = call.reader.fresh_name(call.operator, what)
    return call.reader.graph.constant(Array(data, TensorType(data.shape, element), name))


def _state(call: OperatorCall, index: int) -> Value | None:
    """Returns a first state as the language has it, with an axis for the direction."""
    tensor = call.operator.inputs[index]
    return None if call.reader.tensor(tensor).is_variable else call[index]


def _integer_lstm(call: OperatorCall, operands: dict[str, Value], attrs: dict[str, Attr]) -> Value:
    quant, cell = call.result_quant(), call.reader.quant(call.operator.inputs[_CELL])
    if quant is None or cell is None:
        raise Unread("its result or its cell has no scale")
    kinds = infer_result_types("lstm", operands, spec("lstm").complete_attrs(attrs), {})
    types = [
        kinds[0].with_element(quant),
        kinds[1].with_element(quant),
        kinds[2].with_element(cell),
    ]
    node = call.reader.add(call.operator, "lstm", operands, attrs, types)
    return _without_direction(call, node.results[0], not attrs["batch_first"])


OPS: dict[str, Callable[[OperatorCall], Value | Sequence[Value]]] = {
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm,
}
