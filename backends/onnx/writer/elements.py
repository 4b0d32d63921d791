"""Converts element types, arrays and tensor types to ONNX."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from qir.ir.dtype import DType, dtype_of
from qir.ir.lazy_arrays import iter_pieces
from qir.ir.types import Array, TensorType
from qir.profiles import iter_packed

_NAMES_IN_ORDER = (
    "f32 u8 i8 u16 i16 i32 i64 string bool f16 f64 u32 u64 - - bf16 f8e4m3fn f8e4m3fnuz f8e5m2 "
    "f8e5m2fnuz u4 i4 f4e2m1fn f8e8m0 u2 i2 f6e2m3fn f6e3m2fn"
).split()
"""QIR's names in the order of TensorProto.DataType, from 1."""
ELEMENT_TYPES = {
    name: element_type for element_type, name in enumerate(_NAMES_IN_ORDER, 1) if name != "-"
}
"""TensorProto.DataType by QIR's element type."""


QUANTIZABLE = frozenset(
    "u8 i8 u16 i16 i32 i4 u4 i2 u2 f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz f4e2m1fn".split()
)
"""Storages that QuantizeLinear makes and DequantizeLinear reads."""
_FIRST_OPSETS = {"u16": 21, "i16": 21, "i4": 21, "u4": 21, "f4e2m1fn": 23, "i2": 25, "u2": 25}
"""The first operator set whose QuantizeLinear has a storage."""
_FIRST_IR_VERSIONS = {"i4": 10, "u4": 10, "f4e2m1fn": 11, "f8e8m0": 12, "i2": 13, "u2": 13}
"""The first version of the format that has an element type."""


def first_opset(kind: DType) -> int:
    """Returns the first operator set whose QuantizeLinear makes such integers."""
    return _FIRST_OPSETS.get(kind.name, 19 if kind.is_float and kind.bits == 8 else 0)


def ir_version(kind: DType) -> int:
    """Returns the first version of the format that has such elements."""
    return _FIRST_IR_VERSIONS.get(kind.name, 0)


def element_type(kind: DType) -> int:
    """Returns the TensorProto.DataType of an element type; of its carrier for other integer widths.

    Raises LookupError if there is none.
    """
    # QIR has integers of any width; what ONNX lacks is stored in its NumPy carrier.
    if kind.name not in ELEMENT_TYPES and kind.is_integer:
        return ELEMENT_TYPES[dtype_of(np.empty(0, kind.carrier)).name]
    return ELEMENT_TYPES[kind.name]


def tensor(array: Array, name: str) -> onnx.TensorProto:
    """Returns an array as a tensor; quantized values are plain integers."""
    kind = array.type.dtype
    if kind.name == "string":
        out = onnx.TensorProto(name=name, data_type=element_type(kind), dims=array.contents.shape)
        for item in array.data.reshape(-1).tolist():
            out.string_data.append(item if isinstance(item, bytes) else str(item).encode())
        return out
    # make_tensor packs elements under a byte, two or four to a byte.
    if kind.bits < 8 and kind.name != "bool" and kind.name in ELEMENT_TYPES:
        integers = array.data.reshape(-1).astype(np.float64)
        return helper.make_tensor(name, element_type(kind), array.contents.shape, integers)
    return byte_tensor(array.data, element_type(kind), name)


UNKNOWN = 'opaque<"?[...]">'
"""A tensor of which neither rank nor elements are known."""
LARGE_BYTES = 1 << 14
"""Arrays of so many bytes are streamed to the file; smaller ones are in the protobuf message."""


def is_large(array: Array) -> bool:
    """Returns whether an array is stored as many raw bytes."""
    kind = array.type.dtype
    # Elements that straddle bytes, as of 6 bits, cannot be packed piece by piece.
    is_inline = kind.name == "string" or (_is_packed(kind) and 8 % kind.bits != 0)
    return not is_inline and stored_size(array) >= LARGE_BYTES


def _is_packed(kind: DType) -> bool:
    """Returns whether a byte of a file holds several elements."""
    return kind.bits < 8 and kind.name != "bool" and kind.name in ELEMENT_TYPES


def stored_size(array: Array) -> int:
    """Returns the bytes that an array takes in a file."""
    kind = array.type.dtype
    return -(-array.contents.size * kind.bits // 8) if _is_packed(kind) else array.contents.nbytes


def without_elements(array: Array, name: str) -> onnx.TensorProto:
    """Returns a tensor with name, type and shape alone."""
    kind = element_type(array.type.dtype)
    return onnx.TensorProto(name=name, data_type=kind, dims=array.contents.shape)


def element_bytes(array: Array) -> Iterator[memoryview]:
    """Yields the bytes of an array as files have them, piece by piece: never a copy of it all."""
    kind = array.type.dtype
    if _is_packed(kind):
        for packed in iter_packed(array.contents, kind):
            yield packed.data
        return
    for piece in iter_pieces(array.contents):
        # TensorProto.raw_data is little endian on every machine.
        little = piece.astype(piece.dtype.newbyteorder("<"), copy=False)
        yield little.reshape(-1).view(np.uint8).data


def byte_tensor(data: NDArray[np.generic], kind: int, name: str) -> onnx.TensorProto:
    """Returns a tensor of elements of whole bytes."""
    out = onnx.TensorProto(name=name, data_type=kind, dims=data.shape)
    little = data.astype(data.dtype.newbyteorder("<"), copy=False)
    out.raw_data = np.ascontiguousarray(little).tobytes()
    return out


def type_proto(kind: TensorType) -> onnx.TypeProto:
    """Returns a tensor type; composed dimensions are written as their expression."""
    # onnx has no text for an unknown tensor type: an empty TypeProto is valid for it.
    if kind.dtype.name == UNKNOWN:
        return onnx.TypeProto()
    if kind.dtype.is_opaque:
        # Opaque types are sequences, maps and optionals, in the syntax of onnx.parser.
        type_text = kind.dtype.opaque_text.replace("[]", "").replace("[...]", "[]")
        text = f"g ({type_text} x) => () {{}}"
        proto: onnx.TypeProto = onnx.parser.parse_graph(text).input[0].type
        return proto
    shape = [d if d is None or isinstance(d, int) else str(d) for d in kind.shape]
    return helper.make_tensor_type_proto(element_type(kind.dtype), shape)
