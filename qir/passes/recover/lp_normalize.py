"""Division by a length: lp_normalize."""

from __future__ import annotations

from qir.ir.attrs import Attr
from qir.ir.node import Node, Value
from qir.passes.recover.builders import one_axis, one_over, replace_by_one, squared, uniform_number
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Either, Ops, Term, Var, pattern
from qir.rewrite.patterns.rewriting import Rewrite

# torch.nn.functional.normalize has eps = 1e-12; the last digits leave room for its rounding.
_MAX_FLOOR = 1.0001e-12
"""Lengths are kept from 0 by so much at most; what is shorter than that moves."""
_REDUCTIONS = ("reduce_l2", "reduce_l1", "reduce_sum", "reduce_sum_square")


def _is_small_floor(value: Value) -> bool:
    return 0 < (uniform_number(value) or 0) <= _MAX_FLOOR


def _has_small_floor(node: Node) -> bool:
    low = node.attrs["min"]
    return isinstance(low, float) and 0 < low <= _MAX_FLOOR


def _divided_by(op: Ops, x: Var, length: Term) -> Either:
    floor = Var("floor").check("is one number above 0, up to 1e-12", _is_small_floor)
    clipped = op.clip(length, max=None).check("min is above 0, up to 1e-12", _has_small_floor)
    bounded = clipped | op.max(length, floor)
    expanded = op.expand(bounded, op.shape(x, start=0, end=None) | Var("sizes").where("constant"))
    return op.div(x, expanded | bounded) | op.mul(x, one_over(op, bounded))


@pattern
def l2_normalize(op: Ops, x: Var) -> Term:
    """x / its length along one axis, the length kept above 1e-12 or less, as torch does."""
    squares = op.reduce_sum(squared(op, x), keep=True) | op.reduce_sum_square(x, keep=True)
    return _divided_by(op, x, op.reduce_l2(x, keep=True) | op.sqrt(squares))


@pattern
def l1_normalize(op: Ops, x: Var) -> Term:
    """x / the sum of its absolute values along one axis, kept above 1e-12 or less."""
    return _divided_by(op, x, op.reduce_l1(x, keep=True) | op.reduce_sum(op.abs(x), keep=True))


def _axis(match: Match) -> dict[str, Attr] | None:
    """Returns the axis that the reduction goes along, and the power."""
    node = next(node for node in match.nodes if node.op in _REDUCTIONS)
    axis = one_axis(node.attrs["axes"], match["x"].type.rank)
    return None if axis is None else {"axis": axis, "p": 1 if "l1" in match.name else 2}


REWRITES = tuple(
    Rewrite(
        wanted.check("the length is along one axis", lambda match: _axis(match) is not None),
        replace_by_one("lp_normalize", _axis, x="x"),
        says="{nodes} is lp_normalize",
    )
    for wanted in (l2_normalize, l1_normalize)
)
