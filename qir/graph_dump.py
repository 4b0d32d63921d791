"""A folder of graphs, one before the first pass and one after each."""

from __future__ import annotations

import re
from pathlib import Path

from qir.atomic import write_text
from qir.errors import InputError, UsageError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.qir_files import SUFFIX, write_qir
from qir.rewrite import Report

_STEM = re.compile(r"[0-9]{2,}-.+")
"""The names of a dump's files."""


class Dump:
    """Writes a graph before the first pass and after each, numbered, as text and `.qir`."""

    def __init__(self, folder: Path, graph: Graph, *, force: bool = False) -> None:
        self.claim(folder, force=force)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in self.step_files(folder):
                path.unlink()
        except OSError as error:
            raise InputError(f"{folder}: {error.strerror or error}") from error
        self.folder = folder
        self.count = 0
        self._write("before", graph)

    def __call__(self, report: Report, graph: Graph) -> None:
        self.count += 1
        self._write(report.name, graph)

    @classmethod
    def claim(cls, folder: Path, *, force: bool = False) -> None:
        """Raises UsageError where the folder holds another run, unless `force`."""
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder}: it is no folder; name one for the graphs")
        if not force and (found := cls.step_files(folder)):
            name = found[0].name
            raise UsageError(f"{folder} holds another run, {name} first; `force=True` replaces it")

    @staticmethod
    def step_files(folder: Path) -> list[Path]:
        """Returns the files of a run in a folder: a text and a `.qir` file of each name."""
        texts = sorted(folder.glob("[0-9][0-9]*-*.txt"))
        pairs = [(path, path.with_suffix(SUFFIX)) for path in texts if _STEM.fullmatch(path.stem)]
        # Only pairs: a folder may hold numbered texts of somebody else.
        return [path for pair in pairs if pair[1].exists() for path in pair]

    def _write(self, name: str, graph: Graph) -> None:
        stem = f"{self.count:02d}-{name}"
        write_text(self.folder / f"{stem}.txt", str(graph))
        write_qir(graph, self.folder / f"{stem}{SUFFIX}", Ledger())
