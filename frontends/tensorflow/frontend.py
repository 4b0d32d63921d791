"""The entry: a TensorFlow model becomes a graph. Frozen graphs are read without TensorFlow."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qir.errors import InputError
from qir.frontend import Frontend
from qir.ir.graph import Graph
from qir.ir.growth import growth
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.passes.fold_bias import FoldBias
from qir.passes.layout import Layout

from .graphdef import Source, looks_like_graph, open_graph, outputs_of
from .reader import Reader


class TensorFlowFrontend(Frontend):
    """Reads frozen graphs."""

    name = "tensorflow"
    suffixes = (".pb",)

    def accepts(self, source: object) -> bool:
        """Returns whether this is a `.pb` file that holds a graph of TensorFlow."""
        return super().accepts(source) and looks_like_graph(Path(str(source)))

    @np.errstate(all="ignore")
    def load(self, source: object, ledger: Ledger) -> Graph:
        """Reads a model; InputError for one that is damaged, or holds what is not read."""
        path = Path(str(source))
        found = open_graph(path)
        outputs = {name: (name, index) for name, index in outputs_of(found)}
        if not outputs:
            raise InputError(f"{path}: is a graph without outputs: each node feeds another")
        with growth():
            return _finished(Reader(found, path.stem, ledger).read(outputs), found, ledger)


def _finished(graph: Graph, source: Source, ledger: Ledger) -> Graph:
    """Adds biases to their convolutions and brings channels second, as all targets have them."""
    graph.prune()
    FoldBias().run(graph, ledger)
    Layout(to="nchw").run(graph, ledger)
    graph.prune()
    if found := errors(graph):
        raise InputError(f"{source.name}: {found[0]}")
    return graph
