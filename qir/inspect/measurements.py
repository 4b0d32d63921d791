"""What probes measured on this machine, kept between runs; and new profile files made of it."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from qir.atomic import write_text
from qir.errors import ProfileError, QirError
from qir.inspect.probing import (
    Measured,
    OpReading,
    Probe,
    head_of,
    matches_settings,
    op_with_rule,
    probes,
    profiles_of_runtime,
)
from qir.profiles import dumps, parse, profile, profile_names
from qir.profiles.processor import processor_features
from qir.profiles.profile import Field, Profile, ProfileHead, RuleEntry
from qir.profiles.versions import covers, release

State = Literal["measured", "assumed", "unknown", "not installed"]


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime, and how it is known what it computes."""

    name: str
    version: str | None
    profile: str
    state: State
    """`assumed`: a file speaks of this version, and nobody measured it here; `unknown`: no file
    does."""
    date: str = ""
    drifts: int = 0
    """Ops whose claim did not hold when it was measured."""
    evidence: str = ""
    """On what a file rests that speaks of a runtime which cannot be measured here."""

    @property
    def why(self) -> str:
        """What keeps it from being measured here, where something does; else nothing."""
        if not self.evidence:
            return ""
        return "no probe is of this file" if self.version else "not installed"


def runtimes() -> tuple[Runtime, ...]:
    """Returns every runtime that plugins can probe or have a file of, and what is known of it."""
    probed = tuple(_known(probe) for probe in probes())
    return (*probed, *_others({r.profile for r in probed}))


def assumed() -> tuple[Runtime, ...]:
    """Returns the files of which no probe is: what they say is assumed, on what they rest."""
    return _others({_known(probe).profile for probe in probes()})


def _others(listed: Set[str]) -> tuple[Runtime, ...]:
    others = []
    for name in profile_names():
        own_profile = profile(name)
        if name in listed or head_of(own_profile).backend in ("", "qir"):
            continue
        evidence = head_evidence(own_profile)
        state: State = "assumed" if evidence else "unknown"
        others.append(Runtime(name, _installed(own_profile), name, state, evidence=evidence))
    return tuple(others)


def _installed(source: Profile) -> str | None:
    """Returns the version of a file's runtime that is here, where the file speaks of it."""
    head = head_of(source)
    versions = [p.version for p in probes() if p.backend == head.backend]
    return next((v for v in versions if v and covers(head.versions, v)), None)


def head_evidence(source: Profile) -> str:
    """On what a file rests, or the nearest of those that it extends that says so."""
    return next((p.head.evidence for p in reversed(source.layers) if p.head.evidence), "")


def _known(probe: Probe) -> Runtime:
    version = probe.version
    files, covered = profiles_of_runtime(probe)
    if version is None:
        matching = [f for f in files if matches_settings(head_of(f).settings, probe.settings)]
        if not matching:
            return Runtime(probe.name, None, "", "not installed")
        evidence = head_evidence(matching[0])
        return Runtime(probe.name, None, matching[0].name, "assumed", evidence=evidence)
    for file_ in files:
        # A measurement counts for this runtime, version, profile text and processor alone.
        if stored := _kept(_place(probe, file_.name, file_.digest)):
            date, drifts = stored
            return Runtime(probe.name, version, file_.name, "measured", date, drifts)
    state: State = "assumed" if covered else "unknown"
    return Runtime(probe.name, version, files[0].name if covered else "", state)


def keep(probe: Probe, measured: Measured) -> None:
    """Keeps what was found; where nothing can be written, nothing is."""
    place = _place(probe, measured.profile, measured.digest)
    data = {"name": measured.name, "date": today(), "drifts": len(measured.drifts)}
    with suppress(OSError, QirError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, json.dumps(data))


def _kept(place: Path) -> tuple[str, int] | None:
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        return str(data["date"]), int(data["drifts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _place(probe: Probe, name: str, digest: str) -> Path:
    """Returns a file for one runtime, version, setting, profile and processor."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    parts = [probe.name, probe.version, name, digest, platform.machine(), *processor_features(())]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return Path(base) / "qir" / "probes" / f"{key[:32]}.json"


def today() -> str:
    """Returns the day, as evidence names it."""
    return datetime.date.today().isoformat()


# -- a new file -----------------------------------------------------------------------------------


def draft(measured: Measured, name: str) -> str:
    """Returns the text of a profile file: the nearest one, and the fields in which the runtime
    differs.

    Raises ProfileError for a name that is taken, or where some op obeys no arithmetic that fields
    can say.
    """
    if name in profile_names():
        raise ProfileError(f"there is a profile {name!r} already; name the file otherwise")
    base = profile(measured.profile)
    changed = [o for o in measured.drifts if o.change and not o.left]
    rules = tuple(_rule(measured, o) for o in changed)
    unexplained = [
        f"{o.said}: {o.left:,} of {o.elements:,} elements differ" for o in measured.drifts
    ]
    notes = tuple(
        f"{said}; no field says why"
        for o, said in zip(measured.drifts, unexplained, strict=True)
        if o.left
    )
    head = ProfileHead(
        name,
        base.name,
        measured.backend,
        release(measured.version),
        dict(measured.settings),
        evidence=f"{_evidence(measured)}: {measured.cases} cases, {measured.elements:,} elements",
        notes=notes,
    )
    unclaimed = tuple(_unclaimed(measured, o) for o in measured.drifts if o.left)
    text = dumps(Profile(head, {}, (*rules, *unclaimed), (), base, ""))
    # The draft is read back before it is given out: a field that no file may hold is found here.
    parse(text, f"{name}.toml", profile)
    return text


def _rule(measured: Measured, reading: OpReading) -> RuleEntry:
    evidence = f"{_evidence(measured)}: {reading.elements:,} elements, 0 differ"
    fields: Mapping[tuple[str, str], Field] = {
        **reading.change,
        ("", "claim"): "exact",
        ("", "evidence"): evidence,
    }
    return RuleEntry((op_with_rule(reading.op),), reading.when, fields)


def _unclaimed(measured: Measured, reading: OpReading) -> RuleEntry:
    evidence = f"{_evidence(measured)}: {reading.differ:,} of {reading.elements:,} differ"
    return RuleEntry(
        (op_with_rule(reading.op),),
        reading.when,
        {("", "claim"): "unknown", ("", "evidence"): evidence},
    )


def _evidence(measured: Measured) -> str:
    return f"qir probe, {measured.name} {measured.version}, {today()}"


def to_json(measured: Measured) -> dict[str, object]:
    """Returns what was measured as JSON takes it."""
    return {
        "name": measured.name,
        "version": measured.version,
        "settings": dict(measured.settings),
        "profile": measured.profile,
        "covered": measured.covered,
        "cases": measured.cases,
        "elements": measured.elements,
        "drifts": len(measured.drifts),
        "skipped": dict(measured.skipped),
        "ops": [_op_json(o) for o in measured.ops],
    }


def _op_json(reading: OpReading) -> dict[str, object]:
    return {
        "op": reading.op,
        "tail": list(reading.tail),
        "kinds": list(reading.kinds),
        "cases": reading.cases,
        "elements": reading.elements,
        "differ": reading.differ,
        "gap": reading.gap,
        "claim": reading.claim,
        "holds": reading.holds,
        "found": dict(reading.found),
        "left": reading.left,
        "fields": [
            {**asdict(f), "obeyed": list(f.obeyed), "agrees": f.agrees} for f in reading.fields
        ],
    }
