"""Dimensions: whole numbers, unknown ones, and exact arithmetic on named ones.

A symbolic dimension is a polynomial with integer coefficients over atoms. An atom is a name
or a floor division that could not be carried out; so `N*2 + N` and `3*N` are one dimension.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from qir.errors import ParseError, TypeRuleError
from qir.records import record


@dataclass(frozen=True, slots=True, order=True)
class Floor:
    """A floor division that names keep from being carried out."""

    above: str
    below: str


Atom: TypeAlias = "str | Floor"
"""What a size is made of: a name, or a division rounded down."""
Monomial: TypeAlias = "tuple[Atom, ...]"
"""Atoms that are multiplied."""


@record
class Sym:
    """A symbolic dimension in its one canonical form."""

    terms: tuple[tuple[Monomial, int], ...]

    def __str__(self) -> str:
        return "".join(_signed(m, c, first=i == 0) for i, (m, c) in enumerate(self.terms))

    def __repr__(self) -> str:
        return f"Sym({self})"

    def __add__(self, other: Dim) -> Dim:
        return add(self, other)

    def __mul__(self, other: Dim) -> Dim:
        return multiply(self, other)


Dim: TypeAlias = "int | Sym | None"
"""A size, a symbolic one, or None for an unknown one: `?`."""
Shape: TypeAlias = "tuple[Dim, ...]"
"""The dimensions of a tensor, in order."""

# What grows beyond these is unknown, so that every dimension prints as a text that reads back.
_MAX_TERMS = 64
_MAX_LETTERS = 400
_MAX_SIZE = 10**18
_MAX_DEPTH = 120


def _key(monomial: Monomial) -> tuple[int, list[str]]:
    # Higher degrees first, then by name: `N*M+N+3`.
    return -len(monomial), [_atom(a) for a in monomial]


def _atom(atom: Atom) -> str:
    if isinstance(atom, str):
        return atom
    return f"{_bracketed(atom.above)}//{_bracketed(atom.below)}"


def _bracketed(text: str) -> str:
    return text if text.isidentifier() or text.isdecimal() else f"({text})"


def _signed(monomial: Monomial, count: int, first: bool) -> str:
    sign = "-" if count < 0 else "" if first else "+"
    is_single = len(monomial) == 1 and count == 1
    names = "*".join(
        f"({_atom(a)})" if isinstance(a, Floor) and not is_single else _atom(a) for a in monomial
    )
    size = str(abs(count))
    body = size if not names else names if size == "1" else f"{names}*{size}"
    return sign + body


def _terms(dim: int | Sym) -> dict[Monomial, int]:
    if isinstance(dim, Sym):
        return dict(dim.terms)
    return {(): dim} if dim else {}


def _build(terms: dict[Monomial, int]) -> Dim:
    nonzero = {m: c for m, c in terms.items() if c}
    if not nonzero:
        return 0
    # Only the constant term is left.
    if list(nonzero) == [()]:
        return nonzero[()] if abs(nonzero[()]) < _MAX_SIZE else None
    if len(nonzero) > _MAX_TERMS or max(map(abs, nonzero.values())) >= _MAX_SIZE:
        return None
    symbolic = Sym(tuple(sorted(nonzero.items(), key=lambda t: _key(t[0]))))
    return symbolic if len(str(symbolic)) <= _MAX_LETTERS else None


def symbol(name: str) -> Sym:
    """Returns the dimension of that name; raises ParseError if the text form could not hold the
    name."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ParseError(f"{name!r} is no name for a dimension")
    return Sym((((name,), 1),))


def add(a: Dim, b: Dim) -> Dim:
    """a + b, unknown if either is."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if a is None or b is None:
        return None
    terms = _terms(a)
    for monomial, count in _terms(b).items():
        terms[monomial] = terms.get(monomial, 0) + count
    return _build(terms)


def subtract(a: Dim, b: Dim) -> Dim:
    """a - b, unknown if either is."""
    return add(a, multiply(-1, b))


def multiply(a: Dim, b: Dim) -> Dim:
    """a * b, unknown if either is, 0 if either is 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    # 0 times an unknown size is 0 as well.
    if a == 0 or b == 0:
        return 0
    if a is None or b is None:
        return None
    out: dict[Monomial, int] = {}
    for ma, ca in _terms(a).items():
        for mb, cb in _terms(b).items():
            key = tuple(sorted((*ma, *mb), key=_atom))
            out[key] = out.get(key, 0) + ca * cb
    return _build(out)


