"""What evidence says was measured: how many results were compared, and how many differed."""

from __future__ import annotations

import re
from collections.abc import Callable

NO_ARITHMETIC = "moves: "
"""How evidence begins that is an argument and no measurement: quantized values are
moved, or compared."""

MIN_RESULTS = 100
"""Results that bear a claim."""

_NUMBER = r"\d{1,3}(?:,\d{3})+|\d+"
_DIFFERENCES_OF = re.compile(rf"(?<![\d,.])({_NUMBER}) of ({_NUMBER})(?![\d,]*\d)")
_THINGS = "results|elements|outputs|cases|quantized values|codes|weights"
_COUNT_OF_THINGS = re.compile(rf"(?<![\d,.])({_NUMBER}) (?:{_THINGS})\b")
_ALL_VALUES = re.compile(
    r"\ball (?:(pairs of quantized values|code pairs)|quantized values|codes)\b"
    rf".*?\b({_NUMBER}) (?:quantized types|maps|sets)\b"
)
_DIFFER = re.compile(rf"(?<![\d,.])({_NUMBER}) differ")
_SAME_AS = re.compile(r"as (\w+)(?: of ([\w.+-]*\w))?(?=$|[,;:])")


def parse_counts(evidence: str) -> tuple[int, int] | None:
    """Returns the results compared and those that differed, read from the first clause.

    `0 of 7,000 differ` (several are added), `7,000 results, 0 differ`, `all quantized values for 7
    quantized types, 0 differ`; None where it has no such numbers.
    """
    first_clause = evidence.partition(";")[0]
    pairs = [(_parse_count(b), _parse_count(a)) for a, b in _DIFFERENCES_OF.findall(first_clause)]
    # "7 of 3" is no count of differences, but such as a version or a share.
    pairs = [pair for pair in pairs if pair[1] <= pair[0]]
    if pairs:
        return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    differ_match = _DIFFER.search(first_clause)
    if differ_match is None:
        return None
    if counted := _COUNT_OF_THINGS.findall(first_clause):
        return sum(map(_parse_count, counted)), _parse_count(differ_match[1])
    if all_values := _ALL_VALUES.search(first_clause):
        # All pairs of 8-bit values, or all 8-bit values.
        per_set = 1 << (16 if all_values[1] else 8)
        return per_set * _parse_count(all_values[2]), _parse_count(differ_match[1])
    return None


def parse_same_as(evidence: str) -> tuple[str, str] | None:
    """Returns the op, and the profile where it is another, whose evidence this one is: `as OP of
    NAME`."""
    match = _SAME_AS.match(evidence)
    return (match[1], match[2] or "") if match else None


def why_insufficient(
    claim: str, evidence: str, moves: bool, known: Callable[[str, str], bool]
) -> str:
    """Returns why evidence does not bear a claim; empty where it does.

    `moves`: the rule computes nothing; `known(op, profile)`: that rule has a measurement.
    """
    if not claim.startswith(("exact", "within:")):
        return ""
    kind = claim.partition(":")[0]
    if evidence.startswith(NO_ARITHMETIC):
        reason = (
            "only methods `move` and `reals` rest on `moves:`, of ops that move or compare "
            "quantized values"
        )
        return "" if moves else f"claim = {kind!r}: {reason}"
    if (same_as := parse_same_as(evidence)) and parse_counts(evidence) is None:
        suffix = f" of {same_as[1]}" if same_as[1] else ""
        return (
            ""
            if known(*same_as)
            else f"no other rule of {same_as[0]}{suffix} has a measurement that bears {kind}"
        )
    counts = parse_counts(evidence)
    if counts is None or not counts[0]:
        return (
            f"claim = {kind!r} needs evidence with how many results were compared and differed: "
            f"`7,000 results, 0 differ`, or `as OP`"
        )
    if counts[0] < MIN_RESULTS:
        return f"claim = {kind!r} needs evidence of {MIN_RESULTS} results at least, not {counts[0]}"
    allowed_share = float(claim.rpartition(":")[2]) if claim.startswith("within:") else 0.0
    if counts[1] > allowed_share * counts[0]:
        return f"claim = {claim!r}, and {counts[1]:,} of {counts[0]:,} differ by its evidence"
    return ""


def weaker_claim(a: str, b: str) -> str:
    """Returns the claim that promises no more than either of two."""
    # From the weakest promise to the strongest.
    for claim in ("unknown", "close:", "within:"):
        matching = [one for one in (a, b) if one.startswith(claim)]
        if len(matching) == 2 and ":" in claim:
            parts = zip(*(one.split(":")[1:] for one in matching), strict=True)
            return ":".join((claim[:-1], *(max(pair, key=float) for pair in parts)))
        if matching:
            return matching[0]
    return a


def _parse_count(text: str) -> int:
    return int(text.replace(",", ""))
