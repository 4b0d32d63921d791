"""The page of what every profile claims, with the evidence: backend by backend, op by op.

`python -m tests.numerics_page` writes docs/reference/numerics.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from qir.inspect.probing import head_of, probes, suits
from qir.numerics import Profile, profile, profile_names
from qir.numerics.evidence import counted
from qir.numerics.profile import Entry, When

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "numerics.md"

_FILE = re.compile(r"tests/[\w/*.-]+\.py")


def numerics_page() -> str:
    """The page."""
    lines = [
        "# What every backend computes",
        "",
        "Every rule of every profile with its claim, the cases that were compared with the runtime"
        " and how many differed, by the measurement that the profile states: one run of the command"
        " compares as many as its time allows, often fewer. *exact*: every byte; *within n codes"
        " at a rate*: no more than that; *unknown*: nothing is claimed, and the ledger of a"
        " conversion says so. A profile"
        " says only what differs from the one that it extends. Rows without figures rest on another"
        " rule (`as ...`), or compute nothing (`moves: ...`). Made from the files by"
        " `python -m tests.numerics_page`; what the fields mean is in [profiles](profiles.md), why"
        " there is so much of it in [bytes](../guide/bytes.md).",
        "",
    ]
    for name in sorted(profile_names(), key=lambda n: (head_of(profile(n)).backend, n)):
        lines += _profile(profile(name))
    return "\n".join(lines).rstrip() + "\n"


def _profile(of: Profile) -> Iterator[str]:
    head = head_of(of)
    yield f"## `{of.name}`"
    yield ""
    settings = ", ".join(f"{k} = {v}" for k, v in head.settings.items())
    where = " ".join(part for part in (head.backend, head.versions) if part)
    parts = [where, settings, f"isa {head.isa}" if head.isa != "any" else ""]
    extends = f"; extends `{head.extends}`" if head.extends else ""
    yield "; ".join(part for part in parts if part) + extends + "."
    yield ""
    if commands := _commands(of):
        yield "Shown by " + ", ".join(f"`{c}`" for c in commands) + "."
        yield ""
    if of.rules:
        yield "| op | where | claim | compared | differ | evidence |"
        yield "|---|---|---|---:|---:|---|"
        yield from (_row(entry) for entry in of.rules)
        yield ""
    if of.own_groups:
        yield "One kernel each:"
        yield ""
        for claim in dict.fromkeys(g.claim for g in of.own_groups):
            chains = dict.fromkeys(" > ".join(g.chain) for g in of.own_groups if g.claim == claim)
            yield f"- {_claim(claim)}: {', '.join(f'`{c}`' for c in chains)}"
        yield ""
    for note in of.head.notes:
        yield f"- {note}"
    if of.head.notes:
        yield ""


def _commands(of: Profile) -> list[str]:
    head = head_of(of)
    found = [f"pytest {path}" for path in _FILE.findall(of.head.evidence)]
    for probe in probes():
        if suits(head.settings, probe.settings) and head.backend == probe.backend:
            found.append(f"qir probe {probe.name}")
    return found


def _row(entry: Entry) -> str:
    claim = str(entry.fields.get(("", "claim"), "unknown"))
    evidence = str(entry.fields.get(("", "evidence"), ""))
    found = counted(evidence)
    compared, differ = (f"{n:,}" for n in found) if found else ("", "")
    ops = ", ".join(entry.ops)
    cells = (ops, _when(entry.when), _claim(claim), compared, differ, evidence)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _when(when: When) -> str:
    said = [
        f"{'' if slot == 'data' else slot + ' '}{' or '.join(kinds)}"
        for slot, kinds in when.storage.items()
    ]
    said += [f"per {grain}" for grain in when.grain]
    said += [f"{name} = {value!s}" for name, value in when.attrs.items()]
    said += [" or ".join(when.isa)] if when.isa else []
    return ", ".join(said)


def _claim(claim: str) -> str:
    if claim.startswith("within:"):
        _, most, rate = claim.split(":")
        return f"within {most} at {float(rate) * 100:g} %"
    return claim.replace("close:", "close to ")


if __name__ == "__main__":
    PAGE.write_text(numerics_page(), encoding="utf-8")
