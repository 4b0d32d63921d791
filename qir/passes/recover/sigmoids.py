"""Sigmoid, hard sigmoid, silu and hard swish; log of sigmoid."""

from __future__ import annotations

import math

from qir.ir.attrs import Attr
from qir.passes.recover.builders import (
    matched_number,
    number,
    one_over,
    positive,
    replace_by_one,
    scaled,
    times,
    written_number,
)
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Ops, Term, Var, pattern, such
from qir.rewrite.patterns.rewriting import Rewrite

# Exporters write these as decimals of six or seven digits, so that equality would miss them.
_SIXTH = such("is 1 / 6", lambda found: _is(found, 1 / 6))
_HALF = such("is 1 / 2", lambda found: _is(found, 0.5))


def _is(value: Attr, expected: float) -> bool:
    return isinstance(value, float) and math.isclose(value, expected, rel_tol=1e-6)


def _relu6(op: Ops, x: Var) -> Term:
    return op.clip(op.add(x, written_number(3.0)), min=0.0, max=6.0)


@pattern
def sigmoid(op: Ops, x: Var) -> Term:
    """1 / (1 + exp(-x))."""
    return one_over(op, op.add(op.exp(op.neg(x)), 1.0))


@pattern
def hard_sigmoid(op: Ops, x: Var) -> Term:
    """alpha * x + beta, kept in 0..1, with the slope as a factor or a divisor."""
    # A slope of 0 or below is no hard sigmoid, though the formula would fit.
    slope = op.mul(x, positive("alpha")) | op.div(x, positive("by"))
    return op.clip(op.add(slope, number("beta")), min=0.0, max=1.0)


@pattern
def hard_sigmoid_by_six(op: Ops, x: Var) -> Term:
    """relu6(x + 3) / 6."""
    return times(op, _relu6(op, x), 1 / 6)


@pattern
def silu(op: Ops, x: Var) -> Term:
    """x * sigmoid(x), or x / (1 + exp(-x)); the x of sigmoid may have a factor."""
    return op.mul(x, op.sigmoid(op.mul(x, number("alpha")) | x)) | op.div(
        x, op.add(op.exp(op.neg(x)), 1.0)
    )


@pattern
def hard_swish(op: Ops, x: Var) -> Term:
    """x times its hard sigmoid of slope 1 / 6, or x * relu6(x + 3) / 6 in any order."""
    # Families run one after another, so that a hard sigmoid may be recovered already.
    gate = op.hard_sigmoid(x, alpha=_SIXTH, beta=_HALF)
    return op.mul(x, gate) | scaled(op, x, _relu6(op, x), 1 / 6)


@pattern
def log_sigmoid(op: Ops, x: Var) -> Term:
    """log(sigmoid(x)), or -softplus(-x)."""
    return op.log(op.sigmoid(x)) | op.neg(op.softplus(op.neg(x)))


def _slope(match: Match) -> dict[str, Attr] | None:
    # Only one of the two alternatives of the pattern has bound its variable.
    divided = match.get("alpha") is None
    slope = 1 / matched_number(match, "by") if divided else matched_number(match, "alpha")
    return {"alpha": slope, "beta": matched_number(match, "beta")}


def _alpha(match: Match) -> dict[str, Attr]:
    return {"alpha": 1.0 if match.get("alpha") is None else matched_number(match, "alpha")}


REWRITES: tuple[Rewrite, ...] = (
    Rewrite(sigmoid, replace_by_one("sigmoid", x="x"), says="{nodes} is sigmoid"),
    Rewrite(hard_swish, replace_by_one("hard_swish", x="x"), says="{nodes} is hard_swish"),
    Rewrite(
        hard_sigmoid, replace_by_one("hard_sigmoid", _slope, x="x"), says="{nodes} is hard_sigmoid"
    ),
    Rewrite(
        hard_sigmoid_by_six,
        replace_by_one("hard_sigmoid", {"alpha": 1 / 6, "beta": 0.5}, x="x"),
        says="{nodes} is hard_sigmoid",
    ),
    Rewrite(silu, replace_by_one("silu", _alpha, x="x"), says="{nodes} is silu"),
    Rewrite(log_sigmoid, replace_by_one("log_sigmoid", x="x"), says="{nodes} is log_sigmoid"),
)
