"""Parses the text form of patterns, which resembles that of graphs.

    pattern gelu {
      %e = erf(div(%x, near 1.4142))
      return mul(mul(%x, 0.5), add(%e, 1.0))
    }

    pattern = "pattern" name [ "codes" ] "{" { line } "return" terms "}"  |  term
    line    = "%" name "=" term  |  "%" name where                         the second: of a variable
    term    = one { "or" one }                                             the first that fits
    one     = "%" name [ "[" int "]" ] | number | "near" number [ "within" number ] | "(" term ")"
            | call { "|>" ( call | "..." ) } [ where ] | repeat            |>: a group of stages
    call    = ops "(" operands ")" [ "{" attrs "}" ] [ "ordered" ]
    ops     = op { "|" op } [ "?" ]                                 ?: the node may be missing
    operand = term | "." | "..." [ name ] | slot "=" given             .: what the stage before made
    given   = term | "none" | "maybe" term | "every" term [ "as" name ] | "[" operands "]"
    attr    = name "=" value { "or" value }
    where   = "where" "(" query ")"
    repeat  = "repeat" [ int ".." [ int ] ] [ "as" name ] "(" "%" name ":" term ")" "from" term

A variable is a name that no line makes. A line's name is also the name of its node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import EllipsisType

from qir.errors import ParseError, QirError
from qir.ir.attrtext import read_attr
from qir.ir.lexer import Cursor
from qir.ir.ops import OPS, spec
from qir.query.query import ask_node, ask_value
from qir.rewrite.patterns.pattern import Ops, Pattern, chain, is_slot, list_of, one_of, optional
from qir.rewrite.patterns.terms import (
    FLOW,
    Chain,
    Every,
    Given,
    Maybe,
    Number,
    Op,
    Out,
    Repeat,
    Rest,
    Term,
    Var,
    Wanted,
)

# The reader is recursive: a text of nothing but brackets must not exhaust Python's stack.
_MAX_DEPTH = 60


def parse_pattern(text: str, name: str = "pattern") -> Pattern:
    """Reads a pattern, or a term that is one; ParseError names line and column of the fault."""
    reader = _PatternReader(text)
    cursor = reader.cursor
    try:
        parsed = (
            reader.pattern() if cursor.take_word("pattern") else Pattern(name, (reader.term(),))
        )
    except ParseError:
        raise
    except QirError as error:
        raise cursor.fail(str(error)) from None
    if not cursor.done:
        raise cursor.fail(f"{cursor.near()} is too much after the pattern")
    return parsed


class _PatternReader:
    def __init__(self, text: str) -> None:
        self.cursor = Cursor(text)
        self.terms: dict[str, Term] = {}
        self.variables: dict[str, Var] = {}
        self.used: set[str] = set()
        self.depth = 0

    def pattern(self) -> Pattern:
        cursor = self.cursor
        cursor.skip()
        name = cursor.word()
        codes = cursor.take_word("codes")
        cursor.expect("{")
        while not cursor.take_word("return"):
            self.line()
        results = [self.term()]
        while cursor.take(","):
            results.append(self.term())
        cursor.expect("}")
        return Pattern(name, tuple(results), (), codes)

    def line(self) -> None:
        """A term with a name, or a condition on a variable."""
        cursor = self.cursor
        cursor.expect("%")
        name = cursor.name()
        if name in self.terms:
            raise cursor.fail(f"%{name} is made twice")
        # A use before its line would have become a variable of that name already.
        if name in self.used:
            raise cursor.fail(f"%{name} is used before this line")
        if cursor.take_word("where"):
            variable = self.variables.get(name, Var(name))
            self.variables[name] = variable.where(self.query(ask_value))
            return
        cursor.expect("=")
        term = self.term()
        if isinstance(term, Op | Chain):
            term = term.named(name)
        elif isinstance(term, Out):
            term = replace(term, op=term.op.named(name))
        elif isinstance(term, Repeat):
            term = replace(term, name=name)
        self.terms[name] = term

    def query(self, ask: Callable[[str], object]) -> str:
        """Returns the text of a query, in brackets; raises ParseError where it is none."""
        text = self.bracket()
        try:
            ask(text)
        except ParseError as error:
            raise self.cursor.fail(f"({text}): {error}") from None
        return text

    def bracket(self) -> str:
        """Returns what is in brackets, as it is."""
        cursor = self.cursor
        cursor.expect("(")
        start, depth, quoted = cursor.at, 1, ""
        # Queries have a grammar of their own: only their brackets and quotes are counted here.
        for place in range(start, len(cursor.text)):
            letter = cursor.text[place]
            if quoted:
                quoted = "" if letter == quoted else quoted
            elif letter in "\"'":
                quoted = letter
            elif letter in "()":
                depth += 1 if letter == "(" else -1
                if not depth:
                    cursor.at = place + 1
                    return cursor.text[start:place].strip()
        raise cursor.fail("the condition's bracket is not closed")

    # -- terms --------------------------------------------------------------------------------

    def term(self) -> Term:
        cursor = self.cursor
        self.enter_bracket()
        parsed = self.one()
        while cursor.take_word("or"):
            parsed = parsed | self.one()
        self.depth -= 1
        return parsed

    def one(self) -> Term:
        cursor = self.cursor
        if cursor.take("%"):
            return self.named(cursor.name())
        if cursor.take("("):
            parsed = self.term()
            cursor.expect(")")
            return parsed
        if cursor.take_word("near"):
            value = cursor.number()
            within = cursor.number() if cursor.take_word("within") else 1e-3
            return Number(value, float(within))
        for word, flag in (("true", True), ("false", False)):
            if cursor.take_word(word):
                return Number(flag)
        if cursor.at_number():
            return Number(cursor.number())
        if cursor.take_word("repeat"):
            return self.repeat()
        return self.calls()

    def named(self, name: str) -> Term:
        bound = self.terms.get(name)
        if bound is None:
            self.used.add(name)
            return self.variables.setdefault(name, Var(name))
        if isinstance(bound, Out):
            bound = bound.op
        return self.index(bound)

    def index(self, term: Term) -> Term:
        cursor = self.cursor
        if not cursor.peek("["):
            return term
        if not isinstance(term, Op):
            raise cursor.fail("only an op has several results")
        cursor.expect("[")
        place = self.count()
        cursor.expect("]")
        return term[place]

    def count(self) -> int:
        number = self.cursor.number()
        if not isinstance(number, int) or number < 0:
            raise self.cursor.fail(f"{number} is no count")
        return number

    def repeat(self) -> Repeat:
        cursor = self.cursor
        least, most = 1, 1000
        if cursor.at_number():
            least = self.count()
            cursor.expect("..")
            most = self.count() if cursor.at_number() else most
        cursor.skip()
        name = self.word() if cursor.take_word("as") else "rounds"
        if not least <= most:
            raise cursor.fail(f"{least} to {most} times")
        cursor.expect("(")
        cursor.expect("%")
        flow = cursor.name()
        if flow in self.terms or flow in self.variables:
            raise cursor.fail(f"%{flow} has a meaning already")
        cursor.expect(":")
        # The flow is a variable in the body alone, so its name is free again after it.
        variable = self.variables[flow] = Var(flow)
        body = self.term()
        del self.variables[flow]
        cursor.expect(")")
        if not cursor.take_word("from"):
            raise cursor.fail("'from' and what the first round starts from should stand here")
        return Repeat(body, variable, self.term(), least, most, name)

    def calls(self) -> Term:
        """Returns an op, or a group of them, with its condition."""
        cursor = self.cursor
        first, missing = self.call(flows=False)
        stages: list[Op | EllipsisType] = [first]
        while cursor.take("|>"):
            stages.append(... if cursor.take("...") else self.call(flows=True)[0])
        parsed: Op | Chain = chain(*stages) if len(stages) > 1 else first
        while cursor.take_word("where"):
            parsed = parsed.where(self.query(ask_node))
        if missing:
            if isinstance(parsed, Chain):
                raise cursor.fail("a stage of a group is there")
            return optional(parsed)
        return self.index(parsed)

    def call(self, *, flows: bool) -> tuple[Op, bool]:
        cursor = self.cursor
        names = [self.op()]
        while cursor.peek("|") and not cursor.peek("|>") and cursor.take("|"):
            names.append(self.op())
        missing = cursor.take("?")
        operands_read: list[Given | EllipsisType] = []
        keywords: dict[str, Given | Wanted] = {}
        if cursor.peek("(") or not flows:
            self.operands(names[0], operands_read, keywords)
        else:
            operands_read.append(FLOW)
        if cursor.take("{"):
            self.attrs(keywords)
        parsed = Ops().any_of(*names)(*operands_read, **keywords)
        return (parsed.ordered() if cursor.take_word("ordered") else parsed), missing

    def op(self) -> str:
        cursor = self.cursor
        name = cursor.identifier()
        if name not in OPS:
            spec(name)  # says what is near
        return name

    def operands(
        self,
        op: str,
        operands_read: list[Given | EllipsisType],
        keywords: dict[str, Given | Wanted],
    ) -> None:
        cursor = self.cursor
        cursor.expect("(")
        while not cursor.take(")"):
            if operands_read or keywords:
                cursor.expect(",")
            slot = self.slot(op)
            if slot is None:
                operands_read.append(self.operand())
            elif slot in keywords:
                raise cursor.fail(f"{op}: slot {slot} is bound twice")
            else:
                keywords[slot] = self.given()

    def slot(self, op: str) -> str | None:
        """Returns a slot's name with its sign, if that is what stands next."""
        cursor = self.cursor
        start = cursor.at
        cursor.skip()
        name = cursor.find_name()
        if name is not None and cursor.take("="):
            if not is_slot(spec(op), name):
                raise cursor.fail(f"{op} has no slot {name}")
            return name
        cursor.at = start
        return None

    def operand(self) -> Given | EllipsisType:
        cursor = self.cursor
        if cursor.take("..."):
            if cursor.peek(",") or cursor.peek(")") or cursor.peek("]"):
                return ...
            return Rest(self.word())
        if cursor.take("."):
            return FLOW
        return self.given()

    def given(self) -> Given:
        cursor = self.cursor
        if cursor.take_word("none"):
            return None
        if cursor.take_word("maybe"):
            return Maybe(self.term())
        if cursor.take_word("every"):
            term = self.term()
            return Every(term, self.word() if cursor.take_word("as") else "")
        if not cursor.take("["):
            return FLOW if cursor.take(".") else self.term()
        self.enter_bracket()
        items: list[Given | EllipsisType] = []
        while not cursor.take("]"):
            if items:
                cursor.expect(",")
            items.append(self.operand())
        self.depth -= 1
        return list_of(items)

    def enter_bracket(self) -> None:
        """Counts one more bracket around what is read; raises ParseError for too many."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.cursor.fail(f"terms within terms, more than {_MAX_DEPTH} deep")

    def word(self) -> str:
        self.cursor.skip()
        return self.cursor.identifier()

    # -- attributes ---------------------------------------------------------------------------

    def attrs(self, keywords: dict[str, Given | Wanted]) -> None:
        cursor = self.cursor
        first = True
        while not cursor.take("}"):
            if not first:
                cursor.expect(",")
            first = False
            name = self.word()
            if name in keywords:
                raise cursor.fail(f"{name} is given twice")
            cursor.expect("=")
            values = [read_attr(cursor, {})]
            while cursor.take_word("or"):
                values.append(read_attr(cursor, {}))
            keywords[name] = values[0] if len(values) == 1 else one_of(*values)
