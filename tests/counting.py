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
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from qir.atomic import write_text
from qir.inspect.probing import head_of
from qir.ir.node import Node
from qir.numerics.fields import Rule
from qir.profiles import NamedProfile, Profile, Query, library, profile, profile_names
from qir.profiles.profile import GroupEntry, RuleEntry, When, query_for_node
from qir.profiles.versions import covers
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
    """Returns the conditions of a rule in words."""
    conditions = [
        f"{'' if slot == 'data' else slot + ' '}{' or '.join(kinds)}"
        for slot, kinds in when.storage.items()
    ]
    conditions += [f"per {grain}" for grain in when.grain]
    conditions += [f"{name} = {value!s}" for name, value in when.attrs.items()]
    conditions += [" or ".join(when.bounds)] if when.bounds else []
    conditions += [" or ".join(when.isa)] if when.isa else []
    conditions += [name.replace("_", " ") for name in when.form]
    return ", ".join(conditions)


def rule_key(entry: RuleEntry) -> str:
    """Returns the name of a rule: its ops and conditions."""
    return " | ".join((", ".join(entry.ops), told(entry.when))).rstrip(" |")


def group_key(group: GroupEntry) -> str:
    """Returns the name of a group: its chain, result and conditions."""
    chain = " > ".join(group.chain)
    return " | ".join((f"[{chain}] to {group.result}", told(group.when))).rstrip(" |")


def counts() -> Counts:
    """Returns what the file of counts holds."""
    stored: Counts = json.loads(FILE.read_text(encoding="utf-8"))
    return stored


def riches() -> Counts:
    """Returns what the file says of how hard the results were."""
    stored: Counts = json.loads(RICH.read_text(encoding="utf-8")) if RICH.exists() else {}
    return stored


def totals(by_test: Mapping[str, Sequence[int]]) -> tuple[int, int]:
    """Results compared and results that differed, of all tests."""
    return sum(pair[0] for pair in by_test.values()), sum(pair[1] for pair in by_test.values())


def write(recorder: Recorder) -> None:
    """Replaces the counts of the tests that ran in the files.

    A test that was skipped, even for one of its parameters, keeps its counts: what this processor
    cannot be was counted on another.
    """
    names = recorder.ran - recorder.skipped
    _write(FILE, counts() if FILE.exists() else {}, recorder.found, names)
    _write(RICH, riches(), recorder.rich, names)


def _write(file: Path, stored: Counts, recorded: Counts, names: set[str]) -> None:
    result: Counts = {}
    for name, rules in stored.items():
        for rule, tests in rules.items():
            # Tests that were renamed or removed take their counts with them.
            again = recorded.get(name, {}).get(rule, {}) if of_another_torch(name) else names
            of_other_tests = {t: pair for t, pair in tests.items() if t not in again and there(t)}
            if of_other_tests:
                result.setdefault(name, {})[rule] = of_other_tests
    for name, rules in recorded.items():
        for rule, tests in rules.items():
            if of_names := {t: pair for t, pair in tests.items() if t in names}:
                merge(result, {name: {rule: of_names}})
    write_text(file, "".join(_lines(result)))


def _lines(stored: Counts) -> Iterator[str]:
    """JSON of one line a test, sorted."""
    of_profiles = []
    for name, rules in sorted(stored.items()):
        of_rules = []
        for rule, tests in sorted(rules.items()):
            test_lines = [f"{json.dumps(test)}: {pair}" for test, pair in sorted(tests.items())]
            of_rules.append(f"{json.dumps(rule)}: {{\n" + ",\n".join(test_lines) + "}")
        of_profiles.append(f"{json.dumps(name)}: {{\n" + ",\n".join(of_rules) + "}")
    yield "{\n" + ",\n".join(of_profiles) + "}\n"


@cache
def of_another_torch(name: str) -> bool:
    """Returns whether another torch is installed than a profile speaks of.

    What tests of PyTorch count of that profile was counted with the other one, and stays.
    """
    if name not in profile_names():
        return False
    head = head_of(profile(name))
    return head.backend == "torch" and not covers(head.versions, metadata.version("torch"))


@cache
def there(test: str) -> bool:
    """Returns whether the test still exists."""
    path, _, function = test.partition("::")
    file = FOLDER.parents[1] / path
    return file.exists() and f"def {function}(" in file.read_text(encoding="utf-8")


