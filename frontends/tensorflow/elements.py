"""Converts element types and TensorProtos of TensorFlow."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qir.errors import InputError
from qir.ir.dtype import DType, dtype

DTYPE_NAMES = {
    1: "f32",
    2: "f64",
    3: "i32",
    4: "u8",
    5: "i16",
    6: "i8",
    9: "i64",
    10: "bool",
    14: "bf16",
    17: "u16",
    19: "f16",
    22: "u32",
    23: "u64",
}
"""Supported element types by their number in `types.proto`."""
QUANTIZED_STORAGE = {11: "i8", 12: "u8", 13: "i32", 15: "i16", 16: "u16"}
"""Storage of qint8, quint8, qint32, qint16 and quint16, by number."""
_UNSUPPORTED_NAMES = {7: "string", 8: "complex64", 18: "complex128", 20: "resource", 21: "variant"}
_GREATEST_TYPE_NUMBER = 33
"""The greatest number of an element type in `types.proto`; 0 is DT_INVALID."""
_REFERENCE_OFFSET = 100
"""The offset of reference types (DT_FLOAT_REF, ...)."""
_VALUE_FIELDS = {
    **dict.fromkeys((3, 4, 5, 6, 17), "int_val"),
    **dict.fromkeys(QUANTIZED_STORAGE, "int_val"),
    1: "float_val",
    2: "double_val",
    9: "int64_val",
    10: "bool_val",
    14: "half_val",
    19: "half_val",
    22: "uint32_val",
    23: "uint64_val",
}
_MAX_BYTES = 1 << 31
"""Bytes of a tensor, at most: a protobuf message holds no more."""


def dtype_of_number(number: int) -> DType | None:
    """Returns the language's type of unquantized elements; None if it has none."""
    name = DTYPE_NAMES.get(number % _REFERENCE_OFFSET)
    return None if name is None else dtype(name)


def is_type_number(number: int) -> bool:
    """Returns whether `types.proto` has an element type of that number."""
    return 0 < number % _REFERENCE_OFFSET <= _GREATEST_TYPE_NUMBER


def type_name(number: int) -> str:
    """Returns the name of an element type for messages."""
    number %= _REFERENCE_OFFSET
    if number in QUANTIZED_STORAGE:
        return f"q{QUANTIZED_STORAGE[number].replace('i', 'int').replace('u', 'uint')}"
    return DTYPE_NAMES.get(number) or _UNSUPPORTED_NAMES.get(number, f"type number {number}")


def shape_of(proto: Any) -> tuple[int, ...] | None:
    """Returns the sizes of a shape, -1 for open ones; None for an unknown rank."""
    return None if proto.unknown_rank else tuple(dim.size for dim in proto.dim)


def tensor_elements(proto: Any, place: str) -> NDArray[np.generic]:
    """Returns the elements of a TensorProto; raises InputError if they do not fit its shape.

    If there are fewer elements than the shape needs, the last one is repeated, as in TensorFlow.
    """
    number = proto.dtype
    name = DTYPE_NAMES.get(number) or QUANTIZED_STORAGE.get(number)
    if name is None:
        raise InputError(f"{place} holds {type_name(number)}, which is not read")
    shape = shape_of(proto.tensor_shape)
    if shape is None or min(shape, default=0) < 0:
        raise InputError(f"{place} is a constant whose shape is open")
    numpy_type, count = dtype(name).carrier, math.prod(shape)
    if count * numpy_type.itemsize > _MAX_BYTES:
        raise InputError(f"{place} has the shape {list(shape)}, more than any file holds")
    if proto.tensor_content:
        if len(proto.tensor_content) != count * numpy_type.itemsize:
            byte_count = len(proto.tensor_content)
            raise InputError(
                f"{place} has the shape {list(shape)} and {byte_count} bytes of elements"
            )
        return np.frombuffer(proto.tensor_content, numpy_type).reshape(shape)
    values = np.asarray(getattr(proto, _VALUE_FIELDS[number]))
    # No elements at all stand for zeros, as the default of a protobuf field.
    if values.size > count or (not values.size and count):
        if values.size:
            raise InputError(f"{place} has {values.size} elements for the shape {list(shape)}")
        return np.zeros(shape, numpy_type)
    elements: NDArray[np.generic]
    if _VALUE_FIELDS[number] == "half_val":
        # `half_val` has the bits of float16 and bfloat16 as integers.
        bits = values.astype(np.uint16)
        elements = bits.view(ml_dtypes.bfloat16 if name == "bf16" else np.float16)
    else:
        elements = values.astype(numpy_type)
    if elements.size < count:
        elements = np.concatenate([elements, np.repeat(elements[-1:], count - elements.size)])
    return elements.reshape(shape)
