"""Rewrites of passes written in Python: the conditions, in the order of evaluation.

A pass asks the conditions that it declares, and *why not* tells the first that failed:

    def asked(node: Node) -> Iterator[Condition]:
        yield Condition(node.op == "relu", node, f"it is {node.op}")

    class Mine(Pass):
        places = (Place("mine", ("relu",), asked, "what it does"),)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from qir.ir.node import Node


class Condition(NamedTuple):
    """A predicate on a node, and the message where it does not hold."""

    holds: bool
    at: Node
    otherwise: str


@dataclass(frozen=True)
class Hindrance:
    """The first condition that failed, and how many held before it."""

    at: Node
    reason: str
    met: int


@dataclass(frozen=True)
class Place:
    """One rewrite of a pass written in Python: the ops at which it begins, and its conditions.

    Conditions are evaluated in order, and none after one that failed.
    """

    name: str
    ops: tuple[str, ...]
    conditions: Callable[[Node], Iterable[Condition]]
    doc: str

    def __str__(self) -> str:
        """Returns what it does, in a line."""
        return self.doc

    def hindrance(self, node: Node) -> Hindrance | None:
        """Returns the first condition that fails at a node, or None."""
        return first_failed(self.conditions(node))

    def near(self, node: Node, limit: int = 3) -> Node | None:
        """Returns the node at which it would begin: this one, or the nearest above or below."""
        # Breadth first, so that the nearest node answers for the one that was asked about.
        visited, level = {node}, [node]
        for _ in range(limit + 1):
            for candidate in level:
                if candidate.op in self.ops:
                    return candidate
            level = list(
                dict.fromkeys(
                    neighbour
                    for reached in level
                    for neighbour in _neighbours(reached)
                    if neighbour not in visited
                )
            )
            visited.update(level)
        return None


@dataclass(frozen=True)
class PassReport:
    """The answer to whether a pass rewrites at a node, and why not."""

    name: str
    place: Place
    root: Node | None
    """The node at which it begins; None where none stands near."""
    hindrance: Hindrance | None

    def __str__(self) -> str:
        """In one line."""
        if self.hindrance is None:
            return f"{self.name} is done at {self.root.name if self.root else 'no node'}"
        at = self.hindrance.at.name
        root = self.root
        asked_at = f" (asked at {root.name})" if root and root.name != at else ""
        return f"{self.name} is not done at {at}: {self.hindrance.reason}{asked_at}"


def ask(places: Iterable[tuple[str, Place]], node: Node) -> list[PassReport]:
    """Returns the place that fits at a node or next to it; else all, first where most conditions
    held."""
    reports: list[PassReport] = []
    for name, place in places:
        root = place.near(node)
        ops_text = " or ".join(place.ops)
        # -1 puts it behind a place at which not even the first condition held.
        not_near = Hindrance(node, f"it is {node.op}, and no {ops_text} stands near", -1)
        report = PassReport(name, place, root, not_near if root is None else place.hindrance(root))
        if report.hindrance is None:
            return [report]
        reports.append(report)
    # A place that met more conditions is the likelier one that the user means.
    return sorted(reports, key=lambda report: -report.hindrance.met if report.hindrance else 0)


def first_failed(conditions: Iterable[Condition]) -> Hindrance | None:
    """Returns the first of the conditions that does not hold."""
    for met, condition in enumerate(conditions):
        if not condition.holds:
            return Hindrance(condition.at, condition.otherwise, met)
    return None


def _neighbours(node: Node) -> Iterator[Node]:
    for value in node.operands.values():
        yield value.node
    for value in node.results:
        yield from value.users
