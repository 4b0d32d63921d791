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
AttrsOrFinder: TypeAlias = "Attrs | Callable[[Match], Attrs | None]"
"""Attributes, or what finds them in a match; None: it is no such op after all."""

RELATIVE_TOLERANCE = 1e-5
"""How far a written constant may be from the float one: 1.41421 is the root of 2."""


def written_number(value: float) -> Either:
    """Returns a number as its own type rounds it, or written with six digits."""
    # Exact first: a number in the constant's own type is the usual case.
    return Number(value) | near(value, RELATIVE_TOLERANCE)


def number(name: str) -> Var:
    """Any one float value, by name: a constant whose elements all are that number."""
    return Var(name).check("is one float value", lambda value: uniform_number(value) is not None)


def positive(name: str) -> Var:
    """Returns one float value that is greater than 0, as an eps is."""
    return Var(name).check("is one number above 0", lambda value: (uniform_number(value) or 0) > 0)


def uniform_number(value: Value) -> float | None:
    """Returns the number that all elements of a constant are; None where it is no such constant."""
    constant = value.constant
    if (
        constant is None
        or not constant.type.dtype.is_float
        or constant.type.quant
        or constant.contents.size == 0
    ):
        return None
    first = constant.data.reshape(-1)[0]
    # `contents` knows its size without being computed; a large weight is read only if it must be.
    is_uniform = constant.contents.size == 1 or bool(np.all(constant.data == first))
    return float(first) if is_uniform and np.isfinite(float(first)) else None


def matched_number(match: Match, name: str) -> float:
    """Returns the number that a variable made by `number` stands for."""
    uniform = uniform_number(match[name])
    assert uniform is not None
    return uniform


def times(op: Ops, x: Term, factor: float) -> Either:
    """x * factor, or x / (1 / factor)."""
    return op.mul(x, written_number(factor)) | op.div(x, written_number(1 / factor))


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
    listed = sorted(a % rank for a in axes if isinstance(a, int) and -rank <= a < rank)
    # No axes named means all of them, as in ONNX's reductions.
    listed = listed or list(range(rank))
    return listed[0] if listed and listed == list(range(listed[0], rank)) else None


def one_axis(axes: Attr, rank: int) -> int | None:
    """Returns the one axis that is named; None where there are more."""
    if not isinstance(axes, tuple) or rank == 0:
        return None
    listed = [a % rank for a in axes if isinstance(a, int) and -rank <= a < rank]
    listed = listed or list(range(rank))
    return listed[0] if len(listed) == 1 else None


def filled_constant(value: Value, number: float, shape: Shape, graph: Graph, name: str) -> Value:
    """Returns a new constant of such elements, in the type of a value; sizes nobody knows are 1."""
    sizes = tuple(size if isinstance(size, int) else 1 for size in shape)
    data = np.full(sizes, number, value.type.dtype.carrier)
    return typed_constant(data, value, graph, name)


def typed_constant(data: NDArray[np.generic], like: Value, graph: Graph, name: str) -> Value:
    """Returns a new constant of these elements, in the type of a value."""
    fresh_name = graph.fresh(name)
    elements = data.astype(like.type.dtype.carrier)
    return graph.constant(
        Array(elements, TensorType(elements.shape, like.type.dtype), fresh_name), name=fresh_name
    )


def replace_by_one(op: str, attributes: AttrsOrFinder | None = None, **slots: str) -> Replacement:
    """Replaces a match by one op with these variables in its slots; empty where they are none.

    It declines where the op would not make the type that stood there.
    """

    def replace(graph: Graph, match: Match) -> Value | None:
        attrs = attributes(match) if callable(attributes) else attributes or {}
        bound = {slot: match.get(name) for slot, name in slots.items()}
        operands = {slot: value for slot, value in bound.items() if value is not None}
        # The match may be another program, such as one whose broadcast the op does not do.
        if attrs is None or not makes_type_of(op, operands, attrs, match.results[0]):
            return None
        return graph.add(op, operands, attrs).results[0]

    return replace


def makes_type_of(op: str, operands: Mapping[str, Value], attrs: Attrs, old: Value) -> bool:
    """Returns whether an op takes these and makes what may stand for a value."""
    try:
        result_type = infer_result_types(op, operands, spec(op).complete_attrs(attrs))[0]
    except TypeRuleError:
        return False
    return is_compatible(result_type, old.type)


def is_compatible(new: TensorType, old: TensorType) -> bool:
    """Returns whether a type may stand for another: same axes and elements, sizes where both are
    known."""
    if new.element != old.element or new.rank != old.rank:
        return False
    pairs = zip(new.shape, old.shape, strict=True)
    # A size that nobody knows may be any: exporters often leave them out.
    return all(a == b or a is None or b is None for a, b in pairs)
