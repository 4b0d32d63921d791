"""Program files as verbs take them: run in the place of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from qir.ir.graph import Graph
    from qir.target import Executable

SUFFIX = ".qirp"


@runtime_checkable
class Saves(Protocol):
    """An executable that is kept as a program file."""

    def save(
        self, path: Path, sizes: Mapping[str, int] | None = None, *, force: bool = False
    ) -> None:
        """Writes a file for inputs of these sizes."""
        ...


@runtime_checkable
class ProgramFile(Protocol):
    """What was read from a program file."""

    arena: int

    def signature(self) -> Graph:
        """Returns a graph of its inputs alone."""
        ...

    def describe(self) -> Sequence[object]:
        """Returns one row a step."""
        ...


def is_program(path: Path) -> bool:
    """Reports whether a file is a program file, by its suffix."""
    return path.suffix.lower() == SUFFIX


def open_program(path: Path, threads: int | None = None) -> tuple[Executable, ProgramFile]:
    """Reads a program file: what runs, and its description; raises InputError as its reader."""
    from qir.errors import InputError
    from qir.programs import load_program

    program = load_program(path, threads=threads)
    if not isinstance(program, ProgramFile):
        raise InputError(f"{path}: no program that lists its inputs")
    return program, program
