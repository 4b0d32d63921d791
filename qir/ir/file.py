"""The `.qir` file: a safetensors file whose metadata hold the graph's text.

Arrays are in it by the names the text gives them and are memory-mapped; the profiles the graph
names travel along, and a hash covers everything. Version 2 has bodies and inner slots in its text,
and keeps texts as texts; version 1 has only bytes for them. A journal of passes is there where
passes were run, and is no part of older files.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.atomic import replacing
from qir.errors import InputError, QirError
from qir.ir.array_text import stored_texts
from qir.ir.graph import Graph
from qir.ir.lazy_arrays import ArrayData, LazyArray, iter_pieces
from qir.ir.text import array_table, parse, print_graph

VERSION = 2
"""Of files that are written; older ones keep loading."""
KINDS = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "u2",
    "I16": "i2",
    "U32": "u4",
    "I32": "i4",
    "U64": "u8",
    "I64": "i8",
    "F16": "f2",
    "F32": "f4",
    "F64": "f8",
}
"""NumPy's name of each of safetensors' element types."""
_NAMES = {np.dtype(kind): name for name, kind in KINDS.items()}
_PARTS = frozenset({"text", "profiles", "ledger", "hash"})
_EXTRA = frozenset({"format", "version", "journal"})
_MAX_HEADER = 1 << 28
_MAX_RANK = 64
_CHUNK = 1 << 20
_HASH = 32
"""Bytes of the hash."""

Tensor: TypeAlias = NDArray[np.generic]
"""Where an array is in a file."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a file holds."""

    graph: Graph
    profiles: Mapping[str, str] = field(default_factory=dict)
    """Text of the profiles that the graph names."""
    ledger: str = ""
    """The ledger's JSON."""
    journal: str = ""
    """The JSON of the journal of passes."""


@dataclass(frozen=True, slots=True)
class ArrayExtent:
    """Where an array is: the bytes from `start` to before `end`, counted after the header."""

    kind: np.dtype[np.generic]
    shape: tuple[int, ...]
    start: int
    end: int


def write(path: Path, bundle: Bundle) -> None:
    """Writes a file, by rename; arrays that nobody holds are made as they are written."""
    text = print_graph(bundle.graph, origins=True)
    arrays = {n: _stored(a.contents) for n, a in array_table(bundle.graph).items()}
    meta = {
        "format": "qir",
        "version": str(VERSION),
        "text": text,
        "profiles": json.dumps(dict(sorted(bundle.profiles.items()))),
        "ledger": bundle.ledger,
    }
    if bundle.journal:
        meta["journal"] = bundle.journal
    places = layout({name: (_kind(data.dtype), data.shape) for name, data in arrays.items()})
    meta["hash"] = "0" * 2 * _HASH
    length = len(header(meta, places))

    def chunks(name: str) -> Iterator[bytes | memoryview]:
        if isinstance(arrays[name], LazyArray):  # made once
            return _chunks(file, places[name], length)
        return map(_bytes, iter_pieces(arrays[name]))

    with replacing(path) as draft, draft.open("w+b") as file:
        file.seek(length)
        for name in places:
            for piece in iter_pieces(arrays[name]):
                file.write(_bytes(piece))
        file.flush()
        meta["hash"] = digest(meta, places, chunks)
        file.seek(0)
        file.write(header(meta, places))


def read(path: Path, *, check: bool = True) -> Bundle:
    """Reads a file; InputError naming the file and what is wrong with it.

    Arrays are mapped, not read: their bytes pass by once for the hash, unless `check` says no.
    """
    with _opened(path) as file:
        return _read(file, check)


def graph_bytes(graph: Graph) -> bytes:
    """Returns the bytes of the file of a graph alone."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / "graph.qir"
        write(place, Bundle(graph))
        return place.read_bytes()


def graph_of(data: bytes) -> Graph:
    """Returns the graph of a file's bytes; InputError as `read`."""
    with TemporaryFile() as file:
        file.write(data)
        file.flush()
        file.seek(0)
        return _read(file, check=True).graph


def texts(path: Path) -> Mapping[str, str]:
    """Returns the texts of a file by name, graph and arrays left unread; raises as `read` does."""
    with _opened(path) as file:
        return _head(file)[0]


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except QirError as error:
        raise InputError(f"{path}: {error}") from error


def _head(file: BinaryIO) -> tuple[dict[str, str], dict[str, ArrayExtent], int]:
    """Returns the texts, where each array is, and how long the header is."""
    size = os.fstat(file.fileno()).st_size
    if size < 10:
        raise InputError(f"{size} bytes are no .qir file")
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, _MAX_HEADER):
        raise InputError("no .qir file, or cut off")
    return (*_header(file.read(length), size - 8 - length), length)


def _read(file: BinaryIO, check: bool) -> Bundle:
    meta, places, length = _head(file)

    def chunks(name: str) -> Iterator[bytes]:
        return _chunks(file, places[name], 8 + length)

    if check and digest(meta, places, chunks) != meta.get("hash"):
        raise InputError("damaged: its hash does not match its contents")
    mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[8 + length :]
    arrays = {name: _mapped(mapped, place) for name, place in places.items()}
    graph, profiles = parse(meta["text"], arrays), _profiles(meta["profiles"])
    return Bundle(graph, profiles, meta["ledger"], meta.get("journal", ""))


def _chunks(file: BinaryIO, place: ArrayExtent, start: int) -> Iterator[bytes]:
    """Yields the bytes of an array in a file whose header ends at `start`."""
    for at in range(place.start, place.end, _CHUNK):
        yield os.pread(file.fileno(), min(_CHUNK, place.end - at), start + at)


