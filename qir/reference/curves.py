"""Functions of one number as oneDNN's vectors compute them after a layer: float32 in steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from qir.ir.attrs import Attr
from qir.numerics.rounding import fma
from qir.reference.method import Float32Array, float32

_LOW, _HIGH = float32(-87.33655), float32(88.72284)
"""The logarithms of the least normal number and the greatest."""
_TERMS = tuple(float32(v) for v in (0.041897822, 0.16667652, 0.4999915, 0.9999997, 1.0))
_HIGHEST = float32(44.361416)
"""Where squares of powers come to an end."""


@np.errstate(over="ignore")
def exponential(x: Float32Array) -> Float32Array:
    """e ^ x, by a polynomial of five terms about the nearest power of two."""
    # The ends, too, are those of oneDNN: beyond them float32 has no normal result.
    clamped = np.maximum(np.minimum(x, _HIGH), _LOW)
    # x = n ln 2 + r with r near 0: e^x = 2^n e^r.
    power = np.floor(clamped * float32(1.442695) + float32(0.5))
    remainder = fma(-power, np.full_like(power, float32(0.6931472)), clamped)
    polynomial = np.full_like(remainder, float32(0.008289291))
    for term in _TERMS:
        polynomial = fma(polynomial, remainder, np.full_like(remainder, term))
    # 2^(n - 1), doubled at the end: 2^n itself would overflow for n = 128.
    half_power = np.ldexp(float32(1), (power - float32(1)).astype(np.int32))
    return np.asarray(polynomial * np.where(x < _LOW, float32(0), half_power) * float32(2), float32)


def silu(x: Float32Array, attrs: Mapping[str, Attr]) -> Float32Array:
    """x times the share that a power has of itself and 1."""
    alpha = attrs["alpha"]
    assert isinstance(alpha, float)
    inner = np.asarray(x * float32(alpha), float32)
    power = exponential(-np.abs(inner))
    # The logistic function of -|x|; for x above 0 it is 1 minus that.
    share = power / (power + float32(1))
    return np.asarray(x * np.where(np.signbit(inner), share, float32(1) - share), float32)


def mish(x: Float32Array, attrs: Mapping[str, Attr]) -> Float32Array:
    """x times the hyperbolic tangent of ln(1 + e^x), said by the square of 1 + e^x."""
    one_plus_exp = exponential(np.minimum(x, _HIGHEST)) + float32(1)
    # tanh(ln(u)) = (u^2 - 1) / (u^2 + 1).
    square = one_plus_exp * one_plus_exp
    return np.asarray(x * ((square - float32(1)) / (square + float32(1))), float32)


STEPWISE_FUNCTIONS: Mapping[str, Callable[[Float32Array, Mapping[str, Attr]], Float32Array]] = {
    "silu": silu,
    "mish": mish,
}
"""The activations that are computed so where a profile says `stage.curves = "steps"`."""
