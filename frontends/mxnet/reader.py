"""The state of reading a symbol: its graph under construction, and the results of each node.

Converters of operators (`convolution`, `movement`, ...) add nodes by it. Which converter reads a
node is decided in `dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qir.errors import InputError
from qir.ir.dtype import dtype_of
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.origin import Origin
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger

from .inputs import Inputs
from .parameters import Parameters
from .results import Result, Unsupported
from .symbol import Symbol, SymbolNode


class SymbolReader:
    """The graph under construction, and the converted results of each node."""

    def __init__(
        self,
        path: Path,
        symbol: Symbol,
        parameters: Parameters,
        store: str,
        ledger: Ledger,
        stated_inputs: Sequence[object] | None,
        converter: Callable[[str], Callable[[Any], Result | list[Result]] | None],
    ) -> None:
        self.converter = converter
        """Returns the converter of an operator; None for an unknown one."""
        self.path, self.symbol, self.parameters, self.ledger = path, symbol, parameters, ledger
        self.graph = Graph(path.name.removesuffix(".json").removesuffix("-symbol") or "main")
        self.results: list[Sequence[Result]] = []
        """By node: its results."""
        self.unnamed: set[Value] = set()
        """Values that may still take the name of the node that returns them."""
        self.auxiliary_states = parameters.states
        self.result_counts = symbol.counts()
        self.inputs = Inputs(path, symbol, parameters, store, stated_inputs)

    def result(self, entry: tuple[int, int]) -> Result:
        """Returns a converted result; raises Unsupported for one that the node does not compute."""
        index, result_index = entry
        results = self.results[index]
        if result_index >= len(results):
            node = self.symbol.nodes[index]
            raise Unsupported(
                f"it reads result {result_index} of {node.label}, which is not computed"
            )
        return results[result_index]

    # -- for converters -------------------------------------------------------------------------

    def origin(self, node: SymbolNode) -> Origin:
        """Returns the origin of a node."""
        names = (self.symbol.nodes[i].name for i, _ in node.inputs)
        return Origin(
            "mxnet", node.op, node.name, operands=tuple((f"{i}", n) for i, n in enumerate(names))
        )

    def parameter(self, name: str) -> Value:
        """Adds a parameter as a constant."""
        data = self.parameters[name]
        array = Array(data, TensorType(data.shape, dtype_of(data)), name)
        return self.graph.constant(array, name=self.graph.fresh(name))

    def fail(self, node: SymbolNode, what: str) -> InputError:
        """Returns an error for a node."""
        return InputError(f"{self.path}: {node.description} {what}")
