"""What an attempt has yet to meet: terms of the pattern, and what stands between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from qir.ir.node import Value
from qir.rewrite.pattern import Chain, Repeat, Rest, Term


class Cell(NamedTuple):
    """One thing to meet, and what is to be met after it."""

    term: Term
    value: Value
    rest: Goals


Goals: TypeAlias = "Cell | None"
"""None: nothing is left, all is met."""


@dataclass(frozen=True)
class Again(Term):
    """After a round of a repetition: another one, or what it starts from."""

    repeat: Repeat
    index: int


@dataclass(frozen=True)
class Stop(Term):
    """What a repetition starts from, after so many rounds."""

    repeat: Repeat
    index: int


@dataclass(frozen=True)
class Deal(Term):
    """Operands of a commutative op that are yet to be given to terms."""

    items: tuple[Term | Rest, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Stages(Term):
    """Stages of a group from `at`, and the stages that are to be met from `place`."""

    chain: Chain
    place: int
    at: int


@dataclass(frozen=True)
class Result(Term):
    """Another result of the pattern, which lies above what is bound."""

    place: int


@dataclass(frozen=True)
class Keep(Term):
    """Binds a result of the pattern."""

    key: str


FAILED = Cell.__new__(Cell, None, None, None)  # type: ignore[arg-type]
"""Given where something is not met."""
