"""Prints patterns as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from qir.ir.attrs import Attr
from qir.ir.dtype import DType
from qir.ir.lexer import quote, write_name
from qir.rewrite.patterns.terms import (
    FLOW,
    Chain,
    Either,
    Every,
    Key,
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
    children,
    key_of,
)

_T = TypeVar("_T")


def print_terms(
    name: str, results: Sequence[Term], tests: Sequence[str], *, codes: bool = False
) -> str:
    """Returns the text form of a pattern; what only Python can hold is in comments."""
    writer = _Writer(results)
    last = ", ".join(writer.term(result) for result in results)
    lines = [f"pattern {name or 'pattern'}{' codes' if codes else ''} {{"]
    lines += [f"  {line}" for line in writer.lines]
    lines += [f"  # and: {test}" for test in tests]
    return "\n".join([*lines, f"  return {last}", "}"]) + "\n"


class _Writer:
    def __init__(self, results: Sequence[Term]) -> None:
        self.lines: list[str] = []
        self.names: dict[Term, str] = {}
        self.taken: set[str] = set()
        self.counts: dict[Key, int] = {}
        self.asked: set[str] = set()
        self.within = 0
        """Repetitions around what is written: their bodies are one term, without lines."""
        for result in results:
            self.count(result, set())

    def count(self, term: Term, seen: set[Term]) -> None:
        key = key_of(term)
        if key is not None:
            self.counts[key] = self.counts.get(key, 0) + 1
        if isinstance(term, Var):
            self.taken.add(term.name)
        if isinstance(term, Op | Chain) and term.name:
            self.taken.add(term.name)
        if term not in seen:
            seen.add(term)
            for child in children(term):
                self.count(child, seen)

    def term(self, term: Term) -> str:
        match term:
            case Var():
                return self.variable(term)
            case Number():
                return _number(term)
            case Either():
                return f"({' or '.join(self.term(one) for one in term.terms)})"
            case Out():
                return f"{self.term(term.op)}[{term.index}]"
            case Op() | Chain():
                return self.call(term)
            case Repeat():
                return self.repeat(term)
        return "."

    def variable(self, term: Var) -> str:
        # Conditions of a variable are written once, before the first line that names it.
        if term.name not in self.asked:
            self.asked.add(term.name)
            self.lines += [
                f"%{write_name(term.name)} {line}" for line in _condition_lines(term.tests)
            ]
        return f"%{write_name(term.name)}"

    def call(self, term: Op | Chain) -> str:
        if term in self.names:  # what a body says is said there alone
            return f"%{self.names[term]}"
        text = self.op(term) if isinstance(term, Op) else self.chain(term)
        text += "".join(
            f" {line}" for line in _condition_lines(term.tests) if not line.startswith("#")
        )
        # A body is printed as one term, so its nodes cannot have lines and names of their own.
        name = "" if self.within else term.name
        # Written twice, the same term would be read back as two nodes.
        if not self.within and not name and self.counts.get(term, 0) > 1:
            base = term.ops[0] if isinstance(term, Op) else "group"
            name, number = base, 1
            while name in self.taken:
                name, number = f"{base}_{number}", number + 1
        python_conditions = [line for line in _condition_lines(term.tests) if line.startswith("#")]
        if not name:
            self.lines += python_conditions
            return text
        self.taken.add(name)
        self.names[term] = name
        self.lines += [f"%{name} = {text}", *python_conditions]
        return f"%{name}"

    def op(self, term: Op, *, flows: bool = False) -> str:
        parts = [self.operand(slot, operand) for slot, operand in term.operands.items()]
        parts = [*parts, *(["..."] if term.others else [])]
        attrs = ", ".join(
            f"{name} = {_attr_condition_text(value)}" for name, value in term.attrs.items()
        )
        text = f"{'|'.join(term.ops)}({', '.join(parts)})" + (f" {{{attrs}}}" if attrs else "")
        return text + ("" if term.swaps else " ordered")

    def chain(self, term: Chain) -> str:
        stages = ("..." if stage is ... else self.op(stage) for stage in term.stages)
        return " |> ".join(stages)

    def operand(self, slot: str, operand: Operand) -> str:
        match operand:
            case None:
                text = "none"
            case Maybe():
                text = f"maybe {self.term(operand.term)}"
            case Every():
                name = f" as {operand.name}" if operand.name else ""
                text = f"every {self.term(operand.term)}{name}"
            case Many():
                text = f"[{', '.join(self.item(item) for item in operand.items)}]"
            case _:
                text = "." if operand is FLOW else self.term(operand)
        return f"{slot}={text}"

    def item(self, item: Term | Rest) -> str:
        return (
            f"...{f' {item.name}' if item.name else ''}"
            if isinstance(item, Rest)
            else (self.term(item))
        )

    def repeat(self, term: Repeat) -> str:
        # Python makes the name `rounds.flow`, which the text form does not have as a name.
        flow = term.flow.name.replace(".", "_")
        # Defaults are left out, so that the text of a pattern is printed as it was written.
        name = "" if term.name == "rounds" else f" as {term.name}"
        most = "" if term.most == 1000 else str(term.most)
        start = self.term(term.start)
        self.within += 1
        body = self.term(term.body).replace(f"%{term.flow.name}", f"%{flow}")
        self.within -= 1
        return f"repeat {term.least}..{most}{name} (%{flow}: {body}) from {start}"


def _condition_lines(tests: tuple[TermCondition[_T], ...]) -> list[str]:
    """Conditions as the text has them, those of Python code as comments."""
    return [f"where ({t.text})" if t.written else f"# and: {t.text}" for t in tests]


def _number(term: Number) -> str:
    if isinstance(term.value, bool):
        return str(term.value).lower()
    if term.tolerance is None:
        return repr(term.value)
    within = "" if term.tolerance == 1e-3 else f" within {term.tolerance!r}"
    return f"near {term.value!r}{within}"


def _attr_condition_text(value: Wanted) -> str:
    if not isinstance(value, TermCondition):
        return print_attr(value)
    if value.values:
        return " or ".join(map(print_attr, value.values))
    return f'"{value.text}"'


def print_attr(value: Attr) -> str:
    """Returns an attribute's value as patterns have it."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str():
            return quote(value)
        case DType():
            return value.name
        case tuple():
            items = ", ".join(map(print_attr, value))
            return f"({items},)" if len(value) == 1 else f"({items})"
    return repr(value)
