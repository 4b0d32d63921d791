"""A numerics profile: what one backend really computes, as data, one rule an op."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from typing import Protocol, TypeAlias, TypeVar

from qir.ir.attrs import Attr, same
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import QuantType, TensorType
from qir.numerics.fields import BLOCKS, Levels, MethodField, Rule
from qir.profiles.evidence import weaker_claim
from qir.profiles.kernel_forms import LazyForms
from qir.profiles.preparation import DEFAULT_STEPS
from qir.records import record

_T = TypeVar("_T")
Field: TypeAlias = "str | bool | Levels | MethodField | None"
Fields: TypeAlias = "Mapping[tuple[str, str], Field]"
"""What a file says: ("requant", "zero") -> "before"; ("", "method") -> a method."""

DATA_SLOTS = ("x", "a", "xs.0")
"""Where an op's data come in: the slot a bare `storage` speaks of."""


CONVERSIONS = frozenset({"quantize", "dequantize", "requantize", "fake_quantize"})
"""Ops that have no weights: their granularity is that of the quantized type they make or take."""

FLOAT_STORAGE = "real"
"""What conditions call the storage of a slot that is not quantized."""


@record
class Query:
    """What a profile is asked: an op, the storage type in each quantized slot, and its use."""

    op: str
    storage: Mapping[str, str] = field(default_factory=dict)
    grain: str = "tensor"
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    isa: str = "any"
    bounds: str = "full"
    """`full` where the result uses all integers of its storage type, or `narrow`."""
    forms: Collection[str] = ()
    """The forms that a convolution or product has: `qir.profiles.kernel_forms.forms`."""

    @property
    def key(self) -> tuple[object, ...]:
        """All but attributes and forms, which few conditions look at."""
        return self.op, self.grain, self.isa, self.bounds, *self.storage.items()

    @property
    def data(self) -> str:
        """The storage type of the op's data, or nothing."""
        return next((self.storage[s] for s in DATA_SLOTS if s in self.storage), "")


def query_for_node(node: Node, *, isa: str = "any") -> Query:
    """Returns what a profile is asked for a node: a group is asked for by its first stage."""
    operands, result = node.operands, node.results[0].type if node.results else None
    if not node.stages:
        return query_for_op(node.op, node.attrs, _operand_types(operands), result, isa=isa)
    first_stage = node.stages[0]
    result = first_stage.type or result
    return query_for_op(
        first_stage.op, first_stage.attrs, _operand_types(node.stage_operands(0)), result, isa=isa
    )


def _operand_types(operands: Mapping[str, Value]) -> dict[str, TensorType]:
    return {slot: value.type for slot, value in operands.items()}


def query_for_op(
    op: str,
    attrs: Mapping[str, Attr],
    types: Mapping[str, TensorType],
    result: TensorType | None,
    *,
    isa: str = "any",
) -> Query:
    """Returns what a profile is asked for an op on operands of these types.

    Everybody asks by this function, so that passes, certificates and the interpreter follow one
    rule. Companions of a type are no operands. An op is asked for per channel where its weights
    have a scale for each channel; a conversion, which has no weights, where its quantized type
    does.
    """
    op_spec = spec(op)
    operand_types = {slot: kind for slot, kind in types.items() if not op_spec.is_companion(slot)}
    quants = {slot: kind.quant for slot, kind in operand_types.items() if kind.quant is not None}
    result_quant = result.quant if result is not None else None
    storage = {slot: str(quant.storage) for slot, quant in quants.items()}
    if result_quant is not None:
        storage["result"] = str(result_quant.storage)
    if op in CONVERSIONS:
        is_per_channel = any(
            q.granularity is not None
            for q in (*quants.values(), *([result_quant] if result_quant else []))
        )
    else:
        weight = quants.get(op_spec.traits.weight or "")
        is_per_channel = weight is not None and weight.granularity is not None
    bounds = bounds_kind(result_quant) if result_quant else "full"
    forms = LazyForms(op, operand_types, attrs, result_quant)
    return Query(op, storage, "channel" if is_per_channel else "tensor", attrs, isa, bounds, forms)


