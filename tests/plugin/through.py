"""The suite through a plugin: `pytest --through TARGET` sends every program out and back first.

What tests run by the reference is written by the target, read by the frontend that knows its files,
held against what was written, and then run as it came back.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import QirError
from qir.frontend import frontend_for
from qir.ir.graph import Graph
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.reference import interpreter
from qir.target import Target, target
from tests.plugin.installing import install_acme

_plain = interpreter.run


class Through:
    """Stands in for the reference's `run`, by way of a target's files."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.came_back = 0
        self.kept = 0
        """Programs that no file can hold: faulty ones, which tests hold to be refused."""
        self._within = False

    def __call__(
        self, graph: Graph, inputs: Mapping[str, interpreter.Tensor], **how: object
    ) -> dict[str, NDArray[np.generic]]:
        if self._within:  # a body
            return _plain(graph, inputs, **how)  # type: ignore[arg-type]
        self._within = True
        try:
            return _plain(self._back(graph), inputs, **how)  # type: ignore[arg-type]
        finally:
            self._within = False

    @cached_property
    def target(self) -> Target:
        """The target, which is loaded when a test first runs something."""
        return target(self.name)

    def _back(self, graph: Graph) -> Graph:
        if _faulty(graph):
            self.kept += 1
            return graph
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"program{self.target.suffix}")
            self.target.emit(graph, path, Ledger(), lossy=True)
            back = frontend_for(path).load(path, Ledger())
        assert back == graph, f"another program came back through {self.name}"
        self.came_back += 1
        return back

    def told(self) -> str:
        """What was done."""
        back, kept = self.came_back, self.kept
        return f"{back:,} programs through target {self.name}, {kept:,} faulty ones past it"


def _faulty(graph: Graph) -> bool:
    try:
        return bool(errors(graph))
    except QirError:
        return True


def begin(name: str) -> Through:
    """Puts a target between the tests and the reference; before tests are imported."""
    if name not in registry.names("qir.targets") and name == "loopback":
        sys.path.insert(0, str(install_acme(Path(tempfile.mkdtemp(prefix="loopback-")))))
        registry.forget()
    made = Through(name)
    interpreter.run = made
    return made
