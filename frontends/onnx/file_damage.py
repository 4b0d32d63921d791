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

    def __init__(self, place: str, what: str) -> None:
        super().__init__(what)
        self.path = place
        self.what = what


def locate_damage(data: bytes | mmap.mmap) -> tuple[str, str]:
    """Returns the path of the damaged field and what is wrong with it, as far as it is known."""
    walk = _MessageWalker(data)
    try:
        walk.message(onnx.ModelProto.DESCRIPTOR, 0, len(data), "", 0)
    except _DamagedError as error:
        if walk.known_fields:
            whole = "" if error.path else "the file "
            return error.path, f"{whole}is damaged: {error.what}"
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

    def message(self, message: _Message, at: int, end: int, place: str, depth: int) -> None:
        """Walks a message; raises _DamagedError at the innermost field that does not fit."""
        if depth > _MAX_DEPTH:
            raise _DamagedError(
                _outermost_messages(place),
                f"more than {_MAX_DEPTH} messages are in one another, at byte {at}",
            )
        counts: Counter[str] = Counter()
        while at < end:
            self.fields_seen += 1
            if self.fields_seen > _MAX_FIELDS:
                return
            start = at
            key, at = self.varint(at, end, place)
            if not key >> 3:
                raise _DamagedError(place, f"no field begins at byte {start}")
            field, wire = message.fields_by_number.get(key >> 3), key & 7
            inner = place
            if field is not None:
                index = f"[{counts[field.name]}]" if field.is_repeated else ""
                inner = f"{place}.{field.name}{index}".lstrip(".")
                counts[field.name] += 1
            at = self.end_of_content(field, wire, at, end, (place, inner, start), depth)
            self.known_fields += field is not None

    def end_of_content(
        self,
        field: _Field | None,
        wire: int,
        at: int,
        end: int,
        places: tuple[str, str, int],
        depth: int,
    ) -> int:
        """Returns where a field's content ends; walks the content if it is a message."""
        place, inner, start = places
        if wire == _VARINT:
            return self.varint(at, end, inner)[1]
        if wire in _FIXED_SIZES:
            size = _FIXED_SIZES[wire]
        elif wire == _LENGTH_DELIMITED:
            size, at = self.varint(at, end, inner)
        else:
            raise _DamagedError(place, f"no field begins at byte {start}")
        last = at + size
        if last > end and place:
            raise _DamagedError(inner, f"it goes on to byte {last}, {place} ends at {end}")
        below = field.message_type if field is not None and wire == _LENGTH_DELIMITED else None
        if below is not None:
            self.known_fields += 1
        if below is not None and last <= len(self.data):
            self.message(below, at, last, inner, depth + 1)
        elif last > len(self.data):
            self.report_truncation(below, (at, last), inner, depth)
        return last

    def report_truncation(
        self, message: _Message | None, ends: tuple[int, int], place: str, depth: int
    ) -> None:
        """Raises _DamagedError for a field that continues after the end of the file."""
        at, last = ends
        if message is not None:
            self.message(message, at, last, place, depth + 1)
        raise _DamagedError(
            place, f"the file ends at byte {len(self.data)}, this goes on to {last}"
        )

    def varint(self, at: int, end: int, place: str) -> tuple[int, int]:
        """Returns a varint of up to ten bytes, and the offset after it."""
        value = shift = 0
        start = at
        while True:
            if at >= len(self.data):
                raise _DamagedError(place, f"the file ends at byte {at}, within it")
            if at >= end:
                raise _DamagedError(place, f"it ends at byte {at}, within a number")
            byte = self.data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at
            shift += 7
            if shift > 63:
                raise _DamagedError(place, f"the number at byte {start} has more than 64 bits")


def _outermost_messages(place: str) -> str:
    """Returns the first four parts of a path."""
    return ".".join(place.split(".")[:4])
