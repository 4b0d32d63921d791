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
from qir.ir.node import EMPTY_TABLE, CarriedProfile
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
_REQUIRED_TEXTS = frozenset({"text", "profiles", "ledger", "hash"})
_OPTIONAL_TEXTS = frozenset({"format", "version", "journal"})
_MAX_HEADER_BYTES = 1 << 28
_MAX_RANK = 64
_CHUNK_BYTES = 1 << 20
_HASH_BYTES = 32
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
    # The text first: printing names the arrays, and the table below has those names. Profiles have
    # a place of their own, which holds the installed ones too.
    text = print_graph(bundle.graph, origins=True, profiles=False)
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
    places = layout(
        {name: (_stored_dtype(data.dtype), data.shape) for name, data in arrays.items()}
    )
    # The header's length must be known before the arrays are written, and the hash only after: a
    # placeholder of the same length stands in its place.
    meta["hash"] = "0" * 2 * _HASH_BYTES
    length = len(header(meta, places))

    def chunks(name: str) -> Iterator[bytes | memoryview]:
        # Computing a lazy array costs more than reading back what was just written.
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
    with _open(path) as file:
        return _read(file, check)


def graph_bytes(graph: Graph) -> bytes:
    """Returns the bytes of the file of a graph alone."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / "graph.qir"
        write(place, Bundle(graph))
        return place.read_bytes()


def graph_of(data: bytes, profiles: Mapping[str, CarriedProfile] = EMPTY_TABLE) -> Graph:
    """Returns the graph of a file's bytes, which carries the profiles; InputError as `read`."""
    with TemporaryFile() as file:
        file.write(data)
        file.flush()
        file.seek(0)
        graph = _read(file, check=True).graph
    for profile in profiles.values():
        graph.carry_profile(profile)
    return graph


def texts(path: Path) -> Mapping[str, str]:
    """Returns the texts of a file by name, graph and arrays left unread; raises as `read` does."""
    with _open(path) as file:
        return _read_header(file)[0]


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except QirError as error:
        raise InputError(f"{path}: {error}") from error


def _read_header(file: BinaryIO) -> tuple[dict[str, str], dict[str, ArrayExtent], int]:
    """Returns the texts, where each array is, and how long the header is."""
    size = os.fstat(file.fileno()).st_size
    if size < 10:
        raise InputError(f"{size} bytes are no .qir file")
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, _MAX_HEADER_BYTES):
        raise InputError("no .qir file, or cut off")
    # safetensors: eight bytes of length, then JSON padded with blanks to a multiple of eight.
    return (*_parse_header(file.read(length), size - 8 - length), length)


def _read(file: BinaryIO, check: bool) -> Bundle:
    meta, places, length = _read_header(file)

    def chunks(name: str) -> Iterator[bytes]:
        return _chunks(file, places[name], 8 + length)

    if check and digest(meta, places, chunks) != meta.get("hash"):
        raise InputError("damaged: its hash does not match its contents")
    # The mapping stays open as long as an array refers to it; no array is read here.
    mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[8 + length :]
    arrays = {name: _map_array(mapped, place) for name, place in places.items()}
    graph, profiles = parse(meta["text"], arrays), _profiles(meta["profiles"])
    return Bundle(graph, profiles, meta["ledger"], meta.get("journal", ""))


def _chunks(file: BinaryIO, place: ArrayExtent, start: int) -> Iterator[bytes]:
    """Yields the bytes of an array in a file whose header ends at `start`."""
    for at in range(place.start, place.end, _CHUNK_BYTES):
        yield os.pread(file.fileno(), min(_CHUNK_BYTES, place.end - at), start + at)


