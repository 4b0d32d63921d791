"""Encodes the protobuf messages of a GraphDef, by their published field numbers.

So a frozen graph needs no TensorFlow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
TYPES: Mapping[str, int] = {
    "float": 1,
    "double": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "int64": 9,
    "bool": 10,
    "qint8": 11,
    "quint8": 12,
    "qint32": 13,
    "bfloat16": 14,
    "uint16": 17,
    "half": 19,
    "resource": 20,
    "uint32": 22,
    "uint64": 23,
}
"""TensorFlow's element types by name."""
PRODUCER_VERSION = 1882
"""The version of graphs that TensorFlow 2.21 writes."""


@dataclass(frozen=True)
class TypeAttr:
    """An attribute that is an element type."""

    name: str


@dataclass(frozen=True)
class TypeListAttr:
    """An attribute that is a list of element types."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class ShapeAttr:
    """An attribute that is a shape; unknown sizes are -1."""

    sizes: tuple[int, ...]


@dataclass(frozen=True)
class TensorAttr:
    """An attribute that is a constant: elements and the name of their type."""

    data: Array
    kind: str


Attr: TypeAlias = (
    "str | bool | int | float | tuple[int, ...] | tuple[str, ...]"
    " | TypeAttr | TypeListAttr | ShapeAttr | TensorAttr"
)


def varint(number: int) -> bytes:
    """Encodes an integer, seven bits a byte; negative ones as 64 bits."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def int_field(field: int, number: int) -> bytes:
    """Encodes a field that holds an integer."""
    # Wire type 0 (varint) in the low three bits, the field number above them.
    return varint(field << 3) + varint(number)


def bytes_field(field: int, data: bytes | str) -> bytes:
    """Encodes a field that holds bytes, text or a message."""
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def tensor_shape(sizes: Iterable[int]) -> bytes:
    """Encodes a TensorShapeProto."""
    return b"".join(bytes_field(2, int_field(1, size)) for size in sizes)


def _tensor(tensor: TensorAttr) -> bytes:
    data = np.ascontiguousarray(tensor.data)
    # tensor_content is little endian.
    little_endian = data.astype(data.dtype.newbyteorder("<"), copy=False)
    return (
        int_field(1, TYPES[tensor.kind])
        + bytes_field(2, tensor_shape(tensor.data.shape))
        + bytes_field(4, little_endian.tobytes())
    )


def _value(value: Attr) -> bytes:
    match value:
        case TypeAttr(name):
            return int_field(6, TYPES[name])
        case TypeListAttr(names):
            return bytes_field(1, bytes_field(6, b"".join(varint(TYPES[name]) for name in names)))
        case ShapeAttr(sizes):
            return bytes_field(7, tensor_shape(sizes))
        case TensorAttr():
            return bytes_field(8, _tensor(value))
        case bool():
            return int_field(5, int(value))
        case int():
            return int_field(3, value)
        case float():
            return varint(4 << 3 | 5) + struct.pack("<f", value)
        case str():
            return bytes_field(2, value)
    if value and isinstance(value[0], str):
        return bytes_field(1, b"".join(bytes_field(2, str(each)) for each in value))
    return bytes_field(1, bytes_field(3, b"".join(varint(int(each)) for each in value)))


def node_def(op: str, name: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> bytes:
    """Encodes a NodeDef."""
    parts = [bytes_field(1, name), bytes_field(2, op), *(bytes_field(3, each) for each in inputs)]
    for key in sorted(attrs):
        parts.append(bytes_field(5, bytes_field(1, key) + bytes_field(2, _value(attrs[key]))))
    return b"".join(parts)


def graph_def(nodes: Iterable[bytes]) -> bytes:
    """Encodes a GraphDef."""
    return b"".join(bytes_field(1, each) for each in nodes) + bytes_field(
        4, int_field(1, PRODUCER_VERSION)
    )
