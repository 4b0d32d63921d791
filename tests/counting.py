"""How many results each rule of a profile was held to by the tests, counted while they compare.

`make counts`, or `pytest --counts FILES`, writes tests/differential/counts.json: profile,
rule, test, and of that test the results compared and those that differed. A test is counted
whole: what an earlier run counted of it is replaced. Every program that the reference runs leaves
behind which rules decided each of its results; where a test compares one, these are credited.
Beside it richness.json says, likewise, how much of what was rounded is hard (see `richness`).
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from qir.atomic import write_text
from qir.ir.node import Node
from qir.numerics.fields import Rule
from qir.profiles import Profile, Query, library, profile
from qir.profiles.profile import GroupEntry, RuleEntry, When, query_for_node
from qir.reference import interpreter
from tests import richness

FOLDER = Path(__file__).parent / "differential"
FILE = Path(os.environ.get("QIR_COUNTS") or FOLDER / "counts.json")
RICH = FILE.with_name("richness.json")
Array = NDArray[np.generic]
Credit = tuple[str, str]
"""A profile, and one of its rules or groups as the page names it."""
Counts = dict[str, dict[str, dict[str, list[int]]]]
_FEW = 3
"""The computing nodes that a program has at most where one of its results speaks for all."""


def told(when: When) -> str:
    """The conditions of a rule."""
    said = [
        f"{'' if slot == 'data' else slot + ' '}{' or '.join(kinds)}"
        for slot, kinds in when.storage.items()
    ]
    said += [f"per {grain}" for grain in when.grain]
    said += [f"{name} = {value!s}" for name, value in when.attrs.items()]
    said += [" or ".join(when.bounds)] if when.bounds else []
    said += [" or ".join(when.isa)] if when.isa else []
    said += [name.replace("_", " ") for name in when.form]
    return ", ".join(said)


def rule_key(entry: RuleEntry) -> str:
    """A rule by its ops and conditions."""
    return " | ".join((", ".join(entry.ops), told(entry.when))).rstrip(" |")


def group_key(group: GroupEntry) -> str:
    """A group by its chain, result and conditions."""
    chain = " > ".join(group.chain)
    return " | ".join((f"[{chain}] to {group.result}", told(group.when))).rstrip(" |")


def counts() -> Counts:
    """What the file says."""
    found: Counts = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def riches() -> Counts:
    """What the file says of how hard the results were."""
    found: Counts = json.loads(RICH.read_text(encoding="utf-8")) if RICH.exists() else {}
    return found


def totals(of: Mapping[str, Sequence[int]]) -> tuple[int, int]:
    """Results compared and results that differed, of all tests."""
    return sum(pair[0] for pair in of.values()), sum(pair[1] for pair in of.values())


def write(recorder: Recorder) -> None:
    """Replaces the counts of the tests that ran in the files.

    A test that was skipped, even for one of its parameters, keeps its counts: what this processor
    cannot be was counted on another.
    """
    names = recorder.ran - recorder.skipped
    _write(FILE, counts() if FILE.exists() else {}, recorder.found, names)
    _write(RICH, riches(), recorder.rich, names)


def _write(file: Path, held: Counts, found: Counts, names: set[str]) -> None:
    kept: Counts = {}
    for name, rules in held.items():
        for rule, tests in rules.items():
            left = {t: pair for t, pair in tests.items() if t not in names and there(t)}
            if left:
                kept.setdefault(name, {})[rule] = left
    for name, rules in found.items():
        for rule, tests in rules.items():
            if of_names := {t: pair for t, pair in tests.items() if t in names}:
                merge(kept, {name: {rule: of_names}})
    write_text(file, "".join(_lines(kept)))


def _lines(found: Counts) -> Iterator[str]:
    """JSON of one line a test, sorted."""
    of_profiles = []
    for name, rules in sorted(found.items()):
        of_rules = []
        for rule, tests in sorted(rules.items()):
            each = [f"{json.dumps(test)}: {pair}" for test, pair in sorted(tests.items())]
            of_rules.append(f"{json.dumps(rule)}: {{\n" + ",\n".join(each) + "}")
        of_profiles.append(f"{json.dumps(name)}: {{\n" + ",\n".join(of_rules) + "}")
    yield "{\n" + ",\n".join(of_profiles) + "}\n"


@cache
def there(test: str) -> bool:
    """Whether there is such a test, still."""
    path, _, function = test.partition("::")
    file = FOLDER.parents[1] / path
    return file.exists() and f"def {function}(" in file.read_text(encoding="utf-8")


def merge(into: Counts, found: Counts) -> None:
    """Adds counts to counts."""
    for name, rules in found.items():
        for rule, tests in rules.items():
            for test, more in tests.items():
                held = into.setdefault(name, {}).setdefault(rule, {}).setdefault(test, [])
                held[:] = [a + b for a, b in zip(held or [0] * len(more), more, strict=True)]


@dataclass
class Recorder:
    """What is compared while it listens."""

    found: Counts = field(default_factory=dict)
    rich: Counts = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    test: str = ""
    _asked: list[tuple[str, Credit]] = field(default_factory=list)
    """Ops and rules that were looked up since the last node began."""
    _made: dict[int, tuple[weakref.ref[Any], frozenset[Credit]]] = field(default_factory=dict)
    _last: list[frozenset[Credit]] = field(default_factory=list)
    """Of the last program, what decided each of its nodes."""
    _programs: int = 0
    _rounded: dict[Credit, richness.Rich] = field(default_factory=dict)
    """Of the last program, what each rule rounded that was not compared yet."""

    def begin(self, test: str) -> None:
        """From now on results are those of another test; of none for an empty name."""
        self.test = test
        self._asked.clear()
        self._made.clear()
        self._last.clear()
        self._rounded.clear()
        self._programs = 0

    def packed(self) -> str:
        """Returns what a worker hands to the session that writes the files."""
        return json.dumps([self.found, self.rich, sorted(self.ran), sorted(self.skipped)])

    def take(self, packed: str) -> None:
        """Adds what a worker recorded."""
        found, rich, ran, skipped = json.loads(packed)
        merge(self.found, found)
        merge(self.rich, rich)
        self.ran.update(ran)
        self.skipped.update(skipped)

    def note(self, found: Array, wanted: Array) -> None:
        """One comparison of what was predicted with what a runtime gave."""
        if not self.test:
            return
        credits = self._of(found)
        size = int(np.size(wanted))
        differ = differing(np.asarray(found), np.asarray(wanted))
        for name, rule in credits:
            tests = self.found.setdefault(name, {}).setdefault(rule, {})
            pair = tests.setdefault(self.test, [0, 0])
            pair[0] += size
            pair[1] += differ
            if rounded := self._rounded.pop((name, rule), None):
                merge(self.rich, {name: {rule: {self.test: rounded}}})

    def _of(self, found: Array) -> frozenset[Credit]:
        at: Any = found
        while at is not None:
            held = self._made.get(id(at))
            if held is not None and held[0]() is at:
                few = len(self._last) <= _FEW and held[1] in self._last
                return frozenset().union(*self._last) if few else held[1]
            at = getattr(at, "base", None)
        if not self._programs:
            return frozenset(credit for _, credit in self._asked)
        return frozenset().union(*self._last) if len(self._last) <= _FEW else frozenset()

    # -- what it listens to

    def resolve(self, of: Profile, query: Query) -> Rule:
        if (credit := credited(of, query)) is not None:
            self._asked.append((query.op, credit))
        return _RESOLVE(of, query)

    def run(self, *args: Any, **more: Any) -> dict[str, Array]:
        self._last.clear()
        self._rounded.clear()
        self._programs += 1
        return _RUN(*args, **more)

    def node(self, node: Node, operands: Any, name: str, *more: Any) -> tuple[Array, ...]:
        if node.op in ("constant", "input") or node.bodies:
            return _NODE(node, operands, name, *more)
        library._RESOLVED_RULES.clear()
        before, self._asked = self._asked, []
        made = _NODE(node, operands, name, *more)
        ops = {node.op, *(stage.op for stage in node.stages)}
        own = {credit for op, credit in self._asked if op in ops}
        given = frozenset(own or {credit for _, credit in self._asked})
        # What a processor's own rule claims is no news of a group, which speaks of any.
        for credit, claim in () if given & _OF_PROCESSORS else grouped(node, name):
            # What is not exact of a chain alone is no news of the rule of its first op.
            alone = len(node.stages) > 1 and claim != "exact"
            given = frozenset({credit}) | (frozenset() if alone else given)
        self._asked = before
        if given:
            self._last.append(given)
            if self.test and (rounded := richness.of_node(node, operands, name)):
                for credit in given:
                    richness.add(self._rounded.setdefault(credit, []), rounded)
            for data in (one for one in made if isinstance(one, np.ndarray)):
                self._made[id(data)] = weakref.ref(data), given
        return made


def credited(of: Profile, query: Query) -> Credit | None:
    """The uppermost rule that speaks of a query, where the profile is as it is installed."""
    if not installed(of):
        return None
    query = of.asked(query)
    for layer in reversed(of.layers):
        if (entry := layer.entry(query)) is not None:
            credit = layer.name, rule_key(entry)
            if entry.when.isa:
                _OF_PROCESSORS.add(credit)
            return credit
    return None


def installed(of: Profile) -> bool:
    """Whether a profile is one that is found by name, on whatever processor."""
    found = library._READ_PROFILES.get(of.name)
    if found is None:  # it is being read, or is nobody's
        return False
    pairs = zip(of.layers, found.layers, strict=False)
    same = all(a.rules is b.rules and a.defaults is b.defaults for a, b in pairs)
    return same and len(of.layers) == len(found.layers)


def grouped(node: Node, name: str) -> Iterator[tuple[Credit, str]]:
    """The group of a profile that a node is, and its claim."""
    if not name or not node.results:
        return
    of, query = profile(name), query_for_node(node)
    chain = tuple(stage.op for stage in node.stages) or (node.op,)
    result = "codes" if node.results[0].type.quant is not None else "real"
    key = (id(of), chain, result, repr(query))
    if key not in _GROUPED:
        _GROUPED[key] = of, _group(of, chain, query, result)
    if (found := _GROUPED[key][1]) is not None:
        yield found


def _group(
    of: Profile, chain: tuple[str, ...], query: Query, result: str
) -> tuple[Credit, str] | None:
    group = of.group(chain, query, result=result)
    for layer in reversed(of.layers) if installed(of) else ():
        if group is not None and any(group.key == one.key for one in layer.own_groups):
            return (layer.name, group_key(group)), group.claim
    return None


def differing(found: Array, wanted: Array) -> int:
    """How many elements are not the same; NaN is."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return int(wanted.size)
    same = found == wanted
    if found.dtype.kind == "f":
        same = same | (np.isnan(found) & np.isnan(wanted))
    return int(same.size - np.count_nonzero(same))


_RESOLVE, _RUN, _NODE = Profile.resolve, interpreter._run, interpreter.run_node
_HEARD: list[Recorder] = []
_OF_PROCESSORS: set[Credit] = set()
"""Rules of processors that they name."""
_GROUPED: dict[
    tuple[int, tuple[str, ...], str, str], tuple[Profile, tuple[Credit, str] | None]
] = {}
"""What was looked up already; the profiles are held, so that no other one takes their place."""


def note(found: Array, wanted: Array) -> None:
    """Tells who listens of one comparison."""
    for recorder in _HEARD:
        recorder.note(found, wanted)


def listen(recorder: Recorder) -> ExitStack:
    """Lets a recorder listen until the stack is closed."""
    stack = ExitStack()
    hear = (
        (Profile, "resolve", lambda of, query: recorder.resolve(of, query)),
        (interpreter, "_run", recorder.run),
        (interpreter, "run_node", recorder.node),
    )
    for owner, name, heard in hear:
        stack.enter_context(patch.object(owner, name, heard))
    _HEARD.append(recorder)
    stack.callback(_HEARD.remove, recorder)
    return stack
