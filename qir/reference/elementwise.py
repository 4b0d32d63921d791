"""Ops that work element by element, with NumPy's broadcasting.

The four operations on floats are correctly rounded in the operands' own type, which is the same
as by way of float64. NaN stays NaN everywhere; relu keeps -0.0, as onnxruntime does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from qir.errors import OpError
from qir.ir.dtype import DType
from qir.reference.operands import (
    Array,
    common_dtype,
    numeric_dtype,
    require_floats,
    round_to_dtype,
    to_float64,
    truncate_to_integer,
)


@np.errstate(all="ignore")
def add(a: Array, b: Array) -> Array:
    """a + b; OpError if types or shapes do not fit."""
    _require_broadcastable("add", a, b)
    return np.asarray(np.add(a, b))


@np.errstate(all="ignore")
def sub(a: Array, b: Array) -> Array:
    """a - b; OpError if types or shapes do not fit."""
    _require_broadcastable("sub", a, b)
    return np.asarray(np.subtract(a, b))


@np.errstate(all="ignore")
def mul(a: Array, b: Array) -> Array:
    """a * b; OpError if types or shapes do not fit."""
    _require_broadcastable("mul", a, b)
    return np.asarray(np.multiply(a, b))


@np.errstate(all="ignore")
def div(a: Array, b: Array) -> Array:
    """a / b, for integers cut toward zero; OpError for misfits and an integer divisor of 0."""
    kind = _require_broadcastable("div", a, b)
    if kind.is_float:
        return np.asarray(np.divide(a, b))
    if not np.all(b):
        at = np.argwhere(np.atleast_1d(b) == 0)[0].tolist()
        raise OpError(f"div: b is 0 at {at}, and {kind} has no value for a / 0")
    return truncating_divide(a, b)


def truncating_divide(a: Array, b: Array) -> Array:
    """Returns the quotient of integers without its fraction; b is nowhere 0."""
    # floor(a / b) after the remainder is taken off: exact, and cut toward zero.
    return np.asarray(np.floor_divide(np.subtract(a, np.fmod(a, b)), b))


def relu(x: Array) -> Array:
    """x where it is not negative, else 0; NaN stays. OpError if x holds no numbers."""
    numeric_dtype("relu", "x", x)
    # Not np.maximum, which may turn -0.0 into 0.0; NaN is not less than 0 and stays.
    return np.where(np.less(x, x.dtype.type(0)), x.dtype.type(0), x)


def clip(x: Array, *, min: float | None = None, max: float | None = None) -> Array:
    """min(max(x, min), max), so max where the bounds cross; NaN stays. OpError for bad bounds."""
    kind = numeric_dtype("clip", "x", x)
    out = x.copy()
    if min is not None:
        low = _bound_in_type("min", min, kind, x)
        out = np.where(np.less(out, low), low, out)
    if max is not None:
        high = _bound_in_type("max", max, kind, x)
        out = np.where(np.greater(out, high), high, out)
    return out


@np.errstate(all="ignore")
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow on either side; OpError unless x is float."""
    require_floats("sigmoid", x=x)
    value = to_float64(x).astype(np.float64, copy=False)
    # exp of what is not above 0 never overflows; both halves of the curve are written by it.
    small = np.exp(-np.abs(value))
    return round_to_dtype(np.where(value < 0, small, 1.0) / (1.0 + small), x.dtype)


@np.errstate(all="ignore")
def power(a: Array, b: Array) -> Array:
    """a to the power b, in the type of a; OpError for what holds no numbers, and 0 to less than 0.

    Integers to integers wrap, and to less than 0 lose their fraction; to floats they are computed
    in float64 and cast back.
    """
    kind, exponent_type = numeric_dtype("pow", "a", a), numeric_dtype("pow", "b", b)
    _check_broadcast("pow", a, b)
    if kind.is_integer and exponent_type.is_integer:
        return _integer_power(a, b)
    exponent = to_float64(b).astype(np.float64, copy=False)
    exact = np.power(to_float64(a).astype(np.float64, copy=False), exponent)
    if kind.is_integer:
        return truncate_to_integer(np.asarray(exact), kind)
    return np.asarray(round_to_dtype(np.asarray(exact), a.dtype))


def _integer_power(a: Array, b: Array) -> Array:
    """Integers to integers: all bits that the type has, whatever the true power."""
    a, b = np.broadcast_arrays(a, b)
    is_negative = np.less(b, 0)
    if (is_negative & (a == 0)).any():
        raise OpError("pow: 0 to a power below 0 has no value")
    # In uint64 the low bits are right whatever the true power; the cast keeps those of the type.
    raised = np.power(a.astype(np.uint64), np.where(is_negative, 0, b).astype(np.uint64))
    signed_one = np.where(b % 2 == 0, np.abs(a), a)
    # Only 1 and -1 have whole inverses; all others are cut to 0.
    inverse = np.where(np.abs(a) == 1, signed_one, 0).astype(a.dtype)
    return np.where(is_negative, inverse, raised.astype(a.dtype))


