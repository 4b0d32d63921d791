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
    over = tuple(normalize_axis("reduce_mean", a, x.ndim) for a in axes) or tuple(range(x.ndim))
    if len(set(over)) < len(over):
        raise OpError(f"reduce_mean: axes {tuple(axes)} name one axis twice")
    count = math.prod(x.shape[a] for a in over)
    total = np.asarray(np.sum(to_float64(x), axis=over, keepdims=keep))
    if kind.is_float:
        return round_to_dtype(np.asarray(np.divide(total, np.float64(count))), x.dtype)
    if not count and total.size:
        raise OpError(f"reduce_mean: x {list(x.shape)} has nothing to average on axes {over}")
    return truncating_divide(total, np.array(max(count, 1), total.dtype)).astype(x.dtype)


Axes = tuple[int, ...]


def _over(op: str, x: Array, axes: Sequence[int]) -> Axes:
    over = tuple(normalize_axis(op, a, x.ndim) for a in axes) or tuple(range(x.ndim))
    if len(set(over)) < len(over):
        raise OpError(f"{op}: axes {tuple(axes)} name one axis twice")
    return over


def _of_numbers(op: str, function: np.ufunc) -> Callable[..., Array]:
    """Returns the reduction by a function of two numbers; the greatest of nothing is the least
    there is."""

    @np.errstate(all="ignore")
    def run(x: Array, *, axes: Sequence[int] = (), keep: bool = True) -> Array:
        kind = numeric_dtype(op, "x", x)
        over = _over(op, x, axes)
        plain = to_float64(x) if kind.is_float else x
        if function.identity is None and not math.prod(x.shape[a] for a in over):
            shape = np.sum(plain, axis=over, keepdims=keep).shape
            return np.full(shape, _furthest(x, greatest=function is np.minimum), x.dtype)
        made = function.reduce(plain, axis=over, keepdims=keep, dtype=plain.dtype)
        return np.asarray(round_to_dtype(np.asarray(made), x.dtype))

    return run


def _furthest(x: Array, *, greatest: bool) -> float | int | bool:
    """Returns the greatest or the least number of a type."""
    kind = numeric_dtype("reduce", "x", x)
    if kind.is_float:
        return math.inf if greatest else -math.inf
    return kind.bounds[greatest] if kind.is_integer else greatest


def _of_floats(
    op: str, function: Callable[[Float64Array, Axes], Float64Array]
) -> Callable[..., Array]:
    """Returns the reduction by a function that keeps its axes as 1."""

    @np.errstate(all="ignore")
    def run(x: Array, *, axes: Sequence[int] = (), keep: bool = True) -> Array:
        require_floats(op, x=x)
        over = _over(op, x, axes)
        made = function(to_float64(x).astype(np.float64, copy=False), over)
        return np.asarray(round_to_dtype(made if keep else np.squeeze(made, over), x.dtype))

    return run


def _log_sum_exp(x: Float64Array, over: Axes) -> Float64Array:
    top = np.max(x, axis=over, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    return np.asarray(np.log(np.sum(np.exp(x - top), axis=over, keepdims=True)) + top)


def _sum(x: Float64Array, over: Axes) -> Float64Array:
    return np.asarray(np.sum(x, axis=over, keepdims=True))


def _place(op: str, function: Callable[..., Array]) -> Callable[..., Array]:
    def run(x: Array, *, axis: int = 0, keep: bool = True, last: bool = False) -> Array:
        numeric_dtype(op, "x", x)
        along = normalize_axis(op, axis, x.ndim)
        if not x.shape[along]:
            rest = tuple(1 if a == along else d for a, d in enumerate(x.shape))
            if math.prod(rest):
                raise OpError(f"{op}: axis {along} of x {list(x.shape)} is empty")
            return np.zeros(rest if keep else rest[:along] + rest[along + 1 :], np.int64)
        if not last:
            return np.asarray(function(to_float64(x), axis=along, keepdims=keep), np.int64)
        found = function(np.flip(to_float64(x), along), axis=along, keepdims=keep)
        return np.asarray(x.shape[along] - 1 - np.asarray(found, np.int64))

    return run


def _so_far(op: str, function: np.ufunc) -> Callable[..., Array]:
    """Returns the function of all elements so far along an axis; raises OpError if x has no such
    axis."""

    @np.errstate(all="ignore")
    def run(x: Array, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Array:
        numeric_dtype(op, "x", x)
        along = normalize_axis(op, axis, x.ndim)
        value = to_float64(np.flip(x, along) if reverse else x)
        made = function.accumulate(value, along, value.dtype)
        if exclusive and x.shape[along]:
            first = np.full_like(np.take(made, [0], along), function.identity)
            rest = np.take(made, range(x.shape[along] - 1), along)
            made = np.concatenate([first, rest], along)
        return round_to_dtype(np.flip(made, along) if reverse else made, x.dtype)

    return run


def top_k(
    x: Array, *, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    """Returns the k greatest or least elements and their places, in order; of equal ones the first.

    NaN is greater than everything. Raises OpError where the axis has fewer than k.
    """
    numeric_dtype("top_k", "x", x)
    along = normalize_axis("top_k", axis, x.ndim)
    if not 0 <= k <= x.shape[along]:
        raise OpError(f"top_k: k {k}, but axis {along} has {x.shape[along]}")
    value = to_float64(x)
    if largest:  # a stable order of the mirrored row, read from its end, keeps the first first
        order = np.argsort(np.flip(value, along), along, kind="stable")
        order = x.shape[along] - 1 - np.flip(order, along)
    else:
        order = np.argsort(value, along, kind="stable")
    places = np.take(order, range(k), along).astype(np.int64)
    return np.take_along_axis(x, places, along), places


FUNCTIONS: dict[str, Callable[..., Array | tuple[Array, ...]]] = {
    "reduce_mean": reduce_mean,
    "reduce_sum": _of_numbers("reduce_sum", np.add),
    "reduce_prod": _of_numbers("reduce_prod", np.multiply),
    "reduce_max": _of_numbers("reduce_max", np.maximum),
    "reduce_min": _of_numbers("reduce_min", np.minimum),
    "reduce_l1": _of_floats("reduce_l1", lambda x, over: _sum(np.abs(x), over)),
    "reduce_l2": _of_floats("reduce_l2", lambda x, over: np.sqrt(_sum(x * x, over))),
    "reduce_log_sum": _of_floats("reduce_log_sum", lambda x, over: np.log(_sum(x, over))),
    "reduce_log_sum_exp": _of_floats("reduce_log_sum_exp", _log_sum_exp),
    "reduce_sum_square": _of_floats("reduce_sum_square", lambda x, over: _sum(x * x, over)),
    "arg_max": _place("arg_max", np.argmax),
    "arg_min": _place("arg_min", np.argmin),
    "cumsum": _so_far("cumsum", np.add),
    "cumprod": _so_far("cumprod", np.multiply),
    "top_k": top_k,
}
