"""Reads a model file and its external data, both untrusted."""

from __future__ import annotations

import mmap
import os
import re
import weakref
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import inliner

from qir.errors import InputError
from qir.ir.dtype import STRING
from qir.ir.lazy_arrays import ArrayData, LazyArray, file_array
from qir.ir.lazy_arrays import is_small as few_elements
from qir.ir.types import Array, TensorType
from qir.profiles import lazy_unpack
from qir.records import record

from .calls import OLDEST_OPSET, specialize_calls
from .elements import SparseBudget, check_size, dtype_of_number, stored_size, to_array
from .faults import input_error
from .file_damage import locate_damage
from .functions import QIR_DOMAIN, QuantFunction, inlined_size, quant_functions
from .wire import split_message

_MAX_FILE_BYTES = (1 << 31) - 1
LAZY_FILE_BYTES = 64 << 20
"""From this size on, tensors of a model file are read from disk when they are needed."""
_SPLIT_FILE_BYTES = 1 << 20
"""From this size on, large tensors are left out of the message that protobuf parses."""
_MAX_INLINED_NODES = 1 << 20
"""Operators of a model whose functions are inlined, at most."""


@record
class LargeTensor:
    """A tensor whose data were left out of the parsed message; its bytes in the file."""

    proto: onnx.TensorProto
    offset: int
    size: int


class OpenModelFile:
    """A large model file that stays open, so that parts of its tensors can be read later.

    It may be renamed or deleted meanwhile; reads raise InputError after a write to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._state = self._size_and_mtime()

    def _size_and_mtime(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Returns the bytes from offset `start` to offset `stop`."""
        data = np.empty(stop - start, np.uint8)
        filled = 0
        # `preadv` may return fewer bytes than asked for, at most 2 GiB on Linux.
        while filled < data.size:
            count = os.preadv(self._file, [data[filled:].data], start + filled)
            if not count:
                break
            filled += count
        if filled < data.size or self._size_and_mtime() != self._state:
            raise input_error(self.path, "", "was changed after it was read; load it again")
        return data

    def array(self, tensor: LargeTensor, name: str) -> Array:
        """Returns a tensor, read lazily; raises ValueError if its size and shape do not agree."""
        proto, dtype = tensor.proto, dtype_of_number(tensor.proto.data_type)
        shape, is_packed = tuple(proto.dims), dtype.bits in (2, 4)
        # Element types that NumPy holds in a wider one are decoded, so cannot be read in place.
        is_wide = not is_packed and dtype.carrier.itemsize * 8 != dtype.bits
        if few_elements(shape) or is_wide or proto.HasField("segment"):
            return _read_large_tensor(tensor, self.path, name)
        check_size(dtype, shape, tensor.size)
        if is_packed:
            lazy = self._lazy_array((tensor.size,), np.dtype(np.uint8), tensor.offset)
            return Array(lazy_unpack(lazy, dtype, shape), TensorType(shape, dtype), name)
        return Array(
            self._lazy_array(shape, dtype.carrier, tensor.offset), TensorType(shape, dtype), name
        )

    def _lazy_array(
        self, shape: tuple[int, ...], carrier: np.dtype[np.generic], start: int
    ) -> LazyArray:
        size = carrier.itemsize

        def read(first: int, last: int) -> NDArray[np.generic]:
            return self.read(start + first * size, start + last * size).view(carrier)

        return LazyArray(shape, carrier, None, None, read, is_stored=True)


StoredTensor: TypeAlias = "onnx.TensorProto | LargeTensor | Array"


@record
class ModelFile:
    """A parsed model, its path, and the version of each operator set that it imports."""

    path: Path
    proto: onnx.ModelProto
    opsets: dict[str, int]
    data_spans: Mapping[int, tuple[int, int]]
    """Offset and size of the data of large initializers, by index; the message lacks them."""
    quant_functions: Mapping[str, QuantFunction]
    """Local functions that stand for quantize and dequantize (`functions.py`)."""
    sparse_budget: SparseBudget = field(default_factory=SparseBudget)
    inlined_functions: tuple[str, ...] = ()
    """Names of the other functions, which were inlined."""
    open_file: OpenModelFile | None = None
    """The open file, if it is so large that its tensors are read lazily."""

    def initializers(self) -> list[StoredTensor]:
        """Returns the initializers of the model's graph, in order."""
        spans = self.data_spans
        tensors = enumerate(self.proto.graph.initializer)
        return [LargeTensor(tensor, *spans[i]) if i in spans else tensor for i, tensor in tensors]

    def array(self, tensor: onnx.TensorProto | LargeTensor, name: str) -> Array:
        """Returns a tensor, from the model file or from external data.

        Raises InputError if its data are missing or do not fit.
        """
        place = f"tensor {name or '(no name)'}"
        try:
            if isinstance(tensor, LargeTensor) and self.open_file is not None:
                return self.open_file.array(tensor, name)
            if isinstance(tensor, LargeTensor):
                return _read_large_tensor(tensor, self.path, name)
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                return _read_external_tensor(tensor, self.path.parent, name)
            return to_array(tensor, name)
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise input_error(self.path, place, str(error) or type(error).__name__) from error
        except OSError as error:
            raise input_error(self.path, place, error.strerror or "cannot be read") from error


