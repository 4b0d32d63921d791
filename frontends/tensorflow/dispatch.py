"""Builds a graph from the nodes of a frozen TensorFlow graph.

Each node is read by the converter of its op (`operators`). Unknown ops become foreign nodes, which
TensorFlow runs; control flow is read by `branches` and `loops`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from qir.errors import InputError, TypeRuleError
from qir.ir import dims
from qir.ir.dims import Dim
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger

from . import branches, foreign, kernels, loops
from .call import NodeCall
from .dilations import replace_dilations
from .elements import dtype_of_number, is_type_number, shape_of, tensor_elements, type_name
from .frames import LOOP_OP, replace_frames
from .graphdef import (
    BRANCH_OPS,
    LOOP_OPS,
    GraphDefNode,
    GraphSource,
    ResultPlace,
    topological_order,
)
from .operators import OPS
from .ranks import inferred_shape
from .reader import GraphDefReader, KeepNode
from .results import ComplexPair, ValueOrList
from .spectra import READS_PAIRS
from .switches import BRANCH_OP, replace_switches

_CONTROL_OPS = LOOP_OPS | BRANCH_OPS | {LOOP_OP, BRANCH_OP}
_LIST_OPS = frozenset((*loops.OPS, *READS_PAIRS, "Identity"))
"""Ops that may have lists of tensors, or complex ones, as operands."""

_KEPT_OPS = frozenset((*kernels.OPS, "DenseBincount", "GatherV2"))
"""Ops that are kept as foreign where their converter refuses them."""
_SKIPS_OPERANDS = frozenset((*kernels.OPS, *loops.OPS))
"""Ops with operands that say nothing new, such as ranges and shapes."""
_MISFITS = (ArithmeticError, LookupError, TypeError, ValueError)
"""What converters raise where a damaged file says anything."""


def read(
    source: GraphSource,
    name: str,
    ledger: Ledger,
    inputs: Mapping[str, str],
    outputs: Mapping[str, ResultPlace],
) -> Graph:
    """Reads the nodes that the outputs depend on; raises InputError for what cannot be read."""
    reader = GraphDefReader(source, name, ledger, read_node, inputs)
    places = {output: source.resolve(place) for output, place in outputs.items()}
    for output, (node_name, _) in places.items():
        if node_name not in source.nodes:
            raise InputError(f"{source.name}: output {output} names no node of the file")
    # The control flow of TensorFlow 1 is rewritten to ops with bodies first.
    replace_switches(source)
    reader.loops = replace_frames(source)
    replace_dilations(source)
    # Only what the outputs depend on is read: training ops, savers and the like are left out.
    nodes = list(topological_order(source, list(places.values())))
    reached = {node.name for node in nodes}
    # Inputs have the order of the signature, then of the file, whatever reads them first.
    signed = [placeholder for placeholder in inputs if placeholder in source.nodes]
    for node_name in dict.fromkeys([*signed, *source.nodes]):
        node = source.nodes[node_name]
        if node.op in ("Placeholder", "PlaceholderV2") and node.name in reached:
            reader.results[node.name, 0] = _input(reader, node)
    for node in nodes:
        if (node.name, 0) not in reader.results:
            read_node(reader, node)
    reader.graph.add("output", {output: _result(reader, at) for output, at in places.items()})
    return reader.graph


def read_node(reader: GraphDefReader, node: GraphDefNode) -> None:
    """Reads one node; raises InputError for one that no converter and no foreign op covers."""
    if node.op == "Const":
        reader.results[node.name, 0] = _constant(reader, node)
        return
    # A wrong number would fail in a converter, without the name of the node.
    if "T" in node.attrs and node.attrs["T"].WhichOneof("value") == "type":
        number = node.attrs["T"].type  # loops have a list of types there
        if not is_type_number(number):
            raise reader.error(node, f"has T = {number}, which is no element type")
    if node.op in _CONTROL_OPS:
        _set_results(reader, node, _read_control(reader, node))
        return
    operands = [reader.operand(node, place) for place in node.inputs]
    call = NodeCall(reader, node, operands)  # type: ignore[arg-type]
    if node.op not in _LIST_OPS and not all(isinstance(operand, Value) for operand in operands):
        raise reader.error(node, f"reads {_kind(operands)}, which it cannot")
    handler = OPS.get(node.op)
    if handler is None:
        reason = "is no op that is read; cut it off, or freeze a part without it"
        _set_results(reader, node, _keep(reader, node, operands, reason))
        return
    try:
        results = handler(call)
        if call.used < call.count and node.op not in _SKIPS_OPERANDS:
            raise KeepNode(f"it has {call.count} inputs, and takes {call.used}")
    except (KeepNode, TypeRuleError) as why:
        if node.op not in _KEPT_OPS:
            raise reader.error(node, f"is not read: {why}") from why
        results = _keep(reader, node, operands, "is not read", str(why))
    except _MISFITS as error:
        raise reader.error(node, f"is not read: {_misfit(operands)}") from error
    _set_results(reader, node, list(results) if isinstance(results, Sequence) else [results])


def _keep(
    reader: GraphDefReader,
    node: GraphDefNode,
    operands: Sequence[ValueOrList],
    message: str,
    reason: str = "",
) -> Sequence[Value]:
    """Keeps a node as foreign.

    Raises InputError with the reason if TensorFlow cannot run it.
    """
    values = [operand for operand in operands if isinstance(operand, Value)]
    try:
        return foreign.keep(reader, node, values, reason)
    except KeepNode as why:
        message += f": {reason}; it cannot be kept either ({why})" if reason else f" ({why})"
        raise reader.error(node, message) from why


def _set_results(
    reader: GraphDefReader, node: GraphDefNode, results: Sequence[ValueOrList]
) -> None:
    for index, result in enumerate(results):
        reader.results[node.name, index] = result
        if isinstance(result, Value):
            _name(reader, result, f"{node.name}:{index}" if index else node.name)


def _read_control(reader: GraphDefReader, node: GraphDefNode) -> list[ValueOrList]:
    try:
        if node.op in BRANCH_OPS or node.op == BRANCH_OP:
            return branches.read(reader, node)
        loop = reader.loops.get(node.name) or loops.loop_of_functions(reader.source, node)
        return loops.read(reader, node, loop)
    except (KeepNode, TypeRuleError) as why:
        raise reader.error(node, f"is not read: {why}") from why
    except _MISFITS as error:
        operands = [reader.results[place] for place in node.inputs if place in reader.results]
        raise reader.error(node, f"is not read: {_misfit(operands)}") from error


def _result(reader: GraphDefReader, place: ResultPlace) -> Value:
    if place not in reader.results:
        raise InputError(f"{reader.source.name}: {place[0]} has no result {place[1]}")
    result = reader.results[place]
    if not isinstance(result, Value):
        said = f"output {place[0]} is {_kind([result])}"
        raise InputError(f"{reader.source.name}: {said}")
    return result


def _input(reader: GraphDefReader, node: GraphDefNode) -> Value:
    number = node.attrs["dtype"].type
    element_type = dtype_of_number(number)
    if element_type is None:
        raise reader.error(node, f"is an input of {type_name(number)}, which is not read")
    sizes = shape_of(node.attrs["shape"].shape) if "shape" in node.attrs else None
    # Without a rank, consumers may require one: a convolution has images of rank 4.
    sizes = inferred_shape(reader.source, node.name) if sizes is None else sizes
    if sizes is None:
        raise reader.error(node, "is an input of unknown rank; freeze the graph with its shape")
    if min(sizes, default=0) < -1:
        raise reader.error(node, f"is an input of the shape {list(sizes)}; open sizes are -1")
    input_node = reader.graph.add(
        "input",
        types=[TensorType(_dims(node, sizes), element_type)],
        name=reader.inputs.get(node.name, node.name),
        origins=[reader.origin(node)],
    )
    return input_node.result


def _dims(node: GraphDefNode, sizes: Sequence[int]) -> tuple[Dim, ...]:
    """Returns sizes with a symbol for each open one: N for the batch."""
    stem = re.sub(r"\W", "_", node.name)
    stem = stem if stem[:1].isalpha() else f"s{stem}"
    names = ("N", *(f"{stem}_{i}" for i in range(1, len(sizes))))
    return tuple(
        size if size >= 0 else dims.symbol(name) for size, name in zip(sizes, names, strict=False)
    )


def _constant(reader: GraphDefReader, node: GraphDefNode) -> Value:
    proto = node.attrs["value"].tensor if "value" in node.attrs else None
    if proto is None:
        raise reader.error(node, "is a constant without a value")
    data = reader.source.weights.get(node.name)
    if data is None:
        data = tensor_elements(proto, f"{reader.source.name}: Const {node.name}")
    declared = node.attrs["dtype"].type if "dtype" in node.attrs else proto.dtype
    if declared != proto.dtype:
        message = f"states {type_name(declared)} and holds {type_name(proto.dtype)}"
        raise reader.error(node, message)
    return reader.graph.constant(Array.of(data, node.name), name=node.name)


def _name(reader: GraphDefReader, value: Value, name: str) -> None:
    """Names a value after its node, unless it has a name of the source already."""
    if value in reader.unnamed and not reader.graph.has(name):
        reader.unnamed.discard(value)
        # Converters add several ops; the last one has the name of the source's node.
        reader.graph.rename(value, name)


def _misfit(operands: Sequence[ValueOrList]) -> str:
    """Returns what is wrong with a node whose converter failed: what its operands are, in words."""
    types = [_short(each.type) if isinstance(each, Value) else _kind([each]) for each in operands]
    listed = f", {' and '.join(types)}," if types else ""
    return f"its operands{listed} and its attributes do not fit each other"


def _short(kind: TensorType) -> str:
    """Returns a type without its scales."""
    return "x".join([*map(str, kind.shape), str(kind.dtype)])


def _kind(held: Sequence[ValueOrList]) -> str:
    """Returns what values are that are no single tensors."""
    pairs = any(isinstance(each, ComplexPair) for each in held)
    return "complex numbers" if pairs else "a list of tensors"
