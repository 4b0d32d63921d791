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


def positive_indices(op: str, indices: Array, size: int) -> Places:
    """Indices counted from the front; raises OpError for one that an axis of that size has not."""
    if indices.dtype.kind not in "iu":
        raise OpError(f"{op}: indices are {indices.dtype}, they must be whole numbers")
    positions = indices.astype(np.int64)
    if positions.size and (positions.min() < -size or positions.max() >= size):
        worst = int(positions.max()) if positions.max() >= size else int(positions.min())
        raise OpError(f"{op}: index {worst}, but the axis has {size}")
    return np.where(positions < 0, positions + size, positions)


def _element_positions(op: str, x: Array, indices: Array, axis: int) -> tuple[Places, ...]:
    """Returns the full place of each index that names one along the axis; raises OpError for
    misfits."""
    axis_ = normalize_axis(op, axis, x.ndim)
    if indices.ndim != x.ndim:
        raise OpError(f"{op}: indices have {indices.ndim} axes, x has {x.ndim}")
    for i, (size, x_size) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if i != axis_ and size > x_size:
            shapes = f"{list(indices.shape)} are longer than x {list(x.shape)}"
            raise OpError(f"{op}: indices {shapes} on axis {i}")
    positions = positive_indices(op, indices, x.shape[axis_])
    places = _coordinates(indices.shape, x.ndim)
    places[axis_] = positions
    return tuple(places)


def _coordinates(shape: tuple[int, ...], axes: int) -> list[Places]:
    """Returns the number of each element along the first axes."""
    out = []
    for i in range(axes):
        steps = np.arange(shape[i], dtype=np.int64).reshape(-1, *(1,) * (len(shape) - 1 - i))
        out.append(np.broadcast_to(steps, shape))
    return out


def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """For each index the element of x there along the axis; raises OpError for misfits."""
    return x[_element_positions("gather_elements", x, indices, axis)]


def scatter_elements(
    x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none"
) -> Array:
    """x with each update put where its index says; OpError for misfits."""
    if indices.shape != updates.shape:
        shapes = f"indices have {list(indices.shape)}, updates {list(updates.shape)}"
        raise OpError(f"scatter_elements: {shapes}")
    places = _element_positions("scatter_elements", x, indices, axis)
    return _scatter("scatter_elements", x, places, updates, reduction)


@np.errstate(all="ignore")
def _scatter(
    op: str, x: Array, places: tuple[Places, ...], updates: Array, reduction: str
) -> Array:
    if reduction not in REDUCTIONS or x.dtype != updates.dtype:
        kinds = f"x is {x.dtype}, updates {updates.dtype}, reduction {reduction!r}"
        raise OpError(f"{op}: {kinds}; it takes one type and one of {', '.join(REDUCTIONS)}")
    # Where two updates have one place the last one stays, as NumPy assigns in order.
    if reduction == "none":
        out = x.copy()
        out[places] = updates
        return out
    common_dtype(op, x=x, updates=updates)
    out = np.array(to_float64(x))
    change = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[reduction]
    # ufunc.at applies repeated places one after the other; plain indexing would keep the last
    # alone.
    change.at(out, places, to_float64(updates))
    return round_to_dtype(out, x.dtype)


def _tuple_positions(op: str, x: Array, indices: Array, batch: int) -> tuple[Places, ...]:
    """Returns the places that the last axis of the indices names, batch by batch; raises OpError
    for misfits."""
    length = indices.shape[-1] if indices.ndim else 0
    is_valid = 0 <= batch <= min(indices.ndim - 1, x.ndim - 1) and 1 <= length <= x.ndim - batch
    if not is_valid or x.shape[:batch] != indices.shape[:batch]:
        shapes = f"x {list(x.shape)}, indices {list(indices.shape)}, batch {batch}"
        raise OpError(f"{op}: {shapes} do not fit")
    shape = indices.shape[:-1]
    positions = [positive_indices(op, indices[..., i], x.shape[batch + i]) for i in range(length)]
    return (*_coordinates(shape, batch), *positions)


def gather_nd(x: Array, indices: Array, *, batch: int = 0) -> Array:
    """Returns the parts of x whose places the indices name; raises OpError for misfits."""
    return np.asarray(x[_tuple_positions("gather_nd", x, indices, batch)])


def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """x with updates put where the indices say; OpError for misfits."""
    places = _tuple_positions("scatter_nd", x, indices, 0)
    wanted = (*indices.shape[:-1], *x.shape[len(places) :])
    if updates.shape != wanted:
        raise OpError(f"scatter_nd: updates {list(updates.shape)}, they must have {list(wanted)}")
    return _scatter("scatter_nd", x, places, updates, reduction)


def one_hot(indices: Array, values: Array, *, depth: int, axis: int = -1) -> Array:
    """Returns a new axis with values[1] at each index; one outside -depth..depth - 1 is nowhere."""
    numeric_dtype("one_hot", "indices", indices)
    new_axis = normalize_axis("one_hot", axis, indices.ndim + 1)
    if values.shape != (2,) or depth < 1:
        raise OpError(f"one_hot: values {list(values.shape)}, depth {depth}")
    # ONNX lets one_hot have float indices, whose fraction is cut off.
    integers = (
        indices if indices.dtype.kind in "iu" else np.trunc(to_float64(indices).astype(np.float64))
    )
    positions = integers.astype(np.int64)
    positions = np.expand_dims(np.where(positions < 0, positions + depth, positions), new_axis)
    shape = [1] * positions.ndim
    shape[new_axis] = depth
    # An index outside equals none of these: its row holds the other value alone.
    hit = positions == np.arange(depth).reshape(shape)
    return np.where(hit, values[1:], values[:1])


