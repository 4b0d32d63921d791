"""What no comparison tells apart: the list of `indistinct.toml`, and the page that is made of it.

`python -m tests.mutation.indistinct` writes docs/reference/indistinct.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from qir.numerics import profile, profile_names
from tests.mutation.fields import mutants

_FILE = Path(__file__).with_suffix(".toml")
SAME: Mapping[str, Mapping[str, str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
"""Of each profile the changes that nothing finds, with the reason."""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "indistinct.md"
HEAD = """# What nothing tells apart

A profile is a list of fields, and each could say what is wrong. So a test changes every field that
every profile states, to each other value that it may have, one at a time, and runs the comparisons
with the runtime, or with what was recorded of it. A change that no comparison finds is listed here
with the reason: of these values nothing is claimed, for another gives the same bytes wherever
somebody looked. The tests hold `tests/mutation/indistinct.toml`, from which this page is made, to
be just that: a change that is found and listed fails them, and so does one that is neither.

Tolerances of real results (`float`) are held by the comparisons alone. Rules that speak of another
processor are not changed here: `qir probe` measures them there.

| profile | changes | found | listed |
|---|---:|---:|---:|
"""


def same(name: str) -> set[str]:
    """The changes of a profile that nothing finds."""
    return set(SAME.get(name, {}))


def lines() -> Iterator[str]:
    """The page, part by part."""
    yield HEAD
    for name in profile_names():
        count, listed = len(list(mutants(profile(name)))), len(same(name))
        yield f"| `{name}` | {count} | {count - listed} | {listed} |\n"
    for name in profile_names():
        if table := SAME.get(name):
            yield f"\n## {name}\n\n| change that is not found | why |\n|---|---|\n"
            yield from (f"| `{change}` | {why} |\n" for change, why in sorted(table.items()))


def text() -> str:
    """The page."""
    return "".join(lines())


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
