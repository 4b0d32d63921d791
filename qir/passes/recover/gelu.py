"""Gelu, exact and by tanh, in every order in which exporters multiply."""

from __future__ import annotations

import math

from qir.passes.recover.builders import replace_by_one, scaled, squared, times, written_number
from qir.rewrite.patterns.pattern import Either, Ops, Term, Var, pattern
from qir.rewrite.patterns.rewriting import Rewrite

_ROOT = math.sqrt(2)
_SLOPE = math.sqrt(2 / math.pi)
# The constant of Hendrycks and Gimpel's approximation, as every framework writes it.
_CUBIC = 0.044715


def _square_times(op: Ops, x: Var, factor: float) -> Either:
    return times(op, squared(op, x), factor) | op.mul(x, times(op, x, factor))


def _inner(op: Ops, x: Var, slope: float) -> Either:
    """slope * (x + 0.044715 * x ** 3), however the powers are made."""
    cube = op.pow(x, 3.0) | op.mul(x, squared(op, x))
    cubic = times(op, cube, _CUBIC) | op.mul(x, _square_times(op, x, _CUBIC))
    even = op.add(_square_times(op, x, _CUBIC), 1.0)
    spread = op.add(_square_times(op, x, slope * _CUBIC), written_number(slope))
    sum_first = times(op, op.add(x, cubic), slope)
    return sum_first | scaled(op, x, even, slope) | op.mul(x, spread)


@pattern
def gelu(op: Ops, x: Var) -> Term:
    """x * 0.5 * (1 + erf(x / sqrt(2))), or x * 0.5 * erfc(-x / sqrt(2))."""
    erf = op.erf(times(op, x, 1 / _ROOT))
    one_plus = op.add(erf, 1.0)
    halved = op.add(times(op, erf, 0.5), 0.5)
    negated = op.neg(times(op, x, 1 / _ROOT)) | times(op, op.neg(x), 1 / _ROOT)
    complement = op.erfc(times(op, x, -1 / _ROOT) | negated)
    return scaled(op, x, one_plus, 0.5) | op.mul(x, halved) | scaled(op, x, complement, 0.5)


@pattern
def gelu_by_tanh(op: Ops, x: Var) -> Term:
    """x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))."""
    tanh = op.tanh(_inner(op, x, _SLOPE))
    one_plus = op.add(tanh, 1.0)
    halved = op.add(times(op, tanh, 0.5), 0.5)
    return scaled(op, x, one_plus, 0.5) | op.mul(x, halved)


@pattern
def gelu_by_sigmoid(op: Ops, x: Var) -> Term:
    """x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x ** 3)), which is the same in float."""
    return op.mul(x, op.sigmoid(_inner(op, x, 2 * _SLOPE)))


REWRITES = (
    Rewrite(gelu, replace_by_one("gelu", x="x"), says="{nodes} is gelu"),
    Rewrite(
        gelu_by_tanh,
        replace_by_one("gelu", {"approximate": "tanh"}, x="x"),
        says="{nodes} is gelu by tanh",
    ),
    Rewrite(
        gelu_by_sigmoid,
        replace_by_one("gelu", {"approximate": "tanh"}, x="x"),
        says="{nodes} is gelu by tanh",
    ),
)
