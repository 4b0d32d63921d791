"""Ranges of MXNet's quantized tensors as quantized types: scale = absmax / 127.5 or 255.5."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qir.ir.dtype import DType, dtype
from qir.ir.node import Value
from qir.ir.types import Array, DeclaredBounds, QuantType, TensorType, uniform
from qir.ledger import Change

from .call import SymbolCall
from .results import RangeBound, Result, Unsupported

I8, U8 = dtype("i8"), dtype("u8")
LEVELS = {I8: 127.5, U8: 255.5}
_F = np.float32
_GAIN_OF_EMPTY_RANGE = _F(2.0**31)
"""The reciprocal scale that MXNet's layers assume for a range of 0 to 0."""
HOW_TO_CALIBRATE = "quantize with calib_mode naive or entropy"


def quantized_type(storage: DType, low: float, high: float) -> QuantType:
    """Returns the quantized type of a range, which it also declares."""
    lowest, highest = _F(low), _F(high)
    absmax = max(abs(lowest), abs(highest))
    if absmax == 0:  # calibration writes six decimals, so this is a range of small values, too
        absmax = highest = _F(LEVELS[storage]) / _GAIN_OF_EMPTY_RANGE
        lowest = -absmax if storage == I8 else _F(0)
    if not np.isfinite(absmax):
        raise Unsupported(f"its range is {low} to {high}")
    quant = uniform(storage, np.asarray(absmax / _F(LEVELS[storage]), _F))
    declared = DeclaredBounds((float(lowest),), (float(highest),), LEVELS[storage])
    return replace(quant, declared=declared)


def has_empty_range(value: Value) -> bool:
    """Returns whether a quantized value has the scale of an empty range, 0 to 0."""
    quant = value.type.quant
    return quant is not None and bool((quant.scales() == 1 / _GAIN_OF_EMPTY_RANGE).all())


def calibrated_range(call: SymbolCall) -> tuple[float, float] | None:
    """Returns the calibrated range of a node; None without one."""
    if not call.attrs.is_given("min_calib_range") or not call.attrs.is_given("max_calib_range"):
        call.ignore("min_calib_range", "max_calib_range")
        return None
    return call.attrs.number("min_calib_range"), call.attrs.number("max_calib_range")


def note_empty_range(call: SymbolCall, low: float, high: float) -> None:
    """Reports that MXNet divides by an empty range."""
    if low == high == 0:
        message = (
            "MXNet divides by its range, which is 0 to 0; its integers mean 0, whatever they are"
        )
        call.reader.ledger.add(Change.UNVERIFIED, "read mxnet", call.node.name, message)


def note_refused_range(call: SymbolCall, low: float) -> None:
    """Reports that MXNet does not run uint8 with a range that begins below 0."""
    if low < 0:
        message = "MXNet 1.9.1 does not run uint8 with a range that begins below 0"
        call.reader.ledger.add(Change.UNVERIFIED, "read mxnet", call.node.name, message)


def results_with_range(value: Value) -> list[Result]:
    """Returns the three results of a quantized operator: integers, minimum and maximum."""
    low, high = declared_range(value)
    return [value, RangeBound(low), RangeBound(high)]


def declared_range(value: Value) -> tuple[float, float]:
    """Returns the declared range of a quantized value; raises Unsupported without one."""
    quant = value.type.quant
    if quant is None or quant.declared is None:
        raise Unsupported(f"its operand {value.name} is {value.type.dtype} without a range")
    declared = quant.declared
    assert isinstance(declared.low, tuple)
    assert isinstance(declared.high, tuple)
    return declared.low[0], declared.high[0]


def quantized_operand(call: SymbolCall, index: int, low: int, high: int) -> Value:
    """Returns an operand with the range in two other operands.

    Stored integers take the range as their type; computed ones must have been made with it, or
    with a stored one, by which they are read.
    """
    value = call.value(index)
    if value.type.quant is not None:
        stated_range = [call.inputs[i] if i < len(call) else None for i in (low, high)]
        own_range = [RangeBound(bound) for bound in declared_range(value)]
        if stated_range == own_range:
            return value
        if any(
            not isinstance(bound, Value) or bound.node.op != "constant" for bound in stated_range
        ):
            raise Unsupported(f"operand {index} comes with the range of another tensor")
        element = quantized_type(value.type.quant.storage, *_stored_ends(call, index, low, high))
        types = [TensorType(value.type.shape, element)]
        return call.reader.graph.add("recode", {"x": value}, types=types).result
    storage = value.type.dtype
    if value.node.op != "constant":
        raise Unsupported(f"the range of operand {index} is not calibrated; {HOW_TO_CALIBRATE}")
    if storage not in LEVELS:
        raise Unsupported(
            f"operand {index} is {storage}; int8 and uint8 with a known range are read"
        )
    return _quantized_constant(
        call, index, quantized_type(storage, *_stored_ends(call, index, low, high))
    )


def _stored_ends(call: SymbolCall, index: int, low: int, high: int) -> tuple[float, float]:
    bounds = [call.parameter_data(i, "range").reshape(-1) for i in (low, high)]
    if any(bound.size != 1 for bound in bounds):
        raise Unsupported(f"the range of operand {index} is no pair of numbers")
    return float(bounds[0][0]), float(bounds[1][0])


def _quantized_constant(call: SymbolCall, index: int, element: QuantType) -> Value:
    """Returns stored integers as a constant of a quantized type, with their name in the file."""
    value, graph = call.value(index), call.reader.graph
    data = call.parameter_data(index, "weights")
    array = Array(data, TensorType(value.type.shape, element), value.name)
    name = value.name
    graph.rename(value, graph.fresh(f"{name}.stored"))
    return graph.constant(array, name=name)
