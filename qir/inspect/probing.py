"""What a runtime on this machine obeys: each field of a profile measured, and held next to the
file.

A runtime is given small programs and answers in bytes; the reference computes the same programs
under the profile of the file, and under each other value that one field may have. What the runtime
obeys is what gets its bytes right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.inspect.probe_cases import ProbeCase, cases
from qir.inspect.runtimes import Probe as Probe
from qir.inspect.runtimes import chosen as chosen
from qir.inspect.runtimes import place as place
from qir.inspect.runtimes import probes as probes
from qir.ir.graph import Graph
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.ledger import Ledger
from qir.numerics import MethodField, Rule
from qir.numerics.fields import BLOCKS, field_types, words
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.group import Group
from qir.profiles import (
    Profile,
    ProfileLibrary,
    Query,
    carry_profile,
    choose_query,
    profile,
    profile_names,
    query_for_node,
)
from qir.profiles.methods import reads
from qir.profiles.processor import best_isa
from qir.profiles.profile import Field, Fields, ProfileHead, RuleEntry, When
from qir.profiles.versions import covers
from qir.reference.interpreter import run

Tensor = NDArray[np.generic]
Key = tuple[str, str]
"""A field as profiles keep it: its block, and its name."""


# -- which file speaks of a runtime ---------------------------------------------------------------


def head_of(source: Profile) -> ProfileHead:
    """Returns the head with what it does not say taken from those below."""
    head = source.head
    for layer in reversed(source.layers[:-1]):
        head = replace(
            head,
            backend=head.backend or layer.head.backend,
            versions=head.versions or layer.head.versions,
            settings=head.settings or layer.head.settings,
        )
    return head


def profiles_of_runtime(probe: Probe) -> tuple[tuple[Profile, ...], bool]:
    """Returns the profiles that speak of a runtime as it is installed, and whether of its version
    too.

    Where none does, those of other versions, else of other settings of it, else all.
    """
    known = [profile(name) for name in profile_names()]
    of_backend = [p for p in known if head_of(p).backend == probe.backend]
    same_settings = [p for p in of_backend if matches_settings(head_of(p).settings, probe.settings)]
    covering = [p for p in same_settings if covers(head_of(p).versions, probe.version or "")]
    return tuple(covering or same_settings or of_backend or known), bool(covering)


def matches_settings(stated: Mapping[str, str], actual: Mapping[str, str]) -> bool:
    """Returns whether a file names a runtime's settings; others than the number of threads are
    none."""
    return {name: value for name, value in stated.items() if name != "threads"} == dict(actual)


# -- what was measured ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """One field of one op: what the file says, and what the runtime does."""

    field: str
    filed: str
    obeyed: tuple[str, ...]
    """The values that get most bytes right; several where no case distinguishes them."""
    told: int
    """Elements, at least, that each of the others gets wrong beyond those; 0 for no others."""

    @property
    def agrees(self) -> bool:
        """Whether the file's value is one that the runtime obeys."""
        return self.filed in self.obeyed


@dataclass(frozen=True, slots=True)
class OpReading:
    """One op, in the kinds of cases for which the file has one rule."""

    op: str
    kinds: tuple[str, ...]
    cases: int
    elements: int
    differ: int
    """Elements that the file's rule gets wrong."""
    gap: int
    """The most quantized values by which it is wrong."""
    claim: str
    fields: tuple[Reading, ...]
    found: Mapping[str, str] = field(default_factory=dict)
    """Where the file is wrong: the changes that get most right."""
    left: int = 0
    """Elements that are wrong with them all the same."""
    change: Fields = field(default_factory=dict, repr=False)
    when: When = field(default_factory=When, repr=False)
    tail: tuple[str, ...] = ()
    """Ops that the same kernel computes after it."""

    @property
    def said(self) -> str:
        """The op with those after it."""
        return " > ".join((self.op, *self.tail))

    @property
    def holds(self) -> bool:
        """Whether the file's claim holds; what claims nothing cannot be wrong."""
        if not self.differ or not self.claim.startswith(("exact", "within")):
            return True
        if self.claim == "exact":
            return False
        _, most, rate = self.claim.split(":")
        return self.gap <= int(most) and self.differ <= max(1, float(rate) * self.elements)


@dataclass(frozen=True, slots=True)
class Measured:
    """A runtime next to its profile."""

    name: str
    backend: str
    version: str
    settings: Mapping[str, str]
    profile: str
    digest: str
    covered: bool
    """Whether the file speaks of this version."""
    ops: tuple[OpReading, ...]
    skipped: Mapping[str, str]
    """Cases that the runtime did not run, and why."""

    @property
    def drifts(self) -> tuple[OpReading, ...]:
        """The ops whose claim does not hold."""
        return tuple(o for o in self.ops if not o.holds)

    @property
    def cases(self) -> int:
        """How many cases were run."""
        return sum(o.cases for o in self.ops)

    @property
    def elements(self) -> int:
        """How many elements were compared."""
        return sum(o.elements for o in self.ops)


