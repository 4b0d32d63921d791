"""Entry point of the MXNet frontend: reads a symbol and its parameters, without MXNet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir.errors import InputError
from qir.frontend import Frontend
from qir.ir.garbage_collection import pause_garbage_collection
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Ledger

_SYMBOL_SUFFIX = "-symbol.json"
_EPOCH_FILE = re.compile(r"(.+)-\d{4}\.params")


class MxnetFrontend(Frontend):
    """Reads `NAME-symbol.json` with `NAME-0000.params`, as Module and Gluon write them."""

    name = "mxnet"
    suffixes = (".json", ".params")
    files_take_inputs = True

    def accepts(self, source: object) -> bool:
        """Returns whether a source is a symbol, by its content, or a `.params` file."""
        if not isinstance(source, (str, Path)):
            return False
        path = Path(source)
        suffix = path.suffix.lower()
        if suffix != ".json":
            return suffix == ".params"
        from .symbol import looks_like_symbol

        return looks_like_symbol(path)

    def load(self, source: object, ledger: Ledger) -> Graph:
        """Reads a symbol and its parameters; raises InputError with file and entry if damaged."""
        return self.load_object(source, ledger)

    def load_object(
        self, source: object, ledger: Ledger, inputs: Sequence[object] | None = None
    ) -> Graph:
        """Reads a symbol; `inputs` are shapes or example arrays, one for each input.

        Raises InputError for a damaged file, an input without a shape, and unsupported operators.
        """
        if not isinstance(source, (str, Path)):
            raise InputError(f"{type(source).__name__}: frontend {self.name} reads files only")
        path, store = _model_files(Path(source))
        from qir.ir.verify import errors
        from qir.passes.forms.store_weights import StoreWeights

        from .dispatch import read
        from .parameters import Parameters, read_parameters
        from .symbol import read_symbol

        with pause_garbage_collection():
            symbol = read_symbol(path)
            parameters = read_parameters(store) if store is not None else Parameters()
            store_name = str(store or f"{_name_stem(path)}-0000.params, which is not there")
            graph = read(path, symbol, parameters, store_name, ledger, inputs)
            # MXNet kernels quantize float weights themselves: here the integers are stored.
            StoreWeights().run(graph, ledger)
        if problems := errors(graph):
            raise InputError(f"{path}: {problems[0]}")
        return graph

    def run_foreign(
        self, node: Node, operands: Mapping[str, NDArray[np.generic]]
    ) -> tuple[NDArray[np.generic], ...]:
        """Computes a foreign node by MXNet; raises PluginError if that fails."""
        from .foreign import run

        return run(node, operands)

    def files(self, path: Path) -> Sequence[Path]:
        """Returns the files of the symbol and of its parameters."""
        return [part for part in _model_files(path) if part is not None]

    def samples(self, folder: Path) -> Sequence[Path]:
        """Writes a convolutional network and a model without parameters; returns their paths."""
        from .samples import write

        return write(folder)


def _name_stem(symbol: Path) -> Path:
    name = symbol.name
    return symbol.with_name(
        name.removesuffix(_SYMBOL_SUFFIX if name.endswith(_SYMBOL_SUFFIX) else ".json")
    )


def _model_files(path: Path) -> tuple[Path, Path | None]:
    """Returns the symbol and the parameter file of a model, given either of them.

    Raises InputError if several parameter files fit a symbol.
    """
    if path.suffix.lower() == ".params":
        epoch = _EPOCH_FILE.fullmatch(path.name)
        symbol = path.with_name((epoch[1] if epoch else path.stem) + _SYMBOL_SUFFIX)
        if not symbol.exists():
            message = f"holds parameters only; its {symbol.name} is not in the same folder"
            raise InputError(f"{path}: {message}")
        return symbol, path
    stem = _name_stem(path)
    # Gluon's `export` writes epoch 0.
    first = path.with_name(f"{stem.name}-0000.params")
    if first.exists():
        return path, first
    candidates = [
        p
        for p in path.parent.glob("*.params")
        if p.name in (f"{stem.name}.params",)
        or ((m := _EPOCH_FILE.fullmatch(p.name)) and m[1] == stem.name)
    ]
    if len(candidates) > 1:
        names = ", ".join(sorted(p.name for p in candidates)[:4])
        raise InputError(f"{path}: has parameters of several epochs; name one of {names} instead")
    return path, candidates[0] if candidates else None