def _parse_header(data: bytes, room: int) -> tuple[dict[str, str], dict[str, ArrayExtent]]:
    """Returns what is before the arrays: texts, and where each array is."""
    table = _parse_table(data, "its header")
    # Every other key of the header is an array.
    meta = table.pop("__metadata__", None)
    if not isinstance(meta, dict) or meta.get("format") != "qir":
        raise InputError("no .qir file")
    texts = {str(key): part for key, part in meta.items() if isinstance(part, str)}
    if len(texts) < len(meta):
        raise InputError("damaged: its metadata are no texts")
    version = texts.get("version", "none")
    if version not in map(str, range(1, VERSION + 1)):
        raise InputError(f"version {version[:20]}, this QIR reads up to {VERSION}")
    for part in _REQUIRED_TEXTS:
        if part not in texts and part != "hash":
            raise InputError(f"damaged: it has no {part}")
    # A newer QIR that adds a text raises the version; an unknown one in a known version is damage.
    if strange := sorted(texts.keys() - _REQUIRED_TEXTS - _OPTIONAL_TEXTS):
        raise InputError(f"damaged: its header has {strange[0][:40]!r}, which QIR does not write")
    places = {name: _parse_extent(name, entry, room) for name, entry in table.items()}
    if (over := room - max((place.end for place in places.values()), default=0)) > 0:
        raise InputError(f"damaged: {over} bytes stand after what the file holds")
    return texts, places


def _parse_table(data: bytes | str, what: str) -> dict[str, object]:
    try:
        table = json.loads(data)
    except (ValueError, RecursionError, MemoryError):
        raise InputError(f"damaged: {what} cannot be read") from None
    if not isinstance(table, dict):
        raise InputError(f"damaged: {what} is no table")
    return table


def _profiles(text: str) -> dict[str, str]:
    table = _parse_table(text, "its table of profiles")
    texts = {name: part for name, part in table.items() if isinstance(part, str)}
    if len(texts) < len(table):
        raise InputError("damaged: its profiles are no texts")
    return texts


def _parse_extent(name: str, entry: object, room: int) -> ArrayExtent:
    fields = entry if isinstance(entry, dict) else {}
    kind, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"damaged: array {name[:40]!r} is of no type that QIR writes")
    sizes, span = _sizes(shape), _sizes(offsets)
    if sizes is None or len(sizes) > _MAX_RANK or span is None or len(span) != 2:
        raise InputError(f"damaged: array {name[:40]!r} has no shape or place")
    extent = ArrayExtent(np.dtype(KINDS[kind]), sizes, *span)
    if extent.end > room or extent.end - extent.start != math.prod(sizes) * extent.kind.itemsize:
        raise InputError(f"damaged: array {name[:40]!r} is outside the file")
    return extent


def _sizes(value: object) -> tuple[int, ...] | None:
    """Sizes or places in a file; None for anything else."""
    if not isinstance(value, list):
        return None
    # `type(n) is int`: JSON's true is a Python int too. 2**60 keeps products of sizes from growing
    # without bound before they are compared with the file's length.
    found = tuple(n for n in value if type(n) is int and 0 <= n < 1 << 60)
    return found if len(found) == len(value) else None


def layout(
    arrays: Mapping[str, tuple[np.dtype[np.generic], tuple[int, ...]]],
) -> dict[str, ArrayExtent]:
    """Returns a place for each array: wide elements first, so that each is aligned."""
    out: dict[str, ArrayExtent] = {}
    end = 0
    # Wide elements first keeps each array aligned without padding; names break ties, so that equal
    # graphs have equal files.
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
    # Blanks keep the arrays aligned to eight bytes, as safetensors' own writer does.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _map_array(data: memoryview, place: ArrayExtent) -> Tensor:
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


def _stored_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Returns the type of the same bytes that safetensors knows."""
    return dtype if dtype in _NAMES else np.dtype(f"u{dtype.itemsize}")


def digest(
    meta: Mapping[str, str],
    places: Mapping[str, ArrayExtent],
    chunks: Callable[[str], Iterator[bytes | memoryview]],
) -> str:
    """Returns the hash of a file's contents, wherever they are: its texts, and each array by
    name."""
    state = hashlib.blake2b(digest_size=_HASH_BYTES)
    for key in ("version", "text", "profiles", "ledger", *(("journal",) * ("journal" in meta))):
        part = meta.get(key, "").encode(errors="surrogatepass")
        # Lengths go in before contents, so that text moved from one part to the next changes the
        # hash.
        state.update(len(part).to_bytes(8, "little") + part)
    for name in sorted(places):
        place = places[name]
        head = f"{name} {place.kind.str} {place.shape}".encode(errors="surrogatepass")
        state.update(len(head).to_bytes(8, "little") + head)
        for chunk in chunks(name):
            state.update(chunk)
    return state.hexdigest()
