"""Prepares a pattern for matching: names, shared terms, repetitions, and roots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import EllipsisType

from qir.errors import UsageError
from qir.rewrite.patterns.terms import (
    Chain,
    Either,
    Every,
    Key,
    Many,
    Maybe,
    Op,
    Operand,
    Out,
    Repeat,
    Rest,
    Term,
    Var,
    children,
    key_of,
    operands,
    terms_in,
)

# Patterns are walked by recursion, and Python raises RecursionError past 1,000 frames.
_MAX_DEPTH = 400


@dataclass(frozen=True, slots=True)
class Round:
    """The body of a repetition in one round, with terms of its own."""

    body: Term
    flow: str
    twins: Mapping[Key, Key]


@dataclass
class PatternPlan:
    """What matching needs to know of a pattern, computed once."""

    name: str
    results: tuple[Term, ...]
    names: dict[str, Key] = field(default_factory=dict)
    counts: dict[Key, int] = field(default_factory=dict)
    edges: int = 0
    """Operands that the pattern has: no inner value of a match has more uses."""
    open: bool = False
    """Whether a match may have any number of operands."""
    endless: bool = False
    """Whether a match may have any number of nodes."""
    depth: int = 0
    """How many nodes below a result the furthest one of a match may be."""
    ways: list[tuple[Term, ...]] = field(default_factory=list)
    """For each result but the first: terms from it down to one that is bound before."""
    _private: dict[Repeat | Every, frozenset[Key]] = field(default_factory=dict)
    _rounds: dict[tuple[Repeat | Every, int], Round] = field(default_factory=dict)

    @cached_property
    def shared(self) -> tuple[Key, ...]:
        """What more than one place refers to."""
        return tuple(key for key, count in self.counts.items() if count > 1)

    def repeats(self, name: str) -> bool:
        """Returns whether a name is of the rounds of a repetition, and has something in each."""
        return any(self.names[name] in private for private in self._private.values())

    def round(self, term: Repeat | Every, index: int) -> Round:
        """Returns the body of a repetition with terms of its own."""
        # Rounds are made on demand: a repetition may have a thousand, and few are reached.
        cached = self._rounds.get((term, index))
        if cached is None:
            twins: dict[Key, Key] = {}
            body = term.body if isinstance(term, Repeat) else term.term
            copy = self._copy_for_round(body, index, self._private[term], twins)
            flow = str(twins[term.flow.name]) if isinstance(term, Repeat) else ""
            cached = self._rounds[term, index] = Round(copy, flow, twins)
        return cached

    def _copy_for_round(
        self, term: Term, index: int, private: frozenset[Key], twins: dict[Key, Key]
    ) -> Term:
        """Returns a term with other names, save for what stands outside too."""
        key = key_of(term)
        if key is not None and key not in private:
            return term
        if key is not None and not isinstance(term, Var) and key in twins:
            existing = twins[key]
            assert isinstance(existing, Term)
            return existing
        copy = term
        match term:
            case Var():
                twins[term.name] = f"{term.name}@{index}"
                return replace(term, name=f"{term.name}@{index}")
            case Op():
                slots = {
                    s: self._copy_operand_for_round(o, index, private, twins)
                    for s, o in term.operands.items()
                }
                copy = replace(term, operands=slots)
            case Out():
                inner = self._copy_for_round(term.op, index, private, twins)
                assert isinstance(inner, Op)
                return replace(term, op=inner)
            case Either():
                terms = tuple(self._copy_for_round(t, index, private, twins) for t in term.terms)
                return replace(term, terms=terms)
            case Chain():
                stages: list[Op | EllipsisType] = []
                for stage in term.stages:
                    if isinstance(stage, Op):
                        slots = {
                            s: self._copy_operand_for_round(o, index, private, twins)
                            for s, o in stage.operands.items()
                        }
                        stage = replace(stage, operands=slots)
                    stages.append(stage)
                copy = replace(term, stages=tuple(stages))
            case Repeat():
                body = self._copy_for_round(term.body, index, private, twins)
                flow = self._copy_for_round(term.flow, index, private, twins)
                start = self._copy_for_round(term.start, index, private, twins)
                assert isinstance(flow, Var)
                copy = replace(term, body=body, flow=flow, start=start)
                self._copy_private_names(term, copy, twins)
        if key is not None:
            twins[key] = copy
        return copy

    def _copy_operand_for_round(
        self, operand: Operand, index: int, private: frozenset[Key], twins: dict[Key, Key]
    ) -> Operand:
        match operand:
            case Maybe():
                return Maybe(self._copy_for_round(operand.term, index, private, twins))
            case Many():
                items: list[Term | Rest] = []
                for item in operand.items:
                    if isinstance(item, Rest):
                        name = f"{item.name}@{index}" if item.name else ""
                        twins[item.name] = name
                        items.append(Rest(name))
                    else:
                        items.append(self._copy_for_round(item, index, private, twins))
                return Many(tuple(items))
            case Every():
                copy = replace(
                    operand, term=self._copy_for_round(operand.term, index, private, twins)
                )
                self._copy_private_names(operand, copy, twins)
                twins[operand] = copy
                return copy
            case Term():
                return self._copy_for_round(operand, index, private, twins)
        return operand

    def _copy_private_names(
        self, old: Repeat | Every, new: Repeat | Every, twins: Mapping[Key, Key]
    ) -> None:
        """What was private to a repetition is private to its twin, under the twin's names."""
        own = frozenset(twins.get(key, key) for key in self._private[old])
        self._private[new] = own


