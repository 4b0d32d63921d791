"""Describes a profile's claim of a kernel, for the ledger and for people."""

from __future__ import annotations

from qir.ledger import Change, Entry

BASIS = "claim"
"""The `basis` field of ledger entries that state a kernel's claim."""


def claim_entries(claim: str, step: str, subject: str) -> tuple[Entry, ...]:
    """Returns the ledger entry for a kernel's claim; none for an exact kernel."""
    if claim == "exact":
        return ()
    kind, *numbers = claim.split(":")
    change = Change.REGROUPED if kind == "within" else Change.UNVERIFIED
    steps = float(numbers[0]) if kind == "within" else 0.0
    reason = (
        f"claimed {claim_text(claim)}"
        if numbers
        else f"{claim_text(claim)} is claimed of its bytes"
    )
    return (Entry(change, step, subject, reason, steps, BASIS),)


def claim_text(claim: str) -> str:
    """Returns a claim in plain words."""
    kind, *numbers = claim.split(":")
    if kind == "within":
        steps, rate = int(numbers[0]), float(numbers[1])
        return f"within {steps} step{'s' * (steps != 1)}, in {100 * rate:g} % of results at most"
    if kind == "close":
        return f"close, to {float(numbers[0]):g}"
    return "nothing" if claim == "unknown" else claim


__all__ = ["BASIS", "claim_entries", "claim_text"]