# -- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _RuntimeAnswer:
    """A case, the runtime's answer, and the graph by which the reference predicts it."""

    case: ProbeCase
    given: Tensor
    graph: Graph
    query: Query
    apart: Graph | None = None
    """The graph before kernels are made of it, for runtimes that make them."""


def measure(probe: Probe) -> Measured:
    """Runs the suite and finds which value of each field the runtime obeys."""
    answers_given, skipped = _ask(probe)
    known, covered = profiles_of_runtime(probe)
    nearest = known[0]
    if len(known) > 1:
        nearest = min(known, key=lambda p: _total(answers_given, p, probe.grouped))
    local_profile = _on_this_processor(nearest)
    answers = [_with_predicted_graph(a, local_profile, probe.grouped) for a in answers_given]
    readings = tuple(
        _reading_of_op(local_profile, group) for group in _by_rule(local_profile, answers)
    )
    return Measured(
        probe.name,
        probe.backend,
        probe.version or "",
        probe.settings,
        nearest.name,
        nearest.digest,
        covered,
        readings,
        skipped,
    )


def _on_this_processor(source: Profile) -> Profile:
    """Returns a profile with what it says of this processor said of any."""
    isa = best_isa()
    entries = [e for layer in source.layers for e in layer.rules if isa in e.when.isa]
    if not entries:
        return source
    rules = tuple(replace(e, when=replace(e.when, isa=())) for e in entries)
    head = replace(
        source.head, name=f"{source.name[:70]}.here", extends=source.name, groups="inherited"
    )
    return Profile(head, {}, rules, (), source, "")


def _ask(probe: Probe) -> tuple[list[_RuntimeAnswer], dict[str, str]]:
    answers: list[_RuntimeAnswer] = []
    skipped: dict[str, str] = {}
    for case in cases(probe.forms):
        graph = case.graph
        if probe.grouped:
            graph = graph.copy()
            ExpandQdq().run(graph, Ledger())
        try:
            result = probe.run(graph, case.feeds)
        except QirError as error:
            skipped[" > ".join((case.op, *case.tail)) + f" {case.told}"] = str(error)
            continue
        answers.append(_RuntimeAnswer(case, result, graph, _query(case)))
    return answers, skipped


def op_with_rule(op: str) -> str:
    """Returns the op whose rule says what an op computes: numbers are chosen as for a quantize."""
    return "quantize" if op == "choose_qparams" else op


def _query(case: ProbeCase) -> Query:
    query = query_for_node(case.graph["y"].node)
    if case.op == "choose_qparams":
        return choose_query(str(case.graph["y"].node.attrs["storage"]))
    return replace(query, grain="channel" if "channel" in case.told else query.grain)


def _with_predicted_graph(
    answer: _RuntimeAnswer, assumed: Profile, grouped: bool
) -> _RuntimeAnswer:
    """Returns the answer with the graph that the profile's runtime makes of what it was given."""
    if not grouped:
        return answer
    ungrouped = answer.apart or answer.graph
    graph = ungrouped.copy()
    carry_profile(graph, assumed)
    Group(assumed.name).run(graph, Ledger())
    return replace(answer, graph=graph, apart=ungrouped)


def _by_rule(assumed: Profile, answers: Sequence[_RuntimeAnswer]) -> Iterator[list[_RuntimeAnswer]]:
    """Answers of one op for which a profile has one rule."""
    by_rule: dict[tuple[str, tuple[str, ...], Rule], list[_RuntimeAnswer]] = {}
    for answer in answers:
        rule = replace(assumed.resolve(answer.query), evidence="")
        by_rule.setdefault((answer.case.op, answer.case.tail, rule), []).append(answer)
    yield from by_rule.values()


def _total(answers: Sequence[_RuntimeAnswer], assumed: Profile, grouped: bool) -> int:
    """Returns how many elements a profile gets wrong in all."""
    total = 0
    for answer in answers:
        differences = _count_differences(_with_predicted_graph(answer, assumed, grouped), assumed)
        total += answer.given.size if differences is None else differences[0]
    return total


