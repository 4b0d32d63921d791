"""Converts ONNX's element types, tensors and value types to the language's, and back."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from functools import lru_cache

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from qir.ir.dims import Dim, symbol
from qir.ir.dtype import DType, dtype, dtype_of, opaque
from qir.ir.types import Array, TensorType

_DTYPE_NAMES = (
    "f32 u8 i8 u16 i16 i32 i64 string bool f16 f64 u32 u64 - - bf16 f8e4m3fn f8e4m3fnuz f8e5m2 "
    "f8e5m2fnuz u4 i4 f4e2m1fn f8e8m0 u2 i2 f6e2m3fn f6e3m2fn"
).split()
ELEMENTS: dict[int, DType] = {i: dtype(n) for i, n in enumerate(_DTYPE_NAMES, 1) if n != "-"}
"""Element types by `TensorProto.DataType`; complex numbers are not supported."""

ONNX_NUMBERS = {kind.name: number for number, kind in ELEMENTS.items()}
FLOATS = frozenset(kind.name for kind in ELEMENTS.values() if kind.is_float)
IS_LITTLE_ENDIAN = sys.byteorder == "little"
"""Whether this machine's byte order is that of ONNX files, little endian."""


def dtype_of_number(number: int) -> DType:
    """Returns the element type of a `TensorProto.DataType`.

    Raises ValueError for an unknown one.
    """
    if number not in ELEMENTS:
        raise ValueError(f"element type {number} is unknown here")
    return ELEMENTS[number]


def to_array(tensor: onnx.TensorProto, name: str = "") -> Array:
    """Returns a tensor of a message; raises ValueError where shape and data do not agree."""
    kind = dtype_of_number(tensor.data_type)
    shape = tuple(tensor.dims)
    if shape and min(shape) < 0:
        raise ValueError(f"shape {list(shape)} has a negative size")
    if tensor.HasField("segment"):
        raise ValueError("it is stored in segments")
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data
        check_size(kind, shape, len(raw))
        if raw and kind.name in _NATIVE:
            data: NDArray[np.generic] = np.frombuffer(raw, kind.carrier).reshape(shape)
            if len(raw) == 1:
                # Python keeps one object for each bytes of length 1. Distinct tensors would share
                # memory,
                # and constants that share memory are taken for one tensor.
                data = data.copy()
            return Array(data, _tensor_type(shape, tensor.data_type), name)
    decoded = _decoded_elements(tensor, kind, shape)
    decoded.flags.writeable = False  # nobody else has it, so that it need not be copied
    return Array(decoded, _tensor_type(shape, tensor.data_type), name)


_NATIVE = frozenset("bool u8 i8 u16 i16 u32 i32 u64 i64 f16 f32 f64".split() * IS_LITTLE_ENDIAN)
"""Element types whose bytes in a file are NumPy's, so that no conversion is needed."""


@lru_cache(4096)
def _tensor_type(shape: tuple[int, ...], number: int) -> TensorType:
    """Returns the type of a tensor; cached, so that equal types are one object."""
    return TensorType(shape, ELEMENTS[number])


def check_size(element_type: DType, shape: tuple[int, ...], stored_bytes: int) -> None:
    """Raises ValueError unless `stored_bytes` are exactly the elements of that shape."""
    needed_bytes = stored_size(element_type, shape)
    if element_type.name == "string" or stored_bytes != needed_bytes:
        raise ValueError(
            f"{list(shape)} of {element_type} takes {needed_bytes} bytes, it holds {stored_bytes}"
        )


