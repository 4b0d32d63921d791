"""On whose measurement a claim rests that says that its op computes as another does."""

from __future__ import annotations

from qir.numerics.evidence import counted
from qir.numerics.profile import Entry, Profile


def measured(op: str, entry: Entry, rules: tuple[Entry, ...], base: Profile | None) -> bool:
    """Whether `as OP` beside a rule of a file leads to numbers: those of another rule of the file,
    or of what the file extends, where none of its own speaks of that op."""
    own = [one for one in rules if op in one.ops and one is not entry]
    if own or op in entry.ops:
        return any(map(_counts, own))
    return base is not None and has_numbers(op, base)


def has_numbers(op: str, of: Profile) -> bool:
    """Whether a profile has a measurement of an op, in a file of its own or below."""
    return any(op in one.ops and _counts(one) for layer in of.layers for one in layer.rules)


def _counts(entry: Entry) -> bool:
    return counted(str(entry.fields.get(("", "evidence"), ""))) is not None
