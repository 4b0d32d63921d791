"""Records what every import, pass and emission did to the numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, fields
from enum import Enum

from qir.arguments import checked
from qir.errors import Refused
from qir.records import record

VERSION = 1
"""Of saved ledgers."""


class Change(Enum):
    """The kinds of changes, mildest first."""

    EXACT = "exact"
    REGROUPED = "regrouped"
    NUDGED = "nudged"
    QUANTIZED = "quantized"
    APPROXIMATED = "approximated"
    DROPPED = "dropped"
    UNVERIFIED = "unverified"
    REFUSED = "refused"

    @property
    def meaning(self) -> str:
        """What it says of the numbers, in words."""
        return _MEANINGS[self]


_MEANINGS = {
    Change.EXACT: "the same numbers, by construction or by test",
    Change.REGROUPED: "equal in exact arithmetic; rounded in another place",
    Change.NUDGED: "quantized values moved by a few steps",
    Change.QUANTIZED: "quantized, as asked for",
    Change.APPROXIMATED: "other numbers",
    Change.DROPPED: "information lost, not numbers",
    Change.UNVERIFIED: "the profile's claim is unknown",
    Change.REFUSED: "not done",
}


REQUEST = "request"
"""The basis of a change that the user asked for by name."""


@record
class Entry:
    """One change of the numbers, with its reason."""

    change: Change
    step: str
    """The frontend, pass or emitter that did it."""
    subject: str
    """The tensor or op, as the source names it where it does."""
    reason: str
    codes: float = 0.0
    """The largest change in quantized values, where it is known."""
    basis: str = "construction"
    """What an `exact` rests on: construction, test, or a profile's claim; `REQUEST`: the change was
    asked for."""


class Ledger:
    """The list of what each step did to the numbers, in order."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = list(entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        counts_text = ", ".join(
            f"{count} {change.value}" for change, count in self.counts().items()
        )
        return f"<Ledger: {counts_text or 'no entries'}>"

    @checked
    def add(
        self,
        change: Change,
        step: str,
        subject: str,
        reason: str,
        *,
        codes: float = 0.0,
        basis: str = "construction",
    ) -> None:
        """Writes one entry."""
        self._entries.append(Entry(change, step, subject, reason, codes, basis))

    def extend(self, other: Iterable[Entry]) -> None:
        """Takes over the entries of another ledger."""
        self._entries.extend(other)

    def withdraw(self, step: str, subjects: Collection[str] | None = None) -> None:
        """Removes entries of a step that did not come about, of all or of some subjects."""
        self._entries = [
            e
            for e in self._entries
            if e.step != step or (subjects is not None and e.subject not in subjects)
        ]

    def counts(self) -> dict[Change, int]:
        """Returns how many entries there are of each kind, mildest first."""
        return {c: n for c in Change if (n := sum(e.change is c for e in self._entries))}

    def losses(self) -> list[Entry]:
        """Returns the entries of unasked changes by more than one quantization step."""
        return [
            e
            for e in self._entries
            if (e.change is Change.APPROXIMATED and e.basis != REQUEST)
            or e.change is Change.REFUSED
            or (e.change is Change.NUDGED and not e.codes <= 1)  # NaN: nobody knows how many
        ]

    def check(self, *, lossy: bool = False) -> None:
        """Raises Refused if something would be lost unasked; `lossy` allows all but refusals."""
        losses = [e for e in self.losses() if e.change is Change.REFUSED or not lossy]
        losses.sort(key=lambda e: e.change is not Change.REFUSED)  # what nothing allows comes first
        if losses:
            first, more = losses[0], len(losses) - 1
            others = f" (and {more} more)" if more else ""
            hint = "" if first.change is Change.REFUSED else "; `lossy=True` allows it"
            raise Refused(f"{first.step}: {first.subject}: {first.reason}{others}{hint}")

    def to_json(self) -> str:
        """Returns the entries as JSON text."""
        entries_json = [
            {
                **asdict(e),
                "change": e.change.value,
                # JSON has neither NaN nor infinity; null is read back as NaN.
                "codes": e.codes if math.isfinite(e.codes) else None,
            }
            for e in self._entries
        ]
        return json.dumps(
            {"version": VERSION, "entries": entries_json}, indent=1, ensure_ascii=False
        )

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """Returns the ledger that `to_json` wrote; raises ValueError for text that is none."""
        data = json.loads(text)
        entries_json = data.get("entries") if isinstance(data, dict) else None
        if not isinstance(entries_json, list):
            raise ValueError("no list of entries")
        if data.get("version") != VERSION:
            raise ValueError(f"version {str(data.get('version'))[:20]}, this QIR reads {VERSION}")
        return cls(_entry(i, row) for i, row in enumerate(entries_json))


def _entry(index: int, row: object) -> Entry:
    if not isinstance(row, dict) or set(row) != {f.name for f in fields(Entry)}:
        raise ValueError(f"entry {index} has other fields")
    codes = math.nan if row["codes"] is None else row["codes"]
    texts = [row[name] for name in ("step", "subject", "reason", "basis")]
    if not isinstance(codes, (int, float)) or not all(isinstance(t, str) for t in texts):
        raise ValueError(f"entry {index} has a field of another type")
    step, subject, reason, basis = texts
    return Entry(Change(row["change"]), step, subject, reason, float(codes), basis)
