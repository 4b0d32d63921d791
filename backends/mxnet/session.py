"""Runs whole models in MXNet, in a Python of its own, which `QIR_MXNET` names."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir.errors import InputError, OpError, PluginError
from qir.frontend import frontend
from qir.inspect import pipe
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import Executable, Target

from .probe import MxNet
from .writer.files import parameters_path

Arrays = Mapping[str, NDArray[np.generic]]


class MxnetSession(Executable):
    """A model in MXNet's files, ready to run."""

    def __init__(self, path: Path, names: tuple[str, ...] = ()) -> None:
        self.path = path
        self.names = names or tuple(frontend("mxnet").load(path, Ledger()).outputs)
        self.mxnet = _mxnet(os.environ.get(MxNet.elsewhere, ""))

    def __call__(self, **inputs: object) -> dict[str, object]:
        """Runs it; raises InputError with what MXNet says where it refuses."""
        results = self.run({name: np.asarray(data) for name, data in inputs.items()})
        # MXNet numbers its outputs; they come in the order of the graph's.
        return dict(zip(self.names, results.values(), strict=True))

    def run(self, inputs: Arrays, *, all_nodes: bool = False) -> Arrays:
        """Returns the results by their numbers; with `all_nodes`, those of all nodes by name."""
        feeds: dict[str, pipe.Plain] = dict(inputs)
        files = str(self.path), str(parameters_path(self.path))
        try:
            answer = self.mxnet.answer(("model", *files, feeds, all_nodes))
        except OpError as error:
            raise InputError(f"{self.path}: MXNet does not run it: {error}") from error
        assert isinstance(answer, dict)
        return {name: np.asarray(array) for name, array in answer.items()}


@lru_cache(maxsize=1)
def _mxnet(_python: str) -> MxNet:
    """Returns the MXNet of this process; raises PluginError where there is none."""
    runtime = MxNet()
    if runtime.version is None:
        message = "MXNet runs in a Python that the environment variable QIR_MXNET names"
        raise PluginError(f"{message}; {runtime.python} has no mxnet 1.9")
    return runtime


class _Written(MxnetSession):
    """A graph that was written for MXNet; its files go with it."""

    def __init__(self, folder: tempfile.TemporaryDirectory[str], names: tuple[str, ...]) -> None:
        super().__init__(Path(folder.name, "model-symbol.json"), names)
        self.folder = folder


def written(target: Target, graph: Graph) -> MxnetSession:
    """Returns a graph ready to run, written to files for as long as it is there."""
    folder = tempfile.TemporaryDirectory()
    target.emit(graph, Path(folder.name, "model-symbol.json"), Ledger(), lossy=True)
    return _Written(folder, tuple(graph.outputs))
