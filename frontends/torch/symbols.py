"""Converts symbolic sizes of PyTorch to dimensions of the language."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from qir.ir import dims
from qir.ir.dims import Dim, Shape

_MAX_POWER = 9


def dim_of(size: int | torch.SymInt) -> Dim:
    """Returns the dimension of a size; None for one that is no polynomial of symbols."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    return _dim(size.node.expr)


def shape_of(sizes: Sequence[int | torch.SymInt]) -> Shape:
    """Returns the dimensions of a tensor."""
    return tuple(dim_of(size) for size in sizes)


def _dim(expression: Any) -> Dim:
    """Returns the dimension of a SymPy expression, by its flags: SymPy is not imported."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:  # unbacked symbols (u0, u1, ...) depend on data
        return None if expression.name.startswith("u") else dims.symbol(expression.name)
    if expression.is_Add or expression.is_Mul:
        combine = dims.add if expression.is_Add else dims.multiply
        return _combine(combine, [_dim(part) for part in expression.args])
    if expression.is_Pow and expression.exp.is_Integer and 0 < expression.exp < _MAX_POWER:
        return _combine(dims.multiply, [_dim(expression.base)] * int(expression.exp))
    if type(expression).__name__ in ("FloorDiv", "CleanDiv"):
        numerator, divisor = expression.args
        dividend = _dim(numerator)
        if divisor.is_Integer and dividend is not None:
            return dims.divide(dividend, int(divisor))
    return None


def _combine(combine: Callable[[Dim, Dim], Dim], parts: Sequence[Dim]) -> Dim:
    total = parts[0]
    for part in parts[1:]:
        total = None if total is None or part is None else combine(total, part)
    return total
