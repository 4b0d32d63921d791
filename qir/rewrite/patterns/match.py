"""The result of a match: nodes and values by the names of the pattern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from qir.errors import UsageError
from qir.ir.node import Node, Value
from qir.rewrite.patterns.plan import PatternPlan
from qir.rewrite.patterns.terms import Every, Key, Repeat

Bound: TypeAlias = "Value | Node | tuple[Value, ...] | int"
"""What a variable was matched with."""


class Bindings:
    """The nodes and values bound to the names of a pattern."""

    def __init__(
        self, plan: PatternPlan, bound: Mapping[Key, Bound], twins: Mapping[Key, Key] | None = None
    ) -> None:
        self._plan = plan
        self._bound = bound
        self._twins = twins or {}

    def _key(self, name: str) -> Key:
        # A misspelled name would otherwise look like a slot that was left empty.
        if name not in self._plan.names:
            known = ", ".join(sorted(self._plan.names))
            raise UsageError(f"pattern {self._plan.name} names nothing {name}; it names {known}")
        key = self._plan.names[name]
        # Within a round a name means the twin of that round.
        return self._twins.get(key, key)

    def get(self, name: str) -> Value | None:
        """Returns the value of a variable, or the first result of a node; None where there is
        none."""
        found = self._bound.get(self._key(name))
        if isinstance(found, Node):
            return found.results[0]
        return found if isinstance(found, Value) else None

    def __getitem__(self, name: str) -> Value:
        """As `get`; raises UsageError where there is none, as in an alternative that was not
        taken."""
        found = self.get(name)
        if found is None:
            problem = "has a value in each of rounds(...)"
            # A name inside a repetition has a value for each round, so there is no one value to
            # give.
            problem = problem if self._plan.repeats(name) else "has no value here"
            raise UsageError(f"pattern {self._plan.name}: {name} {problem}")
        return found

    def find(self, name: str) -> Node | None:
        """Returns a node by its name, or else by its op; None where it is missing."""
        found = self._bound.get(self._key(name))
        return found if isinstance(found, Node) else None

    def node(self, name: str) -> Node:
        """Returns a node as `find` does; raises UsageError where it is missing."""
        found = self.find(name)
        if found is None:
            raise UsageError(f"pattern {self._plan.name}: {name} is no node here")
        return found

    def several(self, name: str) -> tuple[Value, ...]:
        """Returns the values that a `Rest` stands for."""
        found = self._bound.get(self._key(name))
        return found if isinstance(found, tuple) else ()

    def rounds(self, name: str = "rounds") -> tuple[Bindings, ...]:
        """Returns what each round of a repetition binds, from the last one of the graph to the
        first.

        For `Every`: what each operand binds, in order.
        """
        key = self._key(name)
        count = self._bound.get(key)
        if not isinstance(key, Repeat | Every) or not isinstance(count, int):
            return ()
        rounds = (self._plan.round(key, i) for i in range(count))
        return tuple(Bindings(self._plan, self._bound, self._within(r.twins)) for r in rounds)

    def _within(self, twins: Mapping[Key, Key]) -> Mapping[Key, Key]:
        """Names to terms through repetitions within repetitions."""
        # A repetition inside another has twins of twins: names go through the outer ones first.
        return {**{k: twins.get(v, v) for k, v in self._twins.items()}, **twins}


class Match(Bindings):
    """One match of a pattern in a graph."""

    def __init__(
        self,
        plan: PatternPlan,
        bound: Mapping[Key, Bound],
        results: tuple[Value, ...],
        nodes: tuple[Node, ...],
    ) -> None:
        super().__init__(plan, bound)
        self.results = results
        """The values that the rest of the graph sees."""
        self.nodes = nodes
        """The nodes of the ops that the pattern names, producers first."""

    @property
    def name(self) -> str:
        """The name of the pattern that fits."""
        return self._plan.name

    @property
    def root(self) -> Node:
        """The node of the first result."""
        return self.results[0].node

    def __repr__(self) -> str:
        return f"<{self.name} at {self.root.name}: {len(self.nodes)} nodes>"
