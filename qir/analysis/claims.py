"""Describes a profile's claim of a kernel, for the ledger and for people."""

from __future__ import annotations

from qir.ledger import Change, Entry

BASIS = "claim"
"""What entries rest on that say what is claimed of a kernel."""


def entries(claim: str, step: str, subject: str) -> tuple[Entry, ...]:
    """Returns what the ledger says of a kernel's claim; nothing where it is exact."""
    if claim == "exact":
        return ()
    word, *numbers = claim.split(":")
    change = Change.REGROUPED if word == "within" else Change.UNVERIFIED
    codes = float(numbers[0]) if word == "within" else 0.0
    said = f"claimed {words(claim)}" if numbers else f"{words(claim)} is claimed of its bytes"
    return (Entry(change, step, subject, said, codes, BASIS),)


def words(claim: str) -> str:
    """Returns a claim in plain words."""
    word, *numbers = claim.split(":")
    if word == "within":
        most, rate = int(numbers[0]), float(numbers[1])
        return f"within {most} step{'s' * (most != 1)}, in {100 * rate:g} % of results at most"
    if word == "close":
        return f"close, to {float(numbers[0]):g}"
    return "nothing" if claim == "unknown" else claim


__all__ = ["BASIS", "entries", "words"]
