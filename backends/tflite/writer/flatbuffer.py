"""Builds FlatBuffers from plain dictionaries, by tables whose fields are declared as text.

A file is written from front to back: a table, then what it refers to, each of whose places is
filled in where the table named it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Field: TypeAlias = (
    "bool | int | float | str | NDArray[np.generic] | Sequence[int] | Sequence[float] | "
    "Mapping[str, Field] | Sequence[Mapping[str, Field]] | tuple[str, Mapping[str, Field]]"
)
Table: TypeAlias = "Mapping[str, Field]"

_FORMATS = {
    "u1": "<B",
    "i1": "<b",
    "flag": "<B",
    "u4": "<I",
    "i4": "<i",
    "u8": "<Q",
    "i8": "<q",
    "f4": "<f",
}
"""The storage of numbers, by their kind in a declaration: a letter and a number of bytes."""
_DATA_ALIGNMENT = 16
"""The alignment of vectors of bytes, which hold the elements of tensors."""
_OFFSET = "u4"


@dataclass(frozen=True)
class FieldType:
    """One field of a table: its number there, and its kind.

    A kind is a number's, `text`, a table's name, `union`, or one of these in brackets, a vector.
    """

    number: int
    kind: str

    @property
    def stored_as(self) -> str:
        """The format of what the table itself holds: a number, or the offset of something."""
        return _FORMATS.get(self.kind, _FORMATS[_OFFSET])


def parse_tables(text: str) -> Mapping[str, Mapping[str, FieldType]]:
    """Parses lines such as `Buffer = data:[u1] offset:u8`; `-` is a field that nobody writes."""
    tables = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, fields = line.partition(" =")
        numbered = enumerate(fields.split())
        pairs = ((i, *field.partition(":")[::2]) for i, field in numbered if field != "-")
        tables[name] = {field: FieldType(i, kind) for i, field, kind in pairs}
    return tables


class FlatBufferBuilder:
    """A file under construction."""

    def __init__(self, tables: Mapping[str, Mapping[str, FieldType]]) -> None:
        self.tables = tables
        self.data = bytearray()
        self._layouts: dict[bytes, int] = {}
        """Where the fields' places of a layout are written: FlatBuffers calls it a vtable."""

    def build(self, root: str, table: Table, identifier: bytes) -> bytes:
        """Returns the file of a root table."""
        self.data = bytearray(struct.pack("<I", 0) + identifier)
        self._layouts.clear()
        self._point(0, self._table(root, table))
        return bytes(self.data)

    def _point(self, place: int, to: int) -> None:
        """Writes at a place how far after it something is."""
        struct.pack_into("<I", self.data, place, to - place)

    def _align(self, size: int, *, skipped: int = 0) -> None:
        """Adds zeros until what comes after `skipped` more bytes is at a multiple of a size."""
        self.data.extend(bytes(-(len(self.data) + skipped) % size))

    def _table(self, name: str, table: Table) -> int:
        """Writes a table and returns where it is; tables of one layout share their vtable."""
        fields = self.tables[name]
        held = sorted((fields[key] for key in table), key=lambda f: -struct.calcsize(f.stored_as))
        values = {fields[key]: value for key, value in table.items()}
        count = max((f.number for f in held), default=-1) + 1
        places, end = [0] * count, 4
        for field in held:  # the largest first, so that there are no gaps after the first
            size = struct.calcsize(field.stored_as)
            end += -end % size
            places[field.number] = end
            end += size
        layout = struct.pack(f"<{2 + count}H", 4 + 2 * count, end, *places)
        known = self._layouts.get(layout)
        self._align(8, skipped=0 if known else len(layout))
        if known is None:
            known = self._layouts[layout] = len(self.data)
            self.data += layout
        start = len(self.data)
        self.data += struct.pack("<i", start - known) + bytes(end - 4)
        later = []
        for field in held:
            place, value = start + places[field.number], values[field]
            if field.kind in _FORMATS:
                struct.pack_into(field.stored_as, self.data, place, value)
            else:
                later.append((place, field.kind, value))
        for place, kind, value in later:
            self._point(place, self._reference(kind, value))
        return start

    def _reference(self, kind: str, value: Field) -> int:
        """Writes what a field refers to, and returns where it is."""
        if kind == "text":
            assert isinstance(value, str)
            return self._vector("u1", np.frombuffer(value.encode(), np.uint8), end=b"\0")
        if kind == "union":  # the name of the table comes with it
            assert isinstance(value, tuple)
            name, table = value
            assert isinstance(name, str)
            assert isinstance(table, Mapping)
            return self._table(name, table)
        if not kind.startswith("["):
            assert isinstance(value, Mapping)
            return self._table(kind, value)
        kind = kind.strip("[]")
        if kind in _FORMATS:
            return self._vector(kind, np.asarray(value, np.dtype(_FORMATS[kind])))
        assert isinstance(value, Sequence)
        start = self._vector(_OFFSET, np.zeros(len(value), np.uint32))
        for i, table in enumerate(value):
            assert isinstance(table, Mapping)
            self._point(start + 4 + 4 * i, self._table(kind, table))
        return start

    def _vector(self, kind: str, elements: NDArray[np.generic], end: bytes = b"") -> int:
        size = struct.calcsize(_FORMATS[kind])
        is_data = kind == "u1" and not end
        self._align(_DATA_ALIGNMENT if is_data else max(size, 4), skipped=4)
        start = len(self.data)
        self.data += struct.pack("<I", elements.size)
        self.data += np.ascontiguousarray(elements).data.cast("B") if elements.size else b""
        self.data += end
        return start