def plan(name: str, results: tuple[Term, ...]) -> PatternPlan:
    """Returns the plan of a pattern.

    Raises UsageError where two terms have one name, or where a result shares no term with those
    before it.
    """
    prepared = PatternPlan(name, results)
    terms_seen: set[Term] = set()
    for result in results:
        prepared.depth = max(prepared.depth, _height(prepared, result, {}, 1))
        _count(prepared, result, terms_seen)
    unnamed_ops: dict[str, list[Op]] = {}
    for term in terms_seen:
        if isinstance(term, Op) and not term.name and len(term.ops) == 1:
            unnamed_ops.setdefault(term.ops[0], []).append(term)
    for op, terms in unnamed_ops.items():
        # An op that a pattern has once needs no name of its own: a match is asked for it by its op.
        if len(terms) == 1:
            prepared.names.setdefault(op, terms[0])
    _find_private(prepared)
    for place, result in enumerate(results[1:], 1):
        prepared.ways.append(_way(prepared, place, result))
    return prepared


def _height(prepared: PatternPlan, term: Term, known: dict[Term, int], depth: int) -> int:
    """Returns how many terms are one below the other."""
    if depth > _MAX_DEPTH:
        raise UsageError(f"pattern {prepared.name}: ops within ops, more than {_MAX_DEPTH} deep")
    if term not in known:
        heights = [_height(prepared, t, known, depth + 1) for t in children(term)]
        known[term] = 1 + max(heights, default=0)
    return known[term]


def _name(prepared: PatternPlan, name: str, key: Key) -> None:
    if not name:
        return
    if name in prepared.names and prepared.names[name] != key:
        raise UsageError(f"pattern {prepared.name}: two things are named {name}")
    prepared.names[name] = key


def _count(prepared: PatternPlan, term: Term, seen: set[Term]) -> None:
    key = key_of(term)
    if key is not None:
        prepared.counts[key] = prepared.counts.get(key, 0) + 1
    if isinstance(term, Var):
        _name(prepared, term.name, term.name)
    if term in seen:
        return
    seen.add(term)
    if isinstance(term, Op | Chain | Repeat):
        _name(prepared, term.name, term)
    # Counted operands bound the uses of inner values; such terms may have any number of them.
    prepared.open = (
        prepared.open or isinstance(term, Repeat | Chain) or (isinstance(term, Op) and term.others)
    )
    prepared.endless = prepared.endless or isinstance(term, Repeat)
    for operand in operands(term):
        prepared.edges += 1
        if isinstance(operand, Every):
            _name(prepared, operand.name, operand)
            prepared.open = True
        if isinstance(operand, Many):
            for item in operand.items:
                if isinstance(item, Rest):
                    _name(prepared, item.name, item.name)
                    prepared.open = True
                prepared.edges += 1
    for child in children(term):
        _count(prepared, child, seen)


def _keys(term: Term, stop: Term | Every | None, into: set[Key]) -> None:
    """Keys in a term, but for what is in the body of `stop`."""
    key = key_of(term)
    if key is not None:
        # A shared term is walked once; a name may stand in many places.
        if not isinstance(key, str) and key in into:
            return
        into.add(key)
    if isinstance(term, Repeat):
        into.add(term.flow.name)
        if term is not stop:
            _keys(term.body, stop, into)
        _keys(term.start, stop, into)
        return
    for operand in operands(term):
        if isinstance(operand, Every):
            into.add(operand)
            if operand is stop:
                continue
        if isinstance(operand, Many):
            into.update(i.name for i in operand.items if isinstance(i, Rest) and i.name)
        for child in terms_in(operand):
            _keys(child, stop, into)
    if not isinstance(term, Op | Chain):
        for child in children(term):
            _keys(child, stop, into)


def _find_private(prepared: PatternPlan) -> None:
    loops: set[Repeat | Every] = set()
    everything: set[Key] = set()
    for result in prepared.results:
        _keys(result, None, everything)
    loops.update(key for key in everything if isinstance(key, Repeat | Every))
    # What a body names and nothing outside it is new in each round.
    for loop in loops:
        outside: set[Key] = set()
        for result in prepared.results:
            _keys(result, loop, outside)
        inside: set[Key] = set()
        _keys(loop.body if isinstance(loop, Repeat) else loop.term, None, inside)
        if isinstance(loop, Repeat):
            outside.discard(loop.flow.name)
            inside.add(loop.flow.name)
        prepared._private[loop] = frozenset(inside - outside)


def _way(prepared: PatternPlan, place: int, result: Term) -> tuple[Term, ...]:
    """Returns the terms from a result down to one that an earlier result binds; raises UsageError
    where there is none."""
    before: set[Key] = set()
    for earlier in prepared.results[:place]:
        _keys(earlier, None, before)
    todo: list[tuple[Term, ...]] = [(result,)]
    # Breadth first, as `todo` grows while it is read: the shortest way has the fewest users to
    # climb.
    for way in todo:
        last = way[-1]
        if key_of(last) in before and not isinstance(last, Repeat):
            return way
        if isinstance(last, Op | Out):
            todo += [(*way, child) for child in children(last)]
    raise UsageError(
        f"pattern {prepared.name}: result {place} has nothing in common with those before"
    )
