"""Which exact claims rest on comparisons that are not hard enough, and in what these are poor.

poor.json names those that are known. `python -m tests.differential.poor` takes out of it what is
no longer poor; what has become poor is not put in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from qir.atomic import write_text
from qir.ir.ops import spec
from qir.ir.scheme import RESULT
from qir.profiles import Profile, profile, profile_names
from qir.profiles.profile import FLOAT_STORAGE, RuleEntry
from tests import richness
from tests.counting import Counts, counts, group_key, riches, rule_key

FILE = Path(__file__).with_name("poor.json")
Poor = dict[str, dict[str, list[str]]]
"""By profile and claim: what is lacking."""
ROUNDS = (
    richness.CURVES
    | richness.FACTORS
    | frozenset(
        "add sub concat quantize requantize avg_pool1d avg_pool2d avg_pool3d"
        " global_avg_pool adaptive_avg_pool reduce_mean reduce_sum resize"
        " leaky_relu prelu squared_difference".split()
    )
)
"""Ops that round whatever they are given."""


WANTS = frozenset(("ties", "low", "high", "odd zeros", "scales", "anything that rounds"))
LIMITS: Mapping[str, frozenset[str]] = {
    "one_map": WANTS,
    "same_map": WANTS,
    "held_ranges": frozenset(("low", "high")),
}
"""Forms and needs under which an op rounds nothing, or comes to no end of the integers."""


def limits(conditions: Iterable[str], ops: Iterable[str]) -> frozenset[str]:
    """What no comparison of a claim can have, by its forms or needs: of ops that keep values."""
    if not all(spec(op).traits.value_preserving for op in ops):
        return frozenset()
    return frozenset().union(*(LIMITS.get(name, frozenset()) for name in conditions))


def scaled(rule: RuleEntry) -> bool:
    """Whether a scale rounds what a rule gives: floats and sums of 32 bits are rounded by none."""
    return not {FLOAT_STORAGE, "i32"} & set(rule.when.storage.get(RESULT, ()))


def claims(of_profile: Profile) -> Iterator[tuple[str, Sequence[str], str, frozenset[str]]]:
    """A profile's own claims of integers: key, ops, claim, and what these ops cannot have."""
    for rule in of_profile.rules:
        if not scaled(rule):
            continue
        claim = str(rule.fields.get(("", "claim"), "unknown"))
        yield rule_key(rule), rule.ops, claim, limits(rule.when.form, rule.ops)
    for group in of_profile.own_groups:
        if group.result == "codes":
            yield group_key(group), group.chain, group.claim, limits(group.needs, group.chain)


def summed(tests: Mapping[str, Sequence[int]]) -> richness.Rich:
    """The figures of all tests of a claim."""
    total: richness.Rich = []
    for counted in tests.values():
        richness.add(total, counted)
    return total


def lacks(
    ops: Sequence[str],
    tests: Mapping[str, Sequence[int]],
    compared: bool,
    impossible: frozenset[str] = frozenset(),
) -> list[str]:
    """What the comparisons of an exact claim lack, all of them together, of what they can have."""
    total = summed(tests)
    if not total or not total[0]:
        rounds_nothing = compared and ROUNDS & set(ops) and "anything that rounds" not in impossible
        return ["anything that rounds"] if rounds_nothing else []
    return [lack for lack in richness.lacking(total, ops) if lack not in impossible]


def poor(counted: Counts, hardness: Counts) -> Poor:
    """Returns every exact claim that is compared, and lacks something."""
    by_profile: Poor = {}
    for name in sorted(profile_names()):
        for key, ops, claim, cannot in claims(profile(name)):
            compared = bool(counted.get(name, {}).get(key))
            missing = lacks(ops, hardness.get(name, {}).get(key, {}), compared, cannot)
            if claim == "exact" and compared and missing:
                by_profile.setdefault(name, {})[key] = missing
    return by_profile


def known() -> Poor:
    """Returns what the file names."""
    stored: Poor = json.loads(FILE.read_text(encoding="utf-8"))
    return stored


def left(stored: Poor, current: Poor) -> Poor:
    """Returns what the file names that is still so."""
    remaining: Poor = {}
    for name, rules in stored.items():
        for key, lacks_then in rules.items():
            if missing := [
                lack for lack in lacks_then if lack in current.get(name, {}).get(key, [])
            ]:
                remaining.setdefault(name, {})[key] = missing
    return remaining


def written(by_profile: Poor) -> str:
    """Returns the text of the file: a line for each claim."""
    blocks = []
    for name, rules in sorted(by_profile.items()):
        lines = [
            f"  {json.dumps(key)}: {json.dumps(missing)}" for key, missing in sorted(rules.items())
        ]
        blocks.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


if __name__ == "__main__":
    write_text(FILE, written(left(known(), poor(counts(), riches()))))
