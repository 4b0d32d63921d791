"""Parses a model file without copying its large tensors through protobuf."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from qir.records import record

_MIN_LARGE_BYTES = 1 << 14
"""Tensors of fewer bytes stay in the message: separate reads would cost more than they save."""
_GRAPH, _FUNCTIONS, _INITIALIZER, _RAW = 7, 25, 5, 9
_LENGTH_DELIMITED = 2
"""Protobuf's wire type of strings, bytes and submessages."""
_MOST_FIELDS = 1 << 21
"""Fields of a message that are walked in Python; protobuf parses a message of more."""


@record
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
    other_fields: list[bytes] = []
    for field, wire_type, start, content, end in _fields(data, 0, len(data)):
        if field == _FUNCTIONS or (field == _GRAPH and wire_type != _LENGTH_DELIMITED):
            return None
        # protobuf merges fields that occur several times; all but the graph are left to it.
        if field == _GRAPH:
            graphs.append((content, end))
        else:
            other_fields.append(data[start:end])
    if len(graphs) != 1:
        return None
    parts: list[bytes] = []
    spans: dict[int, tuple[int, int]] = {}
    graph_start, graph_end = graphs[0]
    copied_to, count = graph_start, 0
    for field, wire_type, start, content, end in _fields(data, graph_start, graph_end):
        if field != _INITIALIZER:
            continue
        if wire_type != _LENGTH_DELIMITED:
            return None
        # What lies between large tensors is copied as it is.
        if (
            end - content >= _MIN_LARGE_BYTES
            and (split := _split_tensor(data, content, end)) is not None
        ):
            tensor_message, span = split
            parts += [data[copied_to:start], _field_bytes(_INITIALIZER, tensor_message)]
            spans[count] = span
            copied_to = end
        count += 1
    parts.append(data[copied_to:graph_end])
    return SplitMessage(b"".join((*other_fields, _field_bytes(_GRAPH, b"".join(parts)))), spans)


def _split_tensor(
    data: mmap.mmap, start_of_message: int, end_of_message: int
) -> tuple[bytes, tuple[int, int]] | None:
    """Returns a TensorProto without `raw_data`, and its span; None for small or other data."""
    span: tuple[int, int] | None = None
    other_fields: list[bytes] = []
    for field, wire_type, start, content, end in _fields(data, start_of_message, end_of_message):
        if field != _RAW:
            # The data are in another field (float_data, ...), which only protobuf decodes.
            if end - start >= _MIN_LARGE_BYTES:
                return None
            other_fields.append(data[start:end])
        elif span is not None or wire_type != _LENGTH_DELIMITED:
            return None
        else:
            span = content, end - content
    if span is None or span[1] < _MIN_LARGE_BYTES // 2:
        return None
    return b"".join(other_fields), span


def _fields(
    data: mmap.mmap, offset: int, end_of_message: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields (field number, wire type, start, content start, content end) of each field."""
    fields_left = _MOST_FIELDS
    while offset < end_of_message:
        start = offset
        # The first byte of most keys and sizes is all of them: read without a call.
        key = data[offset]
        offset += 1
        if key > 127:
            key, offset = _varint(data, start)
        wire_type = key & 7
        fields_left -= 1
        if key < 8 or not fields_left:
            raise ValueError("a field without a number, or more of them than models have")
        if wire_type == _LENGTH_DELIMITED:
            size = data[offset]
            offset += 1
            if size > 127:
                size, offset = _varint(data, offset - 1)
            end = offset + size
        elif wire_type == 0:
            _, end = _varint(data, offset)
        elif wire_type in (1, 5):
            end = offset + (8 if wire_type == 1 else 4)
        else:
            raise ValueError("a wire type that messages of today do not have")
        if end > end_of_message:
            raise ValueError("a field ends outside its message")
        yield key >> 3, wire_type, start, offset, end
        offset = end


def _varint(data: mmap.mmap, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _field_bytes(field: int, content: bytes) -> bytes:
    """Returns an encoded length-delimited field."""
    return _varint_bytes(field << 3 | _LENGTH_DELIMITED) + _varint_bytes(len(content)) + content


def _varint_bytes(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
