"""Each claim of a profile has a test that names its op: the files that its evidence names, and
what they import from the tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from qir.numerics import profile, profile_names

ROOT = Path(__file__).parents[2]
_FILE = re.compile(r"tests/[\w/*]+\.py")
_FROM = re.compile(r"^\s*from ([\w.]+) import ([\w, ]+|\([^)]*\))", re.MULTILINE)


OTHER = {
    "avg_pool2d": ("averagepool",),
    "global_avg_pool": ("globalaveragepool", "adaptiveavgpool"),
    "max_pool2d": ("maxpool", "pooling"),
    "constant": ("weightbiasquantization",),
}
"""Runtimes' names that are not an op's own, however it is written."""


MOVES = frozenset("reshape flatten transpose squeeze unsqueeze slice".split())
"""Ops of which no kernel looks at the codes: tests of the reference say what goes where."""
ALL = ("native", "ort-1.31")
"""Profiles of which most tests of this folder are."""


def files(name: str) -> set[Path]:
    """The test files that a profile's evidence names, and those of tests that they import."""
    said = _FILE.findall(profile(name).head.evidence)
    said += ["tests/differential/test_*.py"] * (name in ALL)
    found = {p for text in said for p in ROOT.glob(text)} - {Path(__file__)}
    left = list(found)
    while left:
        more = set(imported(left.pop())) - found
        found |= more
        left += more
    return found


@cache
def imported(path: Path) -> tuple[Path, ...]:
    """The files of tests that one imports from."""
    out: list[Path] = []
    for module, given in _FROM.findall(path.read_text()):
        parts = module.split(".")
        base = path.parent if module.startswith(".") else ROOT
        if not module.startswith((".", "tests")):
            continue
        folder = base.joinpath(*(p for p in parts if p))
        words = re.findall(r"\w+", given)
        tried = [folder.with_suffix(".py"), *(folder / f"{word}.py" for word in words)]
        out += [p for p in tried if p.is_file()]
    return tuple(out)


def claimed(name: str) -> Iterator[tuple[str, str]]:
    """Ops of which a profile's own rules claim something, and the claim."""
    for rule in profile(name).rules:
        claim = str(rule.fields.get(("", "claim"), "unknown"))
        if claim != "unknown":
            yield from ((op, claim) for op in rule.ops if op not in MOVES)


def plain(text: str) -> str:
    """Names without what runtimes write differently; a number that is filled in is a #."""
    return re.sub(r"\{\w+\}", "#", text).lower().replace("_", "")


def words(op: str) -> Iterator[str]:
    """What an op may be called in a test."""
    name = plain(op)
    yield from (name, re.sub(r"\dd$", "#d", name), *OTHER.get(op, ()))


@pytest.mark.parametrize("name", sorted(profile_names()))
def test_a_test_names_each_op_of_which_something_is_claimed(name: str) -> None:
    ops = dict(claimed(name))
    if not ops:
        return
    found = files(name)
    assert found, f"{name} claims something of {', '.join(ops)} and names no test"
    text = plain("\n".join(path.read_text() for path in sorted(found)))
    bare = [f"{op}: {claim}" for op, claim in ops.items() if not any(w in text for w in words(op))]
    assert not bare, f"{name}: no test of {sorted(p.name for p in found)} names these"
