"""Matches each kind of term: binds it and adds goals, or fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

from qir.ir.node import Node, Value
from qir.rewrite.patterns.match_attempt import Attempt, node_words, thing_name
from qir.rewrite.patterns.match_goals import (
    FAILED,
    AssignOperands,
    BindResult,
    GoalList,
    Goals,
    LastRound,
    NextRound,
    Reached,
    Result,
    StageGoals,
)
from qir.rewrite.patterns.terms import (
    FLOW,
    Chain,
    Either,
    Maybe,
    Number,
    Op,
    Out,
    Repeat,
    Rest,
    Term,
    Var,
)


def _meet_op(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Op)
    if value.index:
        return attempt.no(
            value.node, "%{} is its result {}, not the first", value.name, value.index
        )
    return attempt.met(term, value.node, rest)


def _meet_out(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Out)
    if value.index != term.index:
        return attempt.no(
            value.node, "%{} is its result {}, not {}", value.name, value.index, term.index
        )
    return attempt.met(term.op, value.node, rest)


def _meet_var(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Var)
    bound = attempt.bound.get(term.name)
    if bound is not None and bound is not value:
        assert isinstance(bound, Value)
        # Equal constants are one thing to a pattern: models hold the same number more than once.
        if bound.constant is None or bound.constant != value.constant:
            name = term.name.partition("@")[0]
            return attempt.no(
                value.node, "%{} is not %{}, which {} is", value.name, bound.name, name
            )
    for test in term.tests:
        if not test.holds(value):
            name = term.name.partition("@")[0]
            return attempt.no(value.node, "{}: %{}, not so: {}", name, value.name, test.text)
    if bound is None:
        attempt.bind(term.name, value)
    return rest


def _meet_number(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Number)
    prefix = "near " if term.tolerance is not None else ""
    # A pattern's number is a constant of any shape, all of whose elements are equal.
    if value.constant is None:
        return attempt.no(value.node, "is no constant; the pattern has {}{}", prefix, term.value)
    if value.type.quant is not None or not _all_equal(value.constant.data, term):
        return attempt.no(value.node, "is not {}{}", prefix, term.value)
    return rest


def _all_equal(data: NDArray[np.generic], term: Number) -> bool:
    """Returns whether all elements are the number."""
    if data.dtype.kind == "O" or data.size == 0:
        return False
    first = data.reshape(-1)[0]
    value, number = float(first), float(term.value)
    if term.tolerance is not None:
        fits = abs(value - number) <= term.tolerance * abs(number)
    elif data.dtype.kind in "iub":
        fits = value == number
    else:
        with np.errstate(over="ignore"):
            # The pattern's number is rounded to the tensor's type first: 0.1 is another number in
            # float32.
            fits = value == float(data.dtype.type(number))
    return fits and (data.size == 1 or bool(np.all(data == first)))


def _meet_either(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Either)
    terms = term.terms
    return attempt.choose(term, value, rest, lambda rest: (GoalList(t, value, rest) for t in terms))


def _meet_repeat(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Repeat)
    bound = attempt.bound.get(term)
    if bound is not None:
        return attempt.no(value.node, "a repetition stands in one place alone")
    return _meet_round(attempt, NextRound(term, 0), value, rest)


def _meet_round(attempt: Attempt, term: NextRound, value: Value, rest: Goals) -> Goals:
    repeat, index = term.repeat, term.index

    def ways(rest: Goals) -> Iterator[Goals]:
        # One more round is tried before the end, so that a repetition takes as many as there are.
        if index < repeat.most:
            body = attempt.plan.round(repeat, index).body
            yield GoalList(body, value, GoalList(NextRound(repeat, index + 1), value, rest))
        if index >= repeat.least:
            yield GoalList(LastRound(repeat, index), value, rest)

    return attempt.choose(term, value, rest, ways)


def _meet_again(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, NextRound)
    flow = attempt.bound.get(attempt.plan.round(term.repeat, term.index - 1).flow)
    # A round that ends where it began could be met for ever.
    if not isinstance(flow, Value) or flow is value:
        return attempt.no(value.node, "a round that leads nowhere")
    return _meet_round(attempt, term, flow, rest)


def _meet_stop(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, LastRound)
    attempt.bind(term.repeat, term.index)
    return GoalList(term.repeat.start, value, rest)


def _meet_assignment(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    """Gives the operands of a commutative op to the terms, in every way that differs."""
    assert isinstance(term, AssignOperands)
    items, values = term.items, term.values
    # One term at a time: the others are assigned from what it leaves over.
    first = next((i for i, item in enumerate(items) if isinstance(item, Term)), None)
    if first is None:
        for item in items:
            if isinstance(item, Rest) and item.name:
                attempt.bind(item.name, values)
        return rest
    next_term = items[first]
    others = (*items[:first], *items[first + 1 :])
    assert isinstance(next_term, Term)

    def ways(rest: Goals) -> Iterator[Goals]:
        for i, one in enumerate(values):
            # A value that is an operand twice is given to a term once.
            if one in values[:i]:
                continue
            left = (*values[:i], *values[i + 1 :])
            yield GoalList(
                next_term,
                one,
                GoalList(AssignOperands(others, left), one, rest) if others else rest,
            )

    return attempt.choose(term, value, rest, ways)


def _meet_chain(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Chain)
    node = value.node
    bound = attempt.bound.get(term)
    if bound is not None:
        return rest if bound is node else attempt.no(node, "stands where {} did", thing_name(bound))
    if not node.stages:
        return attempt.no(node, "is {}, not a group of stages", node_words(node))
    for test in term.tests:
        if not test.holds(node):
            return attempt.no(node, "not so: {}", test.text)
    attempt.bind(term, node)
    return GoalList(StageGoals(term, 0, 0), value, rest)


def _meet_stages(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, StageGoals)
    node, stages = value.node, term.chain.stages
    if term.place == len(stages):
        remaining = len(node.stages) - term.at
        return rest if remaining == 0 else attempt.no(node, "has {} stages more", remaining)
    stage = stages[term.place]
    if isinstance(stage, EllipsisType):
        # The longest gap is tried first, as the most rounds of a repetition are.
        skipped_to = range(len(node.stages), term.at - 1, -1)
        chain, place = term.chain, term.place + 1
        return attempt.choose(
            term,
            value,
            rest,
            lambda rest: (
                GoalList(StageGoals(chain, place, end), value, rest) for end in skipped_to
            ),
        )
    if term.at == len(node.stages):
        return attempt.no(node, "has no stage {}", " or ".join(stage.ops))
    after = GoalList(StageGoals(term.chain, term.place + 1, term.at + 1), value, rest)
    return _meet_stage(attempt, stage, node, term.at, after)


def _meet_stage(attempt: Attempt, term: Op, node: Node, at: int, rest: Goals) -> Goals:
    stage = node.stages[at]
    if stage.op not in term.ops:
        return attempt.no(node, "stage {} is {}, not {}", at, stage.op, " or ".join(term.ops))
    if not attempt._attrs(term, node, stage.attrs):
        return FAILED
    operands = node.stage_operands(at)
    for slot in operands:
        if slot not in term.operands and not term.others:
            return attempt.no(node, "stage {} has {}, of which the pattern says nothing", at, slot)
    for slot in reversed(term.operands):
        expected = term.operands[slot]
        operand = operands.get(slot)
        if expected is FLOW:
            # The first stage has no flow, so it is not compared.
            if at and slot != stage.flow:
                return attempt.no(node, "stage {} does not take the flow in {}", at, slot)
        elif isinstance(expected, Maybe):
            rest = rest if operand is None else GoalList(expected.term, operand, rest)
        elif isinstance(expected, Term):
            if operand is None:
                return attempt.no(node, "stage {}: {} is empty", at, slot)
            rest = GoalList(expected, operand, rest)
        elif operand is not None:
            return attempt.no(node, "stage {}: {} is not empty", at, slot)
    return rest


def _meet_result(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    """Looks for another result among the users of what is bound."""
    assert isinstance(term, Result)
    way = attempt.plan.ways[term.place - 1]
    last = way[-1]
    bound = attempt.bound.get(last.name if isinstance(last, Var) else last)
    if isinstance(bound, Node):
        level = list(bound.results)
    elif isinstance(bound, Value):
        level = [bound]
    else:
        return attempt.no(value.node, "nothing leads to result {}", term.place)
    # The way was found from the result down; it is followed from the bound end up.
    level = climb(level, way[:-1])
    result_term = attempt.plan.results[term.place]
    key = f"result {term.place}"

    def ways(rest: Goals) -> Iterator[Goals]:
        for one in level:
            yield GoalList(BindResult(key), one, GoalList(result_term, one, rest))

    if not level:
        return attempt.no(value.node, "nobody uses it as result {} does", term.place)
    return attempt.choose(term, value, rest, ways)


def _meet_bind_result(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, BindResult)
    attempt.bind(term.key, value)
    return rest


# Without a bound, an attempt at a value that the whole graph reads would take as long as the graph.
_MAX_USERS = 256


def climb(values: Sequence[Value], way: Sequence[Term]) -> list[Value]:
    """Returns what the ops of a way, nearest last, may make of values; at most a few hundred."""
    level = list(values)
    for term in reversed(way):
        op_term = term.op if isinstance(term, Out) else term
        if isinstance(term, Out) and level and all(v.node.op in term.op.ops for v in level):
            level = [v for v in level if v.index == term.index]
            continue
        ops = op_term.ops if isinstance(op_term, Op) else ()
        users = dict.fromkeys(
            use.node for v in level for use in islice(v._uses, _MAX_USERS) if use.node.op in ops
        )
        level = [v for node in islice(users, _MAX_USERS) for v in node.results]
    return level


def _meet_reached(attempt: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Reached)
    term.choice.reached = True
    return rest


STEPS: dict[type[Term], Callable[[Attempt, Term, Value, Goals], Goals]] = {
    Op: _meet_op,
    Out: _meet_out,
    Var: _meet_var,
    Number: _meet_number,
    Either: _meet_either,
    Repeat: _meet_repeat,
    Chain: _meet_chain,
    NextRound: _meet_again,
    LastRound: _meet_stop,
    AssignOperands: _meet_assignment,
    StageGoals: _meet_stages,
    Result: _meet_result,
    BindResult: _meet_bind_result,
    Reached: _meet_reached,
}
