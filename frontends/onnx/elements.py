"""ONNX's element types, tensors and value types in the language's terms."""

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

_NAMES = (
    "f32 u8 i8 u16 i16 i32 i64 string bool f16 f64 u32 u64 - - bf16 f8e4m3fn f8e4m3fnuz f8e5m2 "
    "f8e5m2fnuz u4 i4 f4e2m1fn f8e8m0 u2 i2 f6e2m3fn f6e3m2fn"
).split()
ELEMENTS: dict[int, DType] = {i: dtype(n) for i, n in enumerate(_NAMES, 1) if n != "-"}
"""Element types by ONNX's numbers; complex numbers have none."""

NUMBERS = {kind.name: number for number, kind in ELEMENTS.items()}
FLOATS = frozenset(kind.name for kind in ELEMENTS.values() if kind.is_float)
LITTLE = sys.byteorder == "little"
"""Whether numbers are in memory as they are in files."""


def element(number: int) -> DType:
    """Returns the element type of that number; raises ValueError if there is none."""
    if number not in ELEMENTS:
        raise ValueError(f"element type {number} is unknown here")
    return ELEMENTS[number]


def to_array(tensor: onnx.TensorProto, name: str = "") -> Array:
    """Returns the elements of a tensor; raises ValueError where sizes and data do not agree."""
    kind = element(tensor.data_type)
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise ValueError(f"shape {list(shape)} has a negative size")
    if tensor.HasField("segment"):
        raise ValueError("it is stored in segments")
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data
        check_size(kind, shape, len(raw))
        if raw and kind.name in _NATIVE:
            data: NDArray[np.generic] = np.frombuffer(raw, kind.carrier).reshape(shape)
            if len(raw) == 1:
                data = data.copy()  # Python has each text of one byte once, whoever it is from
            return Array(data, _plain(shape, tensor.data_type), name)
    return Array(_elements(tensor, kind, shape), _plain(shape, tensor.data_type), name)


_NATIVE = frozenset("bool u8 i8 u16 i16 u32 i32 u64 i64 f16 f32 f64".split() * LITTLE)
"""Element types whose bytes in a file are those that NumPy has."""


@lru_cache(4096)
def _plain(shape: tuple[int, ...], number: int) -> TensorType:
    """Returns the type of a tensor; one object for all that are alike."""
    return TensorType(shape, ELEMENTS[number])


def check_size(kind: DType, shape: tuple[int, ...], held: int) -> None:
    """Raises ValueError where so many bytes are not the elements of that shape."""
    wanted = stored_size(kind, shape)
    if kind.name == "string" or held != wanted:
        raise ValueError(f"{list(shape)} of {kind} takes {wanted} bytes, it holds {held}")


def stored_size(kind: DType, shape: tuple[int, ...]) -> int:
    """Returns how many bytes the elements of a shape take in a file; raises ValueError for a
    negative size."""
    if any(d < 0 for d in shape):
        raise ValueError(f"shape {list(shape)} has a negative size")
    size = math.prod(shape)
    if kind.name == "bool":
        return size
    return -(-size * kind.bits // 8) if kind.bits < 8 else size * max(kind.bits // 8, 1)


class Room:
    """What sparse tensors of a file may take together once their zeros are there."""

    most = 1 << 26

    def __init__(self) -> None:
        self.left = self.most

    def take(self, shape: tuple[int, ...], kind: DType) -> None:
        """Raises ValueError where a tensor of that shape is one too many."""
        size = math.prod(shape) * kind.carrier.itemsize
        if any(d < 0 for d in shape) or size > self.left:
            said = f"sparse, of shape {list(shape)}"
            raise ValueError(
                f"{said}; with their zeros all such tensors may take {self.most} bytes"
            )
        self.left -= size


def dense(shape: tuple[int, ...], values: Array, indices: Array, name: str) -> Array:
    """Returns a sparse tensor with its zeros; raises ValueError where indices and values do not fit
    the shape."""
    size = math.prod(shape)
    if values.data.ndim != 1 or indices.data.shape[:1] != values.data.shape:
        raise ValueError(f"{values.type} at indices {indices.type}")
    at = indices.data.astype(np.int64)
    if at.ndim == 2 and at.shape[1] == len(shape):
        limits = np.array(shape, np.int64)
        inside = bool(((at >= 0) & (at < limits)).all())
        places = at @ np.array([math.prod(shape[i + 1 :]) for i in range(len(shape))], np.int64)
    else:
        inside = at.ndim == 1 and bool(((at >= 0) & (at < size)).all())
        places = at
    if not inside:
        raise ValueError(f"sparse, with indices outside {list(shape)}")
    data = np.zeros(size, values.data.dtype)
    data[places] = values.data
    return Array(data.reshape(shape), TensorType(shape, values.type.dtype), name)


def text_of(item: bytes) -> str | bytes:
    """Returns a text as runs are given it; what is none stays bytes, and is written back as they
    are."""
    try:
        return item.decode()
    except UnicodeDecodeError:
        return item


def _elements(tensor: onnx.TensorProto, kind: DType, shape: tuple[int, ...]) -> NDArray[np.generic]:
    if kind.name == "string":
        if len(tensor.string_data) != math.prod(shape):
            raise ValueError(f"{list(shape)} of string, it holds {len(tensor.string_data)}")
        text = np.empty(len(tensor.string_data), object)
        text[:] = [text_of(item) for item in tensor.string_data]
        return text.reshape(shape)
    try:
        data: NDArray[np.generic] = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"its data do not make up {list(shape)} of {kind}") from error
    if data.shape != shape:
        raise ValueError(f"{list(shape)}, it holds {list(data.shape)}")
    return data.astype(kind.carrier) if data.dtype != kind.carrier else data


