"""Builds a graph from a symbol and its parameters.

Each node is read by the converter of its operator (`operators`). Unknown operators become foreign
nodes; operators with an operand of unknown shape become foreign too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qir.errors import GraphError, InputError, TypeRuleError
from qir.ir.dtype import dtype_of
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.origin import Origin
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger

from . import foreign
from .attributes import BadAttribute
from .call import Result, SymbolCall, Unsupported
from .inputs import Inputs
from .operators import converter
from .parameters import Parameters
from .symbol import Symbol, SymbolNode, shortened

STEP = "read mxnet"


def read(
    path: Path,
    symbol: Symbol,
    parameters: Parameters,
    store: str,
    ledger: Ledger,
    stated_inputs: Sequence[object] | None,
) -> Graph:
    """Returns the graph of a symbol; raises InputError with file, node and operator.

    `store` names the parameter file in errors, `stated_inputs` are shapes or example arrays of the
    inputs.
    """
    reader = SymbolReader(path, symbol, parameters, store, ledger, stated_inputs)
    for index in range(len(symbol.nodes)):
        reader.read(index)
    reader.finish()
    return reader.graph


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
    ) -> None:
        self.path, self.symbol, self.parameters, self.ledger = path, symbol, parameters, ledger
        self.graph = Graph(path.name.removesuffix(".json").removesuffix("-symbol") or "main")
        self.results: list[Sequence[Result]] = []
        """By node: its results."""
        self.unnamed: set[Value] = set()
        """Values that may still take the name of the node that returns them."""
        self.auxiliary_states = parameters.states
        self.result_counts = symbol.counts()
        self.inputs = Inputs(path, symbol, parameters, store, stated_inputs)

    def read(self, index: int) -> None:
        """Reads one node."""
        node = self.symbol.nodes[index]
        if node.is_variable:
            self.results.append([self._variable(index, node)])
            return
        handler = converter(node.op)
        try:
            operands = [self.result(entry) for entry in node.inputs]
            if handler is None or foreign.has_untyped_operand(operands):
                self.results.append(foreign.keep(self, node, self.result_counts[index]))
                return
            call = SymbolCall(self, node, operands)
            outcome = handler(call)
            if unread := call.attrs.unread_names():
                raise Unsupported(f"its attribute {shortened(unread[0])} is not read here")
        except (Unsupported, BadAttribute, TypeRuleError, GraphError) as why:
            raise self.fail(node, f"cannot be read: {why}") from why
        except (ArithmeticError, LookupError, ValueError) as why:
            # Damaged files: lists of wrong lengths, missing axes, sizes beyond NumPy's range.
            raise self.fail(node, "cannot be read: its attributes and operands do not fit") from why
        results = outcome if isinstance(outcome, list) else [outcome]
        if isinstance(results[0], Value):
            self._name(results[0], node.name)
        self.results.append(results)

    def _variable(self, index: int, node: SymbolNode) -> Result:
        if node.name in self.parameters:
            return self.parameter(node.name)
        input_type = self.inputs.type_of(index)
        # A label: nothing computes it in inference.
        if input_type is None:
            return None
        name = self.graph.fresh(node.name)
        origins = [Origin("mxnet", "null", node.name)]
        return self.graph.add("input", types=[input_type], name=name, origins=origins).result

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

    def finish(self) -> None:
        """Adds the output and removes unused nodes."""
        operands: dict[str, Value] = {}
        for name, entry in zip(self.symbol.output_names(), self.symbol.heads, strict=True):
            node = self.symbol.nodes[entry[0]]
            try:
                value = self.result(entry)
            except Unsupported as why:
                raise self.fail(node, f"cannot be a result: {why}") from why
            if not isinstance(value, Value):
                message = f"has a result {entry[1]} that is not computed in inference"
                raise self.fail(node, f"{message}; save one result of it, such as symbol[0]")
            operands[name if name not in operands else self.graph.fresh(name)] = value
        self.graph.add("output", operands)
        # From the last to the first, so that consumers go before their producers.
        for ir_node in reversed(list(self.graph)):
            needed = ir_node.op in ("input", "output") or any(v.uses for v in ir_node.results)
            if not needed:
                self.graph.remove(ir_node)

    def _name(self, value: Value, name: str) -> None:
        """Names a value after its node, unless it has a name of the model already."""
        if value in self.unnamed:
            self.unnamed.discard(value)
            self.graph.rename(value, self.graph.fresh(name))

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
