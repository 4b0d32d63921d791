"""Goals of a match attempt: the terms of the pattern that are still to be matched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from qir.ir.node import Value
from qir.rewrite.patterns.terms import Chain, Repeat, Rest, Term


# Items are never changed, so that the states of all choices share their tails: going back to
# an earlier choice is taking its list again.
class GoalList:
    """A linked list of goals: a term to match at a value, and the goals after it."""

    __slots__ = ("rest", "tag", "term", "value")

    def __init__(self, term: Term, value: Value, rest: Goals) -> None:
        self.term = term
        self.value = value
        self.rest = rest
        self.tag = 0
        """Lists of one attempt with equal tags are equal; 0: not computed yet."""


Goals: TypeAlias = "GoalList | None"
"""None: every term is matched."""


@dataclass(frozen=True)
class NextRound(Term):
    """Matches another round of a repetition, or its start."""

    repeat: Repeat
    index: int


@dataclass(frozen=True)
class LastRound(Term):
    """Matches the start of a repetition after `index` rounds."""

    repeat: Repeat
    index: int


@dataclass(frozen=True)
class AssignOperands(Term):
    """Assigns the remaining operands of a commutative op to terms."""

    items: tuple[Term | Rest, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class StageGoals(Term):
    """Matches the stages of a pattern from `place` with those of a group from `at`."""

    chain: Chain
    place: int
    at: int


@dataclass(frozen=True)
class Result(Term):
    """Matches another result of the pattern, found among the consumers of bound nodes."""

    place: int


@dataclass(frozen=True)
class BindResult(Term):
    """Binds a result of the pattern."""

    key: str


# Terms such as `Either` fit in several ways, and which is right shows only further on: so the
# attempt keeps a stack of these, and goes back to the last one when a goal fails.
class Choice:
    """A point to backtrack to: the untried ways to continue from a state."""

    __slots__ = ("mark", "reached", "state", "tainted", "ways")

    def __init__(self, mark: int, state: GoalList) -> None:
        self.ways: Iterator[Goals] = iter(())
        self.mark = mark
        self.state = state
        self.reached = False
        """True once a way has matched the term of this choice and reached the goals after it."""
        self.tainted = False
        """True if a later failure depends on bound nodes too, not on the remaining goals alone.

        Such a failure is not remembered."""


@dataclass(frozen=True, eq=False)
class Reached(Term):
    """Marks the end of the term of a choice."""

    choice: Choice


# None already means that no goal is left, which is success.
FAILED = GoalList.__new__(GoalList)
"""Returned where a term does not match."""
