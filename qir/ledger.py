"""What every import, pass and emission did to the numbers, entry by entry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum

from qir.errors import Refused


class Change(Enum):
    """What became of a tensor or an op, mildest first."""

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
        return _MEANINGS[self]


_MEANINGS = {
    Change.EXACT: "the same numbers, by construction or by test",
    Change.REGROUPED: "equal in reals; rounded in another place",
    Change.NUDGED: "codes moved by a few steps",
    Change.QUANTIZED: "asked for: reals became codes",
    Change.APPROXIMATED: "other numbers",
    Change.DROPPED: "information lost, not numbers",
    Change.UNVERIFIED: "the profile's claim is unknown",
    Change.REFUSED: "not done",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened."""

    change: Change
    step: str
    """The frontend, pass or emitter that did it."""
    subject: str
    """The tensor or op, as the source names it where it does."""
    reason: str
    codes: float = 0.0
    """The largest change in codes, where one can be told."""
    basis: str = "construction"
    """What an `exact` rests on: construction, test, or a profile's claim."""


class Ledger:
    """Entries in the order they were made."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = list(entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

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

    def counts(self) -> dict[Change, int]:
        """How many entries there are of each kind, mildest first."""
        return {c: n for c in Change if (n := sum(e.change is c for e in self._entries))}

    def losses(self) -> list[Entry]:
        """Entries that nobody asked for and that move numbers by more than one code."""
        return [
            e
            for e in self._entries
            if e.change in (Change.APPROXIMATED, Change.REFUSED)
            or (e.change is Change.NUDGED and e.codes > 1)
        ]

    def check(self, *, lossy: bool = False) -> None:
        """Raises Refused if something would be lost unasked; `lossy` allows all but refusals."""
        bad = [e for e in self.losses() if e.change is Change.REFUSED or not lossy]
        if bad:
            first, more = bad[0], len(bad) - 1
            rest = f" (and {more} more)" if more else ""
            hint = "" if first.change is Change.REFUSED else "; --lossy allows it"
            raise Refused(f"{first.step}: {first.subject}: {first.reason}{rest}{hint}")

    def to_json(self) -> str:
        """The entries as JSON text."""
        rows = [{**asdict(e), "change": e.change.value} for e in self._entries]
        return json.dumps({"version": 1, "entries": rows}, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """The ledger that `to_json` wrote."""
        rows = json.loads(text)["entries"]
        return cls(Entry(**{**row, "change": Change(row["change"])}) for row in rows)
