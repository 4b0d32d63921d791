"""Symbolic sizes of PyTorch as dimensions of the language."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qir.ir import dims
from qir.ir.dims import Dim, Shape


def dim_of(size: int | torch.SymInt) -> Dim:
    """Returns the dimension of a size; None for one that no polynomial of symbols is."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    return _dim(size.node.expr)


def shape_of(sizes: Sequence[int | torch.SymInt]) -> Shape:
    """Returns the dimensions of a tensor."""
    return tuple(dim_of(size) for size in sizes)


def _dim(expression: object) -> Dim:
    import sympy

    match expression:
        case sympy.Integer():
            return int(expression)
        case sympy.Symbol() if not expression.name.startswith("u"):
            return dims.symbol(expression.name)
        case sympy.Add() | sympy.Mul():
            parts = [_dim(part) for part in expression.args]
            found = parts[0]
            for part in parts[1:]:
                combine = dims.add if isinstance(expression, sympy.Add) else dims.multiply
                found = None if found is None or part is None else combine(found, part)
            return found
        case sympy.Pow(args=(base, sympy.Integer() as power)) if 0 < int(power) < 9:
            once = found = _dim(base)
            for _ in range(int(power) - 1):
                found = None if found is None else dims.multiply(found, once)
            return found
    name = type(expression).__name__
    if name in ("FloorDiv", "CleanDiv"):
        numerator, divisor = expression.args  # type: ignore[attr-defined]
        if isinstance(divisor, sympy.Integer) and (over := _dim(numerator)) is not None:
            return dims.divide(over, int(divisor))
    return None
