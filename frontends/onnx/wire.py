"""Parses a model file without copying its large tensors through protobuf."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MIN_LARGE_BYTES = 1 << 14
"""Tensors of fewer bytes stay in the message: separate reads would cost more than they save."""
_GRAPH, _FUNCTIONS, _INITIALIZER, _RAW = 7, 25, 5, 9
_LENGTH_DELIMITED = 2
"""Protobuf's wire type of strings, bytes and submessages."""
_MOST_FIELDS = 1 << 21
"""Fields of a message that are walked in Python; protobuf parses a message of more."""


@dataclass(frozen=True, slots=True)
class SplitMessage:
    """A model's message without the data of its large tensors, and where these are in the file."""

    message: bytes
    data_spans: dict[int, tuple[int, int]]
    """Offset and length of the data, by the index of the initializer."""


def split_message(path: Path) -> SplitMessage | None:
    """Returns the message and the spans of its large tensors.

    None for a file with functions, several graphs or unusual fields: protobuf parses all of it.
    """
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _split_mapped(data)
        except (IndexError, ValueError):
            return None


def _split_mapped(data: mmap.mmap) -> SplitMessage | None:
    graphs: list[tuple[int, int]] = []
    around: list[bytes] = []
    for field, kind, start, at, end in _fields(data, 0, len(data)):
        if field == _FUNCTIONS or (field == _GRAPH and kind != _LENGTH_DELIMITED):
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
        if kind != _LENGTH_DELIMITED:
            return None
        if end - at >= _MIN_LARGE_BYTES and (found := _split_tensor(data, at, end)) is not None:
            head, place = found
            parts += [data[kept:start], _field_bytes(_INITIALIZER, head)]
            places[count] = place
            kept = end
        count += 1
    parts.append(data[kept:last])
    return SplitMessage(b"".join((*around, _field_bytes(_GRAPH, b"".join(parts)))), places)


def _split_tensor(data: mmap.mmap, first: int, last: int) -> tuple[bytes, tuple[int, int]] | None:
    """Returns a TensorProto without `raw_data`, and its span; None for small or other data."""
    place: tuple[int, int] | None = None
    rest: list[bytes] = []
    for field, kind, start, at, end in _fields(data, first, last):
        if field != _RAW:
            if end - start >= _MIN_LARGE_BYTES:
                return None
            rest.append(data[start:end])
        elif place is not None or kind != _LENGTH_DELIMITED:
            return None
        else:
            place = at, end - at
    if place is None or place[1] < _MIN_LARGE_BYTES // 2:
        return None
    return b"".join(rest), place


def _fields(data: mmap.mmap, at: int, last: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields (field number, wire type, start, content start, content end) of each field."""
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
        if kind == _LENGTH_DELIMITED:
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


def _field_bytes(field: int, content: bytes) -> bytes:
    """Returns an encoded length-delimited field."""
    return _varint_bytes(field << 3 | _LENGTH_DELIMITED) + _varint_bytes(len(content)) + content


def _varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
