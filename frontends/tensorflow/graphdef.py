"""GraphDef files: opens and checks them, inlines function calls, and orders their nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from qir.errors import InputError

from .messages import GraphDefMessage

ResultPlace: TypeAlias = "tuple[str, int]"
"""A result: the name of its node and the index among the node's results."""
CALL_OPS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
LOOP_OPS = frozenset(("While", "StatelessWhile"))
BRANCH_OPS = frozenset(("If", "StatelessIf"))
FRAME_OPS = frozenset(("Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"))
"""Ops of TensorFlow 1's control flow, which are only meaningful together."""
_RESULT_NAMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
        ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2"),
    ),
    "Switch": ("output_false", "output_true"),
    "Merge": ("output", "value_index"),
    "TopKV2": ("values", "indices"),
    "Unique": ("y", "idx"),
    "QuantizeV2": ("output", "output_min", "output_max"),
    "QuantizedMaxPool": ("output", "min_output", "max_output"),
    "QuantizedAvgPool": ("output", "min_output", "max_output"),
    "QuantizedConcatV2": ("output", "output_min", "output_max"),
    "Requantize": ("output", "output_min", "output_max"),
    "TensorArrayV3": ("handle", "flow"),
}
"""Names of the results of ops with several, by which nodes inside functions refer to them."""
_MAX_DEPTH = 64
_MAX_NODES = 1 << 20


@dataclass(slots=True)
class GraphDefNode:
    """A node and its data inputs; control inputs are separate."""

    name: str
    op: str
    inputs: list[ResultPlace]
    attrs: Mapping[str, Any]
    device: str = ""
    control_inputs: tuple[str, ...] = ()
    """Control inputs, which only order nodes; recorded for nodes outside functions."""


@dataclass(frozen=True)
class FunctionBody:
    """The body of a branch: its nodes, arguments and results."""

    source: GraphSource
    argument_places: Sequence[Sequence[ResultPlace]]
    result_places: Sequence[ResultPlace]


@dataclass(frozen=True)
class Branch:
    """The two bodies of a conditional."""

    then: FunctionBody
    orelse: FunctionBody


@dataclass
class GraphSource:
    """The nodes of a graph by name, and the functions of its library."""

    name: str
    nodes: dict[str, GraphDefNode]
    functions: Mapping[str, Any]
    inlined_results: Mapping[ResultPlace, ResultPlace]
    """By result of an inlined call: the result inside the function."""
    branches: dict[str, Branch] = field(default_factory=dict)
    """By node that replaced Switch and Merge nodes: its bodies."""
    weights: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    """By constant whose elements are not in its node: the elements."""

    def resolve(self, place: ResultPlace) -> ResultPlace:
        """Returns a result, looking through inlined calls."""
        while place in self.inlined_results:
            place = self.inlined_results[place]
        return place


@dataclass(frozen=True)
class LoopParts:
    """Condition and body of a loop, with their arguments and results in the source."""

    condition: GraphSource
    condition_args: Sequence[Sequence[ResultPlace]]
    condition_result: ResultPlace
    body: GraphSource
    body_args: Sequence[Sequence[ResultPlace]]
    body_results: Sequence[ResultPlace]
    """One for each of the first arguments; the others are loop-invariant."""


def looks_like_graph(path: Path) -> bool:
    """Returns whether the first bytes of a file are those of a GraphDef: a node with its name."""
    try:
        with path.open("rb") as stream:
            first_bytes = stream.read(12)
    except OSError:
        return True  # opening it will report the error
    if not first_bytes or first_bytes[0] in (
        0x12,
        0x22,
    ):  # functions, or versions, before the nodes
        return True
    offset = 1
    # Skips the varint of the node's length; its first field is the name, the op or an input.
    while offset < len(first_bytes) and first_bytes[offset] & 0x80:
        offset += 1
    return first_bytes[0] == 0x0A and first_bytes[offset + 1 : offset + 2] in (
        b"\x0a",
        b"\x12",
        b"\x1a",
        b"",
    )


