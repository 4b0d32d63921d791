"""How an array is cut into runs whose elements share the numbers of their map."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from qir._kernels._codes import Rows
from qir.ir.types import Granularity
from qir.numerics.affine import Affine
from qir.numerics.maps import AnyMap
from qir.records import record

_MIN_RUN = 32  # shorter runs than this cost more than a number for each element
_CACHED_NUMBERS = 1024  # so many numbers are in the nearest cache


@record
class RowLayout:
    """Rows of elements, and the way from a quantized type's numbers to the list that they look
    into."""

    rows: Rows
    grid: tuple[int, ...]
    last: int = -1
    """The last axis that has several numbers."""
    each: NDArray[np.int64] | None = None
    """Which number along that axis each element of a row has, where runs are short."""
    tiles: int = 1
    """How often a row of numbers is repeated."""

    def listed(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """Returns one number, or one a block, as the rows look for them."""
        if self.last < 0:
            return values.reshape(-1)
        grid_values = values.reshape(self.grid if values.size > 1 else (1,) * len(self.grid))
        flat = np.broadcast_to(grid_values, self.grid).reshape(-1, self.grid[self.last])
        if self.each is not None:
            flat = flat[:, self.each]
        if self.tiles > 1:
            flat = np.tile(flat, (1, self.tiles))
        return np.ascontiguousarray(flat.reshape(-1))


def layout(shape: tuple[int, ...], of: AnyMap) -> RowLayout:
    """Returns the rows of an array of that shape, which the quantized type's numbers fit."""
    if isinstance(of, Affine):
        return along(shape, of.axis)
    return _layout(shape, of.grain, of.grid(shape))


def along(shape: tuple[int, ...], axis: int | None) -> RowLayout:
    """Returns the rows where numbers are along an axis, or are one for all."""
    if axis is None:
        return _layout(shape, None, (1,) * len(shape))
    axis %= len(shape)
    grid = tuple(size if i == axis else 1 for i, size in enumerate(shape))
    return _layout(shape, Granularity(((axis, 1),)), grid)


def _layout(
    shape: tuple[int, ...], granularity: Granularity | None, grid: tuple[int, ...]
) -> RowLayout:
    varying_axes = [axis for axis, count in enumerate(grid) if count > 1]
    if granularity is None or not varying_axes:
        size = math.prod(shape)
        return RowLayout(Rows(np.zeros(1, np.int64), size, size, 1), grid)
    last = varying_axes[-1]
    block_of_index = {
        axis: _block_of_index(granularity, axis, shape[axis]) for axis in varying_axes
    }
    # Three ways from cheap to dear: one number a long run, one number a block, one number an
    # element.
    inner = math.prod(shape[last + 1 :])
    # The axes after the last varying one are long: each run has one number.
    if inner >= _MIN_RUN:
        row_starts = _row_starts(shape[: last + 1], block_of_index, grid[: last + 1])
        return RowLayout(Rows(row_starts, inner, inner, math.prod(grid)), grid, last)
    sizes = dict(granularity.blocks)
    has_group_list = granularity.by is not None and granularity.blocks[-1][0] == last
    run, length = sizes[last] * inner, shape[last] * inner
    # The blocks themselves are long runs, though not of equal length at the end of the axis.
    if run >= _MIN_RUN and not has_group_list:
        row_starts = _row_starts(shape[:last], block_of_index, (*grid[:last], grid[last]))
        return RowLayout(Rows(row_starts, length, run, math.prod(grid)), grid, last)
    # Runs are short: each element of a row has its own place in the list of numbers.
    each = np.repeat(block_of_index[last], inner)
    row_starts = _row_starts(shape[:last], block_of_index, (*grid[:last], length))
    tiles = _tiles(shape[:last], grid, length)
    count = math.prod(grid[:last]) * length * tiles
    rows = Rows(row_starts[::tiles] * tiles, length * tiles, 1, count)
    return RowLayout(rows, grid, last, each, tiles)


def _block_of_index(granularity: Granularity, axis: int, size: int) -> NDArray[np.int64]:
    """Returns the block of each index of an axis."""
    if granularity.by is not None and axis == granularity.blocks[-1][0]:
        return granularity.by.data.astype(np.int64)
    return np.arange(size, dtype=np.int64) // dict(granularity.blocks)[axis]


def _row_starts(
    shape: tuple[int, ...], block_of_index: dict[int, NDArray[np.int64]], counts: tuple[int, ...]
) -> NDArray[np.int64]:
    """Returns where in the list of numbers each index of the leading axes begins."""
    out = np.zeros(1, np.int64)
    for axis, size in enumerate(shape):
        step = math.prod(counts[axis + 1 :])
        block = block_of_index[axis] * step if axis in block_of_index else np.zeros(size, np.int64)
        out = (out[:, None] + block).reshape(-1)
    return out


def _tiles(shape: tuple[int, ...], grid: tuple[int, ...], length: int) -> int:
    """Returns how many rows of so many numbers are made one: rows that follow each other share
    them."""
    sharing_rows = 1
    for axis in reversed(range(len(shape))):
        if grid[axis] > 1:
            break
        sharing_rows *= shape[axis]
    limit = max(1, _CACHED_NUMBERS // length)
    return next((n for n in range(min(limit, sharing_rows), 0, -1) if sharing_rows % n == 0), 1)
