"""Entry point of the TensorFlow Lite frontend. Files are read without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qir.errors import InputError
from qir.frontend import Frontend, name_origins
from qir.ir.garbage_collection import pause_garbage_collection
from qir.ir.graph import Graph
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.fold.fold_shapes import FoldShapes
from qir.passes.layout import Layout

from .dispatch import read
from .model_file import TfliteFile
from .samples import write

_FLOAT_PASSES = (FoldConstants(), Layout(to="nchw"))
"""Passes that run after reading a float model.

Half floats become floats, and images have their channels first, as targets have kernels for them.
Quantized models stay as the file has them, whose bytes their profile predicts.
"""


class TfliteFrontend(Frontend):
    """Reads `.tflite` files, float or quantized."""

    name = "tflite"
    suffixes = (".tflite",)
    holds = "model of TensorFlow Lite"

    def accepts(self, source: object) -> bool:
        """Returns whether a source is such a file, or a signature of one: `file.tflite#name`."""
        return isinstance(source, (str, Path)) and super().accepts(self.file_of(Path(source)))

    def file_of(self, path: Path) -> Path:
        """Returns the file of `file.tflite#signature`; another path itself."""
        file, mark, _ = str(path).rpartition("#")
        return Path(file) if mark and not path.exists() else path

    def files(self, path: Path) -> Sequence[Path]:
        """Returns the file of a model."""
        return (self.file_of(path),)

    def load(self, source: object, ledger: Ledger) -> Graph:
        """Reads a model; raises InputError for a damaged file or an operator that is not read."""
        stated = Path(str(source))
        path = self.file_of(stated)
        signature = "" if path == stated else str(stated).rpartition("#")[2]
        file = TfliteFile(path)
        with pause_garbage_collection():
            graph = read(file, path.stem, ledger, signature)
            graph.prune()
            FoldShapes().run(graph, ledger)
            for float_pass in _FLOAT_PASSES if graph.profile == "native" else ():
                float_pass.run(graph, ledger)
            graph.prune()
            name_origins(graph)
        if problems := errors(graph):
            raise InputError(f"{path}: {problems[0]}")
        return graph

    def samples(self, folder: Path) -> Sequence[Path]:
        """Writes a float and a quantized network; returns their paths."""
        return write(folder)
