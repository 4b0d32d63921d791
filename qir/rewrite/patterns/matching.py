"""Matches a pattern against a graph."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.match_attempt import Attempt
from qir.rewrite.patterns.match_goals import FAILED, GoalList, Goals, Result
from qir.rewrite.patterns.pattern import Pattern
from qir.rewrite.patterns.prefilter import candidates
from qir.rewrite.patterns.steps import STEPS

_MAX_STEPS = 20_000
"""An attempt of more steps is given up: the cost of a match is bounded."""


def match_from(
    pattern: Pattern, value: Value, failure: Callable[[int, Node, str], None] | None = None
) -> Match | None:
    """Returns the match whose first result is that value; calls `failure` with each failed
    condition."""
    # The search is a loop over an explicit list of goals, not recursion: patterns with repetitions
    # may be deeper than Python's stack.
    attempt = Attempt(pattern, value, failure)
    goals: Goals = None
    # Other results come after the first one: they are searched from what it binds.
    for place in range(len(pattern.results) - 1, 0, -1):
        goals = GoalList(Result(place), value, goals)
    goals = GoalList(pattern.results[0], value, goals)
    while True:
        if goals is None:
            match = attempt.finish()
            if match is not None:
                return match
            # The nodes fit, but a condition on the whole match failed. Such a failure depends on
            # everything that is bound, so no choice below may be remembered as hopeless.
            for choice in attempt.choices:
                choice.tainted = True
            goals = attempt.back()
        elif goals is FAILED:
            goals = attempt.back()
        else:
            attempt.steps += 1
            if attempt.steps > _MAX_STEPS:
                attempt.no(value.node, "given up: it can be laid on in too many ways")
                return None
            goals = STEPS[type(goals.term)](attempt, goals.term, goals.value, goals.rest)
        if goals is FAILED and not attempt.choices:
            return None


def match_at(pattern: Pattern, node: Node) -> Match | None:
    """Returns the match of which a node makes the first result; the first one, where there are
    several."""
    for value in node.results:
        match = match_from(pattern, value)
        if match is not None:
            return match
    return None


def matches(graph: Graph, pattern: Pattern) -> list[Match]:
    """Returns every place where a pattern fits, last ones first; places may overlap."""
    per_node = (match_at(pattern, node) for node in reversed(candidates(graph, [pattern])))
    return [match for match in per_node if match is not None]
