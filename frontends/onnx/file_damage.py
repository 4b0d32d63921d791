"""Finds the byte where a damaged model file stops being valid protobuf."""

from __future__ import annotations

import mmap
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import onnx

_DEEPEST = 100
"""So many messages within one another are read by protobuf."""
_MOST = 1 << 20
"""Fields that are looked at."""
_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5
"""Wire types; 3 and 4 are those of groups, which ONNX never had."""
_FIXED = {_EIGHT: 8, _FOUR: 4}


class _Field(Protocol):
    """What protobuf knows of a field."""

    name: str
    is_repeated: bool
    message_type: _Message | None


class _Message(Protocol):
    """What protobuf knows of a message."""

    fields_by_number: dict[int, _Field]


class _DamagedError(Exception):
    """A place in a message, and what is wrong there."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(what)
        self.place = place
        self.what = what


def damage(data: bytes | mmap.mmap) -> tuple[str, str]:
    """Returns the place in the model and what is wrong there, as far as it is known."""
    walk = _Walk(data)
    try:
        walk.message(onnx.ModelProto.DESCRIPTOR, 0, len(data), "", 0)
    except _DamagedError as error:
        if walk.known:
            whole = "" if error.place else "the file "
            return error.place, f"{whole}is damaged: {error.what}"
        return "", "is no ONNX model: its first bytes are no field of one"
    except RecursionError:
        pass
    return "", "is no ONNX model, or is damaged: it does not parse"


@dataclass(slots=True)
class _Walk:
    """Goes through the fields of messages until one does not fit."""

    data: bytes | mmap.mmap
    known: int = 0
    """Fields of ONNX that were whole, or are messages of it."""
    seen: int = 0

    def message(self, kind: _Message, at: int, end: int, place: str, depth: int) -> None:
        """Reads a message; _DamagedError at the innermost place that does not fit."""
        if depth > _DEEPEST:
            raise _DamagedError(
                _outer(place), f"more than {_DEEPEST} messages are in one another, at byte {at}"
            )
        counts: Counter[str] = Counter()
        while at < end:
            self.seen += 1
            if self.seen > _MOST:
                return
            start = at
            key, at = self.number(at, end, place)
            if not key >> 3:
                raise _DamagedError(place, f"no field begins at byte {start}")
            row, wire = kind.fields_by_number.get(key >> 3), key & 7
            inner = place
            if row is not None:
                index = f"[{counts[row.name]}]" if row.is_repeated else ""
                inner = f"{place}.{row.name}{index}".lstrip(".")
                counts[row.name] += 1
            at = self.content(row, wire, at, end, (place, inner, start), depth)
            self.known += row is not None

    def content(
        self,
        row: _Field | None,
        wire: int,
        at: int,
        end: int,
        places: tuple[str, str, int],
        depth: int,
    ) -> int:
        """Where a field's content ends, which is read too where it is a message."""
        place, inner, start = places
        if wire == _VARINT:
            return self.number(at, end, inner)[1]
        if wire in _FIXED:
            size = _FIXED[wire]
        elif wire == _SIZED:
            size, at = self.number(at, end, inner)
        else:
            raise _DamagedError(place, f"no field begins at byte {start}")
        last = at + size
        if last > end and place:
            raise _DamagedError(inner, f"it goes on to byte {last}, {place} ends at {end}")
        below = row.message_type if row is not None and wire == _SIZED else None
        if below is not None:
            self.known += 1
        if below is not None and last <= len(self.data):
            self.message(below, at, last, inner, depth + 1)
        elif last > len(self.data):
            self.cut(below, (at, last), inner, depth)
        return last

    def cut(self, kind: _Message | None, ends: tuple[int, int], place: str, depth: int) -> None:
        """Tells of a field that continues after the end of the file."""
        at, last = ends
        if kind is not None:
            self.message(kind, at, last, place, depth + 1)
        raise _DamagedError(
            place, f"the file ends at byte {len(self.data)}, this goes on to {last}"
        )

    def number(self, at: int, end: int, place: str) -> tuple[int, int]:
        """Returns a number of up to ten bytes, and what comes after it."""
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


def _outer(place: str) -> str:
    """Returns the place without most of the messages that are in one another."""
    return ".".join(place.split(".")[:4])
