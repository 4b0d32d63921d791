"""Helpers of the recoveries: constants as exporters write them, axes, and the replacement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dims import Shape
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.ops import spec
from qir.ir.types import Array, TensorType
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Either, Number, Ops, Term, Var, near
from qir.rewrite.patterns.rewriting import Replacement

Attrs: TypeAlias = "Mapping[str, Attr]"
Given: TypeAlias = "Attrs | Callable[[Match], Attrs | None]"
"""Attributes, or what finds them in a match; None: it is no such op after all."""

CLOSE = 1e-5
"""How far a written constant may be from the float one: 1.41421 is the root of 2."""


def exactly(value: float) -> Either:
    """Returns a number as its own type rounds it, or written with six digits."""
    return Number(value) | near(value, CLOSE)


def number(name: str) -> Var:
    """Any one float value, by name: a constant whose elements all are that number."""
    return Var(name).check("is one float value", lambda value: real(value) is not None)


def positive(name: str) -> Var:
    """Returns one float value that is greater than 0, as an eps is."""
    return Var(name).check("is one number above 0", lambda value: (real(value) or 0) > 0)


def real(value: Value) -> float | None:
    """Returns the number that all elements of a constant are; None where it is no such constant."""
    held = value.constant
    if held is None or not held.type.dtype.is_float or held.type.quant or held.contents.size == 0:
        return None
    first = held.data.reshape(-1)[0]
    alike = held.contents.size == 1 or bool(np.all(held.data == first))
    return float(first) if alike and np.isfinite(float(first)) else None


def the_number(match: Match, name: str) -> float:
    """Returns the number that a variable made by `number` stands for."""
    found = real(match[name])
    assert found is not None
    return found


def times(op: Ops, x: Term, factor: float) -> Either:
    """x * factor, or x / (1 / factor)."""
    return op.mul(x, exactly(factor)) | op.div(x, exactly(1 / factor))


def scaled(op: Ops, a: Term, b: Term, factor: float) -> Either:
    """a * b * factor, whatever is multiplied first."""
    return (
        times(op, op.mul(a, b), factor)
        | op.mul(times(op, a, factor), b)
        | op.mul(a, times(op, b, factor))
    )


def squared(op: Ops, x: Term) -> Either:
    """x * x, however it is written."""
    return op.mul(x, x) | op.pow(x, 2.0) | op.square(x)


def one_over(op: Ops, x: Term) -> Either:
    """1 / x."""
    return op.reciprocal(x) | op.div(1.0, x)


def last_axes(axes: Attr, rank: int) -> int | None:
    """Returns the axis from which on all are named; None where others are, or some are left out."""
    if not isinstance(axes, tuple):
        return None
    named = sorted(a % rank for a in axes if isinstance(a, int) and -rank <= a < rank)
    named = named or list(range(rank))
    return named[0] if named and named == list(range(named[0], rank)) else None


def one_axis(axes: Attr, rank: int) -> int | None:
    """Returns the one axis that is named; None where there are more."""
    if not isinstance(axes, tuple) or rank == 0:
        return None
    named = [a % rank for a in axes if isinstance(a, int) and -rank <= a < rank]
    named = named or list(range(rank))
    return named[0] if len(named) == 1 else None


def alike(value: Value, number: float, shape: Shape, graph: Graph, name: str) -> Value:
    """Returns a new constant of such elements, in the type of a value; sizes nobody knows are 1."""
    sizes = tuple(size if isinstance(size, int) else 1 for size in shape)
    data = np.full(sizes, number, value.type.dtype.carrier)
    return stored(data, value, graph, name)


def stored(data: NDArray[np.generic], like: Value, graph: Graph, name: str) -> Value:
    """Returns a new constant of these elements, in the type of a value."""
    free = graph.fresh(name)
    held = data.astype(like.type.dtype.carrier)
    return graph.constant(Array(held, TensorType(held.shape, like.type.dtype), free), name=free)


def single(op: str, given: Given | None = None, **slots: str) -> Replacement:
    """Replaces a match by one op with these variables in its slots; empty where they are none.

    It declines where the op would not make the type that stood there.
    """

    def replace(graph: Graph, match: Match) -> Value | None:
        attrs = given(match) if callable(given) else given or {}
        found = {slot: match.get(name) for slot, name in slots.items()}
        operands = {slot: value for slot, value in found.items() if value is not None}
        if attrs is None or not suits(op, operands, attrs, match.results[0]):
            return None
        return graph.add(op, operands, attrs).results[0]

    return replace


def suits(op: str, operands: Mapping[str, Value], attrs: Attrs, old: Value) -> bool:
    """Returns whether an op takes these and makes what may stand for a value."""
    try:
        kind = infer_result_types(op, operands, spec(op).complete_attrs(attrs))[0]
    except TypeRuleError:
        return False
    return fits(kind, old.type)


def fits(new: TensorType, old: TensorType) -> bool:
    """Returns whether a type may stand for another: same axes and elements, sizes where both are
    known."""
    if new.element != old.element or new.rank != old.rank:
        return False
    pairs = zip(new.shape, old.shape, strict=True)
    return all(a == b or a is None or b is None for a, b in pairs)
