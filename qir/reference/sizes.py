"""Ops about sizes: a tensor's shape, tensors of a shape, rows of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qir.errors import OpError
from qir.ir.types import Array as Stored
from qir.reference.operands import Array, common_dtype, round_to_dtype


def shape(x: Array, *, start: int = 0, end: int | None = None) -> Array:
    """The sizes of the axes from start to before end."""
    return np.array(x.shape[start:end], np.int64)


def size(x: Array) -> Array:
    """Returns the number of elements."""
    return np.array(x.size, np.int64)


def numbers(start: Array, limit: Array, step: Array) -> Array:
    """Numbers from start to before limit; raises OpError for a step of 0, no end, and for
    misfits."""
    kind = common_dtype("range", start=start, limit=limit, step=step)
    for slot, x in (("start", start), ("limit", limit), ("step", step)):
        if x.size != 1:
            raise OpError(f"range: {slot} has {x.size} elements, it takes one number")
    if not step.reshape(()):
        raise OpError("range: step is 0, with which no limit is reached")
    first, last, increment = (x.reshape(()).astype(np.float64).item() for x in (start, limit, step))
    if kind.is_integer:
        first, last, increment = (int(x.reshape(())) for x in (start, limit, step))
        return np.arange(first, last, increment, dtype=start.dtype)
    steps = (last - first) / increment
    if not (math.isfinite(first) and math.isfinite(steps)):
        raise OpError(
            f"range: from {first} to {last} by {increment} there is no finite count of numbers"
        )
    count = max(math.ceil(steps), 0)
    return round_to_dtype(first + np.arange(count, dtype=np.float64) * increment, start.dtype)


def filled(shape: Array, *, value: Stored) -> Array:
    """Returns a tensor of that shape, every element the value; raises OpError for a negative
    size."""
    sizes = [int(n) for n in shape.reshape(-1)]
    if shape.ndim != 1 or min(sizes, default=0) < 0:
        raise OpError(f"constant_of_shape: shape {sizes} is no row of sizes")
    return np.full(sizes, value.data.reshape(()))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "shape": shape,
    "size": size,
    "range": numbers,
    "constant_of_shape": filled,
}
