"""Parses query expressions (a Pratt parser) and compiles them to functions.

An expression becomes a tree of Python functions over a scope; no text is ever handed to Python.
Operators of one strength are gathered in a row, so that only brackets make the tree deeper.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, TypeAlias

from qir.errors import ParseError
from qir.ir.node import Node, Value
from qir.ir.ops import OPS
from qir.query.evaluation import (
    ARITHMETIC,
    COMPARISONS,
    FUNCTIONS,
    Arithmetic,
    Comparison,
    glob_pattern,
    matches,
    negative,
)
from qir.query.facts import Item, attribute, fact, truth

MAX_EXPRESSION_LENGTH = 10_000
MAX_EXPRESSION_DEPTH = 80
_MAX_DIGITS = 18

_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
    (?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)
  | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<name>[A-Za-z_]\w*)
  | (?P<mark>==|!=|<=|>=|//|[-+*/%<>()\[\],.])
    )""",
    re.VERBOSE | re.DOTALL,
)
_SUGGESTED_MARKS = {"=": "==", "&": "and", "|": "or", "!": "not", "~": "not", "^": "or", "*": "//"}
_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT = range(1, 7)
_STRENGTHS = (
    {"or": _OR, "and": _AND, "in": _COMPARE, "not": _COMPARE}
    | dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), _COMPARE)
    | dict.fromkeys(("+", "-"), _SUM)
    | dict.fromkeys(("*", "/", "//", "%"), _PRODUCT)
)
_FLAGS = {"true": True, "false": False}
_FRACTION = re.compile(r"[ \t\r\n]*(?P<number>\.\d+(?:[eE][-+]?\d+)?)")
_LONG_ROW = 32
"""Rows of so many users are gathered once in a query."""


