"""Reads types; `str(type)` and `type.text` write them. Grammar: docs/design/language.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from qir.errors import ParseError, QirError
from qir.ir import dims
from qir.ir.dims import Dim
from qir.ir.dtype import DType, dtype, opaque
from qir.ir.lexer import Cursor
from qir.ir.types import Array, DeclaredBounds, Element, Granularity, Param, QuantType, TensorType

FindArray: TypeAlias = Callable[[str], Array]

_DIM = re.compile(r"([0-9]+|\?)x")
_MAX_RANK = 64
# A type that names no array and has no comment inside, so that its text says all of it.
_ARRAY_FREE_TYPE = re.compile(
    r"(?:(?:[0-9]{1,18}|\?|\([^()\n]*+\))x)*+"
    r"(?:[a-z]\w*+|!quant\.[a-z]++<(?:[^<>@#/\n]++|<[^<>@#/\n]*+>)*+>)"
)
_OPAQUE = re.compile(r"opaque\b")
_MAX_CACHED_LETTERS = 200  # letters of a type that is remembered


def parse_type(text: str, find: FindArray | None = None) -> TensorType:
    """Reads one type; raises ParseError where the text is none."""
    cursor = Cursor(text)
    out = read_type(cursor, find or _no_arrays)
    if not cursor.done:
        raise cursor.fail(f"{cursor.near()} is too much after a type")
    return out


def _no_arrays(name: str) -> Array:
    raise ParseError(f"array @{name} is not given")


def read_type(cursor: Cursor, find: FindArray) -> TensorType:
    """Reads a type where the cursor is."""
    cursor.skip()
    # Models repeat a few types thousands of times: a type that names no array is parsed once, and
    # is one object wherever it stands, so that equal types compare by identity.
    match = _ARRAY_FREE_TYPE.match(cursor.text, cursor.at)
    if (
        match
        and len(match[0]) <= _MAX_CACHED_LETTERS
        and (type_ := _parse_cached(match[0])) is not None
    ):
        cursor.at = match.end()
        return type_
    return _read_type(cursor, find)


@lru_cache(4096)
def _parse_cached(text: str) -> TensorType | None:
    """Returns the one type that a text is, one object wherever it stands; None where it is none."""
    cursor = Cursor(text)
    try:
        kind = _read_type(cursor, _no_arrays)
    except ParseError:  # reported by the caller, with the position
        return None
    return kind if cursor.at == len(text) else None


def _read_type(cursor: Cursor, find: FindArray) -> TensorType:
    shape: list[Dim] = []
    while len(shape) <= _MAX_RANK:
        if cursor.peek("("):
            shape.append(_symbolic(cursor))
        elif match := _DIM.match(cursor.text, cursor.at):
            cursor.at = match.end()
            if len(match[1]) > 18:
                raise cursor.fail("a dimension of more than 18 digits")
            shape.append(None if match[1] == "?" else int(match[1]))
        else:
            break
    else:
        raise cursor.fail(f"a type of more than {_MAX_RANK} axes")
    element = read_element(cursor, find)
    try:
        return TensorType(tuple(shape), element)
    except QirError as error:
        raise cursor.fail(str(error)) from None


def read_element(cursor: Cursor, find: FindArray) -> Element:
    """Reads what each element is, where the cursor is."""
    if cursor.peek("!"):
        return _quant(cursor, find)
    return _opaque(cursor) if _OPAQUE.match(cursor.text, cursor.at) else _dtype(cursor)


def _opaque(cursor: Cursor) -> DType:
    cursor.identifier()
    cursor.expect("<")
    text = cursor.string()
    cursor.expect(">")
    try:
        return opaque(text)
    except ParseError:
        raise cursor.fail("an opaque type is named by up to 1000 plain letters") from None


def _symbolic(cursor: Cursor) -> Dim:
    start, depth = cursor.at, 0
    # Up to the bracket that closes the dimension; the bound keeps a broken file from a long search.
    for at in range(start, min(len(cursor.text), start + 2000)):
        depth += {"(": 1, ")": -1}.get(cursor.text[at], 0)
        if depth == 0:
            cursor.at = at + 1
            if cursor.text[cursor.at : cursor.at + 1] != "x":
                raise cursor.fail("an x should stand after a dimension")
            cursor.at += 1
            try:
                return dims.parse(cursor.text[start + 1 : at])
            except (ParseError, RecursionError) as error:
                raise cursor.fail(str(error)) from None
    raise cursor.fail("a dimension's bracket is not closed")


def _dtype(cursor: Cursor) -> DType:
    name = cursor.identifier()
    try:
        return dtype(name)
    except ParseError as error:
        raise cursor.fail(str(error)) from None


def _quant(cursor: Cursor, find: FindArray) -> QuantType:
    cursor.expect("!")
    word = cursor.word()
    if word not in ("quant.uniform", "quant.lut"):
        raise cursor.fail(f"!{word} is neither !quant.uniform nor !quant.lut")
    cursor.expect("<")
    storage = _dtype(cursor)
    bounds = None
    if cursor.take("<"):
        low = _integer(cursor)
        cursor.expect(":")
        bounds = (low, _integer(cursor))
        cursor.expect(">")
    cursor.expect(":")
    express = _dtype(cursor)
    granularity = _granularity(cursor, find) if cursor.take(":") else None
    cursor.expect(",")
    scale, zero = _params(cursor, find)
    clauses = _TypeClauses()
    while cursor.take(","):
        clauses.read(cursor, find)
    cursor.expect(">")
    try:
        return QuantType(
            storage,
            express,
            scale,
            zero,
            granularity,
            bounds,
            clauses.scale_dtype,
            clauses.plus,
            clauses.declared,
            "lut" if word == "quant.lut" else "uniform",
            clauses.codes,
        )
    except QirError as error:
        raise cursor.fail(str(error)) from None


class _TypeClauses:
    """What is after the parameters."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.scale_dtype: DType | None = None
        self.plus: tuple[float, ...] | Array | None = None
        self.declared: DeclaredBounds | None = None
        self.codes: tuple[float, ...] | Array | None = None

    def read(self, cursor: Cursor, find: FindArray) -> None:
        word = cursor.identifier()
        if word in self.seen:
            raise cursor.fail(f"{word} is given twice")
        self.seen.add(word)
        if word == "scale":
            self.scale_dtype = _dtype(cursor)
        elif word == "plus":
            self.plus = _floats(cursor, find)
        elif word == "from":
            low = _floats(cursor, find)
            cursor.expect("..")
            high = _floats(cursor, find)
            level = float(cursor.number()) if cursor.take("/") else None
            self.declared = DeclaredBounds(low, high, level)
        elif word == "codes":
            self.codes = _codes(cursor, find)
        else:
            raise cursor.fail(f"{word!r} is not scale, plus, from or codes")


