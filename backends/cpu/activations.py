"""The names and parameters of float32 activations as the kernels have them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from qir.ir.attrs import Attr

from .builder import CannotLower

Bounds = tuple[float | None, float | None]


def clamp_bounds(op: str, attrs: Mapping[str, Attr]) -> Bounds:
    """Returns the bounds of relu or clip; None where there is none."""
    if op == "relu":
        return 0.0, None
    low, high = (attrs[name] for name in ("min", "max"))
    assert low is None or isinstance(low, float)
    assert high is None or isinstance(high, float)
    if any(bound is not None and math.isnan(bound) for bound in (low, high)):
        raise CannotLower("a bound is NaN")
    return low, high


def kernel_function(op: str, attrs: Mapping[str, Attr]) -> tuple[str, float, float]:
    """Returns the name of a function for `Plan.float_unary`, and its two parameters.

    Raises CannotLower for a variant that no kernel computes.
    """
    if op in ("relu", "clip"):
        low, high = clamp_bounds(op, attrs)
        return "bound", -math.inf if low is None else low, math.inf if high is None else high
    if op == "hard_sigmoid":
        return op, float_attr(attrs, "alpha"), float_attr(attrs, "beta")
    if op == "leaky_relu":
        # The kernel takes float32 parameters: alpha is rounded as the reference rounds it.
        return op, float(np.float32(float_attr(attrs, "alpha"))), 0.0
    if op == "gelu" and attrs["approximate"] != "none":
        raise CannotLower("no kernel computes gelu by tanh")
    if op == "silu" and float_attr(attrs, "alpha") != 1.0:
        raise CannotLower("alpha is not 1")
    return op, 0.0, 0.0


def float_attr(attrs: Mapping[str, Attr], name: str) -> float:
    """Returns a float attribute."""
    value = attrs[name]
    assert isinstance(value, float)
    return value
