"""Ops that pick and place elements by indices, and ops about which elements there are.

What is added or multiplied in one place goes in the order of the updates, in float64 for floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import DType, dtype_of
from qir.ir.ops.index import REDUCTIONS
from qir.reference.moves import axes_of
from qir.reference.operands import (
    Array,
    common_dtype,
    normalize_axis,
    numeric_dtype,
    require_floats,
    round_to_dtype,
    to_float64,
)

Places = NDArray[np.int64]


def picked(op: str, indices: Array, size: int) -> Places:
    """Indices counted from the front; raises OpError for one that an axis of that size has not."""
    if indices.dtype.kind not in "iu":
        raise OpError(f"{op}: indices are {indices.dtype}, they must be whole numbers")
    at = indices.astype(np.int64)
    if at.size and (at.min() < -size or at.max() >= size):
        worst = int(at.max()) if at.max() >= size else int(at.min())
        raise OpError(f"{op}: index {worst}, but the axis has {size}")
    return np.where(at < 0, at + size, at)


def _grid(op: str, x: Array, indices: Array, axis: int) -> tuple[Places, ...]:
    """Returns the full place of each index that names one along the axis; raises OpError for
    misfits."""
    along = normalize_axis(op, axis, x.ndim)
    if indices.ndim != x.ndim:
        raise OpError(f"{op}: indices have {indices.ndim} axes, x has {x.ndim}")
    for i, (size, held) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if i != along and size > held:
            shapes = f"{list(indices.shape)} are longer than x {list(x.shape)}"
            raise OpError(f"{op}: indices {shapes} on axis {i}")
    at = picked(op, indices, x.shape[along])
    places = _everywhere(indices.shape, x.ndim)
    places[along] = at
    return tuple(places)


def _everywhere(shape: tuple[int, ...], axes: int) -> list[Places]:
    """Returns the number of each element along the first axes."""
    out = []
    for i in range(axes):
        steps = np.arange(shape[i], dtype=np.int64).reshape(-1, *(1,) * (len(shape) - 1 - i))
        out.append(np.broadcast_to(steps, shape))
    return out


def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """For each index the element of x there along the axis; raises OpError for misfits."""
    return x[_grid("gather_elements", x, indices, axis)]


def scatter_elements(
    x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none"
) -> Array:
    """x with each update put where its index says; OpError for misfits."""
    if indices.shape != updates.shape:
        shapes = f"indices have {list(indices.shape)}, updates {list(updates.shape)}"
        raise OpError(f"scatter_elements: {shapes}")
    places = _grid("scatter_elements", x, indices, axis)
    return _placed("scatter_elements", x, places, updates, reduction)


@np.errstate(all="ignore")
def _placed(op: str, x: Array, places: tuple[Places, ...], updates: Array, reduction: str) -> Array:
    if reduction not in REDUCTIONS or x.dtype != updates.dtype:
        kinds = f"x is {x.dtype}, updates {updates.dtype}, reduction {reduction!r}"
        raise OpError(f"{op}: {kinds}; it takes one type and one of {', '.join(REDUCTIONS)}")
    if reduction == "none":
        out = x.copy()
        out[places] = updates
        return out
    common_dtype(op, x=x, updates=updates)
    out = np.array(to_float64(x))
    change = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[reduction]
    change.at(out, places, to_float64(updates))
    return round_to_dtype(out, x.dtype)


def _tuples(op: str, x: Array, indices: Array, batch: int) -> tuple[Places, ...]:
    """Returns the places that the last axis of the indices names, batch by batch; raises OpError
    for misfits."""
    length = indices.shape[-1] if indices.ndim else 0
    fits = 0 <= batch <= min(indices.ndim - 1, x.ndim - 1) and 1 <= length <= x.ndim - batch
    if not fits or x.shape[:batch] != indices.shape[:batch]:
        shapes = f"x {list(x.shape)}, indices {list(indices.shape)}, batch {batch}"
        raise OpError(f"{op}: {shapes} do not fit")
    shape = indices.shape[:-1]
    named = [picked(op, indices[..., i], x.shape[batch + i]) for i in range(length)]
    return (*_everywhere(shape, batch), *named)


def gather_nd(x: Array, indices: Array, *, batch: int = 0) -> Array:
    """Returns the parts of x whose places the indices name; raises OpError for misfits."""
    return np.asarray(x[_tuples("gather_nd", x, indices, batch)])


def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """x with updates put where the indices say; OpError for misfits."""
    places = _tuples("scatter_nd", x, indices, 0)
    wanted = (*indices.shape[:-1], *x.shape[len(places) :])
    if updates.shape != wanted:
        raise OpError(f"scatter_nd: updates {list(updates.shape)}, they must have {list(wanted)}")
    return _placed("scatter_nd", x, places, updates, reduction)


def one_hot(indices: Array, values: Array, *, depth: int, axis: int = -1) -> Array:
    """Returns a new axis with values[1] at each index; one outside -depth..depth - 1 is nowhere."""
    numeric_dtype("one_hot", "indices", indices)
    along = normalize_axis("one_hot", axis, indices.ndim + 1)
    if values.shape != (2,) or depth < 1:
        raise OpError(f"one_hot: values {list(values.shape)}, depth {depth}")
    cut = (
        indices if indices.dtype.kind in "iu" else np.trunc(to_float64(indices).astype(np.float64))
    )
    at = cut.astype(np.int64)
    at = np.expand_dims(np.where(at < 0, at + depth, at), along)
    shape = [1] * at.ndim
    shape[along] = depth
    hit = at == np.arange(depth).reshape(shape)
    return np.where(hit, values[1:], values[:1])


def nonzero(x: Array) -> Array:
    """Returns the places of elements that are not 0, in order, one column each; NaN is not 0."""
    return np.array(np.nonzero(np.atleast_1d(x != 0))[: x.ndim], np.int64).reshape(
        x.ndim, int(np.count_nonzero(x != 0))
    )


def unique(
    x: Array, *, axis: int | None = None, sorted: bool = True
) -> tuple[Array, Array, Array, Array]:
    """Returns what is there once or more, first places, which of it each was, how often each was
    there."""
    numeric_dtype("unique", "x", x)
    along = None if axis is None else normalize_axis("unique", axis, x.ndim)
    parts = to_float64(x) if along is None else np.moveaxis(to_float64(x), along, 0)
    shape = (parts.size, 1) if along is None else (len(parts), math.prod(parts.shape[1:]))
    rows = parts.reshape(shape)
    order = np.lexsort(rows.T[::-1]) if rows.shape[1] else np.arange(len(rows))
    ranked = rows[order]
    new = np.ones(len(rows), np.bool_)
    new[1:] = (ranked[1:] != ranked[:-1]).any(1)
    group = np.empty(len(rows), np.int64)
    group[order] = np.cumsum(new) - 1
    count = int(new.sum())
    first = np.full(count, len(rows), np.int64)
    np.minimum.at(first, group, np.arange(len(rows)))
    if not sorted:
        appearing = np.argsort(first, kind="stable")
        group = np.argsort(appearing, kind="stable")[group]
        first = first[appearing]
    times = np.bincount(group, minlength=count).astype(np.int64)
    kept = np.take(x.reshape(-1) if along is None else x, first, along or 0)
    return kept, first, group, times


def trilu(x: Array, *, k: int = 0, upper: bool = True) -> Array:
    """Returns what is on the k-th diagonal and above it, or below; OpError below 2 axes."""
    if x.ndim < 2:
        raise OpError(f"trilu: x has {x.ndim} axes, it takes 2 or more")
    return np.where(_band(x.shape, k, upper), x, x.dtype.type(0))


def _band(shape: tuple[int, ...], k: int, upper: bool) -> NDArray[np.bool_]:
    away = np.arange(shape[-1]) - np.arange(shape[-2])[:, None]
    return away >= k if upper else away <= k


def eye_like(x: Array, *, dtype: DType | None = None, k: int = 0) -> Array:
    """Returns a matrix as large as x with 1 on the k-th diagonal; raises OpError unless x has 2
    axes."""
    if x.ndim != 2:
        raise OpError(f"eye_like: x has {x.ndim} axes, it takes 2")
    if (dtype or dtype_of(x)).name == "string":
        raise OpError("eye_like: there is no 1 among strings")
    hit = np.equal(np.arange(x.shape[1]) - np.arange(x.shape[0])[:, None], k)
    made: Array = hit.astype(dtype.carrier if dtype else x.dtype)
    return made


def flip(x: Array, *, axes: tuple[int, ...]) -> Array:
    """x with the order along the axes turned round; OpError for axes that x has not."""
    return np.flip(x, axes_of("flip", axes, x.ndim))


def reverse_sequence(x: Array, lengths: Array, *, batch: int = 1, time: int = 0) -> Array:
    """Returns the first elements along time, as many as each length says, turned round."""
    op = "reverse_sequence"
    across, along = normalize_axis(op, batch, x.ndim), normalize_axis(op, time, x.ndim)
    if across == along or lengths.shape != (x.shape[across],) or lengths.dtype.kind not in "iu":
        raise OpError(f"{op}: lengths {list(lengths.shape)}, x {list(x.shape)}, axis {across}")
    size, counts = x.shape[along], lengths.astype(np.int64)[:, None]
    if counts.size and (counts.min() < 0 or counts.max() > size):
        raise OpError(f"{op}: a length of {counts.min()}..{counts.max()}, axis {along} has {size}")
    steps = np.arange(size)[None]
    at = np.where(steps < counts, counts - 1 - steps, steps)
    shape = [1] * x.ndim
    shape[across], shape[along] = at.shape
    at = at if across < along else at.T
    return np.asarray(np.take_along_axis(x, at.reshape(shape), along))


def compress(x: Array, condition: Array, *, axis: int | None = None) -> Array:
    """Returns the entries for which the condition holds; raises OpError for misfits."""
    along = None if axis is None else normalize_axis("compress", axis, x.ndim)
    flat = x.reshape(-1) if along is None else x
    if condition.ndim != 1 or condition.dtype != np.bool_:
        raise OpError(f"compress: condition is {condition.dtype}, it takes one row of bool")
    if len(condition) > flat.shape[along or 0]:
        raise OpError(f"compress: condition has {len(condition)}, axis {flat.shape[along or 0]}")
    return np.take(flat, np.flatnonzero(condition), along or 0)


def hardmax(x: Array, *, axis: int = -1) -> Array:
    """1 where the greatest element of the axis first stands; OpError unless x is float."""
    require_floats("hardmax", x=x)
    along = normalize_axis("hardmax", axis, x.ndim)
    if not math.prod(x.shape):
        return x.copy()
    at = np.argmax(to_float64(x), along, keepdims=True)
    shape = [1] * x.ndim
    shape[along] = -1
    hit: Array = np.equal(np.arange(x.shape[along]).reshape(shape), at).astype(x.dtype)
    return hit


FUNCTIONS: dict[str, Callable[..., Array | tuple[Array, ...]]] = {
    "gather_elements": gather_elements,
    "gather_nd": gather_nd,
    "scatter_elements": scatter_elements,
    "scatter_nd": scatter_nd,
    "one_hot": one_hot,
    "nonzero": nonzero,
    "unique": unique,
    "trilu": trilu,
    "eye_like": eye_like,
    "flip": flip,
    "reverse_sequence": reverse_sequence,
    "compress": compress,
    "hardmax": hardmax,
}
