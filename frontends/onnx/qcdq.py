"""QCDQ: a Clip between quantize and dequantize limits integers to fewer bits than their storage.

It becomes the bounds of the quantized type: i8 clipped to -7..7 is a 4-bit type stored in i8.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qir.ir.node import Value
from qir.ir.types import Array, QuantType

from . import float_ops
from .op import KeepOperator, OnnxOp
from .reader import OnnxReader

_STORAGES = frozenset({"i8", "u8", "i16", "u16"})


def clip(reader: OnnxReader, op: OnnxOp) -> None:
    """Clip of quantized values or of quantized constants; else the Clip of plain numbers."""
    name = op.input(0)
    if reader.is_constant(name):
        if reader.has_qparams(op.outputs[0]) and _narrow_constant(reader, op, name):
            return
    elif reader.value(op, name).type.quant is not None:
        _narrow_quantize(reader, op, reader.value(op, name))
        return
    # The Clip would compute on plain integers that consumers dequantize: it is kept.
    if reader.has_qparams(op.outputs[0]):
        raise KeepOperator
    float_ops.clip(reader, op)


def _clip_bounds(reader: OnnxReader, op: OnnxOp, low: int, high: int) -> tuple[int, int]:
    """Returns the bounds of a Clip; raises KeepOperator if it has no effect or is computed."""
    bounds = []
    for index, limit in ((1, low), (2, high)):
        data = reader.constant_data(op.input(index)) if op.input(index) else np.array(limit)
        if data.size != 1 or data.dtype.kind not in "iu":
            raise KeepOperator
        bounds.append(int(data.reshape(-1)[0]))
    if not low <= bounds[0] < bounds[1] <= high or (bounds[0], bounds[1]) == (low, high):
        raise KeepOperator
    return bounds[0], bounds[1]


def _narrow_quantize(reader: OnnxReader, op: OnnxOp, value: Value) -> None:
    """Merges a Clip into the quantize before it.

    The bounds become those of its type; it gets the name of the Clip's result.
    """
    quant = value.type.quant
    assert quant is not None
    name = op.input(0)
    is_plain = quant.kind == "uniform" and not quant.dynamic and quant.bounds is None
    is_only_use = value.node.op == "quantize" and reader.read_counts[name] == 1 and not value.uses
    if (
        not is_plain
        or not is_only_use
        or quant.storage.name not in _STORAGES
        or len(value.node.operands) > 1
    ):
        raise KeepOperator(
            "a Clip of quantized values that others read, or that are not just quantized"
        )
    bounds = _clip_bounds(reader, op, *quant.storage.bounds)
    graph = reader.graph
    graph.set_type(value, value.type.with_element(replace(quant, bounds=bounds)))
    graph.set_origins(value.node, [*value.node.origins, op.origin()])
    graph.rename(value, op.outputs[0])
    reader.bind(op.outputs[0], value)


def _narrow_constant(reader: OnnxReader, op: OnnxOp, name: str) -> bool:
    """Registers the result of a Clip of constants, if it changes none of them; returns whether."""
    array = reader.array(name)
    if array is None or array.type.dtype.name not in _STORAGES or not array.contents.size:
        return False
    low, high = _clip_bounds(reader, op, *array.type.dtype.bounds)
    # A Clip that changes some of them is an operation, not only a bound.
    if int(array.data.min()) < low or int(array.data.max()) > high:
        return False
    output = op.outputs[0]
    reader.store(output, Array(array.contents, array.type, output))
    reader.clip_bounds[output] = (low, high), op.origin()
    return True


def with_clip_bounds(reader: OnnxReader, name: str, quant: QuantType) -> QuantType:
    """Returns the type of quantized constants with the bounds of their Clip, if there was one."""
    clip_of = reader.clip_bounds.get(name)
    return quant if clip_of is None else replace(quant, bounds=clip_of[0])


def with_clip_origin(reader: OnnxReader, name: str, value: Value) -> Value:
    """Returns the constant, with the origin of its Clip added."""
    clip_of = reader.clip_bounds.get(name)
    if clip_of is not None and clip_of[1] not in value.node.origins:
        reader.graph.set_origins(value.node, [*value.node.origins, clip_of[1]])
    return value
