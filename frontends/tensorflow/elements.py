"""Element types of TensorFlow and of the language, and tensors that a graph holds."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qir.errors import InputError
from qir.ir.dtype import DType, dtype

KINDS = {
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
"""The language's name of each element type that is read, by its number in `types.proto`."""
CODES = {11: "i8", 12: "u8", 13: "i32", 15: "i16", 16: "u16"}
"""Types of quantized values: qint8, quint8, qint32, qint16, quint16; the storage of each."""
_NAMES = {7: "string", 8: "complex64", 18: "complex128", 20: "resource", 21: "variant"}
_LAST = 33
"""The greatest number of an element type in `types.proto`; 0 stands for none."""
_REFERENCE = 100
"""Added to the number of a type for a reference to a variable."""
_FIELDS = {
    **dict.fromkeys((3, 4, 5, 6, 17), "int_val"),
    **dict.fromkeys(CODES, "int_val"),
    1: "float_val",
    2: "double_val",
    9: "int64_val",
    10: "bool_val",
    14: "half_val",
    19: "half_val",
    22: "uint32_val",
    23: "uint64_val",
}
_MOST = 1 << 31
"""Bytes of a tensor that a file of protobuf could hold."""


def element(number: int) -> DType | None:
    """Returns the language's element type of plain numbers; None where it has none."""
    name = KINDS.get(number % _REFERENCE)
    return None if name is None else dtype(name)


def is_type(number: int) -> bool:
    """Returns whether TensorFlow has an element type of that number."""
    return 0 < number % _REFERENCE <= _LAST


def name_of(number: int) -> str:
    """Returns what an element type is called in messages."""
    number %= _REFERENCE
    if number in CODES:
        return f"q{CODES[number].replace('i', 'int').replace('u', 'uint')}"
    return KINDS.get(number) or _NAMES.get(number, f"type number {number}")


def shape_of(proto: Any) -> tuple[int, ...] | None:
    """Returns the sizes of a shape, -1 for open ones; None where the rank is not known."""
    return None if proto.unknown_rank else tuple(dim.size for dim in proto.dim)


def tensor(proto: Any, place: str) -> NDArray[np.generic]:
    """Returns the elements of a tensor; raises InputError where the file does not hold what it
    says.

    A tensor with fewer elements than its shape repeats the last one, as TensorFlow reads it.
    """
    number = proto.dtype
    name = KINDS.get(number) or CODES.get(number)
    if name is None:
        raise InputError(f"{place} holds {name_of(number)}, which is not read")
    shape = shape_of(proto.tensor_shape)
    if shape is None or min(shape, default=0) < 0:
        raise InputError(f"{place} is a constant whose shape is open")
    kind, count = dtype(name).carrier, math.prod(shape)
    if count * kind.itemsize > _MOST:
        raise InputError(f"{place} has the shape {list(shape)}, more than any file holds")
    if proto.tensor_content:
        if len(proto.tensor_content) != count * kind.itemsize:
            held = len(proto.tensor_content)
            raise InputError(f"{place} has the shape {list(shape)} and {held} bytes of elements")
        return np.frombuffer(proto.tensor_content, kind).reshape(shape)
    values = np.asarray(getattr(proto, _FIELDS[number]))
    if values.size > count or (not values.size and count):
        if values.size:
            raise InputError(f"{place} has {values.size} elements for the shape {list(shape)}")
        return np.zeros(shape, kind)
    found: NDArray[np.generic]
    if _FIELDS[number] == "half_val":
        bits = values.astype(np.uint16)
        found = bits.view(ml_dtypes.bfloat16 if name == "bf16" else np.float16)
    else:
        found = values.astype(kind)
    if found.size < count:
        found = np.concatenate([found, np.repeat(found[-1:], count - found.size)])
    return found.reshape(shape)
