"""Reads a model file and its external data, both untrusted."""

from __future__ import annotations

import mmap
import os
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
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

from .calls import OLDEST, bind
from .elements import Room, check_size, element, stored_size, to_array
from .faults import fault
from .file_damage import damage
from .functions import DOMAIN, Custom, customs, written_out
from .wire import split

_LIMIT = (1 << 31) - 1
STILL = 64 << 20
"""Files of so many bytes are read part by part as long as somebody needs them."""
_APART = 1 << 20
"""Files of so many bytes are worth reading with their tensors apart."""
_MOST_NODES = 1 << 20
"""Operators that functions may grow to."""


@dataclass(frozen=True, slots=True)
class Large:
    """A tensor of the file whose data are not in the message, but at this place of the file."""

    proto: onnx.TensorProto
    offset: int
    length: int


class Still:
    """A large model file that stays open, and whose tensors are read part by part.

    InputError where somebody writes to it meanwhile; it may be replaced, or taken away.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._state = self._seen()

    def _seen(self) -> tuple[int, int]:
        found = os.fstat(self._file)
        return found.st_size, found.st_mtime_ns

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Returns the bytes from one place to another."""
        out = np.empty(stop - start, np.uint8)
        done = 0
        while done < out.size:
            count = os.preadv(self._file, [out[done:].data], start + done)
            if not count:
                break
            done += count
        if done < out.size or self._seen() != self._state:
            raise fault(self.path, "", "was changed after it was read; load it again")
        return out

    def array(self, tensor: Large, name: str) -> Array:
        """Returns a tensor; raises ValueError where its size is not that of its shape."""
        proto, kind = tensor.proto, element(tensor.proto.data_type)
        shape, few = tuple(proto.dims), kind.bits in (2, 4)
        apart = not few and kind.carrier.itemsize * 8 != kind.bits
        if few_elements(shape) or apart or proto.HasField("segment"):
            return _cut(tensor, self.path, name)
        check_size(kind, shape, tensor.length)
        if few:
            held = self._parts((tensor.length,), np.dtype(np.uint8), tensor.offset)
            return Array(lazy_unpack(held, kind, shape), TensorType(shape, kind), name)
        return Array(self._parts(shape, kind.carrier, tensor.offset), TensorType(shape, kind), name)

    def _parts(
        self, shape: tuple[int, ...], carrier: np.dtype[np.generic], start: int
    ) -> LazyArray:
        size = carrier.itemsize

        def read(first: int, last: int) -> NDArray[np.generic]:
            return self.read(start + first * size, start + last * size).view(carrier)

        return LazyArray(shape, carrier, None, None, read)


Stored: TypeAlias = "onnx.TensorProto | Large | Array"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A parsed model, where it is, and the version of each operator set it names."""

    path: Path
    proto: onnx.ModelProto
    opsets: dict[str, int]
    places: Mapping[int, tuple[int, int]]
    """Where the data of large initializers are in the file, which the message does not hold."""
    customs: Mapping[str, Custom]
    """Functions that stand for maps."""
    room: Room = field(default_factory=Room)
    functions: tuple[str, ...] = ()
    """The others, which were written out."""
    still: Still | None = None
    """The file, where it is so large that its tensors are read when they are asked for."""

    def initializers(self) -> list[Stored]:
        """Returns the tensors of the model's graph, the large ones apart from the message."""
        places = self.places
        found = enumerate(self.proto.graph.initializer)
        return [Large(t, *places[i]) if i in places else t for i, t in found]

    def array(self, tensor: onnx.TensorProto | Large, name: str) -> Array:
        """Returns a tensor's elements, from the file or next to it; raises InputError where they do
        not fit."""
        place = f"tensor {name or '(no name)'}"
        try:
            if isinstance(tensor, Large) and self.still is not None:
                return self.still.array(tensor, name)
            if isinstance(tensor, Large):
                return _cut(tensor, self.path, name)
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                return _fetch(tensor, self.path.parent, name)
            return to_array(tensor, name)
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise fault(self.path, place, str(error) or type(error).__name__) from error
        except OSError as error:
            raise fault(self.path, place, error.strerror or "cannot be read") from error


