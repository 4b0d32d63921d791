"""Builds a graph from the first subgraph of a file; each operator by the converter of its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qir.errors import InputError, TypeRuleError
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.origin import Origin
from qir.ir.types import TensorType
from qir.ledger import Change, Ledger

from .call import OperatorCall
from .model_file import FileOperator, Signature, TfliteFile
from .operators import OPS
from .profiles import PROFILE
from .reader import STEP, SubgraphReader, Unread, name_of

_MISFITS = (ArithmeticError, LookupError, TypeError, ValueError)
"""What converters raise where a damaged file says anything."""


def read(file: TfliteFile, name: str, ledger: Ledger, signature: str = "") -> Graph:
    """Reads the network of a file, or of one of its signatures; raises InputError for what cannot
    be read."""
    chosen = _signature(file, signature, ledger)
    subgraph = file.subgraphs[chosen.subgraph]
    reader = SubgraphReader(file, subgraph, Graph(name), ledger, read_operator)
    for index in subgraph.inputs:
        kind = TensorType(reader.shape(index), reader.element(index))
        input_name = chosen.inputs.get(index, name_of(reader.tensor(index)))
        origin = Origin("tflite", "input", reader.tensor(index).name)
        node = reader.graph.add("input", types=[kind], name=input_name, origins=[origin])
        reader.values[index] = node.result
    reader.graph.add("output", _named(reader, reader.read_operators(), chosen.outputs))
    if any(value.type.quant is not None for node in reader.graph for value in node.results):
        reader.graph.profile = PROFILE
    return reader.graph


def _signature(file: TfliteFile, name: str, ledger: Ledger) -> Signature:
    """Returns the signature of a name, else that of the first subgraph."""
    listed = ", ".join(file.signatures) or "none"
    if name:
        if name not in file.signatures:
            raise InputError(f"{file.path}: has no signature {name!r}; it has {listed}")
        return file.signatures[name]
    first = next((s for s in file.signatures.values() if not s.subgraph), Signature())
    for other, signature in file.signatures.items():
        if signature.subgraph != first.subgraph:
            reason = f"signature {other} is another network: {file.path.name}#{other} reads it"
            ledger.add(Change.DROPPED, STEP, other, reason)
    return first


def read_operator(reader: SubgraphReader, operator: FileOperator) -> None:
    """Reads one operator; raises InputError for one that no converter covers."""
    for index, value in zip(operator.outputs, _results(reader, operator), strict=True):
        reader.values[index] = value
        _name(reader, index, value)
        _set_known_sizes(reader, index, value)


def _results(reader: SubgraphReader, operator: FileOperator) -> Sequence[Value]:
    """Returns the results of one operator; raises InputError for one that is not read."""
    converter = OPS.get(operator.op)
    if converter is None:
        reason = "is no operator that is read; cut it off, or convert the model without it"
        raise reader.error(operator, reason)
    try:
        made = converter(OperatorCall(reader, operator))
    except (Unread, TypeRuleError) as why:
        raise reader.error(operator, f"is not read: {why}") from why
    except _MISFITS as error:
        message = "is not read: its operands and options do not belong together"
        raise reader.error(operator, message) from error
    results = [made] if isinstance(made, Value) else list(made)
    if len(results) != len(operator.outputs):
        message = f"has {len(operator.outputs)} results in the file and makes {len(results)}"
        raise reader.error(operator, message)
    return results


def _name(reader: SubgraphReader, index: int, value: Value) -> None:
    """Names a value after its tensor, unless it is another tensor's too."""
    graph, name = reader.graph, name_of(reader.tensor(index))
    if value not in reader.unnamed:
        return
    reader.unnamed.discard(value)
    # Converters call weights as their layer, whose name its result keeps.
    if graph.has(name) and graph[name].node.op == "constant":
        graph.rename(graph[name], graph.fresh(f"{name}/constant"))
    if not graph.has(name):
        graph.rename(value, name)


def _set_known_sizes(reader: SubgraphReader, index: int, value: Value) -> None:
    """Writes sizes into a type that the file states and that do not follow from operands."""
    stated, kind = reader.tensor(index).sizes, value.type
    if None in kind.shape and len(stated) == kind.rank:
        pairs = zip(kind.shape, stated, strict=True)
        sizes = tuple(n if d is None and n >= 0 else d for d, n in pairs)
        reader.graph.set_type(value, kind.with_shape(sizes))


def _named(
    reader: SubgraphReader, outputs: Sequence[Value], names: Mapping[int, str]
) -> dict[str, Value]:
    """Returns the outputs by the names of the signature, else by those of their tensors."""
    by_name: dict[str, Value] = {}
    for index, value in zip(reader.subgraph.outputs, outputs, strict=True):
        name = names.get(index, name_of(reader.tensor(index)))
        while name in by_name:
            name = f"{name}_again"
        by_name[name] = value
    return by_name