def open_graph(path: Path) -> GraphSource:
    """Reads a frozen graph; raises InputError for a damaged file or another kind."""
    try:
        proto = GraphDefMessage.FromString(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except DecodeError as error:
        raise InputError(f"{path}: is no whole GraphDef: {error}") from error
    return source_from(proto, str(path))


def source_from(proto: Any, name: str) -> GraphSource:
    """Returns the nodes of a GraphDef message, with function calls inlined."""
    if not proto.node:
        raise InputError(f"{name}: is a GraphDef without nodes")
    functions = {f.signature.name: f for f in proto.library.function}
    source = GraphSource(name, {}, functions, {})
    inliner = _Inliner(source)
    for node in proto.node:
        inliner.add(_node(node, name), 0)
    for node in source.nodes.values():
        node.inputs = [source.resolve(place) for place in node.inputs]
        missing = next((operand for operand, _ in node.inputs if operand not in source.nodes), None)
        if missing is not None:
            raise InputError(f"{name}: {node.name} reads {missing!r}, which the file lacks")
    _check_acyclic(source)
    return source


def _check_acyclic(source: GraphSource) -> None:
    """Raises InputError for a cycle other than the back edges of NextIteration."""
    predecessors = {
        node.name: [*(name for name, _ in node.inputs), *node.control_inputs]
        for node in source.nodes.values()
    }
    back_edges = {node.name for node in source.nodes.values() if node.op == "NextIteration"}
    try:
        TopologicalSorter(
            {n: set(names) - back_edges for n, names in predecessors.items()}
        ).prepare()
    except CycleError as error:
        message = f"node {error.args[1][0]} hangs on its own result"
        raise InputError(f"{source.name}: {message}") from error


def _node(proto: Any, file: str) -> GraphDefNode:
    if not proto.name or not proto.op:
        raise InputError(f"{file}: node {proto.name or '?'} has no name or no op")
    inputs = [parse_place(text) for text in proto.input if not text.startswith("^")]
    control_inputs = tuple(text[1:] for text in proto.input if text.startswith("^"))
    return GraphDefNode(proto.name, proto.op, inputs, proto.attr, proto.device, control_inputs)


def parse_place(text: str) -> ResultPlace:
    """Parses a result such as `split:1`."""
    name, _, index = text.rpartition(":")
    return (name, int(index)) if name and index.isdecimal() else (text, 0)


class _Inliner:
    """Replaces calls by the nodes of their functions, recursively."""

    def __init__(self, source: GraphSource) -> None:
        self.source = source
        self.results: dict[ResultPlace, ResultPlace] = {}
        source.inlined_results = self.results

    def add(self, node: GraphDefNode, depth: int) -> None:
        source = self.source
        if node.name in source.nodes:
            raise InputError(f"{source.name}: two nodes are named {node.name}")
        if len(source.nodes) >= _MAX_NODES:
            raise InputError(f"{source.name}: has more than {_MAX_NODES} nodes")
        function_name = node.attrs["f"].func.name if node.op in CALL_OPS else node.op
        function = source.functions.get(function_name)
        if function is None:
            if node.op in CALL_OPS:
                message = (
                    f"{node.op} {node.name} calls {function_name!r}, a function that the file lacks"
                )
                raise InputError(f"{source.name}: {message}")
            source.nodes[node.name] = node
            return
        if depth >= _MAX_DEPTH:
            outer = node.name.partition("/")[0]
            raise InputError(f"{source.name}: {outer} calls functions more than {depth} deep")
        # A node whose op is the name of a function is a call as well.
        inner, results = function_nodes(source, function, node)
        for inner_node in inner:
            self.add(inner_node, depth + 1)
        for index, place in enumerate(results):
            self.results[node.name, index] = place


def function_nodes(
    source: GraphSource, function: Any, call: GraphDefNode
) -> tuple[list[GraphDefNode], list[ResultPlace]]:
    """Returns the nodes of a function, instantiated for one call, and its results."""
    arguments = {arg.name: place for arg, place in zip(function.signature.input_arg, call.inputs)}  # noqa: B905
    ops = {n.name: n for n in function.node_def}
    attrs = call.attrs["f"].func.attr if call.op in CALL_OPS else call.attrs

    def place(text: str) -> ResultPlace:
        name, _, result_and_index = text.partition(":")
        if not result_and_index and name in arguments:
            return arguments[name]
        if name not in ops:
            message = f"reads {text!r}, which function {function.signature.name} lacks"
            raise InputError(f"{source.name}: {call.name} {message}")
        result, _, index = result_and_index.partition(":")
        result_names = _result_names(source, ops[name].op)
        first = result_names.index(result) if result in result_names else 0
        return f"{call.name}/{name}", first + (int(index) if index.isdecimal() else 0)

    nodes = []
    for proto in function.node_def:
        inputs = [place(text) for text in proto.input if not text.startswith("^")]
        attrs_of_node = dict(proto.attr)
        for key, value in attrs_of_node.items():
            # An attribute may refer to an attribute of the call, as `T` to the call's own `T`.
            if value.WhichOneof("value") == "placeholder" and value.placeholder in attrs:
                attrs_of_node[key] = attrs[value.placeholder]
        nodes.append(
            GraphDefNode(f"{call.name}/{proto.name}", proto.op, inputs, attrs_of_node, proto.device)
        )
    results = [place(function.ret[arg.name]) for arg in function.signature.output_arg]
    return nodes, results


def function_source(
    source: GraphSource, call: GraphDefNode, attribute: str
) -> tuple[GraphSource, list[list[ResultPlace]], list[ResultPlace]]:
    """Returns the nodes of a function that a While or If runs, its arguments and its results."""
    name = call.attrs[attribute].func.name if attribute in call.attrs else ""
    function = source.functions.get(name)
    if function is None:
        message = f"{call.op} {call.name} runs {name!r}, a function that the file lacks"
        raise InputError(f"{source.name}: {message}")
    args: list[ResultPlace] = [(f"{call.name}/{attribute}/{i}", 0) for i in range(len(call.inputs))]
    attrs = call.attrs[attribute].func.attr
    inner = GraphSource(source.name, {}, source.functions, {})
    inliner = _Inliner(inner)
    nodes, results = function_nodes(source, function, GraphDefNode(call.name, "", args, attrs))
    for node in nodes:
        inliner.add(node, 0)
    for node in inner.nodes.values():
        node.inputs = [inner.resolve(place) for place in node.inputs]
    return inner, [[arg] for arg in args], [inner.resolve(place) for place in results]


def _result_names(source: GraphSource, op: str) -> tuple[str, ...]:
    if op in source.functions:
        return tuple(arg.name for arg in source.functions[op].signature.output_arg)
    return _RESULT_NAMES.get(op, ())


def outputs_of(source: GraphSource) -> dict[str, ResultPlace]:
    """Returns the outputs of a graph without a signature, in file order.

    These are results that no other node uses and that depend on an input. A result of a function
    has
    the name of its call.
    """
    readers: dict[str, list[str]] = {}
    for node in source.nodes.values():
        for name, _ in node.inputs:
            readers.setdefault(name, []).append(node.name)
    dependents = {name: list(reader_names) for name, reader_names in readers.items()}
    for node in source.nodes.values():
        # A constant in a branch of TensorFlow 1 depends on the condition by a control input only.
        if node.op == "Const":
            for name in node.control_inputs:
                dependents.setdefault(name, []).append(node.name)
    waiting = [n.name for n in source.nodes.values() if n.op.startswith("Placeholder")]
    inputs = set(waiting)
    reached = set(waiting)
    while waiting:
        reached_now = [name for name in dependents.get(waiting.pop(), ()) if name not in reached]
        reached.update(reached_now)
        waiting += reached_now
    unread = [
        node
        for node in source.nodes.values()
        if node.name not in readers
        and node.name not in inputs
        and node.op not in ("NoOp", "Assert")
        and not _only_names_result(source, node)
    ]
    dependent = [node for node in unread if node.name in reached]
    names_by_result = {
        (node.name, 0): node.name for node in dependent or unread if node.op != "Const"
    }
    # Users know the call, and not the node inside its function.
    for name, index in source.inlined_results:
        place = source.resolve((name, index))
        if place in names_by_result:
            names_by_result[place] = f"{name}:{index}" if index else name
    return {name: place for place, name in names_by_result.items()}


def _only_names_result(source: GraphSource, node: GraphDefNode) -> bool:
    """Returns whether a node only passes on a result of the loop or branch in its name scope.

    Such unused nodes are part of TensorFlow's control flow and no outputs of the model.
    """
    if node.op != "Identity" or not node.inputs:
        return node.op == "Switch"
    operand_name = node.inputs[0][0]
    operand = source.nodes.get(operand_name)
    if operand is not None and operand.op == "Switch":
        return True
    if node.name.endswith("/pred_id"):  # `tf.cond` of TensorFlow 1 names its condition so
        return True
    return (
        operand is not None
        and operand.op in LOOP_OPS | BRANCH_OPS
        and node.name.startswith(f"{operand_name}/")
    )


def topological_order(
    source: GraphSource, outputs: Sequence[ResultPlace], read_before: Collection[str] = ()
) -> Iterator[GraphDefNode]:
    """Yields the nodes that outputs depend on, operands first; raises InputError for a cycle.

    Nodes in `read_before` are read already, and neither yielded nor followed.
    """
    finished: set[str] = set(read_before)
    for output, _ in outputs:
        # A stack, not recursion: graphs are deeper than Python's limit.
        waiting: list[tuple[str, Iterator[ResultPlace]]] = []
        path: set[str] = set()
        name: str | None = output
        while True:
            if name is not None and name not in finished:
                if name in path:
                    raise InputError(f"{source.name}: node {name} hangs on its own result")
                path.add(name)
                waiting.append((name, iter(source.nodes[name].inputs)))
            if not waiting:
                break
            current, operands_left = waiting[-1]
            name = next((operand for operand, _ in operands_left), None)
            if name is None:
                waiting.pop()
                path.discard(current)
                finished.add(current)
                yield source.nodes[current]
            elif name not in source.nodes and name not in finished:
                raise InputError(f"{source.name}: {current} reads {name!r}, which the file lacks")
