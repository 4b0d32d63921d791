"""The journal of passes that were run on a graph, kept in the `.qir` file.

Seconds are left out, so that same inputs give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field

from qir import registry
from qir.errors import PluginError
from qir.rewrite.runner.contract import Pass

VERSION = 1
"""Of journals that are written."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One pass that was run."""

    name: str
    text: str
    """The pass with its options, as `qir opt` reads it."""
    by: str
    """Distribution and version that it came from, or else its module."""
    changed: int
    rewrites: Mapping[str, int] = field(default_factory=dict)
    """How often each rewrite was done."""


class Journal:
    """Passes in the order they were run."""

    def __init__(self, entries: Iterable[JournalEntry] = ()) -> None:
        self._entries = list(entries)

    def __iter__(self) -> Iterator[JournalEntry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Journal) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def extend(self, entries: Iterable[JournalEntry]) -> None:
        """Takes over what was run after this."""
        self._entries.extend(entries)

    def to_json(self) -> str:
        """Returns the journal as text; empty where nothing was run."""
        if not self._entries:
            return ""
        rows = [asdict(entry) for entry in self._entries]
        return json.dumps({"version": VERSION, "passes": rows}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Journal:
        """Reads what `to_json` wrote; raises ValueError for anything else."""
        if not text:
            return cls()
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise ValueError(f"no journal of version {VERSION}")
        entries = data.get("passes")
        if not isinstance(entries, list):
            raise ValueError("it has no list of passes")
        return cls(_entry(entry) for entry in entries)


def _entry(data: object) -> JournalEntry:
    fields = data if isinstance(data, dict) else {}
    # Files come from strangers: nothing is taken over that has another type.
    texts = [fields.get(key) for key in ("name", "text", "by")]
    changed, rewrites = fields.get("changed"), fields.get("rewrites")
    if not all(isinstance(t, str) for t in texts) or type(changed) is not int:
        raise ValueError("an entry is not what QIR writes")
    if not isinstance(rewrites, dict) or any(type(n) is not int for n in rewrites.values()):
        raise ValueError("an entry's rewrites are not what QIR writes")
    name, text, by = map(str, texts)
    return JournalEntry(name, text, by, changed, {str(k): n for k, n in rewrites.items()})


def written_by(one: Pass) -> str:
    """Returns distribution and version of a pass, or its module where no plugin brings it."""
    kind = type(one)
    try:
        owner = registry.owner("qir.passes", one.name)
        return owner if owner and registry.find("qir.passes", one.name) is kind else kind.__module__
    except PluginError:
        return kind.__module__
