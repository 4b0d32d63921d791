"""The entry: an exported program becomes a graph. PyTorch is imported when a model is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir.errors import InputError
from qir.frontend import Frontend
from qir.ir.garbage import growth
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.verify import errors
from qir.ledger import Ledger

_ROOTS = ("torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram")


class TorchFrontend(Frontend):
    """Reads exported programs of PyTorch, as objects and as `.pt2` files."""

    name = "torch"
    suffixes = (".pt2",)

    def accepts(self, source: object) -> bool:
        """Returns whether this is a `.pt2` file, an exported program, or a module."""
        if isinstance(source, (str, Path)):
            return super().accepts(source)
        return any(f"{c.__module__}.{c.__qualname__}" in _ROOTS for c in type(source).__mro__)

    def load(self, source: object, ledger: Ledger) -> Graph:
        """Reads a `.pt2` file; InputError for one that is damaged or unsafe to open."""
        return self.load_object(source, ledger)

    def load_object(
        self, source: object, ledger: Ledger, inputs: Sequence[object] | None = None
    ) -> Graph:
        """Reads an exported program; a module is exported with the example inputs first.

        Raises InputError for a module without example inputs, and for one that PyTorch cannot
        export, such as one with control flow that depends on data.
        """
        _require_torch()
        from .program import as_program, program_of
        from .reader import read

        program, name = program_of(source, inputs)
        with growth():
            graph = read(as_program(program), name, ledger, share=inputs is None)
        if found := errors(graph):
            raise InputError(f"{name}: {found[0]}")
        return graph

    def samples(self, folder: Path) -> Sequence[Path]:
        """Writes a convolutional network, one with an attention layer, and a recurrent one."""
        _require_torch()
        from .samples import write

        return write(folder)

    def run_foreign(
        self, node: Node, operands: Mapping[str, NDArray[np.generic]]
    ) -> tuple[NDArray[np.generic], ...]:
        """Computes an op that was kept by calling PyTorch's own; PluginError if it cannot."""
        _require_torch()
        from .foreign import run

        return run(node, operands)


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise InputError(f"reading PyTorch models needs PyTorch: {error}") from error
