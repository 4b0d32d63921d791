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
    first = evidence.partition(";")[0]
    pairs = [(_parse_count(b), _parse_count(a)) for a, b in _DIFFERENCES_OF.findall(first)]
    pairs = [pair for pair in pairs if pair[1] <= pair[0]]
    if pairs:
        return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    differ = _DIFFER.search(first)
    if differ is None:
        return None
    if said := _COUNT_OF_THINGS.findall(first):
        return sum(map(_parse_count, said)), _parse_count(differ[1])
    if found := _ALL_VALUES.search(first):
        each = 1 << (16 if found[1] else 8)
        return each * _parse_count(found[2]), _parse_count(differ[1])
    return None


def parse_same_as(evidence: str) -> tuple[str, str] | None:
    """Returns the op, and the profile where it is another, whose evidence this one is: `as OP of
    NAME`."""
    found = _SAME_AS.match(evidence)
    return (found[1], found[2] or "") if found else None


def why_insufficient(
    claim: str, evidence: str, moves: bool, known: Callable[[str, str], bool]
) -> str:
    """Returns why evidence does not bear a claim; empty where it does.

    `moves`: the rule computes nothing; `known(op, profile)`: that rule has a measurement.
    """
    if not claim.startswith(("exact", "within:")):
        return ""
    said = claim.partition(":")[0]
    if evidence.startswith(NO_ARITHMETIC):
        of = (
            "only methods `move` and `reals` rest on `moves:`, of ops that move or compare "
            "quantized values"
        )
        return "" if moves else f"claim = {said!r}: {of}"
    if (other := parse_same_as(evidence)) and parse_counts(evidence) is None:
        where = f" of {other[1]}" if other[1] else ""
        return (
            ""
            if known(*other)
            else f"no other rule of {other[0]}{where} has a measurement that bears {said}"
        )
    found = parse_counts(evidence)
    if found is None or not found[0]:
        return (
            f"claim = {said!r} needs evidence with how many results were compared and differed: "
            f"`7,000 results, 0 differ`, or `as OP`"
        )
    if found[0] < MIN_RESULTS:
        return f"claim = {said!r} needs evidence of {MIN_RESULTS} results at least, not {found[0]}"
    most = float(claim.rpartition(":")[2]) if claim.startswith("within:") else 0.0
    if found[1] > most * found[0]:
        return f"claim = {claim!r}, and {found[1]:,} of {found[0]:,} differ by its evidence"
    return ""


def weaker_claim(a: str, b: str) -> str:
    """Returns the claim that promises no more than either of two."""
    for claim in ("unknown", "close:", "within:"):
        found = [one for one in (a, b) if one.startswith(claim)]
        if len(found) == 2 and ":" in claim:
            parts = zip(*(one.split(":")[1:] for one in found), strict=True)
            return ":".join((claim[:-1], *(max(pair, key=float) for pair in parts)))
        if found:
            return found[0]
    return a


def _parse_count(text: str) -> int:
    return int(text.replace(",", ""))
