"""Softplus and mish; softsign and what tanh leaves."""

from __future__ import annotations

import math

from qir.ir.node import Value
from qir.passes.recover.builders import replace_by_one, uniform_number
from qir.rewrite.patterns.pattern import Either, Ops, Term, Var, pattern
from qir.rewrite.patterns.rewriting import Rewrite

_BITS = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7}
"""Bits of a float's fraction."""


def _is_identity_above(limit: Value) -> bool:
    """Returns whether softplus of what is larger rounds to it: log(1 + exp(-x)) is less than half a
    ulp."""
    threshold, bits = uniform_number(limit), _BITS.get(limit.type.dtype.name)
    if threshold is None or threshold <= 0 or bits is None:
        return False
    return math.log1p(math.exp(-threshold)) < math.ldexp(1.0, math.frexp(threshold)[1] - 2 - bits)


def _parts(op: Ops, x: Var) -> Either:
    return op.log(op.add(op.exp(x), 1.0)) | op.log1p(op.exp(x))


def _with_threshold(op: Ops, x: Var) -> Either:
    """x itself above a limit from which on softplus is x, else softplus, as torch writes it."""
    # torch writes a threshold of 20, above which float32 cannot tell softplus from x.
    limit = Var("limit").check("softplus of what is larger is that number", _is_identity_above)
    plus = op.softplus(x) | _parts(op, x)
    above = op.greater(x, limit) | op.greater_equal(x, limit)
    below = op.less(x, limit) | op.less_equal(x, limit)
    above = above | op.less(limit, x) | op.less_equal(limit, x)
    return op.where(above, x, plus) | op.where(below, plus, x)


@pattern
def softplus(op: Ops, x: Var) -> Term:
    """log(1 + exp(x)); where exp(x) would have no room, softplus is x."""
    return _parts(op, x) | _with_threshold(op, x)


@pattern
def mish(op: Ops, x: Var) -> Term:
    """x * tanh(softplus(x)), softplus itself or in its parts."""
    return op.mul(x, op.tanh(op.softplus(x) | _parts(op, x) | _with_threshold(op, x)))


@pattern
def softsign(op: Ops, x: Var) -> Term:
    """x / (1 + |x|)."""
    return op.div(x, op.add(op.abs(x), 1.0))


@pattern
def tanh_shrink(op: Ops, x: Var) -> Term:
    """x - tanh(x)."""
    return op.sub(x, op.tanh(x))


REWRITES = tuple(
    Rewrite(
        wanted,
        replace_by_one(wanted.name.replace("-", "_"), x="x"),
        says=f"{{nodes}} is {wanted.name}",
    )
    for wanted in (mish, softplus, softsign, tanh_shrink)
)
