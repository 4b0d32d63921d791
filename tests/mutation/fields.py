"""Every change of one field that a profile's file states, to hold each against recorded results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from qir.errors import QirError
from qir.numerics.fields import MethodField, field_types, words
from qir.profiles import Profile
from qir.profiles.methods import params
from qir.profiles.profile import Field, Fields, RuleEntry, When
from tests.overriding import override_profile

_WORDS: dict[str, tuple[Field, ...]] = {
    "zero": ("none", "qmin-round(min/s)", "round(qmin-min/s)", "best_end", "real"),
    "overflow": ("wrap", "clip:32", "shrink_weights"),
    "small": ("none", "floor:0.05"),
    "levels": ((), (("*", 127.0),), (("*", 128.0),)),
    "decimals": ("exact", "3"),
}
"""Values of fields that are texts or numbers of many kinds."""


@dataclass(frozen=True)
class Mutant:
    """A profile with one field changed."""

    said: str
    """Such as `conv2d requant.round = even`; of defaults without an op."""
    block: str
    ops: tuple[str, ...]
    profile: Profile


def mutants(profile: Profile, *, isa: str = "") -> Iterator[Mutant]:
    """All that the profile itself states changed one by one.

    Rules that claim nothing, and rules of other processors, are left as they are; with an
    instruction set named, its rules alone are changed.
    """
    for (block, name), value, fields in _changes({} if isa else profile.defaults):
        said = f"{block}.{name} = {value}"
        yield Mutant(said, block, (), replace(profile, defaults=fields))
    seen: set[str] = set()
    for number, entry in enumerate(profile.rules):
        if not changed(entry, isa):
            continue
        where = f"{entry.ops[0]}{_stored(entry.when.storage)}"
        where = f"{where} ({_told(entry.when)})" if where in seen else where
        seen.add(where)
        for (block, name), value, fields in _changes(entry.fields):
            rules = list(profile.rules)
            rules[number] = replace(entry, fields=fields)
            said = f"{where} {block}.{name} = {value}" if block else f"{where} {name} = {value}"
            yield Mutant(said, block, entry.ops, replace(profile, rules=tuple(rules)))


def changed(entry: RuleEntry, isa: str = "") -> bool:
    """Whether a rule claims anything, and of the processor that tests run on, or of another."""
    spoken = isa in entry.when.isa if isa else not entry.when.isa
    return spoken and entry.fields.get(("", "claim"), "unknown") != "unknown"


def _stored(storage: Mapping[str, tuple[str, ...]]) -> str:
    """`/i16` for a rule of 16-bit data alone."""
    data = {kind for slot, kinds in storage.items() if slot != "w" for kind in kinds}
    return "/i16" if data == {"i16"} else ""


def _told(when: When) -> str:
    """The conditions of a rule that is not the first of its op."""
    said = [f"{slot} {' or '.join(kinds)}" for slot, kinds in when.storage.items()]
    said += [f"{name} = {value!s}" for name, value in when.attrs.items()]
    return ", ".join((*said, *when.grain, *when.bounds, *when.form)) or "again"


def _changes(fields: Fields) -> Iterator[tuple[tuple[str, str], Field, Fields]]:
    for (block, name), now in fields.items():
        for value in others(block, name, now):
            yield (block, name), value, {**fields, (block, name): value}


def others(block: str, name: str, now: Field) -> Iterator[Field]:
    """Other values of a field; of a method, none, and another for each parameter."""
    if block:
        kind = field_types(block)[name]
        known: tuple[Field, ...] = ()
        if listed := words(kind):
            known = listed
        elif kind is bool:
            known = (True, False)
        else:
            known = _WORDS.get(name, ())
        yield from (value for value in known if value != now)
    elif isinstance(now, MethodField):
        yield MethodField("move" if now.name == "reals" else "reals")
        for param, kind in params(now.name).items():
            first = kind.values[0] if kind.values else 0
            said = now.params.get(param, first)
            for value in kind.values or (8 if said != 8 else 16,):
                if value != said:
                    yield MethodField(now.name, {**now.params, param: value})


def survivors(
    made: Iterable[Mutant],
    agrees: Callable[[Mutant], None],
    among: Callable[[str], bool] = lambda said: True,
) -> set[str]:
    """The changes that no comparison tells from the right profile, of those asked for."""
    left = set()
    for mutant in made:
        if not among(mutant.said):
            continue
        with override_profile(mutant.profile):
            try:
                agrees(mutant)
            except (AssertionError, QirError, ValueError):  # of a number that fits no shape, too
                continue
        left.add(mutant.said)
    return left
