"""Frozen graphs: opened, checked, their function calls inlined, and their nodes put in order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from qir.errors import InputError

from .messages import GRAPH

Place: TypeAlias = "tuple[str, int]"
"""A result: the name of its node, and which of the node's results it is."""
CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
LOOPS = frozenset(("While", "StatelessWhile"))
BRANCHES = frozenset(("If", "StatelessIf"))
FRAMES = frozenset(("Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"))
"""The control flow of TensorFlow 1, of which single nodes mean nothing."""
_RESULTS: Mapping[str, tuple[str, ...]] = {
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
"""Names of results in functions, for ops with more than one that are no list."""
_DEEPEST = 64
_MOST_NODES = 1 << 20


@dataclass(slots=True)
class GraphDefNode:
    """A node, its inputs as results of other nodes; edges that only order are left out."""

    name: str
    op: str
    inputs: list[Place]
    attrs: Mapping[str, Any]
    device: str = ""
    waits: tuple[str, ...] = ()
    """Nodes that only order this one; kept of plain nodes, not of those in functions."""


@dataclass(frozen=True)
class FunctionBody:
    """What a branch runs: its nodes, the places of its arguments and of its results."""

    source: GraphSource
    args: Sequence[Sequence[Place]]
    results: Sequence[Place]


@dataclass(frozen=True)
class Branch:
    """The two bodies of a branch, of which one runs."""

    then: FunctionBody
    orelse: FunctionBody


@dataclass
class GraphSource:
    """The nodes of a graph by name, and the functions that they may call."""

    name: str
    nodes: dict[str, GraphDefNode]
    functions: Mapping[str, Any]
    results: Mapping[Place, Place]
    """By result of an inlined call: the result within it."""
    branches: dict[str, Branch] = field(default_factory=dict)
    """By node that stands for Switch and Merge nodes: what it runs."""

    def resolve(self, place: Place) -> Place:
        """Returns the result that a place stands for."""
        while place in self.results:
            place = self.results[place]
        return place


def looks_like_graph(path: Path) -> bool:
    """Returns whether a file begins as a GraphDef does: with a node that begins with its name."""
    try:
        with path.open("rb") as stream:
            head = stream.read(12)
    except OSError:
        return True  # to be refused by name where it is opened
    if not head or head[0] in (0x12, 0x22):  # functions, or versions, before the nodes
        return True
    at = 1
    while at < len(head) and head[at] & 0x80:
        at += 1
    return head[0] == 0x0A and head[at + 1 : at + 2] in (b"\x0a", b"\x12", b"\x1a", b"")


def open_graph(path: Path) -> GraphSource:
    """Reads a frozen graph; raises InputError for a file that is damaged or is none."""
    try:
        proto = GRAPH.FromString(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except DecodeError as error:
        raise InputError(f"{path}: is no whole GraphDef: {error}") from error
    return source_from(proto, str(path))


def source_from(proto: Any, name: str) -> GraphSource:
    """Returns the nodes of a GraphDef message, its calls of functions inlined."""
    if not proto.node:
        raise InputError(f"{name}: is a GraphDef without nodes")
    functions = {f.signature.name: f for f in proto.library.function}
    source = GraphSource(name, {}, functions, {})
    inliner = _Inliner(source)
    for node in proto.node:
        inliner.add(_node(node, name), 0)
    for node in source.nodes.values():
        node.inputs = [source.resolve(place) for place in node.inputs]
        lost = next((operand for operand, _ in node.inputs if operand not in source.nodes), None)
        if lost is not None:
            raise InputError(f"{name}: {node.name} reads {lost!r}, which the file lacks")
    _check_order(source)
    return source


def _check_order(source: GraphSource) -> None:
    """Raises InputError for a cycle; only what NextIteration hands on may lead back."""
    before = {
        node.name: [*(name for name, _ in node.inputs), *node.waits]
        for node in source.nodes.values()
    }
    turns = {node.name for node in source.nodes.values() if node.op == "NextIteration"}
    try:
        TopologicalSorter({n: set(held) - turns for n, held in before.items()}).prepare()
    except CycleError as error:
        said = f"node {error.args[1][0]} hangs on its own result"
        raise InputError(f"{source.name}: {said}") from error


def _node(proto: Any, file: str) -> GraphDefNode:
    if not proto.name or not proto.op:
        raise InputError(f"{file}: node {proto.name or '?'} has no name or no op")
    inputs = [place_of(text) for text in proto.input if not text.startswith("^")]
    waits = tuple(text[1:] for text in proto.input if text.startswith("^"))
    return GraphDefNode(proto.name, proto.op, inputs, proto.attr, proto.device, waits)


def place_of(text: str) -> Place:
    """Returns the result that a name such as `split:1` stands for."""
    name, _, index = text.rpartition(":")
    return (name, int(index)) if name and index.isdecimal() else (text, 0)


class _Inliner:
    """Puts the nodes of functions in the place of the calls."""

    def __init__(self, source: GraphSource) -> None:
        self.source = source
        self.results: dict[Place, Place] = {}
        source.results = self.results

    def add(self, node: GraphDefNode, depth: int) -> None:
        source = self.source
        if node.name in source.nodes:
            raise InputError(f"{source.name}: two nodes are named {node.name}")
        if len(source.nodes) >= _MOST_NODES:
            raise InputError(f"{source.name}: has more than {_MOST_NODES} nodes")
        called = node.attrs["f"].func.name if node.op in CALLS else node.op
        function = source.functions.get(called)
        if function is None:
            if node.op in CALLS:
                said = f"{node.op} {node.name} calls {called!r}, a function that the file lacks"
                raise InputError(f"{source.name}: {said}")
            source.nodes[node.name] = node
            return
        if depth >= _DEEPEST:
            outer = node.name.partition("/")[0]
            raise InputError(f"{source.name}: {outer} calls functions more than {depth} deep")
        inner, results = body_nodes(source, function, node)
        for one in inner:
            self.add(one, depth + 1)
        for index, place in enumerate(results):
            self.results[node.name, index] = place


def body_nodes(
    source: GraphSource, function: Any, call: GraphDefNode
) -> tuple[list[GraphDefNode], list[Place]]:
    """Returns the nodes of a function for one call, and the places of its results."""
    given = {arg.name: place for arg, place in zip(function.signature.input_arg, call.inputs)}  # noqa: B905
    ops = {n.name: n for n in function.node_def}
    attrs = call.attrs["f"].func.attr if call.op in CALLS else call.attrs

    def place(text: str) -> Place:
        name, _, rest = text.partition(":")
        if not rest and name in given:
            return given[name]
        if name not in ops:
            said = f"reads {text!r}, which function {function.signature.name} lacks"
            raise InputError(f"{source.name}: {call.name} {said}")
        result, _, index = rest.partition(":")
        known = _result_names(source, ops[name].op)
        first = known.index(result) if result in known else 0
        return f"{call.name}/{name}", first + (int(index) if index.isdecimal() else 0)

    nodes = []
    for proto in function.node_def:
        inputs = [place(text) for text in proto.input if not text.startswith("^")]
        held = dict(proto.attr)
        for key, value in held.items():
            if value.WhichOneof("value") == "placeholder" and value.placeholder in attrs:
                held[key] = attrs[value.placeholder]
        nodes.append(
            GraphDefNode(f"{call.name}/{proto.name}", proto.op, inputs, held, proto.device)
        )
    results = [place(function.ret[arg.name]) for arg in function.signature.output_arg]
    return nodes, results


def body_source(
    source: GraphSource, call: GraphDefNode, attribute: str
) -> tuple[GraphSource, list[list[Place]], list[Place]]:
    """Returns the nodes of a function that a node runs, the places of its arguments and results."""
    name = call.attrs[attribute].func.name if attribute in call.attrs else ""
    function = source.functions.get(name)
    if function is None:
        said = f"{call.op} {call.name} runs {name!r}, a function that the file lacks"
        raise InputError(f"{source.name}: {said}")
    args: list[Place] = [(f"{call.name}/{attribute}/{i}", 0) for i in range(len(call.inputs))]
    held = call.attrs[attribute].func.attr
    inner = GraphSource(source.name, {}, source.functions, {})
    inliner = _Inliner(inner)
    nodes, results = body_nodes(source, function, GraphDefNode(call.name, "", args, held))
    for node in nodes:
        inliner.add(node, 0)
    for node in inner.nodes.values():
        node.inputs = [inner.resolve(place) for place in node.inputs]
    return inner, [[arg] for arg in args], [inner.resolve(place) for place in results]


def _result_names(source: GraphSource, op: str) -> tuple[str, ...]:
    if op in source.functions:
        return tuple(arg.name for arg in source.functions[op].signature.output_arg)
    return _RESULTS.get(op, ())


def outputs_of(source: GraphSource) -> dict[str, Place]:
    """Returns the results that no other node reads and that follow from an input, in file order.

    One that a function computes has the name of its call.
    """
    readers: dict[str, list[str]] = {}
    for node in source.nodes.values():
        for name, _ in node.inputs:
            readers.setdefault(name, []).append(node.name)
    followers = {name: list(found) for name, found in readers.items()}
    for node in source.nodes.values():
        if node.op == "Const":  # of a branch: it waits for what chooses the branch
            for name in node.waits:
                followers.setdefault(name, []).append(node.name)
    waiting = [n.name for n in source.nodes.values() if n.op.startswith("Placeholder")]
    inputs = set(waiting)
    reached = set(waiting)
    while waiting:
        more = [name for name in followers.get(waiting.pop(), ()) if name not in reached]
        reached.update(more)
        waiting += more
    unread = [
        node
        for node in source.nodes.values()
        if node.name not in readers
        and node.name not in inputs
        and node.op not in ("NoOp", "Assert")
        and not _hands_on(source, node)
    ]
    following = [node for node in unread if node.name in reached]
    last = {(node.name, 0): node.name for node in following or unread if node.op != "Const"}
    for name, index in source.results:
        place = source.resolve((name, index))
        if place in last:
            last[place] = f"{name}:{index}" if index else name
    return {name: place for place, name in last.items()}


def _hands_on(source: GraphSource, node: GraphDefNode) -> bool:
    """Returns whether a node only names a result of the loop or branch in whose scope it is.

    What a Switch gives is for nodes of one branch: constants wait for it.
    """
    if node.op != "Identity" or not node.inputs:
        return node.op == "Switch"
    of = node.inputs[0][0]
    loop = source.nodes.get(of)
    if loop is not None and loop.op == "Switch":
        return True
    if node.name.endswith("/pred_id"):  # `tf.cond` of TensorFlow 1 names its condition so
        return True
    return loop is not None and loop.op in LOOPS | BRANCHES and node.name.startswith(f"{of}/")


def in_order(
    source: GraphSource, outputs: Sequence[Place], given: Collection[str] = ()
) -> Iterator[GraphDefNode]:
    """Yields the nodes that outputs hang on, operands first; raises InputError for a cycle.

    Nodes that are `given` are known already, and nothing that they hang on is looked for.
    """
    done: set[str] = set(given)
    for output, _ in outputs:
        waiting: list[tuple[str, Iterator[Place]]] = []
        path: set[str] = set()
        name: str | None = output
        while True:
            if name is not None and name not in done:
                if name in path:
                    raise InputError(f"{source.name}: node {name} hangs on its own result")
                path.add(name)
                waiting.append((name, iter(source.nodes[name].inputs)))
            if not waiting:
                break
            here, left = waiting[-1]
            name = next((operand for operand, _ in left), None)
            if name is None:
                waiting.pop()
                path.discard(here)
                done.add(here)
                yield source.nodes[here]
            elif name not in source.nodes and name not in done:
                raise InputError(f"{source.name}: {here} reads {name!r}, which the file lacks")