def _count_differences(answer: _RuntimeAnswer, assumed: Profile) -> tuple[int, int] | None:
    """Returns how many elements a profile gets wrong, and by how much; None for what it cannot
    compute."""
    try:
        results = run(
            answer.graph,
            answer.case.feeds,
            profile=assumed.name,
            profiles=ProfileLibrary().with_profile(assumed),
        )
        predicted = next(iter(results.values()))
    except QirError:
        return None
    actual = answer.given
    if predicted.shape != actual.shape or predicted.dtype != actual.dtype:
        return actual.size, 0
    differs = predicted.view(f"u{predicted.itemsize}") != actual.view(f"u{actual.itemsize}")
    if not differs.any() or predicted.dtype.kind not in "iu":
        return int(differs.sum()), 0
    gap = np.abs(predicted[differs].astype(np.int64) - actual[differs].astype(np.int64))
    return int(differs.sum()), int(gap.max())


def _count_under_change(
    answers: list[_RuntimeAnswer], assumed: Profile, change: Fields, limit: int
) -> int | None:
    """Returns how many elements differ under a changed profile; None where it cannot be meant.

    Beyond `limit` it stops counting, and moves the answer that exceeded it to the front.
    """
    (op,) = {a.case.op for a in answers}
    name = f"{assumed.name[:70]}.changed"
    entry = RuleEntry((op_with_rule(op),), When(), change)
    other = Profile(ProfileHead(name, assumed.name), {}, (entry,), (), assumed, "")
    total = 0
    for number, answer in enumerate(answers):
        differences = _count_differences(answer, other)
        if differences is None:
            return None
        total += differences[0]
        if total > limit:
            # The answer that ruled this change out will likely rule out the next: it is asked
            # first.
            answers.insert(0, answers.pop(number))
            break
    return total


def _reading_of_op(assumed: Profile, answers: Sequence[_RuntimeAnswer]) -> OpReading:
    """Returns one op measured field by field, and explained where the file does not."""
    first = answers[0]
    rule = assumed.resolve(first.query)
    differences = [_count_differences(a, assumed) for a in answers]
    differ = sum(
        a.given.size if f is None else f[0] for a, f in zip(answers, differences, strict=True)
    )
    ordered = list(answers)
    fields = tuple(
        _field(assumed, ordered, key, value, differ) for key, value in _read_fields(rule, answers)
    )
    fields += _group_reading(assumed, answers, differ)
    reading = OpReading(
        first.case.op,
        tuple(dict.fromkeys(a.case.told for a in answers)),
        len(answers),
        sum(a.given.size for a in answers),
        differ,
        max((f[1] for f in differences if f is not None), default=0),
        _claim(assumed, first, rule),
        fields,
        left=differ,
        tail=first.case.tail,
    )
    if reading.holds and (not differ or reading.claim != "unknown"):
        return reading
    change, left = _explain(assumed, answers, rule, differ)
    change_text = {said_key(key): said_value(value) for key, value in change.items()}
    return replace(reading, found=change_text, left=left, change=change, when=_when(answers))


def _claim(assumed: Profile, answer: _RuntimeAnswer, rule: Rule) -> str:
    """Returns what a profile claims of an op; of a row of them, what its group does."""
    tail = answer.case.tail
    group = assumed.group((answer.case.op, *tail), answer.query) if tail else None
    return group.claim if group else rule.claim


def _field(
    assumed: Profile, answers: list[_RuntimeAnswer], key: Key, value: Field, differ: int
) -> Reading:
    op = answers[0].case.op
    counts: dict[str, int] = {said_value(value): differ}
    for other in _values(key, value, op):
        count = _count_under_change(answers, assumed, {key: other}, differ)
        if count is not None:
            counts[said_value(other)] = count
    return _reading(said_key(key), said_value(value), counts)


_LISTED, _UNGROUPED, _ALL_GROUPED = "as listed", "none", "every row"


def _group_reading(
    assumed: Profile, answers: Sequence[_RuntimeAnswer], differ: int
) -> tuple[Reading, ...]:
    """Returns whether the runtime makes kernels of what the groups of a profile list, no less and
    no more.

    The alternatives are to compute each op by itself, and to make a kernel of every row.
    """
    if any(a.apart is None for a in answers):
        return ()
    counts = {_LISTED: differ, _UNGROUPED: 0, _ALL_GROUPED: 0}
    for answer in answers:
        for label, graph in ((_UNGROUPED, answer.apart), (_ALL_GROUPED, answer.case.graph)):
            assert graph is not None
            if counts[label] > differ:
                continue
            differences = _count_differences(replace(answer, graph=graph), assumed)
            counts[label] += answer.given.size if differences is None else differences[0]
    return (_reading("group", _LISTED, counts),)


def _reading(name: str, filed: str, counts: Mapping[str, int]) -> Reading:
    least = min(counts.values())
    others = [n - least for n in counts.values() if n > least]
    obeyed = tuple(v for v, n in counts.items() if n == least)
    return Reading(name, filed, obeyed, min(others, default=0))