def read_model(path: Path) -> ModelFile:
    """Reads a model file and inlines its functions; raises InputError if it is no ONNX model."""
    data, data_spans = _read_message(path)
    open_file = (
        OpenModelFile(path) if data_spans and path.stat().st_size >= LAZY_FILE_BYTES else None
    )
    proto = _parse(path, data)
    graph = proto.graph
    if not proto.HasField("graph") or not (graph.output or graph.node or graph.name):
        raise input_error(path, "", "is no ONNX model: it holds no graph")
    quant_functions_by_name = quant_functions(proto.functions)
    inlined = tuple(
        f.name
        for f in proto.functions
        if f.domain != QIR_DOMAIN or f.name not in quant_functions_by_name
    )
    # Checked before, since the copies of each call multiply what is inlined, and after.
    if inlined:
        _opsets(path, proto)
        _check_inlined_size(path, proto, quant_functions_by_name)
        try:
            specialize_calls(proto, quant_functions_by_name, _MAX_FILE_BYTES)
            _check_inlined_size(path, proto, quant_functions_by_name)
            not_inlined = [(QIR_DOMAIN, name) for name in quant_functions_by_name]
            proto = inliner.inline_selected_functions(proto, not_inlined, exclude=True)
        except InputError:
            raise
        except Exception as error:  # whatever the library raises, the file is at fault
            reason = "a text in them is not UTF-8" if isinstance(error, UnicodeError) else error
            raise input_error(path, "functions", f"cannot be written out: {reason}") from error
    opsets = _opsets(path, proto)
    return ModelFile(
        path,
        proto,
        opsets,
        data_spans,
        quant_functions_by_name,
        inlined_functions=inlined,
        open_file=open_file,
    )


def parse_if_external_data(path: Path) -> onnx.ModelProto | None:
    """Returns the model without its large tensors if it may name external data, else None."""
    data, _ = _read_message(path)
    # `location` is a key of each external_data entry. Without it, parsing can be left out.
    return _parse(path, data) if b"location" in data else None


def _check_inlined_size(
    path: Path, proto: onnx.ModelProto, quant_functions_by_name: Mapping[str, QuantFunction]
) -> None:
    count, size = inlined_size(proto, quant_functions_by_name)
    if count > _MAX_INLINED_NODES or size > _MAX_FILE_BYTES:
        message = f"written out they are {count} operators of {size} bytes"
        raise input_error(path, "functions", f"{message}; {_MAX_INLINED_NODES} of 2 GiB are read")


def _read_message(path: Path) -> tuple[bytes, Mapping[int, tuple[int, int]]]:
    """Returns the bytes to parse, and the spans of the tensor data that they lack."""
    try:
        if path.is_dir():
            raise input_error(path, "", "is a folder; name a file")
        if not path.exists():
            raise input_error(path, "", "does not exist")
        if (size := path.stat().st_size) > _MAX_FILE_BYTES:
            raise input_error(path, "", f"holds {size} bytes; an ONNX file ends at 2 GiB")
        if not path.is_file():  # a pipe or a device, which may never end
            return _read_pipe(path), {}
        if size >= _SPLIT_FILE_BYTES and (split := split_message(path)) is not None:
            return split.message, split.data_spans
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise input_error(path, "", f"cannot be read: {reason}") from error
    if not data:
        raise input_error(path, "", "is empty")
    return data, {}


def _read_pipe(path: Path) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(_MAX_FILE_BYTES + 1)
    if not data or len(data) > _MAX_FILE_BYTES:
        raise input_error(
            path, "", "does not end before 2 GiB, as an ONNX file does" if data else "is empty"
        )
    return data


def _parse(path: Path, data: bytes) -> onnx.ModelProto:
    try:
        return onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's own error, which is not onnx's to import
        raise input_error(path, *_locate_damage(path, data)) from error


def _locate_damage(path: Path, data: bytes) -> tuple[str, str]:
    """Returns the damaged field and what is wrong, by the file itself rather than the message."""
    if not path.is_file() or not data:
        return locate_damage(data)
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        return locate_damage(mapped)


def _opsets(path: Path, proto: onnx.ModelProto) -> dict[str, int]:
    newest = onnx.defs.onnx_opset_version()
    opsets: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise input_error(
                path, "opset_import", f"two versions of domain {domain or 'ai.onnx'!r}"
            )
        if entry.version > _MAX_FILE_BYTES or entry.version < 1:
            raise input_error(
                path, "opset_import", f"version {entry.version} of {domain or 'ai.onnx'!r}"
            )
    if not opsets:
        raise input_error(path, "opset_import", "names no operator set")
    if "" in opsets and not OLDEST_OPSET <= opsets[""] <= newest:
        raise input_error(path, "", f"uses opset {opsets['']}; {OLDEST_OPSET} to {newest} are read")
    return opsets


