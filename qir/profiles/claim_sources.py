"""On whose measurement a claim rests that says that its op computes as another does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from qir.profiles.evidence import parse_counts, parse_same_as, weaker_claim
from qir.profiles.profile import GroupEntry, Profile, RuleEntry, When, differences, example_query

_MEASURED_CLAIMS = ("exact", "within:")
"""How claims begin that rest on numbers."""


def has_measured_origin(
    op: str, entry: RuleEntry, rules: tuple[RuleEntry, ...], base: Profile | None
) -> bool:
    """Returns whether `as OP` next to a rule of a file leads to numbers that bear its claim.

    Those of another rule of the file, or of what the file extends, where none of its own speaks of
    that op.
    """
    own_rules = [rule for rule in rules if op in rule.ops and rule is not entry]
    claim = _field_text(entry, "claim")
    if own_rules or op in entry.ops:
        return any(_bears_claim(rule, claim) for rule in own_rules)
    return base is not None and has_numbers(op, base, claim)


def computed_differently(
    checked: Profile, find: Callable[[str], Profile] | None
) -> Iterator[tuple[int, str]]:
    """Rules of a file that say `as OP` and compute otherwise than that op, and in what."""
    for index, entry in enumerate(checked.rules):
        evidence = _field_text(entry, "evidence")
        same_as = parse_same_as(evidence)
        if (
            same_as is None
            or parse_counts(evidence)
            or not _field_text(entry, "claim").startswith(_MEASURED_CLAIMS)
        ):
            continue
        name = same_as[1] or checked.name
        source = checked if name == checked.name or find is None else find(name)
        other_rule = source.resolve(example_query(same_as[0], entry.when))
        for op in (op for op in entry.ops if op != "*"):
            for key, (own_value, other_value) in differences(
                checked.resolve(example_query(op, entry.when)), other_rule
            ).items():
                message = f"{op} is computed otherwise than {same_as[0]}: {key} is"
                yield (
                    index,
                    f"{message} {_name_or_value(own_value)}, not {_name_or_value(other_value)}",
                )


def has_numbers(op: str, searched: Profile, claim: str) -> bool:
    """Returns whether a profile has a measurement of an op that bears a claim, in a file of its own
    or below."""
    rules = (rule for layer in searched.layers for rule in layer.rules)
    return any(op in rule.ops and _bears_claim(rule, claim) for rule in rules)


def is_supported_by_rule(group: GroupEntry, searched: Profile) -> bool:
    """Returns whether a rule of a group's first op has a claim as strong, in the topmost file that
    has one for all that the group is of, or above."""
    for layer in reversed(searched.layers):
        rules = [r for r in layer.rules if {group.chain[0], "*"} & set(r.ops)]
        if any(r.when.meets(group.when) and _claims_as_much(r, group.claim) for r in rules):
            return True
        if any(rule.when in (When(), group.when) for rule in rules):
            return False
    return False


def _claims_as_much(entry: RuleEntry, claim: str) -> bool:
    """Returns whether a rule claims as much."""
    own_claim = _field_text(entry, "claim")
    return own_claim.startswith(_MEASURED_CLAIMS) and weaker_claim(claim, own_claim) == claim


def _bears_claim(entry: RuleEntry, claim: str) -> bool:
    return parse_counts(_field_text(entry, "evidence")) is not None and _claims_as_much(
        entry, claim
    )


def _name_or_value(value: object) -> object:
    return getattr(value, "name", value)


def _field_text(entry: RuleEntry, name: str) -> str:
    return str(entry.fields.get(("", name), ""))
