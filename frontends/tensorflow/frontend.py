"""Entry point of the TensorFlow frontend. Frozen graphs are read without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir.errors import InputError
from qir.frontend import Frontend, name_origins
from qir.ir.garbage_collection import pause_garbage_collection
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.passes.fold.fold_bias import FoldBias
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.fold.fold_shapes import FoldShapes
from qir.passes.layout import Layout
from qir.passes.loops.roll import Roll
from qir.passes.recover import Recover
from qir.rewrite.patterns.rewriting import PatternPass

from .dispatch import read
from .freezing import FrozenModel, freeze_file, freeze_object, name_of
from .graphdef import looks_like_graph, open_graph, outputs_of
from .samples import write


@dataclass(frozen=True)
class _ConvolutionBias(PatternPass):
    """Folds a constant that is added to a convolution into its bias."""

    name = FoldBias.name
    tolerance = FoldBias.tolerance
    rewrites = FoldBias.rewrites[:1]


_SAVED_MODEL_FILE = "saved_model.pb"
_FLOAT_PASSES = (
    FoldShapes(),
    FoldConstants(),
    _ConvolutionBias(),
    Layout(to="nchw"),
    Recover(only=("batch-norm",)),
    Roll(steps=False),
)
"""Passes that run after reading a float graph.

Keras writes batch norm as mul and add, biases as add, and uses NHWC; targets have kernels for the
fused ops in NCHW. Graphs with TensorFlow's int8 kernels are left alone.
"""
_ROOTS = frozenset(
    (
        "keras.src.models.model.Model",
        "tf_keras.src.engine.training.Model",
        "tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction",
    )
)


class TensorFlowFrontend(Frontend):
    """Reads frozen graphs, SavedModel folders, Keras files, and Keras models in memory."""

    name = "tensorflow"
    suffixes = (".pb", ".keras", ".h5")
    holds = "frozen graph (GraphDef) or model of TensorFlow"

    def accepts(self, source: object) -> bool:
        """Returns whether a source is a GraphDef, or a model that TensorFlow can freeze."""
        if not isinstance(source, (str, Path)):
            return any(f"{c.__module__}.{c.__qualname__}" in _ROOTS for c in type(source).__mro__)
        path = self.file_of(Path(source))
        if path.is_dir():
            return (path / _SAVED_MODEL_FILE).is_file()
        if path.suffix.lower() == ".pb":
            return path.name == _SAVED_MODEL_FILE or looks_like_graph(path)
        return super().accepts(path)

    def file_of(self, path: Path) -> Path:
        """Returns the folder of `folder#signature`; another path itself."""
        folder, mark, _ = str(path).rpartition("#")
        return Path(folder) if mark and not path.exists() else path

    def files(self, path: Path) -> Sequence[Path]:
        """Returns the file or the folder of a model."""
        return (self.file_of(path),)

    def load(self, source: object, ledger: Ledger) -> Graph:
        """Reads a model; raises InputError for a damaged file or an unsupported op."""
        stated = Path(str(source))
        path = self.file_of(stated)
        signature = "" if path == stated else str(stated).rpartition("#")[2]
        if path.name == _SAVED_MODEL_FILE:
            path = path.parent
        if signature and not path.is_dir():
            raise InputError(f"{stated}: only SavedModel folders have signatures")
        if path.is_dir() or path.suffix.lower() != ".pb":
            return _read_graph(freeze_file(path, signature), path.stem, ledger)
        opened = open_graph(path)
        outputs = outputs_of(opened)
        if not outputs:
            raise InputError(f"{path}: is a graph without outputs: each node feeds another")
        return _read_graph(FrozenModel(opened, {}, outputs), path.stem, ledger)

    def load_object(
        self, source: object, ledger: Ledger, inputs: Sequence[object] | None = None
    ) -> Graph:
        """Reads a Keras model or a concrete function, which state the shapes of their inputs."""
        if inputs is not None:
            raise InputError("a Keras model has its own inputs; leave out inputs=")
        return _read_graph(freeze_object(source), name_of(source), ledger)

    def run_foreign(
        self, node: Node, operands: Mapping[str, NDArray[np.generic]]
    ) -> tuple[NDArray[np.generic], ...]:
        """Computes a foreign node by TensorFlow in a child process.

        Raises PluginError if that fails.
        """
        from .foreign import run

        return run(node, operands)

    def samples(self, folder: Path) -> Sequence[Path]:
        """Writes a convolutional and an elementwise network; returns their paths."""
        return write(folder)


@np.errstate(all="ignore")  # numbers that are none are told in words, and need no warnings
def _read_graph(model: FrozenModel, name: str, ledger: Ledger) -> Graph:
    """Reads a graph, and runs the passes for float graphs."""
    with pause_garbage_collection():
        graph = read(model.source, name, ledger, model.inputs, model.outputs)
        graph.prune()
        for float_pass in _FLOAT_PASSES if graph.profile == "native" else ():
            float_pass.run(graph, ledger)
        graph.prune()
        name_origins(graph)
    if problems := errors(graph):
        raise InputError(f"{model.source.name}: {problems[0]}")
    return graph
