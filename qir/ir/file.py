"""The `.qir` file: a safetensors file whose metadata hold the graph's text.

Arrays lie in it by the names the text gives them and are memory-mapped; the profiles the graph
names travel along, and a hash covers everything.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir.atomic import replacing
from qir.errors import InputError, QirError
from qir.ir.graph import Graph
from qir.ir.text import array_table, parse, print_graph

VERSION = 1
_KINDS = {
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
_NAMES = {np.dtype(kind): name for name, kind in _KINDS.items()}
_MAX_HEADER = 1 << 28


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a file holds."""

    graph: Graph
    profiles: Mapping[str, str] = field(default_factory=dict)
    """Text of the profiles that the graph names."""
    ledger: str = ""
    """The ledger's JSON."""


def write(path: Path, bundle: Bundle) -> None:
    """Writes a file, by rename."""
    text = print_graph(bundle.graph, origins=True)
    arrays = {n: _plain(a.data) for n, a in array_table(bundle.graph).items()}
    meta = {
        "format": "qir",
        "version": str(VERSION),
        "text": text,
        "profiles": json.dumps(dict(sorted(bundle.profiles.items()))),
        "ledger": bundle.ledger,
    }
    meta["hash"] = _digest(meta, arrays)
    with replacing(path) as draft:
        _save(draft, arrays, meta)


def read(path: Path) -> Bundle:
    """Reads a file; InputError naming the file and what is wrong with it."""
    try:
        header, data = _open(path)
        meta = header.pop("__metadata__", {})
        if not isinstance(meta, dict) or meta.get("format") != "qir":
            raise InputError(f"{path}: no .qir file")
        if not all(isinstance(part, str) for part in meta.values()):
            raise ValueError("its metadata are no texts")
        if not str(meta.get("version")).isdigit() or int(meta["version"]) > VERSION:
            raise InputError(
                f"{path}: version {str(meta.get('version'))[:20]}, this QIR reads up to {VERSION}"
            )
        arrays = {name: _array(name, row, data) for name, row in header.items()}
        if _digest(meta, arrays) != meta.get("hash"):
            raise InputError(f"{path}: damaged: its hash does not match its contents")
        profiles = json.loads(meta["profiles"])
        if not isinstance(profiles, dict) or not all(isinstance(t, str) for t in profiles.values()):
            raise ValueError("its profiles are no texts")
        return Bundle(parse(meta["text"], arrays), profiles, meta.get("ledger", ""))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except QirError as error:
        raise InputError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: damaged: {reason}") from error


def _save(path: Path, arrays: Mapping[str, NDArray[np.generic]], meta: Mapping[str, str]) -> None:
    """Writes a safetensors file, wide elements first, so that each array lies aligned."""
    header: dict[str, object] = {"__metadata__": dict(meta)}
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    end = 0
    for name in order:
        data = arrays[name]
        start, end = end, end + data.nbytes
        shape = list(data.shape)
        header[name] = {"dtype": _NAMES[data.dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(np.asarray(arrays[name], order="C").reshape(-1).view(np.uint8).data)


def _open(path: Path) -> tuple[dict[str, dict[str, str]], memoryview]:
    size = path.stat().st_size
    if size < 10:
        raise InputError(f"{path}: {size} bytes are no .qir file")
    with path.open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    length = int.from_bytes(mapped[:8], "little")
    if length > min(size - 8, _MAX_HEADER):
        raise InputError(f"{path}: no .qir file, or cut off")
    header = json.loads(bytes(mapped[8 : 8 + length]))
    if not isinstance(header, dict):
        raise InputError(f"{path}: no .qir file")
    return header, mapped[8 + length :]


def _array(name: str, row: Mapping[str, object], data: memoryview) -> NDArray[np.generic]:
    kind = np.dtype(_KINDS[str(row["dtype"])])
    shape, offsets = row["shape"], row["data_offsets"]
    if not (isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2):
        raise ValueError(f"array {name} has no shape or place")
    low, high = offsets
    if not all(isinstance(n, int) and n >= 0 for n in (*shape, low, high)):
        raise ValueError(f"array {name} has a size that is none")
    if high > len(data) or high - low != math.prod(shape) * kind.itemsize:
        raise ValueError(f"array {name} lies outside the file")
    return np.frombuffer(data[low:high], kind).reshape(shape)


def _plain(data: NDArray[np.generic]) -> NDArray[np.generic]:
    """The same bytes in a type that safetensors knows."""
    data = np.asarray(data, order="C")
    if data.dtype.kind == "O":
        rows = [list(t if isinstance(t, bytes) else str(t).encode()) for t in data.reshape(-1)]
        return np.frombuffer(json.dumps(rows).encode(), np.uint8)
    if data.dtype in _NAMES:
        return data
    return data.view(f"u{data.dtype.itemsize}")


def _digest(meta: Mapping[str, str], arrays: Mapping[str, NDArray[np.generic]]) -> str:
    state = hashlib.blake2b(digest_size=32)
    for key in ("version", "text", "profiles", "ledger"):
        part = str(meta.get(key, "")).encode(errors="surrogatepass")
        state.update(len(part).to_bytes(8, "little") + part)
    for name in sorted(arrays):
        data = np.asarray(arrays[name], order="C")
        head = f"{name} {data.dtype.str} {data.shape}".encode(errors="surrogatepass")
        state.update(len(head).to_bytes(8, "little") + head)
        state.update(data.reshape(-1).view(np.uint8).data)
    return state.hexdigest()