def _codes(cursor: Cursor, find: FindArray) -> tuple[float, ...] | Array:
    if cursor.take("@"):
        return _array(cursor, find)
    cursor.expect("[")
    out = [cursor.number()]
    while cursor.take(","):
        out.append(cursor.number())
    cursor.expect("]")
    return tuple(out)


def _integer(cursor: Cursor) -> int:
    value = cursor.number()
    if not isinstance(value, int):
        raise cursor.fail(f"{value} is no whole number")
    return value


def _array(cursor: Cursor, find: FindArray) -> Array:
    name = cursor.name()
    try:
        return find(name)
    except ParseError as error:
        raise cursor.fail(str(error)) from None


def _granularity(cursor: Cursor, find: FindArray) -> Granularity:
    blocks: list[tuple[int, int]] = []
    if not cursor.take("{"):
        return _blocks(cursor, [(_integer(cursor), 1)], None)
    while True:
        axis = _integer(cursor)
        cursor.expect(":")
        blocks.append((axis, _integer(cursor)))
        if not cursor.take(","):
            break
    by = None
    if cursor.take_word("by"):
        cursor.expect("@")
        by = _array(cursor, find)
    cursor.expect("}")
    return _blocks(cursor, blocks, by)


def _blocks(cursor: Cursor, blocks: list[tuple[int, int]], by: Array | None) -> Granularity:
    try:
        return Granularity(tuple(blocks), by)
    except QirError as error:
        raise cursor.fail(str(error)) from None


def _params(cursor: Cursor, find: FindArray) -> tuple[Param, Param]:
    if cursor.take("{"):
        pairs = [_scale_and_zero(cursor)]
        while cursor.take(","):
            pairs.append(_scale_and_zero(cursor))
        cursor.expect("}")
        zeros = tuple(z for _, z in pairs if z is not None)
        scales = tuple(float(s) for s, _ in pairs)
        if cursor.take(":"):
            return scales, _zero(cursor, find)
        if zeros and len(zeros) != len(pairs):
            raise cursor.fail("some of the scales have a zero and some have none")
        return scales, zeros
    if cursor.take("?"):
        return None, _zero(cursor, find) if cursor.take(":") else ()
    if cursor.take("@"):
        scale = _array(cursor, find)
        return scale, _zero(cursor, find) if cursor.take(":") else ()
    value = float(cursor.number())
    return (value,), _zero(cursor, find) if cursor.take(":") else ()


def _scale_and_zero(cursor: Cursor) -> tuple[float, int | float | None]:
    scale = float(cursor.number())
    return scale, cursor.number() if cursor.take(":") else None


def _zero(cursor: Cursor, find: FindArray) -> Param:
    if cursor.take("?"):
        return None
    if cursor.take("@"):
        return _array(cursor, find)
    if cursor.take("{"):
        out = [cursor.number()]
        while cursor.take(","):
            out.append(cursor.number())
        cursor.expect("}")
        return tuple(out)
    return (cursor.number(),)


def _floats(cursor: Cursor, find: FindArray) -> tuple[float, ...] | Array:
    if cursor.take("@"):
        return _array(cursor, find)
    if cursor.take("{"):
        out = [float(cursor.number())]
        while cursor.take(","):
            out.append(float(cursor.number()))
        cursor.expect("}")
        return tuple(out)
    return (float(cursor.number()),)
