"""Activations beyond relu, clip and sigmoid.

Each is written so that float64 loses nothing by cancellation: gelu by erfc and not by 1 + erf.
NaN stays NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qir.errors import OpError
from qir.ir.ops.activations import SELU_ALPHA, SELU_GAMMA
from qir.reference.operands import Array, Float64Array, require_floats, round_to_dtype, to_float64
from qir.reference.unary import by_element, on_floats


def _as_float64(op: str, x: Array) -> Float64Array:
    require_floats(op, x=x)
    return to_float64(x).astype(np.float64, copy=False)


def _round_like(value: object, x: Array) -> Array:
    return np.asarray(round_to_dtype(np.asarray(value), x.dtype))


@np.errstate(all="ignore")
def leaky_relu(x: Array, *, alpha: float = 0.01) -> Array:
    """x, times alpha where it is negative; OpError unless x is float.

    Who computes in float32 holds alpha as such.
    """
    value = _as_float64("leaky_relu", x)
    # Runtimes hold attributes as float32 and multiply in float32.
    alpha = alpha if x.dtype == np.float64 else float(np.float32(alpha))
    return _round_like(np.where(value < 0, alpha * value, value), x)


@np.errstate(all="ignore")
def prelu(x: Array, slope: Array) -> Array:
    """x, times slope where it is negative; OpError unless slope broadcasts to x."""
    require_floats("prelu", x=x, slope=slope)
    try:
        factor = np.broadcast_to(to_float64(slope), x.shape)
    except ValueError:
        shapes = f"slope {list(slope.shape)}, x {list(x.shape)}"
        raise OpError(f"prelu: {shapes}: slope does not broadcast to x") from None
    value = to_float64(x)
    return _round_like(np.where(np.less(value, 0), np.multiply(factor, value), value), x)


def thresholded_relu(x: Array, *, alpha: float = 1.0) -> Array:
    """x where it is greater than alpha, else 0; OpError unless x is float."""
    value = _as_float64("thresholded_relu", x)
    return np.where(value <= float(round_to_dtype(np.array(alpha), x.dtype)), x.dtype.type(0), x)


@np.errstate(all="ignore")
def elu(x: Array, *, alpha: float = 1.0) -> Array:
    """x where it is positive, else alpha * (exp(x) - 1); OpError unless x is float."""
    value = _as_float64("elu", x)
    return _round_like(np.where(value > 0, value, alpha * np.expm1(value)), x)


@np.errstate(all="ignore")
def selu(x: Array, *, alpha: float = SELU_ALPHA, gamma: float = SELU_GAMMA) -> Array:
    """gamma * x where x is positive, else gamma * alpha * (exp(x) - 1); OpError unless float."""
    value = _as_float64("selu", x)
    return _round_like(gamma * np.where(value > 0, value, alpha * np.expm1(value)), x)


@np.errstate(all="ignore")
def celu(x: Array, *, alpha: float = 1.0) -> Array:
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0); OpError for alpha 0 or no floats."""
    value = _as_float64("celu", x)
    if not alpha:
        raise OpError("celu: alpha is 0, and x / alpha has no value")
    low = np.minimum(alpha * np.expm1(value / alpha), 0)
    return _round_like(np.maximum(value, 0) + low, x)


@np.errstate(all="ignore")
def hard_sigmoid(x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    """alpha * x + beta, kept in 0..1; OpError unless x is float."""
    return _round_like(np.clip(alpha * _as_float64("hard_sigmoid", x) + beta, 0, 1), x)


@np.errstate(all="ignore")
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """x times the normal distribution up to x; OpError for an unknown way or no floats."""
    value = _as_float64("gelu", x)
    if approximate == "none":
        return _round_like(value * 0.5 * by_element(math.erfc, value * -math.sqrt(0.5)), x)
    if approximate != "tanh":
        raise OpError(f"gelu: approximate {approximate!r} is neither none nor tanh")
    # 0.5 * (1 + tanh(z)) is logistic(2 z), which does not cancel for negative x.
    inner = math.sqrt(2 / math.pi) * (value + 0.044715 * value * value * value)
    return _round_like(value * _logistic(2 * inner), x)


@np.errstate(all="ignore")
def silu(x: Array, *, alpha: float = 1.0) -> Array:
    """x * sigmoid(alpha * x); OpError unless x is float."""
    value = _as_float64("silu", x)
    return _round_like(value * _logistic(alpha * value), x)


@np.errstate(all="ignore")
def shrink(x: Array, *, lambd: float = 0.5, bias: float = 0.0) -> Array:
    """x + bias below -lambd, x - bias above lambd, else 0; OpError unless x is float."""
    value = _as_float64("shrink", x)
    high = np.where(value > lambd, value - bias, np.where(np.isnan(value), value, 0.0))
    return _round_like(np.where(value < -lambd, value + bias, high), x)


@np.errstate(all="ignore")
def logit(x: Array, *, eps: float | None = None) -> Array:
    """log(x / (1 - x)), x kept in eps..1 - eps; OpError unless x is float."""
    value = _as_float64("logit", x)
    if eps is not None:
        value = np.minimum(np.maximum(value, eps), 1 - eps)
    # Around 0.5 the two logarithms cancel; there logit(x) = 2 atanh(2x - 1).
    low = np.log(value) - np.log1p(-value)
    return _round_like(np.where(np.abs(value - 0.5) < 0.25, 2 * np.arctanh(2 * value - 1), low), x)


def _x_minus_tanh(value: Float64Array) -> Float64Array:
    """x - tanh(x), by its series where the two are close."""
    square = value * value
    terms = (1 / 3, -2 / 15, 17 / 315, -62 / 2835, 1382 / 155925, -21844 / 6081075)
    later_terms = (929569 / 638512875, -6404582 / 10854718875, 443861162 / 1856156927625)
    # x - tanh(x) = x^3/3 - 2x^5/15 + ...: below 1/8 the difference itself would lose its digits.
    series = np.zeros_like(value)
    for term in (*terms, *later_terms)[::-1]:
        series = series * square + term
    return np.where(np.abs(value) < 0.125, value * square * series, value - np.tanh(value))


def _logistic(value: Float64Array) -> Float64Array:
    # The exponent is never positive, so that nothing overflows on either side.
    small = np.exp(-np.abs(value))
    return np.asarray(np.where(value < 0, small, 1.0) / (1.0 + small))


def _softplus(value: Float64Array) -> Float64Array:
    return np.asarray(np.log1p(np.exp(-np.abs(value))) + np.maximum(value, 0))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "leaky_relu": leaky_relu,
    "prelu": prelu,
    "thresholded_relu": thresholded_relu,
    "elu": elu,
    "selu": selu,
    "celu": celu,
    "tanh": on_floats("tanh", np.tanh),
    "hard_sigmoid": hard_sigmoid,
    "hard_swish": on_floats("hard_swish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "softplus": on_floats("softplus", _softplus),
    "softsign": on_floats("softsign", lambda x: x / (1 + np.abs(x))),
    "gelu": gelu,
    "silu": silu,
    "log_sigmoid": on_floats("log_sigmoid", lambda x: -_softplus(-x)),
    "tanh_shrink": on_floats("tanh_shrink", _x_minus_tanh),
    "shrink": shrink,
    "logit": logit,
    "mish": on_floats("mish", lambda x: x * np.tanh(_softplus(x))),
}
