"""Which versions of a runtime a profile covers, and which profile covers the one installed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from qir import registry

_CLAUSE = re.compile(r"([=!~]=|[<>]=?)\s*(\d+(?:\.\d+)*)(\.\*)?")


def covers(said: str, version: str) -> bool:
    """Returns whether a version meets all of `>=1.20, <2`, `==1.31.*`; any meets nothing said."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    if match is None:
        return False
    numbers = _numbers(match[0])
    return all(
        _meets(numbers, comparison, _numbers(text), bool(any_))
        for comparison, text, any_ in _CLAUSE.findall(said)
    )


def release(version: str) -> str:
    """Returns the versions of one release, as profiles say it: `==1.31.*`."""
    return f"=={'.'.join(version.split('.')[:2])}.*"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _meets(own: tuple[int, ...], how: str, other: tuple[int, ...], any_: bool) -> bool:
    # Missing parts count as zeros: 1.20 is 1.20.0.
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


def known(folder: Path, pattern: str) -> Mapping[str, str]:
    """Returns the versions that the profiles of one setting cover, newest first.

    `pattern` is the name of their files, with `*` for the version.
    """
    before, after = pattern.split("*")
    paths = {}
    for path in folder.glob(f"{pattern}.toml"):
        version = path.name.removeprefix(before).removesuffix(f"{after}.toml")
        if re.fullmatch(r"\d+(?:\.\d+)*", version):
            paths[_numbers(version)] = path
    return {paths[v].stem: _stated(paths[v]) for v in sorted(paths, reverse=True)}


def profile_of(profiles: Mapping[str, str], version: str | None) -> str:
    """Returns the first profile that covers a version, else the first of all: the newest."""
    covering = (n for n, said in profiles.items() if version is not None and covers(said, version))
    return next(covering, next(iter(profiles)))


def installed(distributions: Iterable[str]) -> str | None:
    """Returns the version of the first of these packages that is installed, if any is."""
    versions = map(registry.installed_version, distributions)
    return next((version for version in versions if version is not None), None)


_TABLE = re.compile(r"^[ \t]*\[\[?[\w-]+\]", re.MULTILINE)


def _head(text: str) -> Mapping[str, object]:
    """Returns what a profile says before its tables, which are long."""
    first_table = _TABLE.search(text)
    try:
        return tomllib.loads(text[: first_table.start()] if first_table else text)
    except tomllib.TOMLDecodeError:  # that was no table, but a part of a list
        return tomllib.loads(text)


def _stated(path: Path) -> str:
    """Returns the versions that a profile states, else those of the profile that it extends."""
    head = _head(path.read_text(encoding="utf-8"))
    if "versions" in head or "extends" not in head:
        return str(head.get("versions", ""))
    return _stated(path.with_name(f"{head['extends']}.toml"))
