"""Attribute values: a closed set, hashable, with one printed form each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

from qir.ir.dtype import DType
from qir.ir.types import Array

Attr: TypeAlias = "bool | int | float | str | bytes | DType | Array | tuple[Attr, ...] | None"
"""What an attribute may hold."""


def arrays(value: Attr) -> Iterator[Array]:
    """Yields the arrays inside an attribute."""
    if isinstance(value, Array):
        yield value
        yield from value.type.arrays()
    elif isinstance(value, tuple):
        for item in value:
            yield from arrays(item)


def same(a: Attr, b: Attr) -> bool:
    """Returns whether two attributes are equal: 1, 1.0 and True differ, as do 0.0 and -0.0."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    return a == b
