"""Softmax and its logarithm from exponentials that were made small by their greatest element."""

from __future__ import annotations

from qir.ir.attrs import Attr
from qir.passes.recover.builders import one_axis, one_over, replace_by_one
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Op, Ops, Term, Var, pattern
from qir.rewrite.patterns.rewriting import Rewrite


def _minus_maximum(op: Ops, x: Var) -> Op:
    return op.sub(x, op.reduce_max(x, keep=True))


def _one_axis(match: Match) -> bool:
    return _axis(match) is not None


def _axis(match: Match) -> dict[str, Attr] | None:
    """Returns the one axis that both reductions go along."""
    rank = match["x"].type.rank
    nodes = [node for node in match.nodes if node.op.startswith("reduce_")]
    axes = {one_axis(node.attrs["axes"], rank) for node in nodes}
    axis = axes.pop()
    return None if axes or axis is None else {"axis": axis}


@pattern
def softmax(op: Ops, x: Var) -> Term:
    """exp(x - max) / sum of it, along one axis; without the max it could overflow, and stays."""
    powers = op.exp(_minus_maximum(op, x))
    total = op.reduce_sum(powers, keep=True)
    return op.div(powers, total) | op.mul(powers, one_over(op, total))


@pattern
def log_softmax(op: Ops, x: Var) -> Term:
    """x - max - log(sum of exp(x - max)), or x less its reduce_log_sum_exp."""
    shifted = _minus_maximum(op, x)
    total = op.reduce_sum(op.exp(shifted), keep=True)
    log_sum = op.reduce_log_sum_exp(x, keep=True)
    return op.sub(shifted, op.log(total)) | op.sub(x, log_sum)


@pattern
def log_of_softmax(op: Ops, x: Var) -> Term:
    """log(softmax(x))."""
    return op.log(op.softmax(x))


_ALONG = "both reductions go along the same one axis"

REWRITES = (
    Rewrite(
        softmax.check(_ALONG, _one_axis),
        replace_by_one("softmax", _axis, x="x"),
        says="{nodes} is softmax",
    ),
    Rewrite(
        log_softmax.check(_ALONG, _one_axis),
        replace_by_one("log_softmax", _axis, x="x"),
        says="{nodes} is log_softmax",
    ),
    Rewrite(
        log_of_softmax,
        replace_by_one("log_softmax", lambda m: {"axis": m.node("softmax").attrs["axis"]}, x="x"),
        says="{nodes} is log_softmax",
    ),
)
