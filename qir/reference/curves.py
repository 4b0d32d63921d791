"""Functions of one number as oneDNN's vectors compute them after a layer: float32 in steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from qir.ir.attrs import Attr
from qir.numerics.rounding import fma
from qir.reference.method import F, Real32

_LOW, _HIGH = F(-87.33655), F(88.72284)
"""The logarithms of the least normal number and the greatest."""
_TERMS = tuple(F(v) for v in (0.041897822, 0.16667652, 0.4999915, 0.9999997, 1.0))
_HIGHEST = F(44.361416)
"""Where squares of powers come to an end."""


@np.errstate(over="ignore")
def exponential(x: Real32) -> Real32:
    """e ^ x, by a polynomial of five terms about the nearest power of two."""
    near = np.maximum(np.minimum(x, _HIGH), _LOW)
    power = np.floor(near * F(1.442695) + F(0.5))
    rest = fma(-power, np.full_like(power, F(0.6931472)), near)
    made = np.full_like(rest, F(0.008289291))
    for term in _TERMS:
        made = fma(made, rest, np.full_like(rest, term))
    half = np.ldexp(F(1), (power - F(1)).astype(np.int32))
    return np.asarray(made * np.where(x < _LOW, F(0), half) * F(2), F)


def silu(x: Real32, attrs: Mapping[str, Attr]) -> Real32:
    """x times the share that a power has of itself and 1."""
    alpha = attrs["alpha"]
    assert isinstance(alpha, float)
    inner = np.asarray(x * F(alpha), F)
    power = exponential(-np.abs(inner))
    share = power / (power + F(1))
    return np.asarray(x * np.where(np.signbit(inner), share, F(1) - share), F)


def mish(x: Real32, attrs: Mapping[str, Attr]) -> Real32:
    """x times the hyperbolic tangent of ln(1 + e^x), said by the square of 1 + e^x."""
    whole = exponential(np.minimum(x, _HIGHEST)) + F(1)
    square = whole * whole
    return np.asarray(x * ((square - F(1)) / (square + F(1))), F)


STEPS: Mapping[str, Callable[[Real32, Mapping[str, Attr]], Real32]] = {"silu": silu, "mish": mish}
"""The activations that are computed so where a profile says `stage.curves = "steps"`."""
