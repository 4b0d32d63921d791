"""Softplus and mish; softsign and what tanh leaves."""

from __future__ import annotations

from qir.passes.recover.making import single
from qir.rewrite.pattern import Ops, Term, Var, pattern
from qir.rewrite.rewriting import Rewrite


@pattern
def softplus(op: Ops, x: Var) -> Term:
    """log(1 + exp(x)); where exp(x) would have no room, softplus is x."""
    return op.log(op.add(op.exp(x), 1.0)) | op.log1p(op.exp(x))


@pattern
def mish(op: Ops, x: Var) -> Term:
    """x * tanh(softplus(x)), softplus itself or in its parts."""
    plus = op.softplus(x) | op.log(op.add(op.exp(x), 1.0)) | op.log1p(op.exp(x))
    return op.mul(x, op.tanh(plus))


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
        wanted, single(wanted.name.replace("-", "_"), x="x"), says=f"{{nodes}} is {wanted.name}"
    )
    for wanted in (mish, softplus, softsign, tanh_shrink)
)
