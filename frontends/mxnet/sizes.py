"""Shape operands: constant if all sizes are known, else computed from other shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from qir.ir.node import Value

from .call import SymbolCall, int64_array


@dataclass(frozen=True)
class SizeTerm:
    """One size of a result: a number, or a product of an operand's sizes divided by a number."""

    number: int = 0
    axes: tuple[int, ...] = ()
    over: int = 1


def size_term(x: Value, *axes: int) -> SizeTerm:
    """Returns the product of sizes of a value, as a number if all are known."""
    sizes = [x.type.shape[axis] for axis in axes]
    known = [size for size in sizes if isinstance(size, int)]
    return SizeTerm(prod(known)) if len(known) == len(sizes) else SizeTerm(axes=axes)


def shape_operand(call: SymbolCall, x: Value, parts: Sequence[SizeTerm]) -> Value:
    """Returns the shape operand of a reshape of x.

    A single open size is written -1, and sizes that stay at their axis 0, so that the shape is
    constant where possible.
    """
    entries = [
        0 if p.axes == (i,) and p.over == 1 else None if p.axes else p.number
        for i, p in enumerate(parts)
    ]
    # A size of 0 would be read as a copy.
    if 0 in [p.number for p in parts if not p.axes]:
        return exact_shape_operand(call, x, parts)
    if None in entries and entries.count(None) == 1 and -1 not in entries:
        entries = [-1 if entry is None else entry for entry in entries]
    known = [entry for entry in entries if entry is not None]
    if len(known) == len(entries):
        return call.constant(int64_array(known), "shape")
    return exact_shape_operand(call, x, parts)


def exact_shape_operand(call: SymbolCall, x: Value, parts: Sequence[SizeTerm]) -> Value:
    """Returns a shape operand without 0 and -1; open sizes are computed."""
    if not any(p.axes for p in parts):
        return call.constant(int64_array([p.number for p in parts]), "shape")
    operands = {f"xs.{i}": _size_value(call, x, p) for i, p in enumerate(parts)}
    return call.add("concat", operands, {"axis": 0}) if len(operands) > 1 else operands["xs.0"]


def _size_value(call: SymbolCall, x: Value, term: SizeTerm) -> Value:
    if not term.axes:
        return call.constant(int64_array([term.number]), "size")
    product: Value | None = None
    for axis in term.axes:
        size = call.add("shape", {"x": x}, {"start": axis, "end": axis + 1})
        product = size if product is None else call.add("mul", {"a": product, "b": size})
    assert product is not None
    if term.over == 1:
        return product
    divisor = call.constant(int64_array([term.over]), "size")
    return call.add("floor_div", {"a": product, "b": divisor})


def shape_of_value(call: SymbolCall, x: Value) -> Value:
    """Returns the shape of a value as a shape operand."""
    return exact_shape_operand(call, x, [size_term(x, axis) for axis in range(x.type.rank)])
