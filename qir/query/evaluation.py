"""The operators and functions of query expressions.

What is not there (None) makes a comparison false and a sum nothing; nothing here ever fails.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import TypeAlias

from qir.query.facts import Item

Comparison: TypeAlias = Callable[[Item, Item], bool]
Arithmetic: TypeAlias = "Callable[[int | float, int | float], int | float]"


def _same(a: Item, b: Item) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


def _ordered(compare: Callable[[float | str, float | str], bool]) -> Callable[[Item, Item], bool]:
    def run(a: Item, b: Item) -> bool:
        if isinstance(a, int | float) and isinstance(b, int | float):
            return compare(a, b)
        return isinstance(a, str) and isinstance(b, str) and compare(a, b)

    return run


def _each(compare: Comparison) -> Comparison:
    """A list compared with a number holds where it is not empty and each element does."""

    def run(a: Item, b: Item) -> bool:
        if isinstance(a, tuple) and isinstance(b, int | float):
            return bool(a) and all(run(each, b) for each in a)
        if isinstance(b, tuple) and isinstance(a, int | float):
            return bool(b) and all(run(a, each) for each in b)
        return a is not None and b is not None and compare(a, b)

    return run


def _inside(a: Item, b: Item) -> bool:
    if isinstance(b, tuple):
        return any(_same(a, each) for each in b)
    return isinstance(a, str) and isinstance(b, str) and a in b


COMPARISONS: dict[str, Comparison] = {
    "==": _each(_same),
    "!=": _each(lambda a, b: not _same(a, b)),
    "<": _each(_ordered(operator.lt)),
    "<=": _each(_ordered(operator.le)),
    ">": _each(_ordered(operator.gt)),
    ">=": _each(_ordered(operator.ge)),
    "in": _inside,
    "not in": lambda a, b: not _inside(a, b),
}


ARITHMETIC: dict[str, Arithmetic] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


def negative(item: Item) -> Item:
    return -item if isinstance(item, int | float) else None


def _length(item: Item) -> Item:
    return len(item) if isinstance(item, tuple | str) else None


def _has(item: Item) -> Item:
    return item is not None and item != ()


def _row(item: Item) -> list[int | float]:
    row = item if isinstance(item, tuple) else (item,)
    return [each for each in row if isinstance(each, int | float)]


def _absolute(item: Item) -> Item:
    if isinstance(item, tuple):
        return tuple(map(_absolute, item))
    return abs(item) if isinstance(item, int | float) else None


FUNCTIONS: dict[str, Callable[[Item], Item]] = {
    "len": _length,
    "has": _has,
    "min": lambda item: min(_row(item), default=None),
    "max": lambda item: max(_row(item), default=None),
    "sum": lambda item: sum(_row(item)),
    "abs": _absolute,
}


def glob_pattern(text: str) -> str:
    """Returns a pattern where `*` and `?` stand for any letters; all others mean themselves."""
    parts = [re.escape(part) for part in re.split(r"\*+", text)]
    # an atomic group for each part: what is found first is kept, so the search stays linear
    head, *rest = (part.replace(r"\?", ".") for part in parts)
    if not rest:
        return rf"(?s:{head})\Z"
    middle = "".join(rf"(?>.*?{part})" for part in rest[:-1])
    return rf"(?s:{head}{middle}.*{rest[-1]})\Z"


def matches(item: Item, glob: re.Pattern[str]) -> bool:
    if isinstance(item, tuple):
        return any(matches(each, glob) for each in item)
    return isinstance(item, str) and glob.match(item) is not None
