"""The protobuf messages of a GraphDef as bytes, by their published field numbers."""

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
_PRODUCER = 1882
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
    """An attribute that is a shape, -1 for sizes that are open."""

    sizes: tuple[int, ...]


@dataclass(frozen=True)
class TensorAttr:
    """An attribute that is a constant: elements, and the name of their type."""

    data: Array
    kind: str


Attr: TypeAlias = (
    "str | bool | int | float | tuple[int, ...] | tuple[str, ...]"
    " | TypeAttr | TypeListAttr | ShapeAttr | TensorAttr"
)


def varint(number: int) -> bytes:
    """Returns a whole number, seven bits a byte; negative ones as 64 bits."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def whole(field: int, number: int) -> bytes:
    """Returns a field that holds a whole number."""
    return varint(field << 3) + varint(number)


def held(field: int, data: bytes | str) -> bytes:
    """Returns a field that holds bytes, text or a message."""
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def shape(sizes: Iterable[int]) -> bytes:
    """Returns a TensorShapeProto."""
    return b"".join(held(2, whole(1, size)) for size in sizes)


def _tensor(tensor: TensorAttr) -> bytes:
    data = np.ascontiguousarray(tensor.data)
    little = data.astype(data.dtype.newbyteorder("<"), copy=False)
    return (
        whole(1, TYPES[tensor.kind]) + held(2, shape(tensor.data.shape)) + held(4, little.tobytes())
    )


def _value(value: Attr) -> bytes:
    match value:
        case TypeAttr(name):
            return whole(6, TYPES[name])
        case TypeListAttr(names):
            return held(1, held(6, b"".join(varint(TYPES[name]) for name in names)))
        case ShapeAttr(sizes):
            return held(7, shape(sizes))
        case TensorAttr():
            return held(8, _tensor(value))
        case bool():
            return whole(5, int(value))
        case int():
            return whole(3, value)
        case float():
            return varint(4 << 3 | 5) + struct.pack("<f", value)
        case str():
            return held(2, value)
    if value and isinstance(value[0], str):
        return held(1, b"".join(held(2, str(each)) for each in value))
    return held(1, held(3, b"".join(varint(int(each)) for each in value)))


def node(op: str, name: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> bytes:
    """Returns a NodeDef."""
    parts = [held(1, name), held(2, op), *(held(3, each) for each in inputs)]
    for key in sorted(attrs):
        parts.append(held(5, held(1, key) + held(2, _value(attrs[key]))))
    return b"".join(parts)


def graph(nodes: Iterable[bytes]) -> bytes:
    """Returns a GraphDef."""
    return b"".join(held(1, each) for each in nodes) + held(4, whole(1, _PRODUCER))
