"""Parses a model file without copying its large tensors through protobuf."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SMALL = 1 << 14
"""Tensors of fewer bytes are left in the message."""
_GRAPH, _FUNCTIONS, _INITIALIZER, _RAW = 7, 25, 5, 9
_BYTES = 2
"""The wire type of what has a length."""
_MOST_FIELDS = 1 << 21
"""Fields of a message that are walked; one of more is protobuf's own to read."""


@dataclass(frozen=True, slots=True)
class Split:
    """A model's message without its large tensors, and where these are in the file."""

    message: bytes
    places: dict[int, tuple[int, int]]
    """Offset and length of the data of the tensor with that index."""


def split(path: Path) -> Split | None:
    """Returns the message and the tensors apart; None where the file is not plain, and read as a
    whole."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _split(data)
        except (IndexError, ValueError):
            return None


def _split(data: mmap.mmap) -> Split | None:
    graphs: list[tuple[int, int]] = []
    around: list[bytes] = []
    for field, kind, start, at, end in _fields(data, 0, len(data)):
        if field == _FUNCTIONS or (field == _GRAPH and kind != _BYTES):
            return None
        if field == _GRAPH:
            graphs.append((at, end))
        else:
            around.append(data[start:end])
    if len(graphs) != 1:
        return None
    parts: list[bytes] = []
    places: dict[int, tuple[int, int]] = {}
    first, last = graphs[0]
    kept, count = first, 0
    for field, kind, start, at, end in _fields(data, first, last):
        if field != _INITIALIZER:
            continue
        if kind != _BYTES:
            return None
        if end - at >= _SMALL and (found := _raw(data, at, end)) is not None:
            head, place = found
            parts += [data[kept:start], _whole(_INITIALIZER, head)]
            places[count] = place
            kept = end
        count += 1
    parts.append(data[kept:last])
    return Split(b"".join((*around, _whole(_GRAPH, b"".join(parts)))), places)


def _raw(data: mmap.mmap, first: int, last: int) -> tuple[bytes, tuple[int, int]] | None:
    """Returns a tensor without its bytes, and where these are; None where they are small or not
    there."""
    place: tuple[int, int] | None = None
    rest: list[bytes] = []
    for field, kind, start, at, end in _fields(data, first, last):
        if field != _RAW:
            if end - start >= _SMALL:
                return None
            rest.append(data[start:end])
        elif place is not None or kind != _BYTES:
            return None
        else:
            place = at, end - at
    if place is None or place[1] < _SMALL // 2:
        return None
    return b"".join(rest), place


def _fields(data: mmap.mmap, at: int, last: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Number and wire type of each field, its start, and where its content begins and ends."""
    left = _MOST_FIELDS
    while at < last:
        start = at
        key = data[at]
        at += 1
        if key > 127:
            key, at = _varint(data, start)
        kind = key & 7
        left -= 1
        if key < 8 or not left:
            raise ValueError("a field without a number, or more of them than models have")
        if kind == _BYTES:
            size = data[at]
            at += 1
            if size > 127:
                size, at = _varint(data, at - 1)
            end = at + size
        elif kind == 0:
            _, end = _varint(data, at)
        elif kind in (1, 5):
            end = at + (8 if kind == 1 else 4)
        else:
            raise ValueError("a wire type that messages of today do not have")
        if end > last:
            raise ValueError("a field ends outside its message")
        yield key >> 3, kind, start, at, end
        at = end


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _whole(field: int, content: bytes) -> bytes:
    """Returns a field with its content."""
    return _number(field << 3 | _BYTES) + _number(len(content)) + content


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
