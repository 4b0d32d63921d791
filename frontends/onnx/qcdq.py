"""QCDQ: integers that a Clip keeps from filling their storage are quantized of a narrower type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qir.ir.node import Value
from qir.ir.types import Array, QuantType

from . import float_ops
from .op import KeepOperator, OnnxOp
from .reader import OnnxReader

_STORED = frozenset({"i8", "u8", "i16", "u16"})


def clip(reader: OnnxReader, op: OnnxOp) -> None:
    """Clip between a quantize and who reads it, or of quantized constants; else of any numbers."""
    name = op.input(0)
    if reader.is_constant(name):
        if reader.has_meaning(op.outputs[0]) and _constant(reader, op, name):
            return
    elif reader.value(op, name).type.quant is not None:
        _narrowed(reader, op, reader.value(op, name))
        return
    if reader.has_meaning(op.outputs[0]):
        raise KeepOperator
    float_ops.clip(reader, op)


def _ends(reader: OnnxReader, op: OnnxOp, low: int, high: int) -> tuple[int, int]:
    """Returns the bounds that a Clip states; Keep where it keeps everything, or they are
    computed."""
    found = []
    for place, end in ((1, low), (2, high)):
        data = reader.numbers(op.input(place)) if op.input(place) else np.array(end)
        if data.size != 1 or data.dtype.kind not in "iu":
            raise KeepOperator
        found.append(int(data.reshape(-1)[0]))
    if not low <= found[0] < found[1] <= high or (found[0], found[1]) == (low, high):
        raise KeepOperator
    return found[0], found[1]


def _narrowed(reader: OnnxReader, op: OnnxOp, value: Value) -> None:
    """Gives the integers of a quantize their bounds, and the name that they have after the Clip."""
    kind = value.type.quant
    assert kind is not None
    name = op.input(0)
    whole = kind.kind == "uniform" and not kind.dynamic and kind.bounds is None
    alone = value.node.op == "quantize" and reader.readers[name] == 1 and not value.uses
    if not whole or not alone or kind.storage.name not in _STORED or len(value.node.operands) > 1:
        raise KeepOperator(
            "a Clip of quantized values that others read, or that are not just quantized"
        )
    bounds = _ends(reader, op, *kind.storage.bounds)
    graph = reader.graph
    graph.set_type(value, value.type.with_element(replace(kind, bounds=bounds)))
    graph.set_origins(value.node, [*value.node.origins, op.origin()])
    graph.rename(value, op.outputs[0])
    reader.bind(op.outputs[0], value)


def _constant(reader: OnnxReader, op: OnnxOp, name: str) -> bool:
    """Keeps quantized constants that are within a Clip as quantized values of its bounds."""
    array = reader.array(name)
    if array is None or array.type.dtype.name not in _STORED or not array.contents.size:
        return False
    low, high = _ends(reader, op, *array.type.dtype.bounds)
    if int(array.data.min()) < low or int(array.data.max()) > high:
        return False
    out = op.outputs[0]
    reader.store(out, Array(array.contents, array.type, out))
    reader.narrow[out] = (low, high), op.origin()
    return True


def bounded(reader: OnnxReader, name: str, quant: QuantType) -> QuantType:
    """Returns the type of quantized constants, within the bounds that a Clip gave
    them."""
    found = reader.narrow.get(name)
    return quant if found is None else replace(quant, bounds=found[0])


def mark(reader: OnnxReader, name: str, value: Value) -> Value:
    """Returns the constant, which knows of the Clip that it came from."""
    found = reader.narrow.get(name)
    if found is not None and found[1] not in value.node.origins:
        reader.graph.set_origins(value.node, [*value.node.origins, found[1]])
    return value
