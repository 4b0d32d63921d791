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
        held = old.get(path)
        for node in part:
            was = _node(held, node.name) if held else None
            if was is None:
                return NodeDifference(path, node.name, "is new")
            if _look(was) != _look(node):
                return NodeDifference(path, node.name, "is another", repr(was))
    for path, part in old.items():
        held = new.get(path)
        for node in part:
            if held is None or _node(held, node.name) is None:
                return NodeDifference(path, node.name, "is gone", repr(node))
    return None


@dataclass
class Claims:
    """Looks on while a pass runs again, for the rewrite that first leaves a node another."""

    numbering: Numbering
    node: str
    """Its name, with the path of its body."""
    found: bool = False
    step: RewriteStep | None = None
    """The rewrite; None where the pass had not asked for any by then."""
    _was: object = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._was = self._now()

    def __call__(self) -> None:
        """To be called before each rewrite, and when the pass has ended."""
        if not self.found and self._now() != self._was:
            self.found, self.step = True, self.numbering.last

    def _now(self) -> object:
        found = located(self.numbering.graph, self.node)
        return None if found is None else _look(found[1])

    def told(self) -> str:
        """Describes the pass and the rewrite."""
        if self.step is not None and self.step.rewrite != WHOLE:
            return f"{self.step} did it"
        return "no rewrite claims it" if self.found else "no rewrite has touched it"


def located(graph: Graph, name: str) -> tuple[str, Node, Graph] | None:
    """Returns a node by its name, or by the path of its body and its name; with that path and its
    graph."""
    if graph.has(name):
        return "", graph[name].node, graph
    parts = _parts(graph)
    for path, part in parts.items():
        if name.startswith(path) and (node := _node(part, name[len(path) :])) is not None:
            return path, node, part
    for path, part in parts.items():
        if part.has(name):
            return path, part[name].node, part
    return None


def _parts(graph: Graph) -> dict[str, Graph]:
    """Returns the graph and its bodies by path below it, the graph itself first."""
    found = {path.partition("/")[2]: part for path, part in graph.walk()}
    return {f"{path}/" if path else "": found[path] for path in reversed(found)}


def _node(graph: Graph, name: str) -> Node | None:
    if graph.has(name):
        return graph[name].node
    return next((n for n in reversed(graph) if not n.results and n.name == name), None)


def _look(node: Node) -> tuple[object, ...]:
    """Returns all that edits change of a node, and whether it is used."""
    stages = tuple((s.op, s.type, dict(s.attrs)) for s in node.stages)
    plans = (dict(node.schemes), dict(node.inner), node.profile)
    kinds = tuple(value.type for value in node.results)
    return repr(node), kinds, dict(node.attrs), stages, plans, node.used


@contextmanager
def kept(graph: Graph) -> Iterator[None]:
    """Within this nobody edits the graph: an edit is an error, and changes nothing."""
    parts = [part for _, part in graph.walk()]
    for part in parts:
        part._kept += 1
    try:
        yield
    finally:
        for part in parts:
            part._kept -= 1
