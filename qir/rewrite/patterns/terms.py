"""The terms that patterns are made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Generic, TypeAlias, TypeVar

from qir.errors import UsageError
from qir.ir.attrs import Attr
from qir.ir.node import Node, Value
from qir.query.query import ask_node, ask_value

_T = TypeVar("_T")
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class TermCondition(Generic[_T]):
    """A condition, and the words in which *why not* names it."""

    text: str
    holds: Callable[[_T], bool]
    written: bool = False
    """Whether the text is an expression of queries, which the text form can hold."""
    values: tuple[Attr, ...] = ()
    """For an attribute: the values of which it is one, if that is the condition."""


@dataclass(frozen=True, eq=False)
class Term:
    """A value as a pattern describes it; the same term twice is the same value."""

    def __or__(self, other: Term) -> Either:
        """This or, where it does not fit, the other."""
        # Flat, so that `a | b | c` is one choice of three.
        mine = self.terms if isinstance(self, Either) else (self,)
        return Either((*mine, *(other.terms if isinstance(other, Either) else (other,))))


@dataclass(frozen=True, eq=False)
class Var(Term):
    """Any value; the same name twice is the same value, or an equal constant."""

    name: str
    tests: tuple[TermCondition[Value], ...] = ()

    def where(self, expression: str) -> Var:
        """Adds a query on the value: `constant and rank == 4`."""
        test = TermCondition(expression, ask_value(expression), written=True)
        return replace(self, tests=(*self.tests, test))

    def check(self, text: str, holds: Callable[[Value], bool]) -> Var:
        """Adds a condition as a function; `text` describes it."""
        return replace(self, tests=(*self.tests, TermCondition(text, holds)))


@dataclass(frozen=True, eq=False)
class Number(Term):
    """A constant whose elements all are one number.

    Without a tolerance it is that number once rounded to the constant's own type.
    """

    value: int | float | bool
    tolerance: float | None = None


@dataclass(frozen=True, eq=False)
class Either(Term):
    """The first of several terms that fits."""

    terms: tuple[Term, ...]


@dataclass(frozen=True, eq=False)
class Maybe:
    """In a slot: empty, or what the term says."""

    term: Term


@dataclass(frozen=True, eq=False)
class Rest:
    """In a list of operands: any number of values, kept by name where it has one."""

    name: str = ""


@dataclass(frozen=True, eq=False)
class Many:
    """The operands of a variadic slot, one after another; at most one is a Rest."""

    items: tuple[Term | Rest, ...]


@dataclass(frozen=True, eq=False)
class Every:
    """Any number of operands, each as the term says; what it names is kept for each."""

    term: Term
    name: str = ""
    least: int = 1


Operand: TypeAlias = "Term | Maybe | Many | Every | None"
"""What may be in a slot."""
Given: TypeAlias = (
    "Term | Maybe | Many | Every | Rest | int | float | bool | Sequence[object] | None"
)
"""What may be written where an operand is."""
Wanted: TypeAlias = "Attr | TermCondition[Attr]"
"""What an attribute is to be."""


@dataclass(frozen=True, eq=False)
class Op(Term):
    """The result of one op, or of one of several."""

    ops: tuple[str, ...]
    operands: dict[str, Operand]
    attrs: Mapping[str, Wanted] = field(default_factory=dict)
    others: bool = False
    """Whether slots that it does not name may hold something."""
    name: str = ""
    tests: tuple[TermCondition[Node], ...] = ()
    swaps: bool = True
    """Whether operands of a commutative op are tried the other way round."""

    def named(self, name: str) -> Op:
        """Names the node in the match; the default is its op, where that is unique."""
        # Names are written in the text of a pattern, which has to be read back.
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name for a node of a pattern")
        return replace(self, name=name)

    def where(self, expression: str) -> Op:
        """Adds a query on the node: `w.bits == 8 and result.uses == 1`."""
        test = TermCondition(expression, ask_node(expression), written=True)
        return replace(self, tests=(*self.tests, test))

    def check(self, text: str, holds: Callable[[Node], bool]) -> Op:
        """Adds a condition as a function; `text` describes it."""
        return replace(self, tests=(*self.tests, TermCondition(text, holds)))

    def ordered(self) -> Op:
        """Matches operands in this order only, though the op is commutative."""
        return replace(self, swaps=False)

    def __getitem__(self, index: int) -> Out:
        """Another of its results than the first."""
        return Out(self, index)


@dataclass(frozen=True, eq=False)
class Out(Term):
    """One of the results of an op that makes several."""

    # The op is the term that is bound: two results of one op share it, and so must be of one node.
    op: Op
    index: int


@dataclass(frozen=True, eq=False)
class _Flow(Term):
    """Where the stage before flows in."""


FLOW = _Flow()
"""The result of the stage before, in a stage of a chain."""


@dataclass(frozen=True, eq=False)
class Chain(Term):
    """A group that is a chain of such stages; an ellipsis is any number of any stages."""

    stages: tuple[Op | EllipsisType, ...]
    name: str = ""
    tests: tuple[TermCondition[Node], ...] = ()

    def named(self, name: str) -> Chain:
        """Names the group in the match."""
        return replace(self, name=name)

    def where(self, expression: str) -> Chain:
        """Adds a query on the group."""
        test = TermCondition(expression, ask_node(expression), written=True)
        return replace(self, tests=(*self.tests, test))

    def check(self, text: str, holds: Callable[[Node], bool]) -> Chain:
        """Adds a condition as a function; `text` describes it."""
        return replace(self, tests=(*self.tests, TermCondition(text, holds)))


@dataclass(frozen=True, eq=False)
class Repeat(Term):
    """The same subgraph again and again, as often as it fits; then what it starts from.

    Variables of the body are new in each round, save those that stand outside it too.
    """

    body: Term
    flow: Var
    """Where the round before flows into the body."""
    start: Term
    least: int = 1
    most: int = 1000
    name: str = "rounds"


Key: TypeAlias = "str | Term | Every"
"""What a match binds: a variable or a rest by its name, an op by its term."""


def key_of(term: Term) -> Key | None:
    """Returns what a match binds for a term; None where it binds nothing."""
    if isinstance(term, Var):
        return term.name
    # Terms are compared by identity (`eq=False`): two equal ones may match two nodes.
    return term if isinstance(term, Op | Chain | Repeat) else None


def operands(term: Term) -> Iterator[Operand]:
    """Yields what is in the slots of a term."""
    if isinstance(term, Op):
        yield from term.operands.values()
    elif isinstance(term, Chain):
        for stage in term.stages:
            if isinstance(stage, Op):
                yield from stage.operands.values()


def children(term: Term) -> Iterator[Term]:
    """Yields the terms directly below a term."""
    match term:
        case Op() | Chain():
            for operand in operands(term):
                yield from terms_in(operand)
        # The flow of a repetition is left out below: it stands for the round before, not for a
        # subterm.
        case Out():
            yield term.op
        case Either():
            yield from term.terms
        case Repeat():
            yield term.body
            yield term.start


def terms_in(operand: Operand) -> Iterator[Term]:
    """Yields the terms that are in a slot."""
    match operand:
        case Term():
            yield operand
        case Maybe() | Every():
            yield operand.term
        case Many():
            yield from (item for item in operand.items if isinstance(item, Term))
