"""Every change of one condition of a profile's rules, and of one field of its groups' rows."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from qir.numerics.consistency import propagates_fault
from qir.numerics.fields import Rule
from qir.profiles import Profile, Query, profile
from qir.profiles.evidence import weaker_claim
from qir.profiles.profile import FLOAT_STORAGE, GroupEntry, RuleEntry, When
from tests.mutation.fields import Mutant, survivors

SAME: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
"""Of each profile that is whole the changes that nothing finds, with the reason."""
STORED = (*"i1 i2 u2 i3 u3 i4 u4 i8 u8 i16 u16 i32".split(), FLOAT_STORAGE)
"""What a slot may hold."""
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "grain": ("tensor", "channel"),
    "isa": ("any", "avx2", "avx512", "vnni", "amx"),
    "bounds": ("full", "narrow"),
}


def changes(of: Profile) -> Iterator[Mutant]:
    """All of a profile, one by one: rules with conditions, and the rows of its own groups."""
    for number, entry in enumerate(of.rules):
        if entry.when.count:
            where = _place(entry, of.rules)
            for said, when in whens(entry.when):
                rules = list(of.rules)
                rules[number] = replace(entry, when=when)
                yield Mutant(f"{where}: {said}", "", entry.ops, replace(of, rules=tuple(rules)))
    for number, row in enumerate(of.own_groups):
        for said, others in rows(row):
            groups = (*of.own_groups[:number], *others, *of.own_groups[number + 1 :])
            made = replace(of, own_groups=groups)
            yield Mutant(f"group {_row(row)}: {said}", "group", row.chain, made)


def whens(when: When) -> Iterator[tuple[str, When]]:
    """Each condition dropped, without each of its values, and turned to all others."""
    for slot, kinds in when.storage.items():
        rest = {name: said for name, said in when.storage.items() if name != slot}
        yield f"{slot} dropped", replace(when, storage=rest)
        for said, values in _values(kinds, STORED):
            yield f"{slot} {said}", replace(when, storage={**when.storage, slot: values})
    for name, known in _KNOWN.items():
        if kinds := getattr(when, name):
            yield f"{name} dropped", _with(when, name, ())
            for said, values in _values(kinds, known):
                yield f"{name} {said}", _with(when, name, values)
    for name, value in when.attrs.items():
        rest_of = {n: v for n, v in when.attrs.items() if n != name}
        yield f"{name} = {value!s} dropped", replace(when, attrs=rest_of)
        yield f"{name} other than {value!s}", replace(when, attrs={**rest_of, name: "another"})
    for name in when.form:
        yield f"form {name} dropped", replace(when, form=tuple(f for f in when.form if f != name))


def _with(when: When, name: str, values: tuple[str, ...]) -> When:
    return replace(when, **{name: values})  # type: ignore[arg-type]


def _values(
    kinds: tuple[str, ...], known: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    if len(kinds) > 1:
        for kind in kinds:
            yield f"without {kind}", tuple(k for k in kinds if k != kind)
    yield f"other than {' '.join(kinds)}", tuple(k for k in known if k not in kinds)


def rows(row: GroupEntry) -> Iterator[tuple[str, tuple[GroupEntry, ...]]]:
    """A row dropped, and what stands in its place with one field changed."""
    yield "dropped", ()
    for need in row.needs:
        yield f"needs no {need}", (replace(row, needs=tuple(n for n in row.needs if n != need)),)
    for said, when in whens(row.when):
        yield said, (replace(row, when=when),)
    other = FLOAT_STORAGE if row.result == "codes" else "codes"
    yield f"result {other}", (replace(row, result=other),)
    if not propagates_fault(not row.propagates, row.chain):
        yield f"propagates {not row.propagates}", (replace(row, propagates=not row.propagates),)


def _place(entry: RuleEntry, rules: tuple[RuleEntry, ...]) -> str:
    """A rule by its first op and, of several, its conditions."""
    told = [f"{slot} {' or '.join(kinds)}" for slot, kinds in entry.when.storage.items()]
    told += [f"{name} = {value!s}" for name, value in entry.when.attrs.items()]
    told += [" or ".join(entry.when.isa)] * bool(entry.when.isa)
    told += [*entry.when.grain, *entry.when.bounds, *entry.when.form]
    alone = sum(entry.ops[0] in rule.ops for rule in rules) == 1
    return entry.ops[0] if alone else f"{entry.ops[0]} ({', '.join(told)})"


def _row(row: GroupEntry) -> str:
    said = [*row.when.form, *(k for kinds in row.when.storage.values() for k in kinds)]
    said += [FLOAT_STORAGE] * (row.result == FLOAT_STORAGE)
    return " ".join(row.chain) + (f" ({', '.join(said)})" if said else "")


Ask = tuple[tuple[str, ...], Query, str]
Asks = dict[tuple[str, str], Ask]
"""What recorded results ask a profile, and on which processor: an op's rule, or the row of ops in a
row with such a result."""


@contextmanager
def asks(name: str, isa: str = "") -> Iterator[Asks]:
    """All that is asked of a profile meanwhile."""
    held: Asks = {}
    plain, row = Profile.resolve, Profile.group

    def resolve(self: Profile, query: Query) -> Rule:
        if self.name == name:
            held[isa or self.isa, str(query)] = (), query, ""
        return plain(self, query)

    def group(
        self: Profile, chain: tuple[str, ...], query: Query, *, result: str = "codes"
    ) -> GroupEntry | None:
        if self.name == name:
            held[isa or self.isa, f"{chain} {query} {result}"] = chain, query, result
        return row(self, chain, query, result=result)

    with patch.object(Profile, "resolve", resolve), patch.object(Profile, "group", group):
        yield held


def told_apart(held: Asks, right: Profile, of: Profile) -> bool:
    """Whether another rule or row speaks of anything that was asked; AssertionError where it claims
    less, so that the comparison holds no more."""
    other = False
    for (isa, _), ask in held.items():
        was, now = (_answer(p.on(isa), ask) for p in (right, of))
        claims = [one.claim if one else "unknown" for one in (was, now)]
        assert weaker_claim(*claims) == claims[0], f"{ask[1].op} is {claims[1]} now"
        other |= was != now
    return other


def _answer(of: Profile, ask: Ask) -> Rule | GroupEntry | None:
    chain, query, result = ask
    return of.group(chain, query, result=result) if chain else of.resolve(query)


def all_found(name: str, agrees: Callable[[Mutant], None]) -> None:
    """AssertionError for a change that is neither found nor listed, or where none is found."""
    listed, of = SAME[name], profile(name)
    made = list(changes(of))
    for block, ops in dict.fromkeys((mutant.block, mutant.ops) for mutant in made):
        agrees(Mutant("nothing", block, ops, of))
    left = survivors(made, agrees, lambda said: said not in listed)
    assert not left, f"{name}: neither found nor listed: {sorted(left)}"


def none_found(name: str, agrees: Callable[[Mutant], None]) -> None:
    """AssertionError for a change that is listed, yet is found."""
    listed = set(SAME[name])
    left = survivors(changes(profile(name)), agrees, lambda said: said in listed)
    assert left == listed, f"{name}: listed and found: {sorted(listed - left)}"
