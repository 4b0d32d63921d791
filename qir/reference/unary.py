"""Mathematical functions of one operand, by NumPy's and the C library's float64 functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qir.reference.operands import (
    Array,
    Float64Array,
    numeric_dtype,
    require_floats,
    round_to_dtype,
    to_float64,
)


def by_element(function: Callable[[float], float], x: Float64Array) -> Float64Array:
    """Returns the function of each element, for those that NumPy has not."""
    # The C library's erf and erfc by Python's math: NumPy has neither.
    flat = np.fromiter(map(function, x.reshape(-1).tolist()), np.float64, x.size)
    return flat.reshape(x.shape)


def on_floats(op: str, function: Callable[[Float64Array], object]) -> Callable[[Array], Array]:
    """Returns the op that computes `function` in float64 and rounds once; raises OpError unless x
    is float."""

    @np.errstate(all="ignore")
    def run(x: Array) -> Array:
        require_floats(op, x=x)
        exact = np.asarray(function(to_float64(x).astype(np.float64, copy=False)))
        return np.asarray(round_to_dtype(exact, x.dtype))

    run.__name__ = run.__qualname__ = op
    return run


@np.errstate(all="ignore")
def neg(x: Array) -> Array:
    """-x, which wraps for integers; OpError if x holds no numbers."""
    numeric_dtype("neg", "x", x)
    return np.asarray(np.negative(x))


@np.errstate(all="ignore")
def absolute(x: Array) -> Array:
    """|x|, which wraps for the least integer; OpError if x holds no numbers."""
    numeric_dtype("abs", "x", x)
    return np.asarray(np.abs(x))


def sign(x: Array) -> Array:
    """-1, 0 or 1 in the type of x; NaN stays. OpError if x holds no numbers."""
    kind = numeric_dtype("sign", "x", x)
    if not kind.is_float:
        return np.asarray(np.sign(x))
    with np.errstate(all="ignore"):
        return np.asarray(round_to_dtype(np.asarray(np.sign(to_float64(x))), x.dtype))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "exp": on_floats("exp", np.exp),
    "log": on_floats("log", np.log),
    "sqrt": on_floats("sqrt", np.sqrt),
    "reciprocal": on_floats("reciprocal", np.reciprocal),
    "erf": on_floats("erf", lambda x: by_element(math.erf, x)),
    "floor": on_floats("floor", np.floor),
    "ceil": on_floats("ceil", np.ceil),
    "round": on_floats("round", np.rint),
    "sin": on_floats("sin", np.sin),
    "cos": on_floats("cos", np.cos),
    "tan": on_floats("tan", np.tan),
    "asin": on_floats("asin", np.arcsin),
    "acos": on_floats("acos", np.arccos),
    "atan": on_floats("atan", np.arctan),
    "sinh": on_floats("sinh", np.sinh),
    "cosh": on_floats("cosh", np.cosh),
    "asinh": on_floats("asinh", np.arcsinh),
    "acosh": on_floats("acosh", np.arccosh),
    "atanh": on_floats("atanh", np.arctanh),
    "exp2": on_floats("exp2", np.exp2),
    "expm1": on_floats("expm1", np.expm1),
    "log1p": on_floats("log1p", np.log1p),
    "log2": on_floats("log2", np.log2),
    "log10": on_floats("log10", np.log10),
    "rsqrt": on_floats("rsqrt", lambda x: 1 / np.sqrt(x)),
    "square": on_floats("square", np.square),
    "erfc": on_floats("erfc", lambda x: by_element(math.erfc, x)),
    "trunc": on_floats("trunc", np.trunc),
    "abs": absolute,
    "neg": neg,
    "sign": sign,
}
