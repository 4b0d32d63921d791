"""The page of what every profile claims, with the evidence: backend by backend, op by op.

Figures are those that tests counted while they compared (`make counts`).
`python -m tests.numerics_page` writes docs/reference/numerics.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qir.inspect.probing import head_of, matches_settings, probes
from qir.profiles import Profile, profile, profile_names
from qir.profiles.evidence import parse_counts
from qir.profiles.profile import GroupEntry, RuleEntry, When
from tests.counting import counts, group_key, riches, rule_key, told, totals
from tests.differential.poor import lacks, limits, scaled, summed

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "numerics.md"

_TESTS = "tests/differential/"
Tests = Mapping[str, Sequence[int]]
"""By test, results compared and results that differed."""


def numerics_page() -> str:
    """The page."""
    lines = [
        "# What every backend computes",
        "",
        "Every rule of every numerics profile with its claim and the measurements that it rests on."
        " `pytest` of a named test in `tests/differential` repeats a measurement; `make counts`"
        " counts again. A profile lists only what differs from the one that it extends.",
        "",
        "| column | meaning |",
        "|---|---|",
        "| claim | *exact*: every byte; *within n at a rate*: at most that many steps, in at most"
        " that share of results; *unknown*: nothing is claimed, and the ledger says so |",
        "| compared, differ | results of the runtime that tests compared with the prediction, and"
        " those that differed |",
        "| hard | shares of the rounded results that were ties, below the low bound and above the"
        " high one, by the float values of the op itself; then what the inputs lack of the aim:"
        " 5 % each (where an op has such results), odd zero points, scales that are no powers of"
        " two |",
        "| most of them by | the test that compares most |",
        "| evidence | what was measured when the rule was written, often on more |",
        "",
        "A group claims no more than the rule of its first op does on the processor."
        " Rows without figures are covered by another rule (`as ...`), compute nothing"
        " (`moves: ...`), are kernels whose claim *follows from the rule of its first op*, or are"
        " of a processor that the tests do not count."
        " Generated from the profile files by `python -m tests.numerics_page`; the fields are in"
        " [profiles](profiles.md), the reasons in [bytes](../guide/bytes.md).",
        "",
    ]
    measured, hardness = counts(), riches()
    for name in sorted(profile_names(), key=lambda n: (head_of(profile(n)).backend, n)):
        lines += _profile(profile(name), measured.get(name, {}), hardness.get(name, {}))
    return "\n".join(lines).rstrip() + "\n"


def _profile(
    stated: Profile, measured: Mapping[str, Tests], hardness: Mapping[str, Tests]
) -> Iterator[str]:
    head = head_of(stated)
    yield f"## `{stated.name}`"
    yield ""
    settings = ", ".join(f"{k} = {v}" for k, v in head.settings.items())
    runtime = " ".join(part for part in (head.backend, head.versions) if part)
    parts = [runtime, settings, f"isa {head.isa}" if head.isa != "any" else ""]
    extends = f"; extends `{head.extends}`" if head.extends else ""
    yield "; ".join(part for part in parts if part) + extends + "."
    yield ""
    if commands := _commands(stated, measured):
        yield "Shown by " + ", ".join(f"`{c}`" for c in commands) + "."
        yield ""
    if stated.rules:
        yield "| op | where | claim | compared | differ | hard | most of them by | evidence |"
        yield "|---|---|---|---:|---:|---|---|---|"
        yield from (
            _row(entry, measured.get(key := rule_key(entry), {}), hardness.get(key, {}))
            for entry in stated.rules
        )
        yield ""
    if stated.own_groups:
        titles = ("one kernel", "where", "claim", "compared", "differ", "hard", "most of them by")
        yield f"| {' | '.join(titles)} | evidence |"
        yield "|---|---|---|---:|---:|---|---|---|"
        yield from (
            _kernel(group, measured.get(key := group_key(group), {}), hardness.get(key, {}))
            for group in stated.own_groups
        )
        yield ""
    for note in stated.head.notes:
        yield f"- {note}"
    if stated.head.notes:
        yield ""


def _commands(stated: Profile, measured: Mapping[str, Tests]) -> list[str]:
    head = head_of(stated)
    files = {test.partition("::")[0] for tests in measured.values() for test in tests}
    commands = [f"pytest {path}" for path in sorted(files)]
    for probe in probes():
        if matches_settings(head.settings, probe.settings) and head.backend == probe.backend:
            commands.append(f"qir probe {probe.name}")
    return commands


def _row(entry: RuleEntry, tests: Tests, hardness: Tests) -> str:
    claim = str(entry.fields.get(("", "claim"), "unknown"))
    evidence = str(entry.fields.get(("", "evidence"), ""))
    hardness = hardness if scaled(entry) else {}
    hard = _hard(entry.ops, tests, hardness, limits(entry.when.form, entry.ops))
    return _cells(", ".join(entry.ops), _where(entry.when), claim, tests, hard, evidence)


def _kernel(group: GroupEntry, tests: Tests, hardness: Tests) -> str:
    chain = " > ".join(group.chain) + (" to float" if group.result == "real" else "")
    follows = group.claim.startswith(("exact", "within")) and parse_counts(group.evidence) is None
    untested = "follows from the rule of its first op" if follows else ""
    # Only results that are quantized are rounded, so only they can be hard.
    hardness = hardness if group.result == "codes" else {}
    hard = _hard(group.chain, tests, hardness, limits(group.needs, group.chain))
    where = _where(group.when)
    return _cells(f"`{chain}`", where, group.claim, tests, hard, group.evidence, untested)


def _hard(ops: Sequence[str], tests: Tests, hardness: Tests, impossible: frozenset[str]) -> str:
    """Returns the shares of ties and of both ends, and what is lacking."""
    rounded, *parts = summed(hardness) or [0]
    shares = " · ".join(f"{100 * part / rounded:.0f}" for part in parts[:3]) if rounded else ""
    missing = ", ".join(lacks(ops, hardness, bool(tests), impossible)) if rounded else ""
    return f"{shares} %{f'; lacks {missing}' if missing else ''}" if shares else ""


_BOUNDS = {"narrow": "not all values of the type", "full": "all values of the type"}


def _where(when: When) -> str:
    """Returns the conditions in words; an empty attribute is one that a file does not state."""
    unstated = [f"{name} not stated" for name, value in when.attrs.items() if value == ""]
    attrs = {name: value for name, value in when.attrs.items() if value != ""}
    bounds = tuple(_BOUNDS[b] for b in when.bounds)
    storage = {
        slot: tuple("float" if kind == "real" else kind for kind in kinds)
        for slot, kinds in when.storage.items()
    }
    conditions = told(replace(when, attrs=attrs, bounds=bounds, storage=storage))
    return ", ".join(part for part in (conditions, *unstated) if part)


def _cells(
    subject: str,
    where: str,
    claim: str,
    tests: Tests,
    hard: str,
    evidence: str,
    untested: str = "",
) -> str:
    compared, differ = (f"{n:,}" for n in totals(tests)) if tests else ("", "")
    main_test = max(tests, key=lambda test: tests[test][0], default="").removeprefix(_TESTS)
    test = f"`{main_test}`" if main_test else untested
    cells = (subject, where, _claim(claim), compared, differ, hard, test, evidence)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _claim(claim: str) -> str:
    if claim.startswith("within:"):
        _, most, rate = claim.split(":")
        return f"within {most} at {float(rate) * 100:g} %"
    return claim.replace("close:", "close to ")


if __name__ == "__main__":
    PAGE.write_text(numerics_page(), encoding="utf-8")
