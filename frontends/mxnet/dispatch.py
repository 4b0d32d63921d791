"""Builds a graph from a symbol and its parameters.

Each node is read by the converter of its operator (`operators`). Unknown operators become foreign
nodes; operators with an operand of unknown shape become foreign too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qir.errors import GraphError, TypeRuleError
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.origin import Origin
from qir.ledger import Ledger

from . import foreign
from .attributes import BadAttribute
from .call import SymbolCall
from .operators import converter
from .parameters import Parameters
from .reader import SymbolReader
from .results import Result, Unsupported
from .symbol import Symbol, SymbolNode, shortened


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
    reader = SymbolReader(path, symbol, parameters, store, ledger, stated_inputs, converter)
    for index in range(len(symbol.nodes)):
        read_node(reader, index)
    _finish(reader)
    return reader.graph


def read_node(reader: SymbolReader, index: int) -> None:
    """Reads one node."""
    node = reader.symbol.nodes[index]
    if node.is_variable:
        reader.results.append([_variable(reader, index, node)])
        return
    handler = reader.converter(node.op)
    try:
        operands = [reader.result(entry) for entry in node.inputs]
        if handler is None or foreign.has_untyped_operand(operands):
            reader.results.append(foreign.keep(reader, node, reader.result_counts[index]))
            return
        call = SymbolCall(reader, node, operands)
        outcome = handler(call)
        if unread := call.attrs.unread_names():
            raise Unsupported(f"its attribute {shortened(unread[0])} is not read here")
    except (Unsupported, BadAttribute, TypeRuleError, GraphError) as why:
        raise reader.fail(node, f"cannot be read: {why}") from why
    except (ArithmeticError, LookupError, ValueError) as why:
        # Damaged files: lists of wrong lengths, missing axes, sizes beyond NumPy's range.
        raise reader.fail(node, "cannot be read: its attributes and operands do not fit") from why
    results = outcome if isinstance(outcome, list) else [outcome]
    if isinstance(results[0], Value):
        _name(reader, results[0], node.name)
    reader.results.append(results)


def _variable(reader: SymbolReader, index: int, node: SymbolNode) -> Result:
    if node.name in reader.parameters:
        return reader.parameter(node.name)
    input_type = reader.inputs.type_of(index)
    # A label: nothing computes it in inference.
    if input_type is None:
        return None
    name = reader.graph.fresh(node.name)
    origins = [Origin("mxnet", "null", node.name)]
    return reader.graph.add("input", types=[input_type], name=name, origins=origins).result


def _finish(reader: SymbolReader) -> None:
    """Adds the output and removes unused nodes."""
    operands: dict[str, Value] = {}
    for name, entry in zip(reader.symbol.output_names(), reader.symbol.heads, strict=True):
        node = reader.symbol.nodes[entry[0]]
        try:
            value = reader.result(entry)
        except Unsupported as why:
            raise reader.fail(node, f"cannot be a result: {why}") from why
        if not isinstance(value, Value):
            message = f"has a result {entry[1]} that is not computed in inference"
            raise reader.fail(node, f"{message}; save one result of it, such as symbol[0]")
        operands[name if name not in operands else reader.graph.fresh(name)] = value
    reader.graph.add("output", operands)
    # From the last to the first, so that consumers go before their producers.
    for ir_node in reversed(list(reader.graph)):
        needed = ir_node.op in ("input", "output") or any(v.uses for v in ir_node.results)
        if not needed:
            reader.graph.remove(ir_node)


def _name(reader: SymbolReader, value: Value, name: str) -> None:
    """Names a value after its node, unless it has a name of the model already."""
    if value in reader.unnamed:
        reader.unnamed.discard(value)
        reader.graph.rename(value, reader.graph.fresh(name))