def stored_size(kind: DType, shape: tuple[int, ...]) -> int:
    """Returns the bytes that elements of a shape take in a file.

    Raises ValueError for a negative size.
    """
    if shape and min(shape) < 0:
        raise ValueError(f"shape {list(shape)} has a negative size")
    size = math.prod(shape)
    if kind.name == "bool":
        return size
    # Elements narrower than a byte are packed; the last byte may be padded.
    return -(-size * kind.bits // 8) if kind.bits < 8 else size * max(kind.bits // 8, 1)


class SparseBudget:
    """The memory that all sparse tensors of a file may take once they are dense.

    A few bytes of a file may ask for a dense tensor of any size.
    """

    limit = 1 << 26

    def __init__(self) -> None:
        self.bytes_left = self.limit

    def reserve(self, shape: tuple[int, ...], element_type: DType) -> None:
        """Accounts for a dense tensor; raises ValueError where the limit is exceeded."""
        size = math.prod(shape) * element_type.carrier.itemsize
        if any(d < 0 for d in shape) or size > self.bytes_left:
            message = f"sparse, of shape {list(shape)}"
            raise ValueError(
                f"{message}; with their zeros all such tensors may take {self.limit} bytes"
            )
        self.bytes_left -= size


def dense_array(shape: tuple[int, ...], values: Array, indices: Array, name: str) -> Array:
    """Returns a sparse tensor as a dense one.

    Raises ValueError where indices or values do not fit the shape.
    """
    size = math.prod(shape)
    if values.data.ndim != 1 or indices.data.shape[:1] != values.data.shape:
        raise ValueError(f"{values.type} at indices {indices.type}")
    positions = indices.data.astype(np.int64)
    if positions.ndim == 2 and positions.shape[1] == len(shape):
        limits = np.array(shape, np.int64)
        are_inside = bool(((positions >= 0) & (positions < limits)).all())
        # Row-major strides turn indices of each axis into positions in the flat array.
        flat_positions = positions @ np.array(
            [math.prod(shape[i + 1 :]) for i in range(len(shape))], np.int64
        )
    else:
        are_inside = positions.ndim == 1 and bool(((positions >= 0) & (positions < size)).all())
        flat_positions = positions
    if not are_inside:
        raise ValueError(f"sparse, with indices outside {list(shape)}")
    data = np.zeros(size, values.data.dtype)
    data[flat_positions] = values.data
    return Array(data.reshape(shape), TensorType(shape, values.type.dtype), name)


def decoded_text(item: bytes) -> str | bytes:
    """Returns a string element as text; bytes that are not UTF-8 stay bytes, to be written back."""
    try:
        return item.decode()
    except UnicodeDecodeError:
        return item


_LISTED: dict[str, tuple[str, type[np.generic]]] = {
    "f32": ("float_data", np.float32),
    "i64": ("int64_data", np.int64),
    **dict.fromkeys(("i8", "u8", "i16", "u16", "i32"), ("int32_data", np.int32)),
}
"""The field of a message that lists numbers of an element type one by one, and their type there."""


def _decoded_elements(
    tensor: onnx.TensorProto, kind: DType, shape: tuple[int, ...]
) -> NDArray[np.generic]:
    if kind.name == "string":
        if len(tensor.string_data) != math.prod(shape):
            raise ValueError(f"{list(shape)} of string, it holds {len(tensor.string_data)}")
        text = np.empty(len(tensor.string_data), object)
        text[:] = [decoded_text(item) for item in tensor.string_data]
        return text.reshape(shape)
    if kind.name in _LISTED:
        name, stored = _LISTED[kind.name]
        items = getattr(tensor, name)
        # ONNX's helper takes ten times as long for one number; it says what is wrong with others.
        if len(items) == math.prod(shape):
            return np.array(items, stored).reshape(shape).astype(kind.carrier, copy=False)
    try:
        data: NDArray[np.generic] = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"its data do not make up {list(shape)} of {kind}") from error
    if data.shape != shape:
        raise ValueError(f"{list(shape)}, it holds {list(data.shape)}")
    # The carrier of an element type may differ from what ONNX's helper returns.
    return data.astype(kind.carrier) if data.dtype != kind.carrier else data


_TEXT_FORM_NAMES = {
    number: name.lower() for name, number in onnx.TensorProto.DataType.items() if number
}
"""Element types by their names in ONNX's text form."""
_MAX_OPAQUE_TEXT = 1000
UNKNOWN_TENSOR = 'opaque<"?[...]">'
"""The opaque type of a tensor whose rank and element type are unknown."""


