"""Reads attributes; `printer` and `attrs` write them. Grammar: docs/design/language.md."""

from __future__ import annotations

import re
from collections.abc import Mapping

from qir.errors import ParseError
from qir.ir.attrs import Attr
from qir.ir.dtype import dtype
from qir.ir.lexer import Cursor
from qir.ir.types import Array

_MAX_DEPTH = 40
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")
_WORDS: dict[str, Attr] = {"true": True, "false": False, "none": None}


def read_attr(cursor: Cursor, arrays: Mapping[str, Array], depth: int = 0) -> Attr:
    """Reads an attribute where the cursor is; `@name` is one of the arrays."""
    if depth > _MAX_DEPTH:
        raise cursor.fail(f"lists within lists, more than {_MAX_DEPTH} deep")
    if cursor.take("("):
        items: list[Attr] = []
        while not cursor.take(")"):
            if items:
                cursor.expect(",")
                if cursor.take(")"):
                    break
            items.append(read_attr(cursor, arrays, depth + 1))
        return tuple(items)
    if cursor.peek('"'):
        return cursor.string()
    if cursor.take("@"):
        name = cursor.name()
        if name not in arrays:
            raise cursor.fail(f"array @{name} is named before it is declared")
        return arrays[name]
    if cursor.at_number():
        return cursor.number()
    return _word(cursor)


def _word(cursor: Cursor) -> Attr:
    cursor.skip()
    word = cursor.identifier()
    if word == "bytes":
        digits = cursor.string()
        if not _HEX.fullmatch(digits):
            raise cursor.fail("bytes are written as pairs of hexadecimal digits")
        return bytes.fromhex(digits)
    if word in _WORDS:
        return _WORDS[word]
    try:
        return dtype(word)
    except ParseError as error:
        raise cursor.fail(str(error)) from None
