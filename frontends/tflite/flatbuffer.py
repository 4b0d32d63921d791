"""Reads FlatBuffers, the format of TensorFlow Lite's files, and checks every place that it reads.

A table begins with the distance to its list of fields, which says where each field is, by number.
Strings, vectors and other tables lie elsewhere: a field holds the distance to them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import InputError

Numbers: TypeAlias = NDArray[np.generic]
Default: TypeAlias = "int | float"

_FORMATS = {"i1": "b", "u1": "B", "i4": "<i", "u4": "<I", "u8": "<Q", "f4": "<f", "flag": "?"}
_DISTANCE, _LENGTH = 4, 4


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A field of a table: its number, what it holds, and its value where a file leaves it out."""

    number: int
    kind: str
    """A number (`i4`), `text`, the name of a table, or any of these as a vector: `[i4]`."""
    default: Default = 0


TableSpec: TypeAlias = Mapping[str, FieldSpec]
Schema: TypeAlias = Mapping[str, TableSpec]


def parse_schema(text: str) -> Schema:
    """Returns the tables that lines such as `SubGraph = tensors:[Tensor] name:text` declare.

    Fields have the numbers of their order; `-` stands for one that is not read.
    """
    schema: dict[str, TableSpec] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        table, _, listed = line.partition("=")
        fields: dict[str, FieldSpec] = {}
        for number, declaration in enumerate(listed.split()):
            name, _, kind = declaration.partition(":")
            kind, _, default = kind.partition("|")
            if kind:
                fields[name] = FieldSpec(number, kind, int(default or 0))
        schema[table.strip()] = fields
    return schema


class FlatFile:
    """The bytes of a file; raises InputError where something lies outside of it."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path, self.schema = path, schema
        try:
            self.bytes: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        except ValueError as error:  # an empty file cannot be mapped
            raise InputError(f"{path}: is empty") from error

    def root(self, table: str) -> Table:
        """Returns the table that the file begins with."""
        return Table(self, table, self.follow(0))

    def part(self, place: int, size: int) -> NDArray[np.uint8]:
        """Returns bytes; raises InputError unless all of them are in the file."""
        if place < 0 or size < 0 or place + size > self.bytes.size:
            raise self.damaged(f"reads bytes {place} to {place + size} of {self.bytes.size}")
        return self.bytes[place : place + size]

    def number(self, kind: str, place: int) -> int | float:
        """Returns the number at a place."""
        code = _FORMATS[kind]
        (value,) = struct.unpack(code, self.part(place, struct.calcsize(code)).tobytes())
        assert isinstance(value, int | float)
        return value

    def follow(self, place: int) -> int:
        """Returns the place that a distance leads to."""
        return place + int(self.number("u4", place))

    def length(self, place: int, item_size: int) -> int:
        """Returns how many items a vector has, all of which are in the file."""
        count = int(self.number("u4", place))
        self.part(place + _LENGTH, count * item_size)
        return count

    def damaged(self, what: str) -> InputError:
        """Returns the error for a file that is no whole FlatBuffer."""
        return InputError(f"{self.path}: is damaged or cut off: it {what}")


class Table:
    """One table of a file, whose fields are asked for by name."""

    def __init__(self, file: FlatFile, name: str, place: int) -> None:
        self.file, self.name, self.place = file, name, place

    @cached_property
    def _places(self) -> NDArray[np.uint16]:
        """Distances of the fields from the beginning of the table; 0 for those left out."""
        (distance,) = struct.unpack("<i", self.file.part(self.place, 4).tobytes())
        listed = self.place - distance
        (size,) = struct.unpack("<H", self.file.part(listed, 2).tobytes())
        if size < 4 or size % 2:
            raise self.file.damaged(f"has a table {self.name} with a list of {size} bytes")
        return self.file.part(listed + 4, size - 4).view("<u2")

    def _place_of(self, name: str, *kinds: str) -> tuple[int, FieldSpec]:
        """Returns where a field is, 0 where it is left out, and its declaration."""
        field = self.file.schema[self.name][name]
        assert not kinds or field.kind in kinds, f"{self.name}.{name} is {field.kind}"
        number = field.number
        distance = int(self._places[number]) if number < self._places.size else 0
        return (self.place + distance if distance else 0), field

    def declares(self, name: str) -> bool:
        """Returns whether tables of this kind have a field."""
        return name in self.file.schema[self.name]

    def has(self, name: str) -> bool:
        """Returns whether the file has a field."""
        return bool(self._place_of(name)[0])

    def integer(self, name: str) -> int:
        """Returns a field that is a whole number."""
        place, field = self._place_of(name, "i1", "u1", "i4", "u4", "u8")
        return int(self.file.number(field.kind, place) if place else field.default)

    def real(self, name: str) -> float:
        """Returns a field that is a float."""
        place, field = self._place_of(name, "f4")
        return float(self.file.number("f4", place) if place else field.default)

    def flag(self, name: str) -> bool:
        """Returns a field that is true or false."""
        place, field = self._place_of(name, "flag")
        return bool(self.file.number("u1", place) if place else field.default)

    def text(self, name: str) -> str:
        """Returns a text; empty where it is left out."""
        place, _ = self._place_of(name, "text")
        if not place:
            return ""
        place = self.file.follow(place)
        count = self.file.length(place, 1)
        return self.file.part(place + _LENGTH, count).tobytes().decode("utf-8", "replace")

    def numbers(self, name: str) -> Numbers:
        """Returns a vector of numbers; empty where it is left out."""
        place, field = self._place_of(name)
        kind = np.dtype(f"<{field.kind[1:-1]}")
        if not place:
            return np.zeros(0, kind)
        place = self.file.follow(place)
        count = self.file.length(place, kind.itemsize)
        # What is not aligned, as a damaged file has it, is copied.
        return np.frombuffer(self.file.part(place + _LENGTH, count * kind.itemsize), kind)

    def integers(self, name: str) -> tuple[int, ...]:
        """Returns a vector of whole numbers."""
        return tuple(int(number) for number in self.numbers(name))

    def table(self, name: str, kind: str = "") -> Table | None:
        """Returns a table, of the kind that is declared or given; None where it is left out."""
        place, field = self._place_of(name)
        return Table(self.file, kind or field.kind, self.file.follow(place)) if place else None

    def tables(self, name: str) -> Iterator[Table]:
        """Yields the tables of a vector."""
        place, field = self._place_of(name)
        if not place:
            return
        place = self.file.follow(place)
        for i in range(self.file.length(place, _DISTANCE)):
            item = place + _LENGTH + i * _DISTANCE
            yield Table(self.file, field.kind[1:-1], self.file.follow(item))
