"""Functions of one number as torch's quantized kernels compute them: in float32, step by step,
vectors by polynomials where single elements ask the C library."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.numerics.rounding import fma
from qir.reference.method import Float32Array, Integers, float32
from qir.reference.table import compute

_TERMS = tuple(
    float32(v)
    for v in (
        0.00139304355252534151077271,
        0.00833336077630519866943359,
        0.0416664853692054748535156,
        0.166666671633720397949219,
        0.5,
    )
)
"""Coefficients of the exponential's polynomial after the first."""
_LOGARITHM = float32(0.693145751953125), float32(1.428606765330187045e-06)
"""The logarithm of 2 in two parts."""


def exponential(x: Float32Array) -> Float32Array:
    """e ^ x as vectors make it: within an ulp, by a polynomial about the nearest power of two."""
    # The constants are those of Sleef's expf, which ATen's vectors call.
    clamped = np.clip(x, float32(-105), float32(101))
    # x = n ln 2 + r; ln 2 is subtracted in two parts, so that r keeps its digits.
    power = np.rint(clamped * float32(1.442695040888963407))
    remainder = fma(power, -_LOGARITHM[0], clamped)
    remainder = fma(power, -_LOGARITHM[1], remainder)
    polynomial = np.full_like(remainder, float32(0.000198527617612853646278381))
    for term in _TERMS:
        polynomial = fma(polynomial, remainder, np.full_like(remainder, term))
    polynomial = float32(1) + fma(remainder * remainder, polynomial, remainder)
    polynomial = np.ldexp(polynomial, power.astype(np.int32))
    return np.where(
        x < float32(-104), float32(0), np.where(x > float32(100), float32(np.inf), polynomial)
    ).astype(float32)


def error_function(x: Float32Array) -> Float32Array:
    """erf(x) as vectors make it, to seven digits."""
    magnitude = np.abs(x)
    # Abramowitz and Stegun 7.1.26: erf(x) = 1 - (a1 t + ... + a5 t^5) e^(-x^2), t = 1 / (1 + p x).
    t = float32(1) / fma(
        np.full_like(magnitude, float32(0.3275911)), magnitude, np.ones_like(magnitude)
    )
    polynomial = np.full_like(t, float32(1.061405429))
    for term in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        polynomial = fma(polynomial, t, np.full_like(t, float32(term)))
    tail = -exponential(-(x * x)) * t
    return np.copysign(fma(tail, polynomial, np.ones_like(polynomial)), x)


def hard_sigmoid(x: Float32Array) -> Float32Array:
    """min(max(x + 3, 0), 6) / 6, each step in float32."""
    return np.asarray(
        np.minimum(np.maximum(x + float32(3), float32(0)), float32(6)) / float32(6), float32
    )


def hard_swish(x: Float32Array) -> Float32Array:
    """x * min(max(x + 3, 0), 6) / 6, each step in float32."""
    return np.asarray(
        x * np.minimum(np.maximum(x + float32(3), float32(0)), float32(6)) / float32(6), float32
    )


def _exponential_unit(x: Float32Array, alpha: np.float32, inner: np.float32) -> Float32Array:
    """x where it is positive, else alpha * (e ^ (x * inner) - 1)."""
    negative_part = np.expm1((x * inner).astype(np.float64)).astype(float32)
    return np.asarray(np.where(x > 0, x, negative_part * alpha), float32)


def _sigmoid(x: Float32Array, *, vectors: bool) -> Float32Array:
    if vectors:
        return np.asarray(float32(1) / (float32(1) + exponential(-x)), float32)
    powers = np.exp(-x.astype(np.float64)).astype(float32).astype(np.float64)
    return np.asarray(1.0 / (1.0 + powers), float32)


def _gelu(x: Float32Array) -> Float32Array:
    return np.asarray(
        x * float32(0.5) * (float32(1) + error_function(x * float32(np.sqrt(0.5)))), float32
    )


def _number(attrs: Mapping[str, Attr], name: str) -> float:
    value = attrs[name]
    assert isinstance(value, float)
    return value


def check_fixed_slope(attrs: Mapping[str, Attr]) -> None:
    """Raises OpError for a hard sigmoid that is not torch's, which has no attributes."""
    alpha, beta = _number(attrs, "alpha"), _number(attrs, "beta")
    if float32(alpha) != float32(1 / 6) or beta != 0.5:
        raise OpError(
            f"hard_sigmoid: alpha = {alpha:g}, beta = {beta:g}; the kernel has alpha = 1/6 and "
            f"beta = 1/2"
        )


def evaluate(
    op: str, floats: Mapping[str, Integers], attrs: Mapping[str, Attr], *, vectors: bool
) -> Float32Array:
    """Returns what an op makes of floats, as vectors or as single elements do."""
    with np.errstate(all="ignore"):
        x = floats["x"].astype(float32) if "x" in floats else np.zeros((), float32)
        if op == "hard_sigmoid":
            check_fixed_slope(attrs)
            return hard_sigmoid(x)
        if op == "hard_swish":
            return hard_swish(x)
        if op == "sigmoid":
            return _sigmoid(x, vectors=vectors)
        if op == "elu":
            return _exponential_unit(x, float32(_number(attrs, "alpha")), float32(1))
        if op == "celu":
            alpha = _number(attrs, "alpha")
            return _exponential_unit(x, float32(alpha), float32(1 / alpha))
        if op == "gelu" and vectors and attrs["approximate"] == "none":
            return _gelu(x)
        return compute(op, floats, attrs).astype(float32)