def read_model(path: Path) -> ModelFile:
    """Reads a model; raises InputError if it is none, naming the file."""
    data, places = _read(path)
    still = Still(path) if places and path.stat().st_size >= STILL else None
    proto = _parse(path, data)
    graph = proto.graph
    if not proto.HasField("graph") or not (graph.output or graph.node or graph.name):
        raise fault(path, "", "is no ONNX model: it holds no graph")
    known = customs(proto.functions)
    others = tuple(f.name for f in proto.functions if f.domain != DOMAIN or f.name not in known)
    if others:
        _opsets(path, proto)
        _bounded(path, proto, known)
        try:
            bind(proto, known, _LIMIT)
            _bounded(path, proto, known)
            kept = [(DOMAIN, name) for name in known]
            proto = inliner.inline_selected_functions(proto, kept, exclude=True)
        except InputError:
            raise
        except Exception as error:  # whatever the library raises, the file is at fault
            said = "a text in them is not UTF-8" if isinstance(error, UnicodeError) else error
            raise fault(path, "functions", f"cannot be written out: {said}") from error
    opsets = _opsets(path, proto)
    return ModelFile(path, proto, opsets, places, known, functions=others, still=still)


def naming(path: Path) -> onnx.ModelProto | None:
    """Returns a model that may name external data, its own large tensors left out; else nothing."""
    data, _ = _read(path)
    return _parse(path, data) if b"location" in data else None


def _bounded(path: Path, proto: onnx.ModelProto, known: Mapping[str, Custom]) -> None:
    count, size = written_out(proto, known)
    if count > _MOST_NODES or size > _LIMIT:
        said = f"written out they are {count} operators of {size} bytes"
        raise fault(path, "functions", f"{said}; {_MOST_NODES} of 2 GiB are read")


def _read(path: Path) -> tuple[bytes, Mapping[int, tuple[int, int]]]:
    """Returns the message, and where the data are that were left out of it."""
    try:
        if path.is_dir():
            raise fault(path, "", "is a folder; name a file")
        if not path.exists():
            raise fault(path, "", "does not exist")
        if (size := path.stat().st_size) > _LIMIT:
            raise fault(path, "", f"holds {size} bytes; an ONNX file ends at 2 GiB")
        if not path.is_file():  # a pipe or a device, which may never end
            return _piped(path), {}
        if size >= _APART and (found := split(path)) is not None:
            return found.message, found.places
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise fault(path, "", f"cannot be read: {reason}") from error
    if not data:
        raise fault(path, "", "is empty")
    return data, {}


def _piped(path: Path) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(_LIMIT + 1)
    if not data or len(data) > _LIMIT:
        raise fault(
            path, "", "does not end before 2 GiB, as an ONNX file does" if data else "is empty"
        )
    return data


def _parse(path: Path, data: bytes) -> onnx.ModelProto:
    try:
        return onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's own error, which is not onnx's to import
        raise fault(path, *_damage(path, data)) from error


def _damage(path: Path, data: bytes) -> tuple[str, str]:
    """Where the file is damaged: the whole, of which the message may be a part."""
    if not path.is_file() or not data:
        return damage(data)
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as held,
    ):
        return damage(held)


def _opsets(path: Path, proto: onnx.ModelProto) -> dict[str, int]:
    newest = onnx.defs.onnx_opset_version()
    found: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if found.setdefault(domain, entry.version) != entry.version:
            raise fault(path, "opset_import", f"two versions of domain {domain or 'ai.onnx'!r}")
        if entry.version > _LIMIT or entry.version < 1:
            raise fault(path, "opset_import", f"version {entry.version} of {domain or 'ai.onnx'!r}")
    if not found:
        raise fault(path, "opset_import", "names no operator set")
    if "" in found and not OLDEST <= found[""] <= newest:
        raise fault(path, "", f"uses opset {found['']}; {OLDEST} to {newest} are read")
    return found