_WORDS = {number: name.lower() for name, number in onnx.TensorProto.DataType.items() if number}
"""Element types as ONNX's text form has them."""
_LONGEST = 1000
UNKNOWN = 'opaque<"?[...]">'
"""A tensor of which neither rank nor elements are known."""


class Dimensions:
    """Gives sizes their form; names that are no identifiers get one, each its own."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._counts: Counter[str] = Counter()
        self.loose = False
        """Whether there is a tensor of unknown rank."""

    def read(self, dim: onnx.TensorShapeProto.Dimension) -> Dim:
        """Returns one size; None for an open one, which old exporters write as -1.

        Raises ValueError for another negative size.
        """
        match dim.WhichOneof("value"):
            case "dim_value" if dim.dim_value == -1:  # as onnxruntime reads it
                return None
            case "dim_value":
                if dim.dim_value < 0:
                    raise ValueError(f"a size of {dim.dim_value}")
                return dim.dim_value
            case "dim_param" if dim.dim_param and not dim.dim_param.startswith("unk__"):
                return symbol(self._name(dim.dim_param))
        return None

    def _name(self, given: str) -> str:
        if given not in self.names:
            base = re.sub(r"\W", "_", given, flags=re.ASCII)
            base = base if re.match(r"[A-Za-z_]", base) else f"_{base}"
            name = base
            while name in self._taken:
                self._counts[base] += 1
                name = f"{base}_{self._counts[base]}"
            self._taken.add(name)
            self.names[given] = name
        return self.names[given]

    def tensor_type(self, proto: onnx.TypeProto) -> TensorType | None:
        """Returns the type, or None where element type or rank is not said.

        Sequences, optional values and maps are opaque.
        """
        if proto.WhichOneof("value") != "tensor_type":
            said = self._opaque(proto)
            return TensorType((), opaque(said)) if said and len(said) <= _LONGEST else None
        tensor = proto.tensor_type
        if not tensor.elem_type or not tensor.HasField("shape"):
            return None
        kind = element(tensor.elem_type)
        return TensorType(tuple(self.read(d) for d in tensor.shape.dim), kind)

    def loose_type(self, proto: onnx.TypeProto | None = None) -> TensorType:
        """Returns the type of a tensor of which the rank is not said, and perhaps no element
        type."""
        kind = None if proto is None else self.tensor_type(proto)
        if kind is not None:
            return kind
        self.loose = True
        number = 0 if proto is None else proto.tensor_type.elem_type
        return TensorType((), opaque(f"{_WORDS.get(number, '?')}[...]"))

    def _opaque(self, proto: onnx.TypeProto) -> str:
        """Returns a type nearly as ONNX's text form has it; empty where the file does not say all
        of it.

        That one has nothing after what has no axes, and `[]` where they are unknown.
        """
        match proto.WhichOneof("value"):
            case "tensor_type":
                return self._tensor(proto.tensor_type)
            case "sequence_type":
                inner = self._opaque(proto.sequence_type.elem_type)
                return inner and f"seq({inner})"
            case "optional_type":
                inner = self._opaque(proto.optional_type.elem_type)
                return inner and f"optional({inner})"
            case "map_type":
                inner = self._opaque(proto.map_type.value_type)
                key = _WORDS.get(proto.map_type.key_type)
                return f"map({key}, {inner})" if key and inner else ""
        return ""

    def _tensor(self, proto: onnx.TypeProto.Tensor) -> str:
        word = _WORDS.get(proto.elem_type, "")
        if not word or not proto.HasField("shape"):
            return word and f"{word}[...]"
        sizes = (self.read(d) for d in proto.shape.dim)
        text = ",".join("?" if d is None else str(d) for d in sizes)
        return f"{word}[{text}]"


def type_proto(kind: TensorType) -> onnx.TypeProto:
    """Returns the type in ONNX's form; quantized values are plain numbers there."""
    if kind.dtype.name == UNKNOWN:
        return onnx.TypeProto()
    if kind.dtype.is_opaque:
        said = kind.dtype.opaque_text.replace("[]", "").replace("[...]", "[]")
        text = f"g ({said} x) => () {{}}"
        found: onnx.TypeProto = onnx.parser.parse_graph(text).input[0].type
        return found
    shape = [d if d is None or isinstance(d, int) else str(d) for d in kind.shape]
    return onnx.helper.make_tensor_type_proto(_number(kind.dtype), shape)


def _number(kind: DType) -> int:
    """ONNX's number of a type, of what carries it where ONNX has none of that width."""
    return NUMBERS.get(kind.name) or NUMBERS[dtype_of(np.empty(0, kind.carrier)).name]


def tensor_proto(array: Array, name: str = "") -> onnx.TensorProto:
    """Returns the tensor in ONNX's form."""
    kind, data = array.type.dtype, array.data
    number = _number(kind)
    out = onnx.TensorProto(name=name, data_type=number, dims=data.shape)
    if kind.name == "string":  # the library takes no bytes that are not ASCII
        texts = data.reshape(-1).tolist()
        out.string_data.extend(t if isinstance(t, bytes) else str(t).encode() for t in texts)
        return out
    if kind.bits < 8 and kind.name != "bool":
        return onnx.helper.make_tensor(name, number, data.shape, data.reshape(-1).tolist())
    out.raw_data = np.ascontiguousarray(data).tobytes()
    return out