class Effort:
    """What a whole query may still look at, and the long rows that it need not look at again."""

    __slots__ = ("_answers", "_ids", "_rows", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self._rows: dict[int, tuple[Item, ...]] = {}
        self._ids: set[int] = set()
        self._answers: dict[tuple[int, int], bool] = {}

    def row(self, item: Node | Value) -> tuple[Item, ...] | None:
        """Returns the users of something, where they were gathered."""
        return self._rows.get(id(item))

    def keep(self, item: Node | Value, row: tuple[Item, ...]) -> None:
        """Keeps a long row of users; the graph keeps whose they are."""
        if len(row) >= _LONG_ROW:
            self._rows[id(item)] = row
            self._ids.add(id(row))

    def answer(self, row: tuple[Item, ...], question: int) -> bool | None:
        """What is known of a row that is kept."""
        return self._answers.get((id(row), question))

    def learn(self, row: tuple[Item, ...], question: int, answer: bool) -> None:
        """Keeps what a question that asks of nothing else found in a row that is kept."""
        if id(row) in self._ids:
            self._answers[id(row), question] = answer


@dataclass(slots=True)
class Scope:
    """What an expression is asked of."""

    subject: Node | Value
    effort: Effort
    """Shared by a whole query."""
    profile: str = ""
    """The graph's, for nodes that name none."""
    it: Item = None

    def look(self, count: int) -> None:
        """Counts elements; raises ParseError when it comes to too many."""
        self.effort.left -= count
        if self.effort.left < 0:
            raise ParseError("the expression looks at too many elements of too many nodes")


Code: TypeAlias = Callable[[Scope], Item]


class Token(NamedTuple):
    """One word, number, text or mark, and the column it starts in."""

    kind: str
    text: str
    column: int


class ExpressionPart(NamedTuple):
    """A piece of an expression: what it does, and what it is where that is plain to see."""

    code: Code
    name: str = ""
    literal: str | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """The names that may stand alone, and those after a point."""

    alone: Set[str]
    dotted: Set[str]
    hints: dict[str, str] = field(default_factory=dict)


def fail(column: int, message: str) -> NoReturn:
    """Raises the error of an expression."""
    raise ParseError(f"column {column}: {message}")


def compile_expression(text: str, names: Names) -> Code:
    """Returns the function of an expression; raises ParseError with the column where it is none."""
    if not isinstance(text, str):
        raise ParseError(f"an expression is a text, not {text!r:.40}")
    if len(text) > MAX_EXPRESSION_LENGTH:
        raise ParseError(f"an expression of {len(text)} letters; at most {MAX_EXPRESSION_LENGTH}")
    return _Parser(_tokens(text), names).whole().code


def _tokens(text: str) -> list[Token]:
    out: list[Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        # `.5` is a number where a part may begin, and an index after one.
        if match and match["mark"] == "." and not _ends_part(out):
            match = _FRACTION.match(text, at) or match
        if not match:
            at += len(text[at:]) - len(text[at:].lstrip())
            mark = text[at]
            if mark in "\"'":
                fail(at + 1, "the text is not closed")
            other = _SUGGESTED_MARKS.get(mark)
            fail(at + 1, f"{mark!r} means nothing here" + (f"; write {other}" if other else ""))
        kind = match.lastgroup or ""
        out.append(Token(kind, match[kind], match.start(kind) + 1))
        at = match.end()
    return [*out, Token("end", "", len(text) + 1)]


def _ends_part(tokens: list[Token]) -> bool:
    """Returns whether the last token ends a part, so that a point after it asks for more of it."""
    if not tokens:
        return False
    kind, text, _ = tokens[-1]
    return text not in _STRENGTHS if kind == "name" else kind != "mark" or text in (")", "]", ".")


class _Parser:
    def __init__(self, tokens: list[Token], names: Names) -> None:
        self.tokens = tokens
        self.names = names
        self.at = 0
        self.depth = 0
        self.inside = 0  # any and all within each other
        self.asked = 0  # parts that ask the subject, and not `it`

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def advance(self) -> Token:
        token = self.tokens[self.at]
        self.at += token.kind != "end"
        return token

    def take(self, text: str) -> bool:
        if self.next.kind in ("mark", "name") and self.next.text == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str, why: str = "") -> None:
        if not self.take(text):
            fail(self.next.column, f"{text!r} should stand here, not {self.near()}{why}")

    def near(self) -> str:
        return "the end" if self.next.kind == "end" else repr(self.next.text[:30])

    def whole(self) -> ExpressionPart:
        part = self.parse(_OR)
        if self.next.kind != "end":
            fail(self.next.column, f"{self.near()} is one too many")
        return part

    # -- operators ----------------------------------------------------------------------------

    def parse(self, least: int) -> ExpressionPart:
        """Returns an expression of operators at least so strong."""
        self.depth += 1
        if self.depth > MAX_EXPRESSION_DEPTH:
            fail(self.next.column, f"parts within parts, more than {MAX_EXPRESSION_DEPTH} deep")
        part = self.prefix(least)
        while (power := self.power()) >= least:
            # All operators of one strength at once: the tree's depth grows with brackets alone.
            part = self.row(part, power)
        self.depth -= 1
        return part

    def power(self) -> int:
        if self.next.kind not in ("mark", "name"):
            return 0
        # `not` joins two parts only as `not in`.
        if self.next.text == "not" and self.tokens[self.at + 1].text != "in":
            return 0
        return _STRENGTHS.get(self.next.text, 0)

    def prefix(self, least: int) -> ExpressionPart:
        start = self.next
        count = 0
        while self.take("not"):
            count += 1
        if count:
            if least > _NOT:
                fail(start.column, "put `not ...` in brackets here")
            code = self.parse(_NOT).code
            return ExpressionPart(_flag(code, count % 2 == 0))
        while self.take("-"):
            count += 1
        if not count:
            return self.steps(self.primary())
        code = self.steps(self.primary()).code
        return ExpressionPart(code if count % 2 == 0 else lambda s: negative(code(s)))

    def row(self, first: ExpressionPart, power: int) -> ExpressionPart:
        """Returns the operands that operators of one strength join."""
        operators: list[Token] = []
        parts = [first]
        while self.power() == power:
            token = self.advance()
            if token.text == "not":
                self.advance()
                token = Token("name", "not in", token.column)
            operators.append(token)
            parts.append(self.parse(power + 1))
        codes = [part.code for part in parts]
        if power in (_OR, _AND):
            return ExpressionPart(_any_of(codes) if power == _OR else _all_of(codes))
        if power == _COMPARE:
            self.check_ops(operators, parts)
            return ExpressionPart(_comparison([COMPARISONS[o.text] for o in operators], codes))
        return ExpressionPart(_arithmetic([ARITHMETIC[o.text] for o in operators], codes))

    def check_ops(self, operators: list[Token], parts: list[ExpressionPart]) -> None:
        """A text that is compared with `op` names an op, or nothing would ever be found."""
        for token, a, b in zip(operators, parts, parts[1:], strict=False):
            for named, other in ((a, b), (b, a)):
                if token.text in ("==", "!=") and named.name == "op" and other.literal is not None:
                    if other.literal not in OPS:
                        fail(token.column, f"no op {other.literal!r}{_near(other.literal, OPS)}")

    # -- parts --------------------------------------------------------------------------------

    def primary(self) -> ExpressionPart:
        token = self.advance()
        match token.kind:
            case "number":
                return ExpressionPart(_constant(_number(token)))
            case "text":
                text = re.sub(r"\\(.)", _unescaped, token.text[1:-1], flags=re.DOTALL)
                return ExpressionPart(_constant(text), literal=text)
            case "name":
                return self.named(token)
        if token.text == "(":
            return self.bracket()
        self.at -= token.kind != "end"
        return fail(token.column, f"a name, number or text should stand here, not {self.near()}")

    def bracket(self) -> ExpressionPart:
        if self.take(")"):
            return ExpressionPart(_constant(()))
        first = self.parse(_OR)
        if self.take(")"):
            return first
        codes = [first.code]
        while self.take(","):
            if self.next.text == ")":
                break
            codes.append(self.parse(_OR).code)
        self.expect(")")
        return ExpressionPart(lambda s: tuple(code(s) for code in codes))

    def named(self, token: Token) -> ExpressionPart:
        name = token.text
        if self.next.kind == "mark" and self.next.text == "(":
            return self.call(token)
        if name in _FLAGS:
            return ExpressionPart(_constant(_FLAGS[name]))
        if name == "it":
            if not self.inside:
                fail(token.column, "`it` is the element that any(.., ..) and all(.., ..) look at")
            return ExpressionPart(lambda s: s.it)
        if name == "attr" and "op" in self.names.alone:
            self.asked += 1
            self.expect(".", " and an attribute's name")
            wanted = self.word("an attribute's name")
            return ExpressionPart(lambda s: attribute(s.subject, wanted.text))
        if name in self.names.alone:
            if name in self.names.hints and not self.of_slot():
                fail(token.column, self.unknown(name))
            self.asked += 1
            ask = _fact_reader(name)
            return ExpressionPart(lambda s: ask(s, s.subject), name)
        if name in _STRENGTHS:
            fail(token.column, f"a name, number or text should stand here, not {name!r}")
        if name in ("none", "null", "None"):
            fail(token.column, f"{name} is not written; ask `has(bias)` or `not has(bias)`")
        fail(token.column, self.unknown(name))

    def of_slot(self) -> bool:
        """Returns whether a name that is a slot's, too, is used as one: `shape.x`, `has(shape)`."""
        before = [token.text for token in self.tokens[max(0, self.at - 3) : self.at - 1]]
        return (self.next.kind, self.next.text) == ("mark", ".") or before == ["has", "("]

    def unknown(self, name: str) -> str:
        if hint := self.names.hints.get(name):
            return f"{name} {hint}"
        if f"{name}(" in _CALLS:
            return f"{name} is a function: {_CALLS[f'{name}(']}"
        if name.lower() in _FLAGS:
            return f"{name} is written {name.lower()}"
        if name in OPS:
            return f"{name} is an op; quote it: '{name}'"
        near = _near(name, self.names.alone) or "; attr.NAME and slot('NAME') ask for any"
        return f"no fact, slot or attribute {name}{near}"

    def word(self, what: str) -> Token:
        token = self.advance()
        if token.kind != "name":
            fail(token.column, f"{what} should stand here")
        return token

    def steps(self, part: ExpressionPart) -> ExpressionPart:
        """Returns what follows a part: `.name`, `.0`, `[0]`, as often as they are there."""
        steps: list[Callable[[Scope, Item], Item]] = []
        while self.next.kind == "mark" and self.next.text in (".", "["):
            if self.advance().text == "[":
                steps.append(_index_reader(self.parse(_OR).code))
                self.expect("]")
            elif self.next.kind == "number":
                token = self.advance()
                if not token.text.isdecimal():
                    fail(token.column, f"put each index in brackets, such as [0], not {token.text}")
                steps.append(_index_reader(_constant(_number(token))))
            else:
                steps.append(self.dotted())
        if not steps:
            return part
        return ExpressionPart(_access_chain(part.code, steps))

    def dotted(self) -> Callable[[Scope, Item], Item]:
        token = self.word("a name")
        name = token.text
        if name == "attr":
            self.expect(".", " and an attribute's name")
            wanted = self.word("an attribute's name").text
            return lambda s, item: attribute(item, wanted)
        if name not in self.names.dotted:
            fail(token.column, f"nothing has a fact {name}{_near(name, self.names.dotted)}")
        self.asked += name == "profile"  # which may be that of the graph
        return _fact_reader(name)

    # -- functions ----------------------------------------------------------------------------

    def call(self, token: Token) -> ExpressionPart:
        name = token.text
        if f"{name}(" not in _CALLS:
            known = {key[:-1] for key in _CALLS}
            fail(token.column, f"no function {name}{_near(name, known)}")
        self.expect("(")
        if name in ("any", "all"):
            return self.over(name)
        parts: list[ExpressionPart] = []
        while not self.take(")"):
            if parts:
                self.expect(",")
            parts.append(self.parse(_OR))
        return self.called(token, parts)

    def over(self, name: str) -> ExpressionPart:
        """`any` and `all`, with what is asked of each element."""
        rows = self.parse(_OR).code
        ask: Code = lambda s: s.it  # noqa: E731
        asked_before = self.asked
        if self.take(","):
            self.inside += 1
            ask = self.parse(_OR).code
            self.inside -= 1
        self.expect(")")
        return ExpressionPart(_quantifier(rows, ask, name == "any", self.asked == asked_before))

    def called(self, token: Token, parts: list[ExpressionPart]) -> ExpressionPart:
        name, codes = token.text, [part.code for part in parts]
        if name in ("matches", "slot"):
            literal = parts[-1].literal if parts else None
            if literal is None or len(parts) > (2 if name == "matches" else 1):
                fail(token.column, f"write such as {_CALLS[f'{name}(']}")
            # What asks the subject has another answer for each: it is not kept for a row of users.
            self.asked += name == "slot" or len(parts) == 1
            if name == "slot":
                return ExpressionPart(lambda s: _slot(s.subject, literal))
            glob = re.compile(glob_pattern(literal))
            of = codes[0] if len(parts) == 2 else _all_names
            return ExpressionPart(lambda s: matches(of(s), glob))
        if not codes or (len(codes) > 1 and name not in ("min", "max")):
            fail(token.column, f"write such as {_CALLS[f'{name}(']}")
        act = FUNCTIONS[name]
        if len(codes) == 1:
            return ExpressionPart(lambda s: act(codes[0](s)))
        return ExpressionPart(lambda s: act(tuple(code(s) for code in codes)))


_CALLS = {
    "len(": "len(inputs)",
    "any(": "any(users, it.op == 'add')",
    "all(": "all(inputs, it.quantized)",
    "has(": "has(bias)",
    "matches(": 'matches("conv*"), or matches(origin.path, "conv*")',
    "slot(": 'slot("1.b")',
    "min(": "min(w.scale)",
    "max(": "max(w.scale)",
    "sum(": "sum(inputs.bytes)",
    "abs(": "abs(result.zero)",
}


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def _number(token: Token) -> int | float:
    if token.text.isdecimal():
        if len(token.text) > _MAX_DIGITS:
            fail(token.column, f"a whole number of more than {_MAX_DIGITS} digits")
        return int(token.text)
    return float(token.text)


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t"}.get(match[1], match[1])


def _constant(value: Item) -> Code:
    return lambda scope: value


def _flag(code: Code, straight: bool) -> Code:
    return (lambda s: truth(code(s))) if straight else (lambda s: not truth(code(s)))


def _any_of(codes: list[Code]) -> Code:
    return lambda s: any(truth(code(s)) for code in codes)


def _all_of(codes: list[Code]) -> Code:
    return lambda s: all(truth(code(s)) for code in codes)


def _quantifier(rows: Code, ask: Code, wanted: bool, alone: bool) -> Code:
    """Returns whether an element answers as wanted; `alone`: what is asked is asked of nothing
    else."""

    def run(scope: Scope) -> Item:
        row = rows(scope)
        if not isinstance(row, tuple):
            return None if row is None else False
        if alone and (known := scope.effort.answer(row, id(run))) is not None:
            return known
        outer_item, answer = scope.it, not wanted
        try:
            for item in row:
                scope.look(1)
                scope.it = item
                if truth(ask(scope)) is wanted:
                    answer = wanted
                    break
        finally:
            # Also after an error, and for the element that an outer any or all looks at.
            scope.it = outer_item
        if alone:
            scope.effort.learn(row, id(run), answer)
        return answer

    return run


def _fact_reader(name: str) -> Callable[[Scope, Item], Item]:
    def ask(scope: Scope, item: Item) -> Item:
        if isinstance(item, tuple):
            scope.look(len(item))
        owner = item if name == "users" and isinstance(item, Node | Value) else None
        if owner is not None and (row := scope.effort.row(owner)) is not None:
            return row
        answer = fact(item, name)
        if isinstance(answer, tuple):
            scope.look(len(answer))
            if owner is not None:
                scope.effort.keep(owner, answer)
        if name == "profile" and answer is None and isinstance(item, Node):
            return scope.profile or None
        return answer

    return ask


def _access_chain(first: Code, steps: list[Callable[[Scope, Item], Item]]) -> Code:
    def run(scope: Scope) -> Item:
        item = first(scope)
        for step in steps:
            if item is None:
                return None
            item = step(scope, item)
        return item

    return run


def _index_reader(code: Code) -> Callable[[Scope, Item], Item]:
    def run(scope: Scope, item: Item) -> Item:
        index = code(scope)
        if not isinstance(item, tuple) or type(index) is not int:
            return None
        return item[index] if -len(item) <= index < len(item) else None

    return run


def _slot(item: Item, name: str) -> Item:
    return item.operands.get(name) if isinstance(item, Node) else None


def _comparison(operators: list[Comparison], codes: list[Code]) -> Code:
    """Returns a chain such as `1 < uses <= 3`; what is not there makes it false."""

    def run(scope: Scope) -> bool:
        left = codes[0](scope)
        for compare, code in zip(operators, codes[1:], strict=True):
            right = code(scope)
            if left is None or right is None or not compare(left, right):
                return False
            left = right
        return True

    return run


def _arithmetic(operators: list[Arithmetic], codes: list[Code]) -> Code:
    """Numbers from left to right; nothing where a part is none, or is divided by zero."""

    def run(scope: Scope) -> Item:
        total = codes[0](scope)
        for reckon, code in zip(operators, codes[1:], strict=True):
            other = code(scope)
            if not isinstance(total, int | float) or not isinstance(other, int | float):
                return None
            try:
                total = reckon(total, other)
            except (ZeroDivisionError, OverflowError):
                return None
        return total

    return run


def _all_names(scope: Scope) -> Item:
    """Returns all that something is called: its own name, and its sources'."""
    subject = scope.subject
    node = subject.node if isinstance(subject, Value) else subject
    return (subject.name, *(o.name for o in node.origins), *(o.path for o in node.origins))