def _cut(tensor: Large, path: Path, name: str) -> Array:
    """Returns a large tensor of the file, read at once into the place where it stays."""
    proto, size = tensor.proto, tensor.length
    kind, shape = element(proto.data_type), tuple(proto.dims)
    few = kind.bits in (2, 4) and not few_elements(shape)
    if not (few or kind.carrier.itemsize * 8 == kind.bits) or proto.HasField("segment"):
        with path.open("rb") as stream:
            stream.seek(tensor.offset)
            whole = onnx.TensorProto()
            whole.CopyFrom(proto)
            whole.raw_data = stream.read(size)
        return to_array(whole, name)
    check_size(kind, shape, size)
    read = np.fromfile(path, np.uint8, size, offset=tensor.offset)
    if read.size != size:
        raise ValueError("the file was changed while it was read")
    read.flags.writeable = False
    if few:
        return Array(lazy_unpack(read, kind, shape), TensorType(shape, kind), name)
    return Array(read.view(kind.carrier).reshape(shape), TensorType(shape, kind), name)


def _fetch(tensor: onnx.TensorProto, folder: Path, name: str) -> Array:
    """Returns a tensor next to the model: mapped, so that its pages come when they are read."""
    entries = {e.key: e.value for e in tensor.external_data}
    place = entries.get("location", "")
    file = beside(folder, place)
    kind, shape = element(tensor.data_type), tuple(tensor.dims)
    if kind == STRING:
        raise ValueError(f"its texts are at {place!r}; texts are held in the model itself")
    offset = _number(entries, "offset", 0)
    length = _number(entries, "length", stored_size(kind, shape))
    if length != stored_size(kind, shape) and not length:  # onnxruntime reads it whole
        wanted = f"{list(shape)} of {kind} takes {stored_size(kind, shape)} bytes"
        raise ValueError(f"its length is 0, where {wanted}; state that, or none")
    held = file.stat().st_size
    if offset + length > held:
        raise ValueError(f"bytes {offset} to {offset + length} of {place!r}, which holds {held}")
    size = kind.carrier.itemsize
    check_size(kind, shape, length)
    few = kind.bits in (2, 4) and not few_elements(shape)
    data: ArrayData
    if length and (few or kind.bits >= 8):
        mapped = np.asarray(np.memmap(file, np.uint8, "r", offset, (length,)))
        if few:
            data = lazy_unpack(mapped, kind, shape)
        elif offset % size == 0:
            data = mapped.view(kind.carrier).reshape(shape)
        else:
            data = file_array(np.ndarray(shape, kind.carrier, mapped))
        return Array(data, TensorType(shape, kind), name)
    with file.open("rb") as stream:
        stream.seek(offset)
        read = stream.read(length)
    out = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    out.raw_data = read
    return to_array(out, name)


def _number(entries: Mapping[str, str], key: str, default: int) -> int:
    """Returns how many bytes an entry says; raises ValueError for what is no number."""
    said = entries.get(key)
    if said is None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,40}", said):
        raise ValueError(f"its {key} {said[:40]!r} is no number of bytes that a file has")
    if int(said) < 0:
        raise ValueError(f"its {key} is {int(said)}, below 0")
    return int(said)


def beside(folder: Path, place: str) -> Path:
    """Returns the file of data at a place in a model's folder; raises ValueError for what may not
    be one."""
    parts = PurePosixPath(place.replace("\\", "/"))
    if not place or "\0" in place or parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"its data are at {place!r}, which is not inside the model's folder")
    if "\\" in place:
        raise ValueError(f"its data are at {place!r}; folders in a model's paths end in '/'")
    home = folder.resolve()
    try:
        file = (home / parts).resolve()
    except (OSError, RuntimeError) as error:  # links in a circle, names that are too long
        raise ValueError(f"its data at {place!r} cannot be found: no such path") from error
    if not file.is_relative_to(home):
        raise ValueError(f"its data at {place!r} lead out of the model's folder")
    if file.is_dir() or place.rpartition("/")[2] in ("", "."):
        raise ValueError(f"its data are at {place!r}, which is a folder; name a file")
    if not file.exists():
        raise ValueError(f"its data file {place!r} is not there")
    if not file.is_file():
        raise ValueError(f"its data are at {place!r}, which is no regular file but a pipe or such")
    if file.stat().st_nlink > 1:  # it may be any file of the system
        raise ValueError(f"its data file {place!r} has another name (a hard link); copy it")
    return file
