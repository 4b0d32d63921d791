"""Explains why a pattern or a pass does nothing at a node."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from qir.arguments import checked
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.rewrite.patterns.conditions import PassReport, ask
from qir.rewrite.patterns.library import find_patterns, find_places
from qir.rewrite.patterns.mismatch import WhyNot, nearest


@dataclass(frozen=True, slots=True)
class MatchExplanation:
    """Why a pattern does not match at a node, or a pass does nothing there."""

    match: WhyNot | None
    """Of the pattern that came nearest; None for a pass that is written in Python."""
    tried: int
    """How many patterns were tried."""
    reports: tuple[PassReport, ...]
    """Of each place at which such a pass acts, the nearest first."""

    @property
    def matches(self) -> bool:
        """Whether the pattern matches there, or the pass acts."""
        if self.match is not None:
            return self.match.match is not None
        return self.reports[0].hindrance is None


@checked
def explain_match(graph: Graph, node: str, pattern: str) -> MatchExplanation:
    """Returns the first condition that keeps a pattern from matching at a node, and where.

    `node` is the name of one of its values, or the path of one in a body. `pattern` is its text, a
    file that ends in `.pattern`, the name of a pattern, or that of a pass. Raises UsageError for a
    name that is none.
    """
    # A pass written in Python has no patterns to try, but explains itself at its places.
    if places := find_places(pattern):
        return MatchExplanation(None, 0, tuple(ask(places, find_node(graph, node))))
    wanted = find_patterns(pattern)
    return MatchExplanation(nearest(wanted, find_node(graph, node)), len(wanted), ())


def find_node(graph: Graph, path: str) -> Node:
    """Returns the node that makes a value; raises UsageError where there is none."""
    if graph.has(path):
        return graph[path].node
    names: list[str] = []
    for place, body in graph.walk():
        prefix = place.partition("/")[2]
        for name, value in body.values.items():
            full_name = f"{prefix}/{name}" if prefix else name
            # Paths are printed with the name of the whole graph in front and without: both are
            # taken.
            if path in (full_name, f"{graph.name}/{full_name}"):
                return value.node
            names.append(full_name)
    near = difflib.get_close_matches(path, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"no node makes a value {path!r}{hint}")