def divide(a: Dim, b: Dim) -> Dim:
    """Floor division; exact where every term divides, else an atom of its own."""
    if a is None or b is None or b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    # Exact only where every coefficient divides: floor((4N + 2) / 4) is not N.
    if isinstance(b, int) and all(c % b == 0 for c in _terms(a).values()):
        return _build({m: c // b for m, c in _terms(a).items()})
    if isinstance(b, Sym) and len(b.terms) == 1:
        if (exact := _cancel(_terms(a), *b.terms[0])) is not None:
            return exact
    return _build({(Floor(str(a), str(b)),): 1})


def _cancel(terms: dict[Monomial, int], names: Monomial, count: int) -> Dim:
    out: dict[Monomial, int] = {}
    for monomial, c in terms.items():
        remaining = list(monomial)
        for name in names:
            if name not in remaining:
                return None
            remaining.remove(name)
        if c % count:
            return None
        out[tuple(remaining)] = c // count
    return _build(out)


def product(shape: Shape) -> Dim:
    """Returns the number of elements."""
    out: Dim = 1
    for dim in shape:
        out = multiply(out, dim)
    return out


def names(shape: Shape) -> set[str]:
    """Returns the names that the symbolic dimensions of a shape use."""
    # Names inside floor divisions are only in the printed form.
    text = " ".join(str(d) for d in shape if isinstance(d, Sym))
    return set(re.findall(r"[A-Za-z_]\w*", text))


def bind(dim: Dim, values: dict[str, int]) -> Dim:
    """Returns the dimension with names replaced by numbers."""
    if not isinstance(dim, Sym):
        return dim
    out: Dim = 0
    for monomial, count in dim.terms:
        term: Dim = count
        for atom in monomial:
            if isinstance(atom, Floor):
                value = divide(bind(parse(atom.above), values), bind(parse(atom.below), values))
            else:
                value = values[atom] if atom in values else symbol(atom)
            term = multiply(term, value)
        out = add(out, term)
    return out


def size(dim: object) -> Dim:
    """Returns a dimension of what a program writes for one: a name or an expression is a symbolic
    size.

    Raises TypeRuleError for what is no size, ParseError for a text that is none.
    """
    if dim is None or isinstance(dim, Sym):
        return dim
    if isinstance(dim, str):
        return parse(dim)
    if isinstance(dim, int | np.integer) and not isinstance(dim, bool):
        return int(dim)
    raise TypeRuleError(f"a size of {dim!r}; sizes are whole numbers, names and None")


def known_shape(shape: Shape) -> tuple[int, ...] | None:
    """Returns the shape as plain numbers, or None if a dimension is not one."""
    sizes = tuple(d for d in shape if isinstance(d, int))
    return sizes if len(sizes) == len(shape) else None


def may_be_equal(a: Dim, b: Dim) -> bool:
    """Returns whether the two may be the same size: only two different numbers cannot."""
    # A symbolic or unknown size may be any number.
    return not (isinstance(a, int) and isinstance(b, int)) or a == b


_TOKEN = re.compile(r"\s*(//|[A-Za-z_]\w*|\d+|[-+*()])")


def parse(text: str) -> Dim:
    """Reads an expression such as `N*49` or `(N+3)//2`; raises ParseError if it is none."""
    tokens: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        if not (match := _TOKEN.match(text, position)):
            raise ParseError(
                f"dimension {text!r}: {text[position:]!r} is no name, number or operator"
            )
        tokens.append(match[1])
        position = match.end()
    if len(tokens) > 2 * _MAX_LETTERS:
        raise ParseError(f"a dimension has more than {2 * _MAX_LETTERS} parts")
    value, rest = _sum(tokens, text, 0)
    if rest:
        raise ParseError(f"dimension {text!r}: {rest[0]!r} is one too many")
    if value is None or (isinstance(value, int) and abs(value) >= _MAX_SIZE):
        raise ParseError(f"dimension {text[:40]!r} divides by zero or is too large")
    return value


def _sum(tokens: list[str], text: str, depth: int) -> tuple[Dim, list[str]]:
    value, rest = _term(tokens, text, depth)
    while rest and rest[0] in ("+", "-"):
        other, after = _term(rest[1:], text, depth)
        value = add(value, other if rest[0] == "+" else multiply(-1, other))
        rest = after
    return value, rest


def _term(tokens: list[str], text: str, depth: int) -> tuple[Dim, list[str]]:
    value, rest = _factor(tokens, text, depth)
    while rest and rest[0] in ("*", "//"):
        other, after = _factor(rest[1:], text, depth)
        value = multiply(value, other) if rest[0] == "*" else divide(value, other)
        rest = after
    return value, rest


def _factor(tokens: list[str], text: str, depth: int) -> tuple[Dim, list[str]]:
    if not tokens:
        raise ParseError(f"dimension {text!r} ends too early")
    if depth > _MAX_DEPTH:
        raise ParseError(f"a dimension has brackets more than {_MAX_DEPTH} deep")
    token, rest = tokens[0], tokens[1:]
    if token == "-":
        value, rest = _factor(rest, text, depth + 1)
        return multiply(-1, value), rest
    if token == "(":
        value, rest = _sum(rest, text, depth + 1)
        if not rest or rest[0] != ")":
            raise ParseError(f"dimension {text!r}: a bracket is not closed")
        return value, rest[1:]
    if token.isdecimal():
        if len(token) > 18:
            raise ParseError("a dimension has a number of more than 18 digits")
        return int(token), rest
    if token in (")", "*", "+", "//"):
        raise ParseError(f"dimension {text!r}: {token!r} where a name or number should stand")
    return symbol(token), rest