def merge(into: Counts, added: Counts) -> None:
    """Adds counts to counts."""
    for name, rules in added.items():
        for rule, tests in rules.items():
            for test, new_counts in tests.items():
                summed = into.setdefault(name, {}).setdefault(rule, {}).setdefault(test, [])
                summed[:] = [
                    a + b for a, b in zip(summed or [0] * len(new_counts), new_counts, strict=True)
                ]


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

    def note(self, predicted: Array, actual: Array) -> None:
        """One comparison of what was predicted with what a runtime gave."""
        if not self.test:
            return
        credits = self._of(predicted)
        size = int(np.size(actual))
        differences = differing(np.asarray(predicted), np.asarray(actual))
        for name, rule in credits:
            tests = self.found.setdefault(name, {}).setdefault(rule, {})
            pair = tests.setdefault(self.test, [0, 0])
            pair[0] += size
            pair[1] += differences
            if rounded := self._rounded.pop((name, rule), None):
                merge(self.rich, {name: {rule: {self.test: rounded}}})

    def _of(self, predicted: Array) -> frozenset[Credit]:
        array: Any = predicted
        while array is not None:
            known = self._made.get(id(array))
            if known is not None and known[0]() is array:
                speaks_for_all = len(self._last) <= _FEW and known[1] in self._last
                return frozenset().union(*self._last) if speaks_for_all else known[1]
            # A view is known by the array that it looks into.
            array = getattr(array, "base", None)
        if not self._programs:
            return frozenset(credit for _, credit in self._asked)
        return frozenset().union(*self._last) if len(self._last) <= _FEW else frozenset()

    # -- what it listens to

    def resolve(self, queried: Profile, query: Query) -> Rule:
        if (credit := credited(queried, query)) is not None:
            self._asked.append((query.op, credit))
        return _RESOLVE(queried, query)

    def run(self, *args: Any, **options: Any) -> dict[str, Array]:
        self._last.clear()
        self._rounded.clear()
        self._programs += 1
        return _RUN(*args, **options)

    def node(self, node: Node, operands: Any, rules: NamedProfile, *more: Any) -> tuple[Array, ...]:
        if node.op in ("constant", "input") or node.bodies:
            return _NODE(node, operands, rules, *more)
        # Rules that were resolved before are not looked up again, and would not be heard.
        library._RESOLVED_RULES.clear()
        outer, self._asked = self._asked, []
        results = _NODE(node, operands, rules, *more)
        ops = {node.op, *(stage.op for stage in node.stages)}
        # A node may look up rules of ops that it computes by: they count only where it has no rule.
        own_credits = {credit for op, credit in self._asked if op in ops}
        credits = frozenset(own_credits or {credit for _, credit in self._asked})
        # What a processor's own rule claims is no news of a group, which speaks of any.
        for credit, claim in () if credits & _OF_PROCESSORS else grouped(node, rules):
            # What is not exact of a chain alone is no news of the rule of its first op.
            drop_rule = len(node.stages) > 1 and claim != "exact"
            credits = frozenset({credit}) | (frozenset() if drop_rule else credits)
        self._asked = outer
        if credits:
            self._last.append(credits)
            if self.test and (rounded := richness.of_node(node, operands, rules)):
                for credit in credits:
                    richness.add(self._rounded.setdefault(credit, []), rounded)
            for data in (result for result in results if isinstance(result, np.ndarray)):
                self._made[id(data)] = weakref.ref(data), credits
        return results


def credited(queried: Profile, query: Query) -> Credit | None:
    """The uppermost rule that speaks of a query, where the profile is as it is installed."""
    if not installed(queried):
        return None
    query = queried.asked(query)
    for layer in reversed(queried.layers):
        if (entry := layer.entry(query)) is not None:
            credit = layer.name, rule_key(entry)
            if entry.when.isa:
                _OF_PROCESSORS.add(credit)
            return credit
    return None


def installed(queried: Profile) -> bool:
    """Whether a profile is one that is found by name, on whatever processor."""
    read = library._READ_PROFILES.get(queried.name)
    if read is None:  # it is being read, or is nobody's
        return False
    pairs = zip(queried.layers, read.layers, strict=False)
    same = all(a.rules is b.rules and a.defaults is b.defaults for a, b in pairs)
    return same and len(queried.layers) == len(read.layers)


def grouped(node: Node, rules: NamedProfile) -> Iterator[tuple[Credit, str]]:
    """The group of a profile that a node is, and its claim."""
    if not rules.name or not node.results:
        return
    queried, query = rules.find(), query_for_node(node)
    chain = tuple(stage.op for stage in node.stages) or (node.op,)
    result = "codes" if node.results[0].type.quant is not None else "real"
    key = (id(queried), chain, result, repr(query))
    if key not in _GROUPED:
        _GROUPED[key] = queried, _group(queried, chain, query, result)
    if (group_and_claim := _GROUPED[key][1]) is not None:
        yield group_and_claim


def _group(
    queried: Profile, chain: tuple[str, ...], query: Query, result: str
) -> tuple[Credit, str] | None:
    group = queried.group(chain, query, result=result)
    for layer in reversed(queried.layers) if installed(queried) else ():
        if group is not None and any(group.key == own_group.key for own_group in layer.own_groups):
            return (layer.name, group_key(group)), group.claim
    return None


def differing(predicted: Array, actual: Array) -> int:
    """Returns how many elements are not the same; NaN equals NaN."""
    if (predicted.dtype, predicted.shape) != (actual.dtype, actual.shape):
        return int(actual.size)
    same = predicted == actual
    if predicted.dtype.kind == "f":
        same = same | (np.isnan(predicted) & np.isnan(actual))
    return int(same.size - np.count_nonzero(same))


_RESOLVE, _RUN, _NODE = Profile.resolve, interpreter._run, interpreter.run_node
_HEARD: list[Recorder] = []
_OF_PROCESSORS: set[Credit] = set()
"""Rules of processors that they name."""
_GROUPED: dict[
    tuple[int, tuple[str, ...], str, str], tuple[Profile, tuple[Credit, str] | None]
] = {}
"""What was looked up already; the profiles are held, so that no other one takes their place."""


def note(predicted: Array, actual: Array) -> None:
    """Tells who listens of one comparison."""
    for recorder in _HEARD:
        recorder.note(predicted, actual)


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
