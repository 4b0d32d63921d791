"""Entry point of the PyTorch frontend. PyTorch is imported only when a model is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir.errors import InputError, ShapesNeeded
from qir.frontend import Frontend
from qir.ir.garbage_collection import pause_garbage_collection
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.verify import errors
from qir.ledger import Change, Ledger
from qir.passes.forms.group import Group

_ROOTS = ("torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram")


class TorchFrontend(Frontend):
    """Reads exported programs, TorchScript and modules of PyTorch, from files and from memory."""

    name = "torch"
    suffixes = (".pt2", ".pt", ".pth", ".torchscript")
    files_take_inputs = True

    def accepts(self, source: object) -> bool:
        """Returns whether a source is a PyTorch file, an exported program or a module."""
        if isinstance(source, (str, Path)):
            return super().accepts(source)
        return any(f"{c.__module__}.{c.__qualname__}" in _ROOTS for c in type(source).__mro__)

    def states_shapes(self, path: Path) -> bool:
        """Returns whether a file states the shapes of its inputs.

        Exported programs and files of QIR do. For other TorchScript they are guessed from the first
        layers, which accept several ranks.
        """
        from .signature import states_types

        return path.suffix.lower() == ".pt2" or states_types(path)

    def load(self, source: object, ledger: Ledger) -> Graph:
        """Reads a file; raises InputError if it is damaged, unsafe to open, or holds no program."""
        return self.load_object(source, ledger)

    def load_object(
        self, source: object, ledger: Ledger, inputs: Sequence[object] | None = None
    ) -> Graph:
        """Reads a program; `inputs` are examples, or shapes for a TorchScript archive.

        A quantized module is traced by TorchScript, any other exported, both with the example
        inputs. Quantized kernels become groups under the profile of PyTorch's current engine.
        Raises InputError for a module without example inputs, and for one that PyTorch cannot
        export.
        """
        _require_torch()
        from .dispatch import read
        from .signature import restore_names
        from .sources import open_source
        from .trained_norms import fold_trained_norms

        opened = open_source(source, inputs)
        with pause_garbage_collection():
            graph = read(opened.program, opened.name, ledger, shares_memory=opened.shares_memory)
            graph.profile = opened.profile or graph.profile
            if opened.observers_removed:
                message = (
                    f"{opened.observers_removed} observers are left out; calibrate the float model,"
                    " or read what qir.frontends.torch.observers.calibrated makes of the module"
                )
                ledger.add(Change.EXACT, "read torch", opened.name, message)
            fold_trained_norms(graph, ledger)
            for message in opened.notes:
                ledger.add(Change.DROPPED, "read torch", opened.name, message)
            # Float ops between dequantize and quantize stand for one kernel: grouped, they round
            # once.
            if opened.has_quantized_kernels:
                Group(opened.profile).run(graph, ledger)
            if isinstance(source, (str, Path)):
                restore_names(graph, Path(source))
        if wrong := errors(graph):
            raise InputError(f"{opened.name}: {wrong[0]}")
        return graph

    def load_trusted(
        self, path: Path, ledger: Ledger, inputs: Sequence[object] | None = None
    ) -> Graph:
        """Reads a pickled module, which runs code of the file; needs example inputs or shapes.

        Raises ShapesNeeded without them, and otherwise what `load_object` raises.
        """
        _require_torch()
        from .sources import is_pickled
        from .trusted import load_unsafe

        if not is_pickled(path):
            return self.load_object(path, ledger, inputs)
        module = load_unsafe(path)
        if inputs is None and any(c.__name__ == "Module" for c in type(module).__mro__):
            message = "a module is exported with inputs; give their shapes or examples"
            raise ShapesNeeded(
                f"{path}: {message}: --shape n,3,224,224, --data, or inputs=(x, ...)"
            )
        return self.load_object(module, ledger, inputs)

    def samples(self, folder: Path) -> Sequence[Path]:
        """Writes a convolutional, an attention and a recurrent network; returns their paths."""
        _require_torch()
        from .samples import write

        return write(folder)

    def run_foreign(
        self, node: Node, operands: Mapping[str, NDArray[np.generic]]
    ) -> tuple[NDArray[np.generic], ...]:
        """Computes a foreign node by PyTorch's operator; raises PluginError if that fails."""
        _require_torch()
        from .foreign import run

        return run(node, operands)


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise InputError(f"reading PyTorch models needs PyTorch: {error}") from error