def _header(data: bytes, room: int) -> tuple[dict[str, str], dict[str, ArrayExtent]]:
    """Returns what is before the arrays: texts, and where each array is."""
    table = _object(data, "its header")
    meta = table.pop("__metadata__", None)
    if not isinstance(meta, dict) or meta.get("format") != "qir":
        raise InputError("no .qir file")
    texts = {str(key): part for key, part in meta.items() if isinstance(part, str)}
    if len(texts) < len(meta):
        raise InputError("damaged: its metadata are no texts")
    version = texts.get("version", "none")
    if version not in map(str, range(1, VERSION + 1)):
        raise InputError(f"version {version[:20]}, this QIR reads up to {VERSION}")
    for part in _PARTS:
        if part not in texts and part != "hash":
            raise InputError(f"damaged: it has no {part}")
    if strange := sorted(texts.keys() - _PARTS - _EXTRA):
        raise InputError(f"damaged: its header has {strange[0][:40]!r}, which QIR does not write")
    places = {name: _place(name, row, room) for name, row in table.items()}
    if (over := room - max((place.end for place in places.values()), default=0)) > 0:
        raise InputError(f"damaged: {over} bytes stand after what the file holds")
    return texts, places


def _object(data: bytes | str, what: str) -> dict[str, object]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError, MemoryError):
        raise InputError(f"damaged: {what} cannot be read") from None
    if not isinstance(found, dict):
        raise InputError(f"damaged: {what} is no table")
    return found


def _profiles(text: str) -> dict[str, str]:
    found = _object(text, "its table of profiles")
    texts = {name: part for name, part in found.items() if isinstance(part, str)}
    if len(texts) < len(found):
        raise InputError("damaged: its profiles are no texts")
    return texts


def _place(name: str, row: object, room: int) -> ArrayExtent:
    known = row if isinstance(row, dict) else {}
    kind, shape, offsets = (known.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"damaged: array {name[:40]!r} is of no type that QIR writes")
    sizes, ends = _wholes(shape), _wholes(offsets)
    if sizes is None or len(sizes) > _MAX_RANK or ends is None or len(ends) != 2:
        raise InputError(f"damaged: array {name[:40]!r} has no shape or place")
    found = ArrayExtent(np.dtype(KINDS[kind]), sizes, *ends)
    if found.end > room or found.end - found.start != math.prod(sizes) * found.kind.itemsize:
        raise InputError(f"damaged: array {name[:40]!r} is outside the file")
    return found


def _wholes(value: object) -> tuple[int, ...] | None:
    """Sizes or places in a file; None for anything else."""
    if not isinstance(value, list):
        return None
    found = tuple(n for n in value if type(n) is int and 0 <= n < 1 << 60)
    return found if len(found) == len(value) else None


def layout(
    arrays: Mapping[str, tuple[np.dtype[np.generic], tuple[int, ...]]],
) -> dict[str, ArrayExtent]:
    """Returns a place for each array: wide elements first, so that each is aligned."""
    out: dict[str, ArrayExtent] = {}
    end = 0
    for name in sorted(arrays, key=lambda name: (-arrays[name][0].itemsize, name)):
        kind, shape = arrays[name]
        start, end = end, end + math.prod(shape) * kind.itemsize
        out[name] = ArrayExtent(kind, shape, start, end)
    return out


def header(meta: Mapping[str, str], places: Mapping[str, ArrayExtent]) -> bytes:
    """Returns the bytes before the arrays, as safetensors has them."""
    table: dict[str, object] = {"__metadata__": dict(meta)}
    for name, place in places.items():
        table[name] = {
            "dtype": _NAMES[place.kind],
            "shape": list(place.shape),
            "data_offsets": [place.start, place.end],
        }
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _mapped(data: memoryview, place: ArrayExtent) -> Tensor:
    flat = np.frombuffer(data[place.start : place.end], place.kind)
    try:
        return flat.reshape(place.shape)
    except ValueError:  # NumPy 1 has 32 axes, NumPy 2 has 64
        raise InputError(f"an array of {len(place.shape)} axes; NumPy has fewer here") from None


def _bytes(data: Tensor) -> memoryview:
    return np.asarray(data, order="C").reshape(-1).view(np.uint8).data


def _stored(data: ArrayData) -> ArrayData:
    """What is in the file: texts as the bytes of their list, all else as it is."""
    return data if isinstance(data, LazyArray) else stored_texts(data)


def _kind(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Returns the type of the same bytes that safetensors knows."""
    return dtype if dtype in _NAMES else np.dtype(f"u{dtype.itemsize}")


def digest(
    meta: Mapping[str, str],
    places: Mapping[str, ArrayExtent],
    chunks: Callable[[str], Iterator[bytes | memoryview]],
) -> str:
    """Returns the hash of a file's contents, wherever they are: its texts, and each array by
    name."""
    state = hashlib.blake2b(digest_size=_HASH)
    for key in ("version", "text", "profiles", "ledger", *(("journal",) * ("journal" in meta))):
        part = meta.get(key, "").encode(errors="surrogatepass")
        state.update(len(part).to_bytes(8, "little") + part)
    for name in sorted(places):
        place = places[name]
        head = f"{name} {place.kind.str} {place.shape}".encode(errors="surrogatepass")
        state.update(len(head).to_bytes(8, "little") + head)
        for chunk in chunks(name):
            state.update(chunk)
    return state.hexdigest()