def nonzero(x: Array) -> Array:
    """Returns the places of elements that are not 0, in order, one column each; NaN is not 0."""
    # NumPy takes no scalars here: one of 0 axes has 0 rows, and a column where it is not 0.
    return np.array(np.nonzero(np.atleast_1d(x != 0))[: x.ndim], np.int64).reshape(
        x.ndim, int(np.count_nonzero(x != 0))
    )


def unique(
    x: Array, *, axis: int | None = None, sorted: bool = True
) -> tuple[Array, Array, Array, Array]:
    """Returns the distinct elements, their first places, the group of each element, and the
    counts."""
    numeric_dtype("unique", "x", x)
    axis_ = None if axis is None else normalize_axis("unique", axis, x.ndim)
    parts = to_float64(x) if axis_ is None else np.moveaxis(to_float64(x), axis_, 0)
    shape = (parts.size, 1) if axis_ is None else (len(parts), math.prod(parts.shape[1:]))
    rows = parts.reshape(shape)
    # lexsort sorts by its last key first: the rows' first column decides.
    order = np.lexsort(rows.T[::-1]) if rows.shape[1] else np.arange(len(rows))
    ranked = rows[order]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (ranked[1:] != ranked[:-1]).any(1)
    group = np.empty(len(rows), np.int64)
    # The number of the group of equal rows that each row belongs to.
    group[order] = np.cumsum(is_first) - 1
    count = int(is_first.sum())
    first = np.full(count, len(rows), np.int64)
    np.minimum.at(first, group, np.arange(len(rows)))
    if not sorted:
        # Unsorted: the groups in the order in which they first appear.
        appearing = np.argsort(first, kind="stable")
        group = np.argsort(appearing, kind="stable")[group]
        first = first[appearing]
    times = np.bincount(group, minlength=count).astype(np.int64)
    values = np.take(x.reshape(-1) if axis_ is None else x, first, axis_ or 0)
    return values, first, group, times


def trilu(x: Array, *, k: int = 0, upper: bool = True) -> Array:
    """Returns what is on the k-th diagonal and above it, or below; OpError below 2 axes."""
    if x.ndim < 2:
        raise OpError(f"trilu: x has {x.ndim} axes, it takes 2 or more")
    return np.where(_band(x.shape, k, upper), x, x.dtype.type(0))


def _band(shape: tuple[int, ...], k: int, upper: bool) -> NDArray[np.bool_]:
    diagonal = np.arange(shape[-1]) - np.arange(shape[-2])[:, None]
    return diagonal >= k if upper else diagonal <= k


def eye_like(x: Array, *, dtype: DType | None = None, k: int = 0) -> Array:
    """Returns a matrix as large as x with 1 on the k-th diagonal; raises OpError unless x has 2
    axes."""
    if x.ndim != 2:
        raise OpError(f"eye_like: x has {x.ndim} axes, it takes 2")
    if (dtype or dtype_of(x)).name == "string":
        raise OpError("eye_like: there is no 1 among strings")
    hit = np.equal(np.arange(x.shape[1]) - np.arange(x.shape[0])[:, None], k)
    result: Array = hit.astype(dtype.carrier if dtype else x.dtype)
    return result


def flip(x: Array, *, axes: tuple[int, ...]) -> Array:
    """x with the order along the axes turned round; OpError for axes that x has not."""
    return np.flip(x, axes_of("flip", axes, x.ndim))


def reverse_sequence(x: Array, lengths: Array, *, batch: int = 1, time: int = 0) -> Array:
    """Returns the first elements along time, as many as each length says, turned round."""
    op = "reverse_sequence"
    batch_axis, time_axis = normalize_axis(op, batch, x.ndim), normalize_axis(op, time, x.ndim)
    if (
        batch_axis == time_axis
        or lengths.shape != (x.shape[batch_axis],)
        or lengths.dtype.kind not in "iu"
    ):
        raise OpError(f"{op}: lengths {list(lengths.shape)}, x {list(x.shape)}, axis {batch_axis}")
    size, counts = x.shape[time_axis], lengths.astype(np.int64)[:, None]
    if counts.size and (counts.min() < 0 or counts.max() > size):
        raise OpError(
            f"{op}: a length of {counts.min()}..{counts.max()}, axis {time_axis} has {size}"
        )
    steps = np.arange(size)[None]
    positions = np.where(steps < counts, counts - 1 - steps, steps)
    shape = [1] * x.ndim
    shape[batch_axis], shape[time_axis] = positions.shape
    positions = positions if batch_axis < time_axis else positions.T
    return np.asarray(np.take_along_axis(x, positions.reshape(shape), time_axis))


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
    axis_ = normalize_axis("hardmax", axis, x.ndim)
    # argmax of no elements is an error to NumPy.
    if not math.prod(x.shape):
        return x.copy()
    positions = np.argmax(to_float64(x), axis_, keepdims=True)
    shape = [1] * x.ndim
    shape[axis_] = -1
    hit: Array = np.equal(np.arange(x.shape[axis_]).reshape(shape), positions).astype(x.dtype)
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
