"""Reads `indistinct.toml`, the changes that no comparison finds, and writes their page.

`python -m tests.mutation.indistinct` writes docs/reference/indistinct.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from qir.profiles import profile, profile_names
from tests.mutation import conditions
from tests.mutation.fields import Mutant, changed, mutants, survivors

_FILE = Path(__file__).with_suffix(".toml")
SAME: Mapping[str, Mapping[str, str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
"""Of each profile the changes that nothing finds, with the reason."""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "indistinct.md"
HEAD = """# Profile fields that no measurement distinguishes

A profile is a list of fields, and each could be wrong. So a test changes every field that every
profile states, to each other value that it may have, one at a time, and runs the comparisons
with the runtime, or with its recorded results. A change that no comparison finds is listed here
with the reason: these values are not verified, for another gives the same bytes in every
comparison. The claim of the rule still holds: it is about bytes, not about values.
`make test` checks that every unlisted change is found, `make test-all` that no listed change
is; the list is `tests/mutation/indistinct.toml`. Where a profile claims `within`, not `exact`,
a change is found if more elements differ than with the right profile.

Three kinds of fields are not counted:

1. Tolerances of float results (`float`): the comparisons alone check them.
2. Rules of other processors. Those of torch are changed one by one on a torch or a oneDNN that
   emulates that processor (`tests/mutation/test_torch_processors.py`); `qir probe` measures the
   others there.
3. Rules whose claim is `unknown`, listed at the end of this page. So `tflite-2.21.single`, of
   which no build is available, has no changes here: it rests on a formula, and
   `tests/mutation/test_single_rounding.py` compares it with that.

| profile | changes | found | listed |
|---|---:|---:|---:|
"""

CONDITIONS = """
## Conditions and groups

Of these profiles each condition of each rule is dropped, narrowed to each of its values and
inverted, one at a time, and each group is dropped, or one of its fields changed. A change is found
where results differ, where other kernels are predicted than the runtime used, or where compared
results are no longer claimed. What is not found is listed here. Of {rest} conditions and groups \
are changed only where a test names them
(`tests/mutation/test_grouping_faults.py`, `tests/mutation/test_memory_faults.py`).

| profile | changes | found | listed |
|---|---:|---:|---:|
"""
UNCLAIMED = """
## Rules without a claim

| profile | ops with a rule that claims nothing |
|---|---|
"""


def same(name: str) -> set[str]:
    """The changes of a profile that nothing finds."""
    return set(SAME.get(name, {}))


def all_found(name: str, agrees: Callable[[Mutant], None]) -> None:
    """AssertionError for a change that is neither found nor listed."""
    listed = same(name)
    left = survivors(mutants(profile(name)), agrees, lambda said: said not in listed)
    assert not left, f"{name}: neither found nor listed: {sorted(left)}"


def none_found(name: str, agrees: Callable[[Mutant], None]) -> None:
    """AssertionError for a change that is listed, yet is found."""
    listed = same(name)
    left = survivors(mutants(profile(name)), agrees, lambda said: said in listed)
    assert left == listed, f"{name}: listed and found: {sorted(listed - left)}"


def unclaimed(name: str) -> list[str]:
    """The ops of rules that claim nothing, on this processor, and so are not changed."""
    rules = [e for e in profile(name).rules if not e.when.isa and not changed(e)]
    return sorted({op for entry in rules for op in entry.ops})


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
    rest = [f"`{n}`" for n in profile_names() if n not in conditions.SAME]
    yield CONDITIONS.replace("{rest}", " and ".join((", ".join(rest[:-1]), rest[-1])))
    for name, table in conditions.SAME.items():
        count = len(list(conditions.changes(profile(name))))
        yield f"| `{name}` | {count} | {count - len(table)} | {len(table)} |\n"
    for name, table in ((n, t) for n, t in conditions.SAME.items() if t):
        yield f"\n### {name}\n\n| change that is not found | why |\n|---|---|\n"
        yield from (f"| `{change}` | {why} |\n" for change, why in sorted(table.items()))
    yield UNCLAIMED
    for name in profile_names():
        if ops := unclaimed(name):
            yield f"| `{name}` | {', '.join(f'`{op}`' for op in ops)} |\n"


def text() -> str:
    """The page."""
    return "".join(lines())


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
