"""What reads a framework's models: one class a framework, found by entry point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import InputError, PluginError
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Ledger


class Frontend(ABC):
    """Reads models of one framework.

    `accepts` must not import the framework. `run_foreign` computes a node that QIR does not
    know, where the framework can; the interpreter asks the frontend named by the node.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    holds: ClassVar[str] = ""
    """What files with these suffixes hold, as the message about one that nobody reads says it."""
    files_take_inputs: ClassVar[bool] = False
    """Whether `load_object` reads files too, with the shapes that `inputs` say."""

    def accepts(self, source: object) -> bool:
        """Returns whether this frontend reads that kind of source."""
        return isinstance(source, (str, Path)) and Path(source).suffix.lower() in self.suffixes

    def states_shapes(self, path: Path) -> bool:
        """Returns whether a file says which shapes its inputs have, so that data need not."""
        return True

    @abstractmethod
    def load(self, source: object, ledger: Ledger) -> Graph:
        """Reads a source; raises InputError for one that is damaged, naming file and place."""

    def load_object(
        self, source: object, ledger: Ledger, inputs: Sequence[object] | None = None
    ) -> Graph:
        """Reads a model in memory; `inputs` are example inputs where it has to be traced.

        Raises InputError for one that is not of this framework, or that it cannot trace.
        """
        raise InputError(f"{type(source).__name__}: frontend {self.name} reads files only")

    def load_trusted(
        self, path: Path, ledger: Ledger, inputs: Sequence[object] | None = None
    ) -> Graph:
        """Reads a file that runs code when it is opened, such as a pickle.

        Raises InputError where this framework has no such files.
        """
        raise InputError(
            f"{path}: frontend {self.name} opens no file that runs code; leave trust out"
        )

    def file_of(self, path: Path) -> Path:
        """Returns the file or folder that a path stands for, which may name a part of it too."""
        return path

    def files(self, path: Path) -> Sequence[Path]:
        """Returns the files of a model: its own, and the data files that it names."""
        return (path,)

    def samples(self, folder: Path) -> Sequence[Path]:
        """Writes small models into a folder and gives their paths; `qir plugins check` reads them.

        They should hold what the frontend reads; without any it cannot be checked.
        """
        return ()

    def run_foreign(
        self, node: Node, operands: Mapping[str, NDArray[np.generic]]
    ) -> tuple[NDArray[np.generic], ...]:
        """Computes a foreign node; raises PluginError if it cannot."""
        raise PluginError(f"{node.name}: frontend {self.name} does not run foreign ops")

    def read_again(self, node: Node) -> Graph | None:
        """Returns a foreign node in ops of the language, now that more of its operands are
        constants.

        The graph's inputs have the names of those that are not, its outputs the order of the
        results. None where the node has to stay as it is.
        """
        return None


def name_origins(graph: Graph) -> None:
    """Gives nodes that passes inserted, such as transposes, the origins of their operand."""
    for node in graph:
        if not node.origins and node.operands and node.op != "output":
            graph.set_origins(node, next(iter(node.operands.values())).node.origins)


def frontend(name: str) -> Frontend:
    """Returns the frontend of that name; raises PluginError if there is none."""
    loaded = registry.find("qir.frontends", name)
    if not (isinstance(loaded, type) and issubclass(loaded, Frontend)):
        owners = registry.owner("qir.frontends", name)
        raise PluginError(
            f"frontend {name!r} of {owners} is no class derived from qir.frontend.Frontend"
        )
    return loaded()


def frontend_for(source: object) -> Frontend:
    """Returns the frontend that reads a source; raises InputError if none does."""
    known: list[str] = []
    holds: dict[str, str] = {}
    for name in registry.names("qir.frontends"):
        try:
            candidate = frontend(name)
        except PluginError:
            continue
        if candidate.accepts(source):
            return candidate
        # Gathered for the message alone, in case that none reads it.
        known += candidate.suffixes
        holds |= dict.fromkeys(candidate.suffixes if candidate.holds else (), candidate.holds)
    kinds = ", ".join(sorted({".qir", *known}))
    description = f"an object of type {type(source).__name__}"
    if source is None or isinstance(source, (str, Path)):
        description = str(source)
        suffix = Path(description).suffix.lower()
        if suffix in holds and Path(description).is_file():
            raise InputError(f"{description}: is no {holds[suffix]}")
    raise InputError(f"{description}: no frontend reads this; known kinds of file: {kinds}")
