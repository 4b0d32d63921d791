"""Functions of each float32 by itself, as the kernels of float32 name them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from qir.ir.attrs import Attr

from .builder import CannotLower

Bounds = tuple[float | None, float | None]


def bounds(op: str, attrs: Mapping[str, Attr]) -> Bounds:
    """The ends that relu or clip keeps its operand between; None where there is none."""
    if op == "relu":
        return 0.0, None
    low, high = (attrs[name] for name in ("min", "max"))
    assert low is None or isinstance(low, float)
    assert high is None or isinstance(high, float)
    if any(end is not None and math.isnan(end) for end in (low, high)):
        raise CannotLower("a bound is NaN")
    return low, high


def function_of(op: str, attrs: Mapping[str, Attr]) -> tuple[str, float, float]:
    """The name of a function as `Plan.float_unary` has it, with its two numbers.

    CannotLower for a variant that no kernel computes.
    """
    if op in ("relu", "clip"):
        low, high = bounds(op, attrs)
        return "bound", -math.inf if low is None else low, math.inf if high is None else high
    if op == "hard_sigmoid":
        return op, number(attrs, "alpha"), number(attrs, "beta")
    if op == "leaky_relu":
        return op, float(np.float32(number(attrs, "alpha"))), 0.0
    if op == "gelu" and attrs["approximate"] != "none":
        raise CannotLower("no kernel computes gelu by tanh")
    if op == "silu" and number(attrs, "alpha") != 1.0:
        raise CannotLower("alpha is not 1")
    return op, 0.0, 0.0


def number(attrs: Mapping[str, Attr], name: str) -> float:
    """A float attribute."""
    value = attrs[name]
    assert isinstance(value, float)
    return value