@np.errstate(all="ignore")
def mod(a: Array, b: Array, *, fmod: bool = False) -> Array:
    """Returns what division leaves, with the sign of b, or of a; raises OpError for an integer
    divisor of 0."""
    kind = _require_broadcastable("mod", a, b)
    if not kind.is_float and not np.all(b):
        at = np.argwhere(np.atleast_1d(b) == 0)[0].tolist()
        raise OpError(f"mod: b is 0 at {at}, and nothing is left of a / 0")
    remainder = (np.fmod if fmod else np.mod)(to_float64(a), to_float64(b))
    return np.asarray(round_to_dtype(np.asarray(remainder), a.dtype))


@np.errstate(all="ignore")
def floor_div(a: Array, b: Array) -> Array:
    """Returns the greatest whole number not above a / b; raises OpError for an integer divisor of
    0."""
    kind = _require_broadcastable("floor_div", a, b)
    if not kind.is_float and not np.all(b):
        at = np.argwhere(np.atleast_1d(b) == 0)[0].tolist()
        raise OpError(f"floor_div: b is 0 at {at}, and {kind} has no value for a / 0")
    quotient = np.floor_divide(to_float64(a), to_float64(b))
    return np.asarray(round_to_dtype(np.asarray(quotient), a.dtype))


@np.errstate(all="ignore")
def squared_difference(a: Array, b: Array) -> Array:
    """(a - b)^2, of integers wrapped; OpError if types or shapes do not fit."""
    if not _require_broadcastable("squared_difference", a, b).is_float:
        return np.asarray(np.square(np.subtract(a, b)))
    return np.asarray(
        round_to_dtype(np.asarray(np.square(np.subtract(to_float64(a), to_float64(b)))), a.dtype)
    )


@np.errstate(all="ignore")
def atan2(a: Array, b: Array) -> Array:
    """Returns the angle of the point (b, a); raises OpError unless the operands are floats that
    fit."""
    require_floats("atan2", a=a, b=b)
    _check_broadcast("atan2", a, b)
    return np.asarray(round_to_dtype(np.asarray(np.arctan2(to_float64(a), to_float64(b))), a.dtype))


def elementwise_min(xs: Sequence[Array]) -> Array:
    """Returns the least of all operands, element by element; NaN wins. OpError for misfits."""
    return _fold("min", np.minimum, xs)


def elementwise_max(xs: Sequence[Array]) -> Array:
    """Returns the greatest of all operands, element by element; NaN wins. OpError for misfits."""
    return _fold("max", np.maximum, xs)


def elementwise_sum(xs: Sequence[Array]) -> Array:
    """Returns the sum of all operands, rounded once, of integers wrapped; raises OpError for
    misfits."""
    if common_dtype("sum", **_operands_by_slot("sum", xs)).is_integer:
        return _fold("sum", np.add, xs)
    return _sum("sum", xs, 1)


def mean(xs: Sequence[Array]) -> Array:
    """Returns the mean of all operands, rounded once; raises OpError unless they are floats that
    fit."""
    return _sum("mean", xs, len(xs))


@np.errstate(all="ignore")
def _sum(op: str, xs: Sequence[Array], count: int) -> Array:
    require_floats(op, **_operands_by_slot(op, xs))
    _check_broadcast(op, *xs)
    # In the order of the operands: float64 sums depend on it too, in their last bit.
    exact = reduce(np.add, (to_float64(x).astype(np.float64, copy=False) for x in xs))
    return np.asarray(round_to_dtype(np.asarray(exact / count), xs[0].dtype))


@np.errstate(all="ignore")
def _fold(op: str, function: np.ufunc, xs: Sequence[Array]) -> Array:
    common_dtype(op, **_operands_by_slot(op, xs))
    _check_broadcast(op, *xs)
    return np.array(reduce(function, xs))


def _operands_by_slot(op: str, xs: Sequence[Array]) -> dict[str, Array]:
    if not xs:
        raise OpError(f"{op}: it takes an operand or more")
    return {f"xs.{i}": x for i, x in enumerate(xs)}


def _check_broadcast(op: str, *operands: Array) -> None:
    try:
        np.broadcast_shapes(*(x.shape for x in operands))
    except ValueError:
        shapes = " and ".join(str(list(x.shape)) for x in operands)
        raise OpError(f"{op}: {shapes} do not broadcast") from None


def _require_broadcastable(op: str, a: Array, b: Array) -> DType:
    kind = common_dtype(op, a=a, b=b)
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise OpError(f"{op}: a {list(a.shape)} and b {list(b.shape)} do not broadcast") from None
    return kind


def _bound_in_type(name: str, value: float, kind: DType, x: Array) -> np.generic:
    """Returns the bound in the type of x; for integers the nearest that binds alike."""
    if math.isnan(value):
        raise OpError(f"clip: {name} is NaN")
    if kind.is_float:
        bound: np.generic = round_to_dtype(np.array([value]), x.dtype)[0]
        return bound
    low, high = kind.bounds
    if math.isfinite(value) and value != int(value):
        raise OpError(f"clip: {name} is {value}, x is {kind} and takes whole numbers")
    # A bound beyond the type binds nothing, as does the type's own end.
    nearest = low if value < low else high if value > high else int(value)
    bound_value: np.generic = x.dtype.type(nearest)
    return bound_value