def quantize_query(kind: QuantType) -> Query:
    """Returns the query of a profile for quantizing to a type."""
    return choose_query(
        str(kind.storage), "channel" if kind.granularity else "tensor", bounds_kind(kind)
    )


@cache  # there are few
def choose_query(storage: str, grain: str = "tensor", bounds: str = "full") -> Query:
    """Returns the query of a profile for scales and zero points of ranges."""
    attrs = spec("quantize").complete_attrs({})
    return Query("quantize", {"result": storage}, grain, attrs, bounds=bounds)


def dequantize_query(kind: QuantType) -> Query:
    """Returns the query of a profile for dequantizing a type."""
    grain = "channel" if kind.granularity else "tensor"
    return Query(
        "dequantize", {"x": str(kind.storage)}, grain, spec("dequantize").complete_attrs({})
    )


def bounds_kind(kind: QuantType) -> str:
    """`narrow` where a type does not use all integers of its storage, else `full`."""
    return "narrow" if kind.bounds else "full"


@record
class When:
    """Conditions of a rule or group; each that is named must hold."""

    storage: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Slot -> storage types, or `real`; the slot `data` is the op's data wherever it comes in."""
    grain: tuple[str, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    isa: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()
    """Of the result's integers: `full`, or `narrow`."""
    form: tuple[str, ...] = ()
    """Of a convolution or product: all of these names; a layer may have several."""

    @property
    def count(self) -> int:
        """How many conditions there are, each form for two: the more, the more specific."""
        sets = (self.grain, self.isa, self.bounds)
        return len(self.storage) + len(self.attrs) + sum(map(bool, sets)) + 2 * len(self.form)

    @property
    def asks_of_op(self) -> bool:
        """Whether some condition looks at more than the key of a query."""
        return bool(self.attrs or self.form)

    def holds(self, query: Query) -> bool:
        """Returns whether a query meets them all."""
        return (
            all(self._stored(query, slot) in kinds for slot, kinds in self.storage.items())
            and (not self.grain or query.grain in self.grain)
            and (not self.isa or query.isa in self.isa)
            and (not self.bounds or query.bounds in self.bounds)
            and all(name in query.forms for name in self.form)
            and all(n in query.attrs and same(query.attrs[n], v) for n, v in self.attrs.items())
        )

    def _stored(self, query: Query, slot: str) -> str:
        return (
            query.data or FLOAT_STORAGE
            if slot == "data"
            else query.storage.get(slot, FLOAT_STORAGE)
        )

    def meets(self, other: When) -> bool:
        """Returns whether some query could meet both."""
        slots = self.storage.keys() & other.storage.keys()
        return (
            all(set(self.storage[s]) & set(other.storage[s]) for s in slots)
            and _overlap(self.grain, other.grain)
            and _overlap(self.isa, other.isa)
            and _overlap(self.bounds, other.bounds)
            and all(same(v, other.attrs[n]) for n, v in self.attrs.items() if n in other.attrs)
        )


def _overlap(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    return not a or not b or bool(set(a) & set(b))


@record
class RuleEntry:
    """One `[[rule]]` of a file: for which ops, when, and the fields that differ."""

    ops: tuple[str, ...]
    when: When
    fields: Fields
    line: int = field(default=0, compare=False)

    @property
    def weight(self) -> int:
        """How specific it is."""
        return ("*" not in self.ops) + self.when.count

    def concerns(self, op: str) -> bool:
        """Returns whether some query of an op could meet it."""
        return "*" in self.ops or op in self.ops

    def clashes(self, other: RuleEntry) -> bool:
        """Returns whether neither is more specific, and some query would meet both."""
        ops = "*" in self.ops or "*" in other.ops or bool(set(self.ops) & set(other.ops))
        return ops and self.weight == other.weight and self.when.meets(other.when)


@record
class GroupEntry:
    """A chain of ops that the runtime computes as one quantized kernel."""

    chain: tuple[str, ...]
    when: When = field(default_factory=When)
    needs: tuple[str, ...] = ()
    """Conditions on what surrounds the chain, by name: see `qir.profiles.conditions`."""
    result: str = "codes"
    propagates: bool = False
    """Whether the runtime also moves quantize and dequantize over it to make it a group."""
    claim: str = "unknown"
    evidence: str = ""
    line: int = field(default=0, compare=False)

    @property
    def key(self) -> tuple[tuple[str, ...], str, str]:
        """What makes it one row of a profile: its chain, result and conditions."""
        return self.chain, self.result, repr(self.when)


@record
class ProfileHead:
    """Of what a profile speaks, and what shows it."""

    name: str
    extends: str = ""
    backend: str = ""
    versions: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    isa: str = "any"
    groups: str = "inherited"
    """`own`: the groups of what it extends are not its."""
    prepare: tuple[str, ...] | None = None
    """The preparation steps that its runtime takes before it groups, in order; None: those of what
    it extends."""
    evidence: str = ""
    notes: tuple[str, ...] = ()


class RuleSource(Protocol):
    """What answers queries by rules: a profile, or the name of one."""

    @property
    def name(self) -> str:
        """The name of the profile."""

    def resolve(self, query: Query) -> Rule:
        """Returns the rule for a query."""


@dataclass(slots=True)
class _LookupCache:
    """Lookups of a profile, cached because a profile is immutable."""

    rules: dict[str, tuple[RuleEntry, ...]] = field(default_factory=dict)
    """Those that may speak of an op."""
    answers: dict[tuple[object, ...], Rule] = field(default_factory=dict)
    """Rules by what decides them, of ops whose rules look at neither attributes nor forms."""
    groups: tuple[GroupEntry, ...] | None = None
    chains: dict[tuple[tuple[str, ...], str], tuple[GroupEntry, ...]] = field(default_factory=dict)
    """Groups by their chain and result."""
    kernels: dict[tuple[object, ...], GroupEntry | None] = field(default_factory=dict)
    """Groups by what decides them, where `answers` would have the rule of their first op."""
    layers: tuple[Profile, ...] = ()
    isa: str = ""


@record
class Profile:
    """How one runtime computes: its rules, and those of the profiles that it extends."""

    head: ProfileHead
    defaults: Fields
    rules: tuple[RuleEntry, ...]
    own_groups: tuple[GroupEntry, ...]
    base: Profile | None
    text: str = field(compare=False, repr=False)
    _found: _LookupCache = field(
        default_factory=_LookupCache, init=False, compare=False, repr=False
    )

    @property
    def name(self) -> str:
        """The name by which graphs refer to it."""
        return self.head.name

    @property
    def layers(self) -> tuple[Profile, ...]:
        """The profiles from the lowest to this one."""
        if not self._found.layers:
            self._found.layers = (*(self.base.layers if self.base else ()), self)
        return self._found.layers

    @property
    def isa(self) -> str:
        """The instruction set it speaks of: its own, else that of what it extends."""
        if not self._found.isa:
            stated = (p.head.isa for p in reversed(self.layers))
            self._found.isa = next((isa for isa in stated if isa != "any"), "any")
        return self._found.isa

    @property
    def prepare(self) -> tuple[str, ...]:
        """The preparation steps, in order: its own, else those of what it extends."""
        stated = (p.head.prepare for p in reversed(self.layers))
        return next((steps for steps in stated if steps is not None), DEFAULT_STEPS)

    def on(self, isa: str) -> Profile:
        """Returns the profile on another instruction set: `any`, `avx2`, `avx512`, `vnni` or
        `amx`."""
        return replace(self, head=replace(self.head, isa=isa))

    @property
    def groups(self) -> tuple[GroupEntry, ...]:
        """All groups, those of the profiles that it extends included unless replaced."""
        if self._found.groups is None:
            self._found.groups = self._all_groups()
        return self._found.groups

    def _all_groups(self) -> tuple[GroupEntry, ...]:
        by_key: dict[tuple[tuple[str, ...], str, str], GroupEntry] = {}
        for layer in self.layers:
            # The runtime of this profile groups by rules of its own: those below do not hold.
            if layer.head.groups == "own":
                by_key.clear()
            by_key.update({g.key: g for g in layer.own_groups})
        return tuple(by_key.values())

    @property
    def digest(self) -> str:
        """A hash of what it says and of what it extends."""
        import hashlib  # with it comes OpenSSL

        state = hashlib.sha256()
        for layer in self.layers:
            state.update(layer.text.encode())
            state.update(b"\0")
        return state.hexdigest()

    def resolve(self, query: Query) -> Rule:
        """Returns the rule that answers a query, by default on the profile's instruction set.

        Defaults from the lowest profile up, then from the lowest up the most specific rule of each
        that applies. What changes numbers without a claim of its own claims nothing.
        """
        # The same is asked for every node and tensor of a model.
        key = query.key
        if (answer := self._found.answers.get(key)) is None:
            answer = self._resolve(query)
            concerning = (rule for layer in self.layers for rule in layer.concerning(query.op))
            if not any(rule.when.asks_of_op for rule in concerning):
                _keep(self._found.answers, key, answer)
        return answer

    def _resolve(self, query: Query) -> Rule:
        query, layers = self.asked(query), self.layers
        chosen = tuple(layer.entry(query) for layer in layers)
        # Ids are a valid key: the cached entry keeps its profiles and rules alive.
        key = (*map(id, layers), *map(id, chosen))
        if (cached := _RULES.get(key)) is None:
            if len(_RULES) >= _MAX_RULES:
                _RULES.clear()
            cached = _RULES[key] = (layers, chosen, _merge_layers(self.name, layers, chosen))
        return cached[2]

    def asked(self, query: Query) -> Query:
        """Returns the query on the profile's instruction set, if it names none itself."""
        return query if query.isa != "any" or self.isa == "any" else replace(query, isa=self.isa)

    def concerning(self, op: str) -> tuple[RuleEntry, ...]:
        """Returns this profile's own rules that may speak of an op."""
        concerning = self._found.rules.get(op)
        if concerning is None:
            concerning = self._found.rules[op] = tuple(e for e in self.rules if e.concerns(op))
        return concerning

    def entry(self, query: Query) -> RuleEntry | None:
        """Returns the most specific of this profile's own rules that applies."""
        applying = [e for e in self.concerning(query.op) if e.when.holds(query)]
        return max(applying, key=lambda e: e.weight, default=None)

    def group(
        self, chain: tuple[str, ...], query: Query, *, result: str = "codes"
    ) -> GroupEntry | None:
        """Returns the group for ops in a row with such a result, the most specific that applies.

        It claims no more than the rule of its first op does of that query; of a float result
        nothing is claimed where that rule bounds the error in steps of quantized values.
        """
        query = self.asked(query)
        key = (chain, result, *query.key)
        if key in self._found.kernels:
            return self._found.kernels[key]
        group = self._group(chain, query, result)
        asks_of_op = any(g.when.asks_of_op for g in self._groups_of(chain, result))
        if not asks_of_op and query.key in self._found.answers:
            _keep(self._found.kernels, key, group)
        return group

    def _group(self, chain: tuple[str, ...], query: Query, result: str) -> GroupEntry | None:
        applying = (g for g in self._groups_of(chain, result) if g.when.holds(query))
        group = max(applying, key=lambda g: g.when.count, default=None)
        if group is None:
            return None
        rule_claim = self.resolve(query).claim
        # An error in steps of quantized values says nothing about a float result.
        if result == FLOAT_STORAGE and rule_claim.startswith("within:"):
            rule_claim = "unknown"
        claim = weaker_claim(group.claim, rule_claim)
        return group if claim == group.claim else replace(group, claim=claim)

    def _groups_of(self, chain: tuple[str, ...], result: str) -> tuple[GroupEntry, ...]:
        if (known := self._found.chains.get((chain, result))) is None:
            known = tuple(g for g in self.groups if (g.chain, g.result) == (chain, result))
            self._found.chains[chain, result] = known
        return known


def resolve(profile: Profile, node: Node, isa: str = "any") -> Rule:
    """Returns what decides the numbers of a node under a profile, on an instruction set."""
    return profile.resolve(query_for_node(node, isa=isa))


_MAX_RULES = 4096


def _keep(answers: dict[tuple[object, ...], _T], key: tuple[object, ...], answer: _T) -> None:
    """Caches an answer; clearing all is rare, and cheaper than tracking the order of use."""
    if len(answers) >= _MAX_RULES:
        answers.clear()
    answers[key] = answer


_RULES: dict[tuple[int, ...], tuple[tuple[Profile, ...], tuple[RuleEntry | None, ...], Rule]] = {}
"""Records by the profiles and rules that they are made of, which are kept so that none is another;
few are ever asked for."""


def _merge_layers(
    name: str, layers: tuple[Profile, ...], chosen: tuple[RuleEntry | None, ...]
) -> Rule:
    merged: dict[tuple[str, str], Field] = {}
    for layer in layers:
        merged.update(layer.defaults)
    for entry in chosen:
        if entry:
            if ("", "claim") not in entry.fields:
                # A rule that changes numbers does not inherit the claim of the rule that it
                # changes.
                merged.update({("", "claim"): "unknown", ("", "evidence"): ""})
            merged.update(entry.fields)
    return _make_rule(name, merged)


def _make_rule(profile: str, merged: Fields) -> Rule:
    blocks: dict[str, dict[str, Field]] = {}
    for (block, name), value in merged.items():
        blocks.setdefault(block, {})[name] = value
    base_rule = Rule(profile, **blocks.pop("", {}))  # type: ignore[arg-type]
    changed_blocks = {b: replace(getattr(base_rule, b), **values) for b, values in blocks.items()}
    return replace(base_rule, **changed_blocks)


def example_query(op: str, when: When) -> Query:
    """Returns a query of an op that meets conditions."""
    storage = {s: k for s, kinds in when.storage.items() for k in kinds[:1] if k != FLOAT_STORAGE}
    if data := storage.pop("data", ""):
        storage = dict.fromkeys(DATA_SLOTS, data) | storage
    granularity, isa = next(iter(when.grain), "tensor"), next(iter(when.isa), "any")
    bounds = next(iter(when.bounds), "full")
    return Query(op, storage, granularity, when.attrs, isa, bounds, when.form)


def clashes(rules: tuple[RuleEntry, ...]) -> Iterator[tuple[RuleEntry, RuleEntry]]:
    """Pairs of rules of which neither is more specific."""
    return ((a, b) for a, b in itertools.combinations(rules, 2) if a.clashes(b))


def differences(a: Rule, b: Rule) -> dict[str, tuple[object, object]]:
    """Returns the fields in which two rules differ, as `block.field`, evidence and claims aside."""
    return dict(_differences(a, b))


@lru_cache(1024)  # two profiles have few rules, and many nodes
def _differences(a: Rule, b: Rule) -> dict[str, tuple[object, object]]:
    out: dict[str, tuple[object, object]] = {}
    for block in BLOCKS:
        first, other = getattr(a, block), getattr(b, block)
        for item in fields(BLOCKS[block]) if first != other else ():
            pair = (getattr(first, item.name), getattr(other, item.name))
            if pair[0] != pair[1]:
                out[f"{block}.{item.name}"] = pair
    if a.method != b.method:
        out["method"] = (a.method, b.method)
    return out