def _explain(
    assumed: Profile, answers: Sequence[_RuntimeAnswer], rule: Rule, differ: int
) -> tuple[dict[Key, Field], int]:
    """Returns the fewest changes that get most right: one at a time, two where one alone is no
    better."""
    change: dict[Key, Field] = {}
    op, ordered = answers[0].case.op, list(answers)
    while differ:
        single = [
            (key, other)
            for key, value in _read_fields(rule, answers)
            for other in _values(key, value, op)
            if key not in change
        ]
        best = _best(assumed, ordered, change, [{k: v} for k, v in single], differ)
        # Pairs grow with the square: only where few fields are in question.
        if best is None and len(single) <= 60:
            pairs = [
                {k: v, j: w} for i, (k, v) in enumerate(single) for j, w in single[:i] if j != k
            ]
            best = _best(assumed, ordered, change, pairs, differ)
        if best is None:
            break
        change, differ = best
    return change, differ


def _best(
    assumed: Profile,
    answers: list[_RuntimeAnswer],
    change: Mapping[Key, Field],
    steps: Sequence[Mapping[Key, Field]],
    differ: int,
) -> tuple[dict[Key, Field], int] | None:
    best: tuple[dict[Key, Field], int] | None = None
    for step in steps:
        candidate = {**change, **step}
        least = differ if best is None else best[1]
        count = _count_under_change(answers, assumed, candidate, least)
        if count is not None and count < least:
            best = candidate, count
        if best is not None and not best[1]:
            break
    return best


def _has_bias(answers: Sequence[_RuntimeAnswer]) -> bool:
    """Returns whether a bias is added in any of them."""
    return any(a.case.graph["y"].node.operands.keys() & {"bias", "c"} for a in answers)


def _when(answers: Sequence[_RuntimeAnswer]) -> When:
    """Conditions that the queries of some answers meet."""
    queries = [a.query for a in answers]
    slot = "data" if all(q.data for q in queries) else "result"
    kinds = dict.fromkeys(q.data or q.storage.get("result", "") for q in queries)
    grains = tuple(dict.fromkeys(q.grain for q in queries))
    forms = tuple(f for f in queries[0].forms if all(f in q.forms for q in queries))
    return When({slot: tuple(kinds)} if "" not in kinds else {}, grains, form=forms)


# -- the fields that can be measured --------------------------------------------------------------


def _read_fields(rule: Rule, answers: Sequence[_RuntimeAnswer]) -> Iterator[tuple[Key, Field]]:
    """Yields the fields that decide the bytes of an op under a rule, with their values."""
    op, tail = answers[0].case.op, answers[0].case.tail
    if rule.method is not None:
        yield ("", "method"), rule.method
        blocks = reads(rule.method.name)
    elif op == "choose_qparams":
        blocks = ("choose",)
    elif op in INTEGER_SUM_LAYERS:
        blocks = ("acc", "bias", "requant") if _has_bias(answers) else ("acc", "requant")
    else:
        blocks = (op,) if op in BLOCKS else ("quantize", "dequantize")
    for block in blocks:
        for name in field_types(block):
            if name != "levels" and (name != "pad" or op == "conv2d"):
                yield (block, name), getattr(getattr(rule, block), name)
    for name in field_types("stage") if tail and rule.method is None else ():
        if _STAGES.get(name, tail)[0] in tail:
            yield ("stage", name), getattr(rule.stage, name)


_STAGES: Mapping[str, tuple[str, ...]] = {
    "relu": ("relu",),
    "sum": ("add",),
    "sum_reads": ("add",),
    "ends": ("clip",),
    "curves": ("silu",),
}
"""The stages of which a field speaks; others speak of any."""


def _values(key: Key, value: Field, op: str) -> Iterator[Field]:
    """Yields the other values that a field may have, of those that can be listed."""
    block, name = key
    if not block:
        yield from (m for m in _methods(op) if m != value)
        return
    kind = field_types(block)[name]
    if known := words(kind):
        yield from (v for v in known if v != value)
    elif isinstance(value, bool):
        yield not value
    elif key == ("bias", "overflow"):
        yield from (v for v in ("wrap", "clip:32") if v != value)


@cache
def _methods(op: str) -> tuple[MethodField, ...]:
    """Returns the methods that any profile names for an op, with the parameters it gives."""
    methods = [MethodField("reals")]
    for name in profile_names():
        for entry in profile(name).rules:
            method = entry.fields.get(("", "method"))
            if op in entry.ops and isinstance(method, MethodField) and method not in methods:
                methods.append(method)
    return tuple(methods)


def said_key(key: Key) -> str:
    """Returns a field as it is written: `requant.round`, `method`."""
    return ".".join(part for part in key if part)


def said_value(value: Field) -> str:
    """Returns a value as tables show it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
