"""Reductions, and what else looks along an axis: sums so far, where the greatest is.

Floats are summed in float64 and rounded once; integers wrap in their own type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from qir.errors import OpError
from qir.reference.elementwise import truncating_divide
from qir.reference.operands import (
    Array,
    Float64Array,
    normalize_axis,
    numeric_dtype,
    require_floats,
    round_to_dtype,
    to_float64,
)


@np.errstate(all="ignore")
def reduce_mean(x: Array, *, axes: Sequence[int] = (), keep: bool = True) -> Array:
    """Returns the mean over the axes, all of them if none is named; integers cut toward zero.

    Over nothing it is NaN, and for integers OpError; so are axes that x has not, or has twice.
    """
    kind = numeric_dtype("reduce_mean", "x", x)
    reduced_axes = tuple(normalize_axis("reduce_mean", a, x.ndim) for a in axes) or tuple(
        range(x.ndim)
    )
    if len(set(reduced_axes)) < len(reduced_axes):
        raise OpError(f"reduce_mean: axes {tuple(axes)} name one axis twice")
    count = math.prod(x.shape[a] for a in reduced_axes)
    total = np.asarray(np.sum(to_float64(x), axis=reduced_axes, keepdims=keep))
    if kind.is_float:
        return round_to_dtype(np.asarray(np.divide(total, np.float64(count))), x.dtype)
    if not count and total.size:
        raise OpError(
            f"reduce_mean: x {list(x.shape)} has nothing to average on axes {reduced_axes}"
        )
    return truncating_divide(total, np.array(max(count, 1), total.dtype)).astype(x.dtype)


Axes = tuple[int, ...]


def _reduced_axes(op: str, x: Array, axes: Sequence[int]) -> Axes:
    reduced_axes = tuple(normalize_axis(op, a, x.ndim) for a in axes) or tuple(range(x.ndim))
    if len(set(reduced_axes)) < len(reduced_axes):
        raise OpError(f"{op}: axes {tuple(axes)} name one axis twice")
    return reduced_axes


def _number_reduction(op: str, function: np.ufunc) -> Callable[..., Array]:
    """Returns the reduction by a function of two numbers; the greatest of nothing is the least
    there is."""

    @np.errstate(all="ignore")
    def run(x: Array, *, axes: Sequence[int] = (), keep: bool = True) -> Array:
        kind = numeric_dtype(op, "x", x)
        reduced_axes = _reduced_axes(op, x, axes)
        values = to_float64(x) if kind.is_float else x
        # min and max have no identity in NumPy, which refuses to reduce nothing; ONNX gives the
        # least or greatest number.
        if function.identity is None and not math.prod(x.shape[a] for a in reduced_axes):
            shape = np.sum(values, axis=reduced_axes, keepdims=keep).shape
            return np.full(shape, _identity_element(x, greatest=function is np.minimum), x.dtype)
        reduced = function.reduce(values, axis=reduced_axes, keepdims=keep, dtype=values.dtype)
        return np.asarray(round_to_dtype(np.asarray(reduced), x.dtype))

    return run


def _identity_element(x: Array, *, greatest: bool) -> float | int | bool:
    """Returns the greatest or the least number of a type."""
    kind = numeric_dtype("reduce", "x", x)
    if kind.is_float:
        return math.inf if greatest else -math.inf
    return kind.bounds[greatest] if kind.is_integer else greatest


def _float_reduction(
    op: str, function: Callable[[Float64Array, Axes], Float64Array]
) -> Callable[..., Array]:
    """Returns the reduction by a function that keeps its axes as 1."""

    @np.errstate(all="ignore")
    def run(x: Array, *, axes: Sequence[int] = (), keep: bool = True) -> Array:
        require_floats(op, x=x)
        reduced_axes = _reduced_axes(op, x, axes)
        reduced = function(to_float64(x).astype(np.float64, copy=False), reduced_axes)
        return np.asarray(
            round_to_dtype(reduced if keep else np.squeeze(reduced, reduced_axes), x.dtype)
        )

    return run


def _log_sum_exp(x: Float64Array, over: Axes) -> Float64Array:
    maximum = np.max(x, axis=over, keepdims=True, initial=-np.inf)
    # Without a finite maximum nothing is subtracted: inf - inf would be NaN.
    maximum = np.where(np.isfinite(maximum), maximum, 0.0)
    return np.asarray(np.log(np.sum(np.exp(x - maximum), axis=over, keepdims=True)) + maximum)


def _sum(x: Float64Array, over: Axes) -> Float64Array:
    return np.asarray(np.sum(x, axis=over, keepdims=True))


def _arg_reduction(op: str, function: Callable[..., Array]) -> Callable[..., Array]:
    def run(x: Array, *, axis: int = 0, keep: bool = True, last: bool = False) -> Array:
        numeric_dtype(op, "x", x)
        axis_ = normalize_axis(op, axis, x.ndim)
        if not x.shape[axis_]:
            shape = tuple(1 if a == axis_ else d for a, d in enumerate(x.shape))
            if math.prod(shape):
                raise OpError(f"{op}: axis {axis_} of x {list(x.shape)} is empty")
            return np.zeros(shape if keep else shape[:axis_] + shape[axis_ + 1 :], np.int64)
        if not last:
            return np.asarray(function(to_float64(x), axis=axis_, keepdims=keep), np.int64)
        # argmax finds the first; of the mirrored axis that is the last.
        index = function(np.flip(to_float64(x), axis_), axis=axis_, keepdims=keep)
        return np.asarray(x.shape[axis_] - 1 - np.asarray(index, np.int64))

    return run


def _cumulative(op: str, function: np.ufunc) -> Callable[..., Array]:
    """Returns the function of all elements so far along an axis; raises OpError if x has no such
    axis."""

    @np.errstate(all="ignore")
    def run(x: Array, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Array:
        numeric_dtype(op, "x", x)
        axis_ = normalize_axis(op, axis, x.ndim)
        value = to_float64(np.flip(x, axis_) if reverse else x)
        totals = function.accumulate(value, axis_, value.dtype)
        if exclusive and x.shape[axis_]:
            first = np.full_like(np.take(totals, [0], axis_), function.identity)
            shifted = np.take(totals, range(x.shape[axis_] - 1), axis_)
            totals = np.concatenate([first, shifted], axis_)
        return round_to_dtype(np.flip(totals, axis_) if reverse else totals, x.dtype)

    return run


def top_k(
    x: Array, *, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    """Returns the k greatest or least elements and their places, in order; of equal ones the first.

    NaN is greater than everything. Raises OpError where the axis has fewer than k.
    """
    numeric_dtype("top_k", "x", x)
    axis_ = normalize_axis("top_k", axis, x.ndim)
    if not 0 <= k <= x.shape[axis_]:
        raise OpError(f"top_k: k {k}, but axis {axis_} has {x.shape[axis_]}")
    value = to_float64(x)
    if largest:  # a stable order of the mirrored row, read from its end, keeps the first first
        order = np.argsort(np.flip(value, axis_), axis_, kind="stable")
        order = x.shape[axis_] - 1 - np.flip(order, axis_)
    else:
        order = np.argsort(value, axis_, kind="stable")
    places = np.take(order, range(k), axis_).astype(np.int64)
    return np.take_along_axis(x, places, axis_), places


FUNCTIONS: dict[str, Callable[..., Array | tuple[Array, ...]]] = {
    "reduce_mean": reduce_mean,
    "reduce_sum": _number_reduction("reduce_sum", np.add),
    "reduce_prod": _number_reduction("reduce_prod", np.multiply),
    "reduce_max": _number_reduction("reduce_max", np.maximum),
    "reduce_min": _number_reduction("reduce_min", np.minimum),
    "reduce_l1": _float_reduction("reduce_l1", lambda x, over: _sum(np.abs(x), over)),
    "reduce_l2": _float_reduction("reduce_l2", lambda x, over: np.sqrt(_sum(x * x, over))),
    "reduce_log_sum": _float_reduction("reduce_log_sum", lambda x, over: np.log(_sum(x, over))),
    "reduce_log_sum_exp": _float_reduction("reduce_log_sum_exp", _log_sum_exp),
    "reduce_sum_square": _float_reduction("reduce_sum_square", lambda x, over: _sum(x * x, over)),
    "arg_max": _arg_reduction("arg_max", np.argmax),
    "arg_min": _arg_reduction("arg_min", np.argmin),
    "cumsum": _cumulative("cumsum", np.add),
    "cumprod": _cumulative("cumprod", np.multiply),
    "top_k": top_k,
}
