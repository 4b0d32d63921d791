"""The goals of an attempt: terms of the pattern that are still to be matched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from qir.ir.node import Value
from qir.rewrite.patterns.terms import Chain, Repeat, Rest, Term


class GoalList:
    """One thing to meet, and what is to be met after it."""

    __slots__ = ("rest", "tag", "term", "value")

    def __init__(self, term: Term, value: Value, rest: Goals) -> None:
        self.term = term
        self.value = value
        self.rest = rest
        self.tag = 0
        """Cells of one attempt that have equal tags are equal; 0: not known yet."""


Goals: TypeAlias = "GoalList | None"
"""None: nothing is left, all is met."""


@dataclass(frozen=True)
class NextRound(Term):
    """After a round of a repetition: another one, or what it starts from."""

    repeat: Repeat
    index: int


@dataclass(frozen=True)
class LastRound(Term):
    """What a repetition starts from, after so many rounds."""

    repeat: Repeat
    index: int


@dataclass(frozen=True)
class AssignOperands(Term):
    """Operands of a commutative op that are yet to be given to terms."""

    items: tuple[Term | Rest, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class StageGoals(Term):
    """Stages of a group from `at`, and the stages that are to be met from `place`."""

    chain: Chain
    place: int
    at: int


@dataclass(frozen=True)
class Result(Term):
    """Another result of the pattern, which is above what is bound."""

    place: int


@dataclass(frozen=True)
class BindResult(Term):
    """Binds a result of the pattern."""

    key: str


class Choice:
    """Ways that are left to continue from a state."""

    __slots__ = ("mark", "reached", "state", "tainted", "ways")

    def __init__(self, mark: int, state: GoalList) -> None:
        self.ways: Iterator[Goals] = iter(())
        self.mark = mark
        self.state = state
        self.reached = False
        """Whether a way has met its own part, and gone on to what is after it."""
        self.tainted = False
        """Whether a failure below it hung on more than what was yet to be met."""


@dataclass(frozen=True, eq=False)
class Reached(Term):
    """Stands after what a choice is about."""

    choice: Choice


FAILED = GoalList.__new__(GoalList)
"""Given where something is not met."""