class Dimensions:
    """Converts dimensions; a `dim_param` that is no identifier gets a unique one."""

    def __init__(self) -> None:
        self.symbols: dict[str, str] = {}
        self._used_symbols: set[str] = set()
        self._counts: Counter[str] = Counter()
        self.has_unranked = False
        """Whether the model has a tensor of unknown rank."""

    def size(self, dim: onnx.TensorShapeProto.Dimension) -> Dim:
        """Returns a dimension; None for an open one. Raises ValueError for a negative size.

        Old exporters write an open dimension as -1, and onnxruntime accepts that.
        """
        match dim.WhichOneof("value"):
            case "dim_value" if dim.dim_value == -1:
                return None
            case "dim_value":
                if dim.dim_value < 0:
                    raise ValueError(f"a size of {dim.dim_value}")
                return dim.dim_value
            # onnxruntime's shape inference writes unknown sizes as unk__0, unk__1, ...
            case "dim_param" if dim.dim_param and not dim.dim_param.startswith("unk__"):
                return symbol(self._symbol_of(dim.dim_param))
        return None

    def _symbol_of(self, dim_param: str) -> str:
        if dim_param not in self.symbols:
            base = re.sub(r"\W", "_", dim_param, flags=re.ASCII)
            base = base if re.match(r"[A-Za-z_]", base) else f"_{base}"
            name = base
            while name in self._used_symbols:
                self._counts[base] += 1
                name = f"{base}_{self._counts[base]}"
            self._used_symbols.add(name)
            self.symbols[dim_param] = name
        return self.symbols[dim_param]

    def tensor_type(self, proto: onnx.TypeProto) -> TensorType | None:
        """Returns the type, or None without an element type or a rank.

        Sequences, optional values and maps are opaque types.
        """
        if proto.WhichOneof("value") != "tensor_type":
            text = self._opaque_text(proto)
            return TensorType((), opaque(text)) if text and len(text) <= _MAX_OPAQUE_TEXT else None
        tensor = proto.tensor_type
        if not tensor.elem_type or not tensor.HasField("shape"):
            return None
        kind = dtype_of_number(tensor.elem_type)
        return TensorType(tuple(self.size(d) for d in tensor.shape.dim), kind)

    def unranked_type(self, proto: onnx.TypeProto | None = None) -> TensorType:
        """Returns the type; an opaque one such as `opaque<"float[...]">` if the rank is unknown."""
        kind = None if proto is None else self.tensor_type(proto)
        if kind is not None:
            return kind
        self.has_unranked = True
        number = 0 if proto is None else proto.tensor_type.elem_type
        return TensorType((), opaque(f"{_TEXT_FORM_NAMES.get(number, '?')}[...]"))

    def _opaque_text(self, proto: onnx.TypeProto) -> str:
        """Returns a type in ONNX's text form; empty where the file does not state all of it.

        It differs in two points: scalars have `[]` here, and unknown ranks `[...]` instead of `[]`.
        """
        match proto.WhichOneof("value"):
            case "tensor_type":
                return self._tensor_text(proto.tensor_type)
            case "sequence_type":
                inner = self._opaque_text(proto.sequence_type.elem_type)
                return inner and f"seq({inner})"
            case "optional_type":
                inner = self._opaque_text(proto.optional_type.elem_type)
                return inner and f"optional({inner})"
            case "map_type":
                inner = self._opaque_text(proto.map_type.value_type)
                key = _TEXT_FORM_NAMES.get(proto.map_type.key_type)
                return f"map({key}, {inner})" if key and inner else ""
        return ""

    def _tensor_text(self, proto: onnx.TypeProto.Tensor) -> str:
        element_name = _TEXT_FORM_NAMES.get(proto.elem_type, "")
        if not element_name or not proto.HasField("shape"):
            return element_name and f"{element_name}[...]"
        sizes = (self.size(d) for d in proto.shape.dim)
        text = ",".join("?" if d is None else str(d) for d in sizes)
        return f"{element_name}[{text}]"


def type_proto(kind: TensorType) -> onnx.TypeProto:
    """Returns the type as a TypeProto; quantized values are plain integers there."""
    if kind.dtype.name == UNKNOWN_TENSOR:
        return onnx.TypeProto()
    if kind.dtype.is_opaque:
        text_form = kind.dtype.opaque_text.replace("[]", "").replace("[...]", "[]")
        # ONNX has a parser for types inside graphs only, so the type becomes that of an input.
        text = f"g ({text_form} x) => () {{}}"
        proto: onnx.TypeProto = onnx.parser.parse_graph(text).input[0].type
        return proto
    shape = [d if d is None or isinstance(d, int) else str(d) for d in kind.shape]
    return onnx.helper.make_tensor_type_proto(_onnx_number(kind.dtype), shape)


def _onnx_number(kind: DType) -> int:
    """Returns the `TensorProto.DataType`; that of the carrier for widths that ONNX lacks."""
    return ONNX_NUMBERS.get(kind.name) or ONNX_NUMBERS[dtype_of(np.empty(0, kind.carrier)).name]


def tensor_proto(array: Array, name: str = "") -> onnx.TensorProto:
    """Returns the tensor as a TensorProto."""
    kind, data = array.type.dtype, array.data
    number = _onnx_number(kind)
    proto = onnx.TensorProto(name=name, data_type=number, dims=data.shape)
    if kind.name == "string":  # `onnx.helper` accepts ASCII bytes only
        texts = data.reshape(-1).tolist()
        proto.string_data.extend(t if isinstance(t, bytes) else str(t).encode() for t in texts)
        return proto
    # `make_tensor` packs the elements.
    if kind.bits < 8 and kind.name != "bool":
        return onnx.helper.make_tensor(name, number, data.shape, data.reshape(-1).tolist())
    proto.raw_data = np.ascontiguousarray(data).tobytes()
    return proto
