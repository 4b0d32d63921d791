"""Finds the byte where a damaged model file stops being valid protobuf."""

from __future__ import annotations

import mmap
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import onnx

_MAX_DEPTH = 100
"""Nested messages that protobuf reads."""
_MAX_FIELDS = 1 << 20
"""Fields that are walked before the search is given up."""
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf; 3 and 4 are groups, which ONNX never used."""
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}


class _Field(Protocol):
    """Protobuf's descriptor of a field."""

    name: str
    is_repeated: bool
    message_type: _Message | None


class _Message(Protocol):
    """Protobuf's descriptor of a message."""

    fields_by_number: dict[int, _Field]


class _DamagedError(Exception):
    """A field by its path in the model, and what is wrong with it."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(what)
        self.path = path
        self.what = what


def locate_damage(data: bytes | mmap.mmap) -> tuple[str, str]:
    """Returns the path of the damaged field and what is wrong with it, as far as it is known."""
    walk = _MessageWalker(data)
    try:
        walk.message(onnx.ModelProto.DESCRIPTOR, 0, len(data), "", 0)
    except _DamagedError as error:
        if walk.known_fields:
            prefix = "" if error.path else "the file "
            return error.path, f"{prefix}is damaged: {error.what}"
        return "", "is no ONNX model: its first bytes are no field of one"
    except RecursionError:
        pass
    return "", "is no ONNX model, or is damaged: it does not parse"


@dataclass(slots=True)
class _MessageWalker:
    """Walks the fields of a model until one does not fit into its message."""

    data: bytes | mmap.mmap
    known_fields: int = 0
    """Fields of ONNX that were complete: none means that the file is something else."""
    fields_seen: int = 0

    def message(self, message: _Message, offset: int, end: int, path: str, depth: int) -> None:
        """Walks a message; raises _DamagedError at the innermost field that does not fit."""
        if depth > _MAX_DEPTH:
            raise _DamagedError(
                _outermost_messages(path),
                f"more than {_MAX_DEPTH} messages are in one another, at byte {offset}",
            )
        counts: Counter[str] = Counter()
        while offset < end:
            self.fields_seen += 1
            if self.fields_seen > _MAX_FIELDS:
                return
            start = offset
            # A field's key is its number and its wire type in the low three bits.
            key, offset = self.varint(offset, end, path)
            if not key >> 3:
                raise _DamagedError(path, f"no field begins at byte {start}")
            field, wire = message.fields_by_number.get(key >> 3), key & 7
            inner = path
            if field is not None:
                index = f"[{counts[field.name]}]" if field.is_repeated else ""
                inner = f"{path}.{field.name}{index}".lstrip(".")
                counts[field.name] += 1
            offset = self.end_of_content(field, wire, offset, end, (path, inner, start), depth)
            self.known_fields += field is not None

    def end_of_content(
        self,
        field: _Field | None,
        wire: int,
        offset: int,
        end: int,
        context: tuple[str, str, int],
        depth: int,
    ) -> int:
        """Returns where a field's content ends; walks the content if it is a message."""
        path, inner, start = context
        if wire == _VARINT:
            return self.varint(offset, end, inner)[1]
        if wire in _FIXED_SIZES:
            size = _FIXED_SIZES[wire]
        elif wire == _LENGTH_DELIMITED:
            size, offset = self.varint(offset, end, inner)
        else:
            raise _DamagedError(path, f"no field begins at byte {start}")
        content_end = offset + size
        # Of the outermost message, this is reported as an end of the file.
        if content_end > end and path:
            raise _DamagedError(inner, f"it goes on to byte {content_end}, {path} ends at {end}")
        inner_message = (
            field.message_type if field is not None and wire == _LENGTH_DELIMITED else None
        )
        if inner_message is not None:
            self.known_fields += 1
        if inner_message is not None and content_end <= len(self.data):
            self.message(inner_message, offset, content_end, inner, depth + 1)
        elif content_end > len(self.data):
            self.report_truncation(inner_message, (offset, content_end), inner, depth)
        return content_end

    def report_truncation(
        self, message: _Message | None, bounds: tuple[int, int], path: str, depth: int
    ) -> None:
        """Raises _DamagedError for a field that continues after the end of the file."""
        offset, content_end = bounds
        if message is not None:
            self.message(message, offset, content_end, path, depth + 1)
        raise _DamagedError(
            path, f"the file ends at byte {len(self.data)}, this goes on to {content_end}"
        )

    def varint(self, offset: int, end: int, path: str) -> tuple[int, int]:
        """Returns a varint of up to ten bytes, and the offset after it."""
        value = shift = 0
        start = offset
        while True:
            if offset >= len(self.data):
                raise _DamagedError(path, f"the file ends at byte {offset}, within it")
            if offset >= end:
                raise _DamagedError(path, f"it ends at byte {offset}, within a number")
            byte = self.data[offset]
            offset += 1
            # Seven bits to a byte, the lowest first; the high bit says that another byte follows.
            value |= (byte & 127) << shift
            if byte < 128:
                return value, offset
            shift += 7
            if shift > 63:
                raise _DamagedError(path, f"the number at byte {start} has more than 64 bits")


def _outermost_messages(path: str) -> str:
    """Returns the first four parts of a path."""
    return ".".join(path.split(".")[:4])
