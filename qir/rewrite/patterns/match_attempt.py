"""The state of one attempt to match a pattern: bindings, open choices, and the first failure.

Terms are met one after another, from a result down; what can be met in several ways is tried in
the order in which the pattern has it. What failed once is not tried again in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from qir.ir import attrs as attributes
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.rewrite.patterns.match import Bound, Match
from qir.rewrite.patterns.match_goals import (
    FAILED,
    AssignOperands,
    Choice,
    GoalList,
    Goals,
    Reached,
)
from qir.rewrite.patterns.pattern import Pattern
from qir.rewrite.patterns.terms import (
    Every,
    Key,
    Many,
    Maybe,
    Op,
    Operand,
    Rest,
    Term,
    TermCondition,
)

_MIN_STEPS_TO_REMEMBER = 64
"""Steps before it pays to remember what failed."""
_QUANTIZATION_OPS = frozenset(
    "quantize dequantize requantize recode choose_qparams qparams fake_quantize".split()
)


@dataclass(frozen=True)
class _Sides(Term):
    """The two operands of a commutative op."""

    op: Op


class Attempt:
    """Matches one pattern at one value; calls `failure`, if given, with each failure."""

    def __init__(
        self, pattern: Pattern, root: Value, failure: Callable[[int, Node, str], None] | None = None
    ) -> None:
        self.pattern = pattern
        self.root = root
        self.plan = pattern.plan
        self.shared = self.plan.shared
        self.bound: dict[Key, Bound] = {}
        self.trail: list[Key] = []
        self.choices: list[Choice] = []
        self.failed: set[tuple[object, ...]] = set()
        self.tags: dict[tuple[Term, Value, int], int] = {}
        self.failure = failure
        self.steps = 0

    def no(self, node: Node, text: str, *parts: object) -> GoalList:
        """Records why a term does not match, where failures are collected; returns FAILED."""
        if self.failure is not None:
            self.failure(len(self.trail), node, text.format(*parts) if parts else text)
        return FAILED

    def bind(self, key: Key, thing: Bound) -> None:
        """Binds a term or a name; backtracking unbinds it."""
        self.bound[key] = thing
        self.trail.append(key)

    def choose(
        self, term: Term, value: Value, rest: Goals, ways: Callable[[Goals], Iterator[Goals]]
    ) -> Goals:
        """Returns the first way to match a term; keeps the others for backtracking."""
        state = GoalList(term, value, rest)
        # The same goals failed before with the same bindings, so they would fail again.
        if self.failed and not self.failed.isdisjoint(self._keys(state)):
            return FAILED
        choice = Choice(len(self.trail), state)
        choice.ways = ways(GoalList(Reached(choice), value, rest))
        self.choices.append(choice)
        return self.back()

    def _keys(self, state: GoalList) -> tuple[tuple[object, ...], tuple[object, ...]]:
        """Returns two keys of what a failure depends on: of the choice alone, and with the goals
        after it."""
        bound: tuple[object, ...]
        if self.plan.open or self.plan.ways:
            # Such a pattern is checked as a whole at the end, so a failure may depend on all
            # bindings.
            bound = tuple((key, self.bound[key]) for key in self.trail)
        else:
            # Other bindings cannot matter: only what stands in two places of the pattern is
            # compared.
            bound = tuple(self.bound.get(key) for key in self.shared)
        return (state.term, state.value, bound), (self._tag(state), bound)

    def _tag(self, state: GoalList) -> int:
        """Returns a number that equal cells with equal rests share."""
        untagged: list[GoalList] = []
        goals: Goals = state
        while goals is not None and not goals.tag:
            untagged.append(goals)
            goals = goals.rest
        tag = goals.tag if goals is not None else 0
        # From the end of the list up, so that equal lists of goals get equal numbers.
        for cell in reversed(untagged):
            if not isinstance(cell.term, Reached):
                tag = self.tags.setdefault((cell.term, cell.value, tag), len(self.tags) + 1)
            cell.tag = tag
        return state.tag

    def back(self) -> Goals:
        """Backtracks: returns the next way of the last choice that has one."""
        while self.choices:
            choice = self.choices[-1]
            # Backtracking: everything bound since the choice is unbound.
            while len(self.trail) > choice.mark:
                del self.bound[self.trail.pop()]
            # `choice.ways` is an iterator, so this loop takes only the next way.
            for way in choice.ways:
                return way
            self.choices.pop()
            if self.steps > _MIN_STEPS_TO_REMEMBER and not choice.tainted:
                # Where a way led on to the rest, the failure may be in the rest, and holds for the
                # same rest alone.
                own_key, full_key = self._keys(choice.state)
                self.failed.add(full_key if choice.reached else own_key)
        return FAILED

    # -- the whole ----------------------------------------------------------------------------

    def finish(self) -> Match | None:
        """Returns the match; None where its nodes have other readers or a test fails."""
        results = self._results()
        matched = {n: None for n in self.bound.values() if isinstance(n, Node)}
        nodes = tuple(sorted(matched, key=lambda n: n._rank))
        for node in nodes:
            for value in node.results:
                # Results may have any readers: the replacement gives these the new value.
                if value in results:
                    continue
                for use in value._uses:
                    if use.node not in matched:
                        self.no(node, "%{} is also used by {}", value.name, use.node.name)
                        return None
            # The nodes that replace a match compute by one profile.
            if node.profile != nodes[-1].profile:
                self.no(node, "follows another profile than {}", nodes[-1].name)
                return None
            # A scheme is planned for a slot of this very node, which its replacement may not have.
            if node._schemes:
                self.no(node, "its {} is planned", next(iter(node._schemes)))
                return None
        if len(results) > 1 and not self._convex(matched, results):
            return None
        match = Match(self.plan, dict(self.bound), results, nodes)
        for test in self.pattern.tests:
            if not test.holds(match):
                self.no(match.root, "not so: {}", test.text)
                return None
        return match

    def _results(self) -> tuple[Value, ...]:
        return (
            self.root,
            *(self.bound_result(p) for p in range(1, len(self.pattern.results))),
        )

    def bound_result(self, place: int) -> Value:
        """Returns a result that was found."""
        found = self.bound[f"result {place}"]
        assert isinstance(found, Value)
        return found

    def _convex(self, matched: Mapping[Node, None], results: tuple[Value, ...]) -> bool:
        """Returns whether no operand of the matched nodes is made from one of their results."""
        # A replacement takes the place of all nodes at once. It could not be ordered if an operand
        # were made from one of its results. Nodes before the first result need no look.
        first_rank = min(value.node._rank for value in results)
        pending = [v.node for n in matched for v in n._operands.values() if v.node not in matched]
        visited = set(pending)
        while pending:
            node = pending.pop()
            for value in node._operands.values():
                if value.node in matched:
                    self.no(node, "stands between the pattern's own nodes")
                    return False
                if value.node._rank > first_rank and value.node not in visited:
                    visited.add(value.node)
                    pending.append(value.node)
        return True

    # -- one op -------------------------------------------------------------------------------

    def met(self, term: Op, node: Node, rest: Goals) -> Goals:
        """Matches a node with an op of the pattern; continues with its operands."""
        bound = self.bound.get(term)
        if bound is not None:
            return (
                rest if bound is node else self.no(node, "stands where {} did", thing_name(bound))
            )
        if node.op not in term.ops:
            return self.no(node, "is {}, not {}", node_words(node), " or ".join(term.ops))
        # A float pattern that matched quantized values would replace integer arithmetic by mistake.
        if not self.pattern.codes and node.op not in _QUANTIZATION_OPS:
            if any(value.type.quant is not None for value in node.results):
                return self.no(node, "is quantized, and the pattern is of floats")
        if not self._attrs(term, node, node._attrs):
            return FAILED
        for test in term.tests:
            if not test.holds(node):
                return self.no(node, "not so: {}", test.text)
        self.bind(term, node)
        return self._operands(term, node, rest)

    def _attrs(self, term: Op, node: Node, attrs: Mapping[str, attributes.Attr]) -> bool:
        for name, expected in term.attrs.items():
            found = attrs.get(name)
            if isinstance(expected, TermCondition):
                if not expected.holds(found):
                    self.no(node, "{} = {!r}: not so: {}", name, found, expected.text)
                    return False
            elif not attributes.same(found, expected):
                self.no(node, "{} is {!r}, not {!r}", name, found, expected)
                return False
        return True

    def _operands(self, term: Op, node: Node, rest: Goals) -> Goals:
        slots = node._operands
        if not term.others and (stray := _stray(term, slots)):
            return self.no(node, "has {}, of which the pattern says nothing", stray)
        wanted = term.operands
        a, b = wanted.get("a"), wanted.get("b")
        if term.swaps and isinstance(a, Term) and isinstance(b, Term):
            x, y = slots.get("a"), slots.get("b")
            # Equal operands or equal terms make both orders the same, so one is tried.
            if x is not y and x and y and spec(node.op).traits.commutative and a is not b:
                pairs = ((x, y), (y, x))

                def ways(rest: Goals) -> Iterator[Goals]:
                    return (GoalList(a, p, GoalList(b, q, rest)) for p, q in pairs)

                return self.choose(_Sides(term), node.results[0], rest, ways)
        # Goals are prepended, so that the last slot is pushed first and the first is matched first.
        for slot in reversed(wanted):
            rest = self.operand(node, slot, wanted[slot], rest)
            if rest is FAILED:
                return rest
        return rest

    def operand(self, node: Node, slot: str, wanted: Operand, rest: Goals) -> Goals:
        """Returns the goals of one slot."""
        if isinstance(wanted, Many | Every):
            return self._list(node, slot, wanted, rest)
        value = node._operands.get(slot)
        if isinstance(wanted, Maybe):
            return rest if value is None else GoalList(wanted.term, value, rest)
        if wanted is None:
            return rest if value is None else self.no(node, "{} is not empty", slot)
        return (
            self.no(node, "{} is empty", slot) if value is None else GoalList(wanted, value, rest)
        )

    def _list(self, node: Node, slot: str, wanted: Many | Every, rest: Goals) -> Goals:
        values = node.variadic(slot)
        if isinstance(wanted, Every):
            if len(values) < wanted.least:
                return self.no(node, "has {} operands, not {}", len(values), wanted.least)
            self.bind(wanted, len(values))
            for i in range(len(values) - 1, -1, -1):
                rest = GoalList(self.plan.round(wanted, i).body, values[i], rest)
            return rest
        items = wanted.items
        tail = next((i for i, item in enumerate(items) if isinstance(item, Rest)), None)
        if len(values) < len(items) - (tail is not None) or (
            tail is None and len(values) > len(items)
        ):
            more = " or more" if tail is not None else ""
            counted = len(items) - (tail is not None)
            return self.no(node, "has {} operands, not {}{}", len(values), counted, more)
        if spec(node.op).traits.commutative and len(items) > 1 and values:
            return GoalList(AssignOperands(items, tuple(values)), values[0], rest)
        if tail is not None:
            end = len(values) - (len(items) - tail - 1)
            loose, item = tuple(values[tail:end]), items[tail]
            if isinstance(item, Rest) and item.name:
                self.bind(item.name, loose)
            values = [*values[:tail], *values[end:]]
        terms = [item for item in items if isinstance(item, Term)]
        for term, value in zip(reversed(terms), reversed(values), strict=True):
            rest = GoalList(term, value, rest)
        return rest


def _stray(term: Op, slots: Mapping[str, Value]) -> str:
    """Returns a slot that holds something and is not named."""
    for slot in slots:
        if slot not in term.operands and slot.partition(".")[0] not in term.operands:
            return slot
        if slot not in term.operands and not slot.rpartition(".")[2].isdigit():
            return slot  # a companion of a slot that is named
    return ""


def node_words(node: Node) -> str:
    """Returns the op of a node, or the ops of its stages, as text."""
    return " |> ".join(stage.op for stage in node.stages) or node.op


def thing_name(thing: Bound) -> str:
    """Returns the name of what is bound."""
    return thing.name if isinstance(thing, Node | Value) else str(thing)
