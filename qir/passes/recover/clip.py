"""Clip and relu from minima and maxima with constants: the same numbers, to the bit."""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ledger import Change
from qir.passes.recover.builders import makes_type_of, matched_number, number
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Ops, Pattern, Term, Var, pattern
from qir.rewrite.patterns.rewriting import Rewrite


@pattern
def min_of_max(op: Ops, x: Var) -> Term:
    """min(max(x, low), high)."""
    return op.min(op.max(x, number("low")), number("high"))


@pattern
def max_of_min(op: Ops, x: Var) -> Term:
    """max(min(x, high), low), where low is not above high."""
    return op.max(op.min(x, number("high")), number("low"))


@pattern
def min_of_relu(op: Ops, x: Var) -> Term:
    """min(relu(x), high): relu6 and its like."""
    return op.min(op.relu(x), number("high"))


@pattern
def lower_bound(op: Ops, x: Var) -> Term:
    """max(x, low); relu where low is 0."""
    return op.max(x, number("low"))


@pattern
def upper_bound(op: Ops, x: Var) -> Term:
    """min(x, high)."""
    return op.min(x, number("high"))


def _replace_by_clip(graph: Graph, match: Match) -> Value | None:
    """Returns the clip of these bounds; a relu where nothing but 0 bounds from below."""
    pattern_name = match.name
    low = high = None
    if pattern_name != "upper-bound":
        low = 0.0 if pattern_name == "min-of-relu" else matched_number(match, "low")
    if pattern_name != "lower-bound":
        high = matched_number(match, "high")
    # Where the bounds cross, the order of minimum and maximum decides, and clip has only one.
    if low is not None and high is not None and low > high:
        return None
    op = "relu" if low == 0 and high is None else "clip"
    attrs = {} if op == "relu" else {"min": low, "max": high}
    operands = {"x": match["x"]}
    if not makes_type_of(op, operands, attrs, match.results[0]):
        return None
    return graph.add(op, operands, attrs).result


def _rewrite(bounds: Pattern) -> Rewrite:
    return Rewrite(bounds, _replace_by_clip, Change.EXACT, "{nodes} with constants is clip")


REWRITES = tuple(map(_rewrite, (min_of_max, max_of_min, min_of_relu, lower_bound, upper_bound)))
