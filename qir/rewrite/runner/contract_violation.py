"""Finds where a pass broke its contract: the first node with other results, and the rewrite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.rewrite.runner.numbering import WHOLE, Numbering, RewriteStep


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """One node that is not what it was."""

    path: str
    """Of the graph or body that it is in, below the graph itself."""
    node: str
    what: str
    was: str = ""
    """The node as it was."""

    def __str__(self) -> str:
        return f"{self.path}{self.node} {self.what}"


def difference(before: Graph, after: Graph) -> NodeDifference | None:
    """Returns the first node that differs, in the order of the graph as it is now; None where none
    does."""
    old, new = _parts(before), _parts(after)
    for path, part in new.items():
        counterpart = old.get(path)
        for node in part:
            old_node = _node(counterpart, node.name) if counterpart else None
            if old_node is None:
                return NodeDifference(path, node.name, "is new")
            if _visible_state(old_node) != _visible_state(node):
                return NodeDifference(path, node.name, "is another", repr(old_node))
    # What is gone comes last: a node that changed says more than one that it made superfluous.
    for path, part in old.items():
        counterpart = new.get(path)
        for node in part:
            if counterpart is None or _node(counterpart, node.name) is None:
                return NodeDifference(path, node.name, "is gone", repr(node))
    return None


@dataclass
class Claims:
    """Watches a second run of a pass for the rewrite after which a node first differs."""

    numbering: Numbering
    node: str
    """Its name, with the path of its body."""
    found: bool = False
    step: RewriteStep | None = None
    """The rewrite; None where the pass had not asked for any by then."""
    _initial: object = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._initial = self._current()

    def __call__(self) -> None:
        """To be called before each rewrite, and when the pass has ended."""
        # The first difference alone: later rewrites may change the node again, and rightly.
        if not self.found and self._current() != self._initial:
            self.found, self.step = True, self.numbering.last

    def _current(self) -> object:
        place = locate_node(self.numbering.graph, self.node)
        return None if place is None else _visible_state(place[1])

    def summary(self) -> str:
        """Describes the pass and the rewrite."""
        if self.step is not None and self.step.rewrite != WHOLE:
            return f"{self.step} did it"
        return "no rewrite claims it" if self.found else "no rewrite has touched it"


def locate_node(graph: Graph, name: str) -> tuple[str, Node, Graph] | None:
    """Returns a node by its name, or by the path of its body and its name; with that path and its
    graph."""
    if graph.has(name):
        return "", graph[name].node, graph
    graphs = _parts(graph)
    for path, part in graphs.items():
        if name.startswith(path) and (node := _node(part, name[len(path) :])) is not None:
            return path, node, part
    for path, part in graphs.items():
        if part.has(name):
            return path, part[name].node, part
    return None


def _parts(graph: Graph) -> dict[str, Graph]:
    """Returns the graph and its bodies by path below it, the graph itself first."""
    by_path = {path.partition("/")[2]: part for path, part in graph.walk()}
    # `walk` ends with the graph itself.
    return {f"{path}/" if path else "": by_path[path] for path in reversed(by_path)}


def _node(graph: Graph, name: str) -> Node | None:
    if graph.has(name):
        return graph[name].node
    # Nodes without results, such as the output, are no values: they stand near the end.
    return next((n for n in reversed(graph) if not n.results and n.name == name), None)


def _visible_state(node: Node) -> tuple[object, ...]:
    """Returns all that edits change of a node, and whether it is used."""
    stages = tuple((s.op, s.type, dict(s.attrs)) for s in node.stages)
    plans = (dict(node.schemes), dict(node.inner), node.profile)
    types = tuple(value.type for value in node.results)
    return repr(node), types, dict(node.attrs), stages, plans, node.used


@contextmanager
def without_edits(graph: Graph) -> Iterator[None]:
    """Within this nobody edits the graph: an edit is an error, and changes nothing."""
    parts = [part for _, part in graph.walk()]
    for part in parts:
        # A count and not a flag, as such blocks may be nested.
        part._kept += 1
    try:
        yield
    finally:
        for part in parts:
            part._kept -= 1
