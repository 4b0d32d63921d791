"""On whose measurement a claim rests that says that its op computes as another does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from qir.profiles.evidence import counted, same_as, weaker
from qir.profiles.profile import GroupEntry, Profile, RuleEntry, When, differences, met

_STRONG = ("exact", "within:")
"""How claims begin that rest on numbers."""


def measured(op: str, entry: RuleEntry, rules: tuple[RuleEntry, ...], base: Profile | None) -> bool:
    """Returns whether `as OP` next to a rule of a file leads to numbers that bear its claim.

    Those of another rule of the file, or of what the file extends, where none of its own speaks of
    that op.
    """
    own = [one for one in rules if op in one.ops and one is not entry]
    claim = _text(entry, "claim")
    if own or op in entry.ops:
        return any(_bears(one, claim) for one in own)
    return base is not None and has_numbers(op, base, claim)


def otherwise(made: Profile, find: Callable[[str], Profile] | None) -> Iterator[tuple[int, str]]:
    """Rules of a file that say `as OP` and compute otherwise than that op, and in what."""
    for index, entry in enumerate(made.rules):
        evidence = _text(entry, "evidence")
        other = same_as(evidence)
        if other is None or counted(evidence) or not _text(entry, "claim").startswith(_STRONG):
            continue
        name = other[1] or made.name
        of = made if name == made.name or find is None else find(name)
        theirs = of.resolve(met(other[0], entry.when))
        for op in (op for op in entry.ops if op != "*"):
            for key, (mine, its) in differences(made.resolve(met(op, entry.when)), theirs).items():
                said = f"{op} is computed otherwise than {other[0]}: {key} is"
                yield index, f"{said} {_named(mine)}, not {_named(its)}"


def has_numbers(op: str, of: Profile, claim: str) -> bool:
    """Returns whether a profile has a measurement of an op that bears a claim, in a file of its own
    or below."""
    rules = (rule for layer in of.layers for rule in layer.rules)
    return any(op in rule.ops and _bears(rule, claim) for rule in rules)


def rests(group: GroupEntry, of: Profile) -> bool:
    """Returns whether a rule of a group's first op has a claim as strong, in the topmost file that
    has one for all that the group is of, or above."""
    for layer in reversed(of.layers):
        rules = [r for r in layer.rules if {group.chain[0], "*"} & set(r.ops)]
        if any(r.when.meets(group.when) and _claims(r, group.claim) for r in rules):
            return True
        if any(rule.when in (When(), group.when) for rule in rules):
            return False
    return False


def _claims(entry: RuleEntry, claim: str) -> bool:
    """Returns whether a rule claims as much."""
    said = _text(entry, "claim")
    return said.startswith(_STRONG) and weaker(claim, said) == claim


def _bears(entry: RuleEntry, claim: str) -> bool:
    return counted(_text(entry, "evidence")) is not None and _claims(entry, claim)


def _named(value: object) -> object:
    return getattr(value, "name", value)


def _text(entry: RuleEntry, name: str) -> str:
    return str(entry.fields.get(("", name), ""))
