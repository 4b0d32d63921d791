"""Whether a version is one that a profile speaks of."""

from __future__ import annotations

import re

_CLAUSE = re.compile(r"([=!~]=|[<>]=?)\s*(\d+(?:\.\d+)*)(\.\*)?")


def covers(said: str, version: str) -> bool:
    """Whether a version meets all of `>=1.20, <2`, `==1.31.*`; any meets nothing said."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    if found is None:
        return False
    own = _numbers(found[0])
    return all(
        _meets(own, how, _numbers(text), bool(any_)) for how, text, any_ in _CLAUSE.findall(said)
    )


def release(version: str) -> str:
    """The versions of one release, as profiles say it: `==1.31.*`."""
    return f"=={'.'.join(version.split('.')[:2])}.*"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _meets(own: tuple[int, ...], how: str, other: tuple[int, ...], any_: bool) -> bool:
    size = max(len(own), len(other))
    a, b = (v + (0,) * (size - len(v)) for v in (own, other))
    match how:
        case "==":
            return a[: len(other)] == other if any_ else a == b
        case "!=":
            return a[: len(other)] != other if any_ else a != b
        case "~=":
            return a >= b and a[: len(other) - 1] == other[:-1]
        case ">=":
            return a >= b
        case "<=":
            return a <= b
        case ">":
            return a > b
    return a < b
