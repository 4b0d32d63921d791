"""Calls of local functions that stand for quantize and dequantize by types that ONNX lacks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.attrs import Attr
from qir.ir.dtype import dtype
from qir.ir.node import Value
from qir.ir.types import Array, QuantType, TensorType

from .functions import QuantFunction
from .op import OnnxOp
from .reader import OnnxReader


def read(reader: OnnxReader, op: OnnxOp, custom: QuantFunction) -> None:
    """Adds quantize or dequantize for a call; raises InputError if it does not fit its type."""
    if len(op.inputs) != 1 + len(custom.arrays) or len(op.outputs) != 1:
        raise op.error(f"has {len(op.inputs)} operands, its type names {len(custom.arrays)} arrays")
    try:
        arrays = {
            name: _array(reader, op, operand, element_type)
            for operand, (name, element_type) in zip(op.inputs[1:], custom.arrays, strict=True)
        }
        # Metadata of the file state the type: nothing has checked it against the data.
        reader.verify_all = True
        quant = custom.quant_type(arrays, reader.type_of(op, op.input(0)).rank)
        if custom.op == "Quantize":
            _quantize(reader, op, quant, custom)
        else:
            reader.add(op, "dequantize", {"x": _quantized_operand(reader, op, quant)})
    except (QirError, ValueError, KeyError) as error:
        raise op.error(f"is no {custom.op.lower()} by {custom.type_text[:60]}: {error}") from error


def _array(reader: OnnxReader, op: OnnxOp, name: str, element_type: str) -> Array:
    array = reader.array(name)
    if array is None:
        raise ValueError(f"{name!r} is computed")
    stated = dtype(element_type)
    if array.contents.dtype != stated.carrier:
        raise ValueError(f"{name!r} is {array.type}, its type says {stated}")
    return Array(array.contents, TensorType(array.contents.shape, stated), name)


def _quantize(reader: OnnxReader, op: OnnxOp, quant: QuantType, custom: QuantFunction) -> None:
    x = reader.value(op, op.input(0))
    attrs: dict[str, Attr] = {"round": custom.rounding} if custom.rounding else {}
    node = reader.add(op, "quantize", {"x": x}, attrs, types=[x.type.with_element(quant)])
    if custom.profile is not None:
        reader.graph.set_profile(node, custom.profile)


def _quantized_operand(reader: OnnxReader, op: OnnxOp, quant: QuantType) -> Value:
    """Returns the operand with its quantized type; a constant or an unused input takes it."""
    name = op.input(0)
    array = reader.array(name)
    if array is not None:
        _check_values(array.data, quant, name)
        return reader.add_constant(reader.resolve(name), _with_quant_type(array, quant), quant)
    value = reader.value(op, name)
    if value.type.quant is not None and value.type.quant.has_same_mapping(quant):
        return value
    if value.type.quant is not None:
        raise ValueError(f"{name!r} holds {value.type.quant}")
    if value.type.dtype.carrier != quant.storage.carrier or value.node.op != "input" or value.uses:
        raise ValueError(f"{name!r} is {value.type}")
    reader.graph.set_type(value, value.type.with_element(quant))
    return value


def _with_quant_type(array: Array, quant: QuantType) -> Array:
    return Array(array.contents, TensorType(array.contents.shape, quant), array.name)


def _check_values(data: NDArray[np.generic], quant: QuantType, name: str) -> None:
    if data.dtype != quant.storage.carrier:
        raise ValueError(f"{name!r} is {data.dtype}, quantized values are {quant.storage}")
    if data.size and not quant.low <= int(data.min()) <= int(data.max()) <= quant.high:
        raise ValueError(f"{name!r} holds values beyond {quant.low}..{quant.high}")
