"""Program files: models that were compiled before, loaded without the compiler."""

from __future__ import annotations

from pathlib import Path

from qir.arguments import checked
from qir.target import Executable
from qir.target import target as named_target

KERNELS = "cpu"
"""The target that runs models on this machine."""


@checked
def load_program(path: str | Path, *, threads: int | None = None) -> Executable:
    """Loads a program that `save` of a compiled model wrote.

    Raises InputError for a file that is no program, is damaged, or is of another version.
    """
    return named_target(KERNELS).compile_file(Path(path), threads=threads)
