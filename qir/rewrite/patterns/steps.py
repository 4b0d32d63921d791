"""Matches each kind of term: binds it and adds goals, or fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

from qir.ir.node import Node, Value
from qir.rewrite.patterns.attempt import Attempt, node_words, thing_name
from qir.rewrite.patterns.goals import (
    FAILED,
    Again,
    BindResult,
    Deal,
    GoalList,
    Goals,
    Reached,
    Result,
    StageGoals,
    Stop,
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


def _meet_op(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Op)
    if value.index:
        return run.no(value.node, "%{} is its result {}, not the first", value.name, value.index)
    return run.met(term, value.node, rest)


def _meet_out(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Out)
    if value.index != term.index:
        return run.no(
            value.node, "%{} is its result {}, not {}", value.name, value.index, term.index
        )
    return run.met(term.op, value.node, rest)


def _meet_var(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Var)
    known = run.bound.get(term.name)
    if known is not None and known is not value:
        assert isinstance(known, Value)
        if known.constant is None or known.constant != value.constant:
            name = term.name.partition("@")[0]
            return run.no(value.node, "%{} is not %{}, which {} is", value.name, known.name, name)
    for test in term.tests:
        if not test.holds(value):
            name = term.name.partition("@")[0]
            return run.no(value.node, "{}: %{}, not so: {}", name, value.name, test.text)
    if known is None:
        run.bind(term.name, value)
    return rest


def _meet_number(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Number)
    said = "near " if term.tolerance is not None else ""
    if value.constant is None:
        return run.no(value.node, "is no constant; the pattern has {}{}", said, term.value)
    if value.type.quant is not None or not _holds(value.constant.data, term):
        return run.no(value.node, "is not {}{}", said, term.value)
    return rest


def _holds(data: NDArray[np.generic], wanted: Number) -> bool:
    """Returns whether all elements are the number."""
    if data.dtype.kind == "O" or data.size == 0:
        return False
    first = data.reshape(-1)[0]
    found, number = float(first), float(wanted.value)
    if wanted.tolerance is not None:
        fits = abs(found - number) <= wanted.tolerance * abs(number)
    elif data.dtype.kind in "iub":
        fits = found == number
    else:
        with np.errstate(over="ignore"):
            fits = found == float(data.dtype.type(number))
    return fits and (data.size == 1 or bool(np.all(data == first)))


def _meet_either(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Either)
    terms = term.terms
    return run.choose(term, value, rest, lambda rest: (GoalList(t, value, rest) for t in terms))


def _meet_repeat(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Repeat)
    known = run.bound.get(term)
    if known is not None:
        return run.no(value.node, "a repetition stands in one place alone")
    return _go_round(run, Again(term, 0), value, rest)


def _go_round(run: Attempt, term: Again, value: Value, rest: Goals) -> Goals:
    loop, index = term.repeat, term.index

    def ways(rest: Goals) -> Iterator[Goals]:
        if index < loop.most:
            body = run.plan.round(loop, index).body
            yield GoalList(body, value, GoalList(Again(loop, index + 1), value, rest))
        if index >= loop.least:
            yield GoalList(Stop(loop, index), value, rest)

    return run.choose(term, value, rest, ways)


def _meet_again(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Again)
    flow = run.bound.get(run.plan.round(term.repeat, term.index - 1).flow)
    if not isinstance(flow, Value) or flow is value:
        return run.no(value.node, "a round that leads nowhere")
    return _go_round(run, term, flow, rest)


def _meet_stop(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Stop)
    run.bind(term.repeat, term.index)
    return GoalList(term.repeat.start, value, rest)


def _meet_deal(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    """Gives the operands of a commutative op to the terms, in every way that differs."""
    assert isinstance(term, Deal)
    items, values = term.items, term.values
    first = next((i for i, item in enumerate(items) if isinstance(item, Term)), None)
    if first is None:
        for item in items:
            if isinstance(item, Rest) and item.name:
                run.bind(item.name, values)
        return rest
    wanted = items[first]
    others = (*items[:first], *items[first + 1 :])
    assert isinstance(wanted, Term)

    def ways(rest: Goals) -> Iterator[Goals]:
        for i, one in enumerate(values):
            if one in values[:i]:
                continue
            left = (*values[:i], *values[i + 1 :])
            yield GoalList(wanted, one, GoalList(Deal(others, left), one, rest) if others else rest)

    return run.choose(term, value, rest, ways)


def _meet_chain(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, Chain)
    node = value.node
    known = run.bound.get(term)
    if known is not None:
        return rest if known is node else run.no(node, "stands where {} did", thing_name(known))
    if not node.stages:
        return run.no(node, "is {}, not a group of stages", node_words(node))
    for test in term.tests:
        if not test.holds(node):
            return run.no(node, "not so: {}", test.text)
    run.bind(term, node)
    return GoalList(StageGoals(term, 0, 0), value, rest)


def _meet_stages(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, StageGoals)
    node, wanted = value.node, term.chain.stages
    if term.place == len(wanted):
        left = len(node.stages) - term.at
        return rest if left == 0 else run.no(node, "has {} stages more", left)
    one = wanted[term.place]
    if isinstance(one, EllipsisType):
        ends = range(len(node.stages), term.at - 1, -1)
        chain, place = term.chain, term.place + 1
        return run.choose(
            term,
            value,
            rest,
            lambda rest: (GoalList(StageGoals(chain, place, end), value, rest) for end in ends),
        )
    if term.at == len(node.stages):
        return run.no(node, "has no stage {}", " or ".join(one.ops))
    after = GoalList(StageGoals(term.chain, term.place + 1, term.at + 1), value, rest)
    return _meet_stage(run, one, node, term.at, after)


def _meet_stage(run: Attempt, term: Op, node: Node, at: int, rest: Goals) -> Goals:
    stage = node.stages[at]
    if stage.op not in term.ops:
        return run.no(node, "stage {} is {}, not {}", at, stage.op, " or ".join(term.ops))
    if not run._attrs(term, node, stage.attrs):
        return FAILED
    found = node.stage_operands(at)
    for slot in found:
        if slot not in term.operands and not term.others:
            return run.no(node, "stage {} has {}, of which the pattern says nothing", at, slot)
    for slot in reversed(term.operands):
        wanted = term.operands[slot]
        here = found.get(slot)
        if wanted is FLOW:
            if at and slot != stage.flow:
                return run.no(node, "stage {} does not take the flow in {}", at, slot)
        elif isinstance(wanted, Maybe):
            rest = rest if here is None else GoalList(wanted.term, here, rest)
        elif isinstance(wanted, Term):
            if here is None:
                return run.no(node, "stage {}: {} is empty", at, slot)
            rest = GoalList(wanted, here, rest)
        elif here is not None:
            return run.no(node, "stage {}: {} is not empty", at, slot)
    return rest


def _meet_result(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    """Looks for another result among the users of what is bound."""
    assert isinstance(term, Result)
    way = run.plan.ways[term.place - 1]
    last = way[-1]
    found = run.bound.get(last.name if isinstance(last, Var) else last)
    if isinstance(found, Node):
        level = list(found.results)
    elif isinstance(found, Value):
        level = [found]
    else:
        return run.no(value.node, "nothing leads to result {}", term.place)
    level = climb(level, way[:-1])
    wanted = run.plan.results[term.place]
    key = f"result {term.place}"

    def ways(rest: Goals) -> Iterator[Goals]:
        for one in level:
            yield GoalList(BindResult(key), one, GoalList(wanted, one, rest))

    if not level:
        return run.no(value.node, "nobody uses it as result {} does", term.place)
    return run.choose(term, value, rest, ways)


def _meet_keep(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
    assert isinstance(term, BindResult)
    run.bind(term.key, value)
    return rest


_WIDEST = 256


def climb(values: Sequence[Value], way: Sequence[Term]) -> list[Value]:
    """Returns what the ops of a way, nearest last, may make of values; at most a few hundred."""
    level = list(values)
    for term in reversed(way):
        one = term.op if isinstance(term, Out) else term
        if isinstance(term, Out) and level and all(v.node.op in term.op.ops for v in level):
            level = [v for v in level if v.index == term.index]
            continue
        ops = one.ops if isinstance(one, Op) else ()
        users = dict.fromkeys(
            use.node for v in level for use in islice(v._uses, _WIDEST) if use.node.op in ops
        )
        level = [v for node in islice(users, _WIDEST) for v in node.results]
    return level


def _meet_reached(run: Attempt, term: Term, value: Value, rest: Goals) -> Goals:
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
    Again: _meet_again,
    Stop: _meet_stop,
    Deal: _meet_deal,
    StageGoals: _meet_stages,
    Result: _meet_result,
    BindResult: _meet_keep,
    Reached: _meet_reached,
}