def _read_large_tensor(tensor: LargeTensor, path: Path, name: str) -> Array:
    """Returns a large tensor of the file, read directly into its array."""
    proto, size = tensor.proto, tensor.size
    dtype, shape = dtype_of_number(proto.data_type), tuple(proto.dims)
    is_packed = dtype.bits in (2, 4) and not few_elements(shape)
    if not (is_packed or dtype.carrier.itemsize * 8 == dtype.bits) or proto.HasField("segment"):
        with path.open("rb") as stream:
            stream.seek(tensor.offset)
            complete = onnx.TensorProto()
            complete.CopyFrom(proto)
            complete.raw_data = stream.read(size)
        return to_array(complete, name)
    check_size(dtype, shape, size)
    read = np.fromfile(path, np.uint8, size, offset=tensor.offset)
    if read.size != size:
        raise ValueError("the file was changed while it was read")
    read.flags.writeable = False
    if is_packed:
        return Array(lazy_unpack(read, dtype, shape), TensorType(shape, dtype), name)
    return Array(read.view(dtype.carrier).reshape(shape), TensorType(shape, dtype), name)


def _read_external_tensor(tensor: onnx.TensorProto, folder: Path, name: str) -> Array:
    """Returns a tensor of an external data file, memory-mapped: pages are loaded on access."""
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    file = resolve_external_path(folder, location)
    dtype, shape = dtype_of_number(tensor.data_type), tuple(tensor.dims)
    if dtype == STRING:
        raise ValueError(f"its texts are at {location!r}; texts are held in the model itself")
    offset = _byte_count(entries, "offset", 0)
    length = _byte_count(entries, "length", stored_size(dtype, shape))
    if length != stored_size(dtype, shape) and not length:  # onnxruntime reads it whole
        message = f"{list(shape)} of {dtype} takes {stored_size(dtype, shape)} bytes"
        raise ValueError(f"its length is 0, where {message}; state that, or none")
    file_size = file.stat().st_size
    if offset + length > file_size:
        raise ValueError(
            f"bytes {offset} to {offset + length} of {location!r}, which holds {file_size}"
        )
    size = dtype.carrier.itemsize
    check_size(dtype, shape, length)
    is_packed = dtype.bits in (2, 4) and not few_elements(shape)
    data: ArrayData
    # A memory map cannot be empty.
    if length and (is_packed or dtype.bits >= 8):
        mapped = np.asarray(np.memmap(file, np.uint8, "r", offset, (length,)))
        if is_packed:
            data = lazy_unpack(mapped, dtype, shape)
        elif offset % size == 0:
            data = mapped.view(dtype.carrier).reshape(shape)
        else:
            # The array is not aligned: it is read through a copy where a kernel needs its elements.
            data = file_array(np.ndarray(shape, dtype.carrier, mapped))
        return Array(data, TensorType(shape, dtype), name)
    with file.open("rb") as stream:
        stream.seek(offset)
        data_read = stream.read(length)
    tensor_with_data = onnx.TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims
    )
    tensor_with_data.raw_data = data_read
    return to_array(tensor_with_data, name)


def _byte_count(entries: Mapping[str, str], key: str, default: int) -> int:
    """Returns an `offset` or `length` of external data; raises ValueError for no byte count."""
    stated = entries.get(key)
    if stated is None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,40}", stated):
        raise ValueError(f"its {key} {stated[:40]!r} is no number of bytes that a file has")
    if int(stated) < 0:
        raise ValueError(f"its {key} is {int(stated)}, below 0")
    return int(stated)


def resolve_external_path(folder: Path, location: str) -> Path:
    """Returns the path of an external data file.

    Models are untrusted. ValueError for absolute paths, `..`, links that lead out of the model's
    folder, hard links, devices and pipes, by which a model could read other files of the system.
    """
    parts = PurePosixPath(location.replace("\\", "/"))
    if not location or "\0" in location or parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"its data are at {location!r}, which is not inside the model's folder")
    # On Windows a backslash separates folders: the same file would be another one there.
    if "\\" in location:
        raise ValueError(f"its data are at {location!r}; folders in a model's paths end in '/'")
    root = folder.resolve()
    try:
        file = (root / parts).resolve()
    except (OSError, RuntimeError) as error:  # links in a circle, names that are too long
        raise ValueError(f"its data at {location!r} cannot be found: no such path") from error
    if not file.is_relative_to(root):
        raise ValueError(f"its data at {location!r} lead out of the model's folder")
    if file.is_dir() or location.rpartition("/")[2] in ("", "."):
        raise ValueError(f"its data are at {location!r}, which is a folder; name a file")
    if not file.exists():
        raise ValueError(f"its data file {location!r} is not there")
    if not file.is_file():
        raise ValueError(
            f"its data are at {location!r}, which is no regular file but a pipe or such"
        )
    if file.stat().st_nlink > 1:  # a hard link may be any file of the system
        raise ValueError(f"its data file {location!r} has another name (a hard link); copy it")
    return file
