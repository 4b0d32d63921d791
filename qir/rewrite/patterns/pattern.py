"""Patterns: subgraphs written as code, to be matched in a graph and replaced.

A pattern is a function that writes the subgraph; its parameters are values of any making:

    @pattern
    def gelu(op: Ops, x: Var) -> Term:
        return op.mul(op.mul(x, 0.5), op.add(op.erf(op.div(x, 2**0.5)), 1.0))

What is in a slot: a term; a number, which is a constant whose elements all are that number;
`maybe(t)`, for a slot that may be empty; None, for one that is; a list, for a variadic slot. `...`
as last operand lets other slots hold what they will; else a slot that the pattern does not name is
empty. Keywords are slots or attributes: `op.softmax(x, axis=-1)`; an attribute that is not named
may be anything. Commutative ops are tried both ways round.

Whether inner values have other uses need not be asked: then the pattern does not match.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import EllipsisType
from typing import TypeAlias, overload

from qir.errors import TypeRuleError, UsageError
from qir.ir import attrs as attributes
from qir.ir.attrs import Attr
from qir.ir.ops import OpSpec, spec
from qir.ir.ops.spec import as_kind
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.plan import PatternPlan, plan
from qir.rewrite.patterns.printer import print_terms
from qir.rewrite.patterns.terms import (
    FLOW,
    Chain,
    Either,
    Every,
    Given,
    Many,
    Maybe,
    Number,
    Op,
    Operand,
    Out,
    Repeat,
    Rest,
    Term,
    TermCondition,
    Var,
    Wanted,
)

__all__ = [
    "FLOW",
    "Chain",
    "Either",
    "Every",
    "Maker",
    "Many",
    "Maybe",
    "Number",
    "Op",
    "Ops",
    "Out",
    "Pattern",
    "Repeat",
    "Rest",
    "Term",
    "TermCondition",
    "Var",
    "chain",
    "every",
    "maybe",
    "near",
    "one_of",
    "op",
    "optional",
    "pattern",
    "repeated",
    "rest",
    "such",
]

# These match as other things: variables, conditions on a value, or a chain of stages.
_NEVER = frozenset({"input", "constant", "output", "fused"})


def near(value: float, tolerance: float = 1e-3) -> Number:
    """Matches a number within a relative tolerance."""
    return Number(value, tolerance)


def maybe(term: Term) -> Maybe:
    """Matches a slot that may be empty."""
    return Maybe(term)


def every(term: Term, name: str = "", least: int = 1) -> Every:
    """Matches each operand of a variadic slot by a term; `match.rounds(name)` has them all."""
    return Every(term, name, least)


def rest(name: str = "") -> Rest:
    """Matches all other operands of a list; `match.several(name)` has them."""
    return Rest(name)


def optional(term: Op) -> Either:
    """Matches a node that may be missing; if it is, its first operand is matched."""
    first = next(iter(term.operands.values()), None)
    if not isinstance(first, Term):
        raise UsageError(f"optional: {term.ops[0]} has no operand that could stand for it")
    return Either((term, first))


def repeated(
    body: Callable[[Var], Term],
    start: Term,
    *,
    least: int = 1,
    most: int = 1000,
    name: str = "rounds",
) -> Repeat:
    """Matches a body so many times in a row: `repeated(lambda h: op.relu(h), x)`."""
    if not 0 <= least <= most:
        raise UsageError(f"repeated: {least} to {most} times")
    flow = Var(f"{name}.flow")
    return Repeat(body(flow), flow, start, least, most, name)


def chain(*stages: Op | EllipsisType) -> Chain:
    """Matches a group with these stages: `chain(op.conv2d(x, w), op.relu(FLOW))`."""
    for i, stage in enumerate(stages):
        if not isinstance(stage, Op):
            continue
        # Every stage but the first takes the result of the stage before exactly once.
        flows = sum(operand is FLOW for operand in stage.operands.values())
        if flows != (i > 0) or any(isinstance(o, Many | Every) for o in stage.operands.values()):
            said = "the first stage has no FLOW" if i == 0 else "FLOW stands once"
            raise UsageError(f"chain: {said}, and lists stand in none ({stage.ops[0]})")
    if not any(isinstance(stage, Op) for stage in stages):
        raise UsageError("chain: at least one stage is an op")
    return Chain(stages)


def one_of(*values: Attr) -> TermCondition[Attr]:
    """Matches an attribute that has one of these values."""
    text = f"is one of {', '.join(map(repr, values))}"
    return TermCondition(
        text, lambda found: any(attributes.same(found, v) for v in values), values=values
    )


def such(text: str, holds: Callable[[Attr], bool]) -> TermCondition[Attr]:
    """Matches an attribute by a function; `text` describes the condition."""
    return TermCondition(text, holds)


class Maker:
    """Makes the term of an op: `op.add(x, y)`."""

    __slots__ = ("ops",)

    def __init__(self, ops: tuple[str, ...]) -> None:
        self.ops = ops

    def __call__(self, *operands: Given | EllipsisType, **more: Given | Wanted) -> Op:
        """Operands in the order of the op's slots, or by name; attributes by name.

        Raises TypeRuleError for slots and attributes that the op does not have.
        """
        # Slots are checked when the pattern is written, so that a typing error fails at import, not
        # as a pattern that never matches.
        rows = [spec(name) for name in self.ops]
        return Op(self.ops, *_split(rows, list(operands), more))


def _split(
    rows: list[OpSpec], operands: list[Given | EllipsisType], more: Mapping[str, Given | Wanted]
) -> tuple[dict[str, Operand], dict[str, Wanted], bool]:
    """Operands by slot, attributes, and whether other slots are free."""
    row = rows[0]
    fixed = [slot.name for slot in row.operands if not slot.variadic]
    lists = [slot.name for slot in row.operands if slot.variadic]
    listed = operands[len(fixed) :] if lists else []
    given = operands[: len(fixed)] if lists else operands
    # `...` after a list belongs to the list, as its rest.
    others = bool(given) and given[-1] is ... and not listed
    given = given[:-1] if others else given
    if len(given) > len(fixed):
        raise TypeRuleError(f"{row.name} takes {len(fixed)} operands at most")
    if ... in given:
        raise TypeRuleError(f"{row.name}: '...' stands last")
    slots = {slot: operand_of(operand) for slot, operand in zip(fixed, given, strict=False)}
    if listed:
        slots[lists[0]] = list_of(listed, row.name)
    attrs: dict[str, Wanted] = {}
    for name, thing in more.items():
        if is_slot(row, name):
            if name in slots:
                raise TypeRuleError(f"{row.name}: slot {name} is bound twice")
            slots[name] = operand_of(thing)
        else:
            attrs[name] = attr_of(row, name, thing)
    for slot in row.operands:
        if slot.name not in slots and not others and not slot.optional:
            raise TypeRuleError(f"{row.name} needs {slot.name}, or '...' as the last operand")
    # One term stands for several ops, so each must have every slot and attribute that it names.
    for other in rows[1:]:
        for name in (*slots, *attrs):
            if not is_slot(other, name) and all(a.name != name for a in other.attrs):
                raise TypeRuleError(f"{other.name} has no slot or attribute {name}")
    return slots, attrs, others


def is_slot(row: OpSpec, name: str) -> bool:
    """Returns whether an op has a slot, or a companion, of that name; a variadic one by its
    base."""
    if any(slot.name == name for slot in row.operands) or row.slot(name) is not None:
        return True
    return row.is_companion(name) and all(attr.name != name for attr in row.attrs)


def operand_of(thing: Given | Wanted | EllipsisType) -> Operand:
    """Returns what was written in a slot, as a pattern keeps it."""
    if thing is None or isinstance(thing, Term | Maybe | Every | Many):
        return thing
    if isinstance(thing, bool | int | float):
        return Number(thing)
    if isinstance(thing, list | tuple):
        return list_of(thing)
    raise TypeRuleError(f"{thing!r} is no operand of a pattern")


def list_of(things: Sequence[object], op: str = "list") -> Many | Every:
    """Returns the operands of a variadic slot; raises TypeRuleError for what is none."""
    # `every` describes the whole list; it cannot be one item among others.
    if len(things) == 1 and isinstance(things[0], Every):
        return things[0]
    items: list[Term | Rest] = []
    for thing in things:
        if thing is ...:
            items.append(Rest())
        elif isinstance(thing, Term | Rest):
            items.append(thing)
        elif isinstance(thing, bool | int | float):
            items.append(Number(thing))
        else:
            raise TypeRuleError(f"{op}: {thing!r} is no operand of a pattern")
    if sum(isinstance(item, Rest) for item in items) > 1:
        raise TypeRuleError(f"{op}: a list has one rest at most")
    return Many(tuple(items))


def attr_of(row: OpSpec, name: str, thing: object) -> Wanted:
    """Returns what was written for an attribute; raises TypeRuleError where it can never be
    that."""
    found = next((a for a in row.attrs if a.name == name), None)
    if found is None:
        row.complete_attrs({name: None})  # says what is near
        raise TypeRuleError(f"{row.name} has no attribute {name}")
    if isinstance(thing, TermCondition):
        return thing
    # Numbers are compared in the attribute's own type: 1 for a float attribute is 1.0.
    value = as_kind(thing, found.kind)  # type: ignore[arg-type]
    if not found.accepts(value):
        raise TypeRuleError(f"{row.name}: {name} = {thing!r} is not {found.kind}")
    return value


class Ops:
    """Writes the ops of a pattern: `op.relu(x)`, `op.any_of("relu", "clip")(x)`."""

    def __getattr__(self, name: str) -> Maker:
        # Python asks for such names by itself, as copy and pickle do: no op has one.
        if name.startswith("__"):
            raise AttributeError(name)
        return self.any_of(name)

    def any_of(self, *names: str) -> Maker:
        """Returns one of several ops with the same slots; raises TypeRuleError for an op that there
        is not."""
        for name in names:
            spec(name)
            if name in _NEVER:
                known = "a variable with where('constant')" if name == "constant" else "chain(...)"
                raise TypeRuleError(f"a pattern names no {name}; see {known}")
        return Maker(names)


op = Ops()
"""For patterns that are written outside a function."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """A subgraph to look for; its results are the values that the rest of the graph uses."""

    name: str
    results: tuple[Term, ...]
    tests: tuple[TermCondition[Match], ...] = ()
    codes: bool = False
    """Whether its ops may also be quantized ops (quantize and its kin always may)."""
    doc: str = ""

    def __post_init__(self) -> None:
        if not self.results or not isinstance(self.results[0], Op | Out | Chain | Repeat | Either):
            raise UsageError(f"pattern {self.name}: its first result is that of an op")

    def __str__(self) -> str:
        """Its text form; conditions of Python code are in it as comments."""
        tests = [test.text for test in self.tests]
        return print_terms(self.name, self.results, tests, codes=self.codes)

    __repr__ = __str__

    @cached_property
    def plan(self) -> PatternPlan:
        """The pattern prepared for matching; raises UsageError as `plan` does."""
        return plan(self.name, self.results)

    def check(self, text: str, holds: Callable[[Match], bool]) -> Pattern:
        """Adds a condition on the whole match; `text` describes it."""
        return replace(self, tests=(*self.tests, TermCondition(text, holds)))


Writer: TypeAlias = "Callable[..., Term | tuple[Term, ...]]"
"""A function that writes a pattern."""


@overload
def pattern(function: Writer, /, *, name: str = "", codes: bool = False) -> Pattern: ...
@overload
def pattern(*, name: str = "", codes: bool = False) -> Callable[[Writer], Pattern]: ...


def pattern(
    function: Writer | None = None, /, *, name: str = "", codes: bool = False
) -> Pattern | Callable[[Writer], Pattern]:
    """Makes a pattern of the function that writes it.

    Its first parameter writes ops, the others are variables of their names, save those that have
    a default. Raises UsageError where it writes none.
    """

    def make(function: Writer) -> Pattern:
        said = name or function.__name__.strip("_<>").replace("_", "-")
        parameters = list(inspect.signature(function).parameters.values())[1:]
        # Parameters with a default are the function's own, such as constants bound in a loop.
        names = [p.name for p in parameters if p.default is p.empty]
        made = function(Ops(), *(Var(n) for n in names))
        results = made if isinstance(made, tuple) else (made,)
        if not all(isinstance(result, Term) for result in results):
            raise UsageError(f"pattern {said}: its function is to return what it writes")
        return Pattern(said, results, (), codes, inspect.getdoc(function) or "")

    return make if function is None else make(function)
