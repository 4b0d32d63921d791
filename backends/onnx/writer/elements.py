"""Converts element types, arrays and types to ONNX."""

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

_NAMES = (
    "f32 u8 i8 u16 i16 i32 i64 string bool f16 f64 u32 u64 - - bf16 f8e4m3fn f8e4m3fnuz f8e5m2 "
    "f8e5m2fnuz u4 i4 f4e2m1fn f8e8m0 u2 i2 f6e2m3fn f6e3m2fn"
).split()
NUMBERS = {name: number for number, name in enumerate(_NAMES, 1) if name != "-"}
"""ONNX's numbers by element type."""


STORED = frozenset(
    "u8 i8 u16 i16 i32 i4 u4 i2 u2 f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz f4e2m1fn".split()
)
"""Quantized values that QuantizeLinear makes and DequantizeLinear reads."""
_SINCE = {"u16": 21, "i16": 21, "i4": 21, "u4": 21, "f4e2m1fn": 23, "i2": 25, "u2": 25}
_VERSIONS = {"i4": 10, "u4": 10, "f4e2m1fn": 11, "f8e8m0": 12, "i2": 13, "u2": 13}


def since(kind: DType) -> int:
    """Returns the first operator set whose QuantizeLinear makes such quantized values."""
    return _SINCE.get(kind.name, 19 if kind.is_float and kind.bits == 8 else 0)


def ir_version(kind: DType) -> int:
    """Returns the first version of the format that has such elements."""
    return _VERSIONS.get(kind.name, 0)


def number(kind: DType) -> int:
    """ONNX's number of an element type, of what holds it for quantized values of other widths.

    LookupError if it has none.
    """
    if kind.name not in NUMBERS and kind.is_integer:
        return NUMBERS[dtype_of(np.empty(0, kind.carrier)).name]
    return NUMBERS[kind.name]


def tensor(array: Array, name: str) -> onnx.TensorProto:
    """Returns an array; quantized values are plain numbers there."""
    kind = array.type.dtype
    if kind.name == "string":
        out = onnx.TensorProto(name=name, data_type=number(kind), dims=array.contents.shape)
        for item in array.data.reshape(-1).tolist():
            out.string_data.append(item if isinstance(item, bytes) else str(item).encode())
        return out
    if kind.bits < 8 and kind.name != "bool" and kind.name in NUMBERS:
        codes = array.data.reshape(-1).astype(np.float64)
        return helper.make_tensor(name, number(kind), array.contents.shape, codes)
    return raw(array.data, number(kind), name)


UNKNOWN = 'opaque<"?[...]">'
"""A tensor of which neither rank nor elements are known."""
LARGE = 1 << 14
"""So many bytes are written from where they are; fewer are in the message."""


def is_large(array: Array) -> bool:
    """Returns whether its elements are in a file as bytes, and are many."""
    kind = array.type.dtype
    apart = kind.name == "string" or (_few(kind) and 8 % kind.bits != 0)
    return not apart and stored_size(array) >= LARGE


def _few(kind: DType) -> bool:
    """Returns whether a byte of a file holds several quantized values."""
    return kind.bits < 8 and kind.name != "bool" and kind.name in NUMBERS


def stored_size(array: Array) -> int:
    """Returns how many bytes elements take in a file."""
    kind = array.type.dtype
    return -(-array.contents.size * kind.bits // 8) if _few(kind) else array.contents.nbytes


def head(array: Array, name: str) -> onnx.TensorProto:
    """Returns an array's name, type and shape, without its elements."""
    kind = number(array.type.dtype)
    return onnx.TensorProto(name=name, data_type=kind, dims=array.contents.shape)


def content(array: Array) -> Iterator[memoryview]:
    """Yields the bytes of elements in the order of files, run by run and without a copy of the
    whole."""
    kind = array.type.dtype
    if _few(kind):
        for packed in iter_packed(array.contents, kind):
            yield packed.data
        return
    for piece in iter_pieces(array.contents):
        little = piece.astype(piece.dtype.newbyteorder("<"), copy=False)
        yield little.reshape(-1).view(np.uint8).data


def raw(data: NDArray[np.generic], kind: int, name: str) -> onnx.TensorProto:
    """Returns a tensor of whole bytes."""
    out = onnx.TensorProto(name=name, data_type=kind, dims=data.shape)
    little = data.astype(data.dtype.newbyteorder("<"), copy=False)
    out.raw_data = np.ascontiguousarray(little).tobytes()
    return out


def type_proto(kind: TensorType) -> onnx.TypeProto:
    """Returns a type; composed dimensions are written as their expression."""
    if kind.dtype.name == UNKNOWN:
        return onnx.TypeProto()
    if kind.dtype.is_opaque:
        said = kind.dtype.opaque_text.replace("[]", "").replace("[...]", "[]")
        text = f"g ({said} x) => () {{}}"
        found: onnx.TypeProto = onnx.parser.parse_graph(text).input[0].type
        return found
    shape = [d if d is None or isinstance(d, int) else str(d) for d in kind.shape]
    return helper.make_tensor_type_proto(number(kind.dtype), shape)
