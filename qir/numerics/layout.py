"""How an array is cut into runs whose elements share the numbers of their map."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir._kernels._codes import Rows
from qir.ir.types import Granularity
from qir.numerics.affine import Affine
from qir.numerics.maps import AnyMap

_SHORT = 32  # shorter runs than this cost more than a number for each element
_WIDE = 1024  # so many numbers are in the nearest cache


@dataclass(frozen=True, slots=True)
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
        whole = values.reshape(self.grid if values.size > 1 else (1,) * len(self.grid))
        flat = np.broadcast_to(whole, self.grid).reshape(-1, self.grid[self.last])
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


def _layout(shape: tuple[int, ...], grain: Granularity | None, grid: tuple[int, ...]) -> RowLayout:
    many = [axis for axis, count in enumerate(grid) if count > 1]
    if grain is None or not many:
        size = math.prod(shape)
        return RowLayout(Rows(np.zeros(1, np.int64), size, size, 1), grid)
    last = many[-1]
    where = {axis: _blocks(grain, axis, shape[axis]) for axis in many}
    inner = math.prod(shape[last + 1 :])
    if inner >= _SHORT:
        first = _places(shape[: last + 1], where, grid[: last + 1])
        return RowLayout(Rows(first, inner, inner, math.prod(grid)), grid, last)
    sizes = dict(grain.blocks)
    grouped = grain.by is not None and grain.blocks[-1][0] == last
    run, length = sizes[last] * inner, shape[last] * inner
    if run >= _SHORT and not grouped:
        first = _places(shape[:last], where, (*grid[:last], grid[last]))
        return RowLayout(Rows(first, length, run, math.prod(grid)), grid, last)
    each = np.repeat(where[last], inner)
    first = _places(shape[:last], where, (*grid[:last], length))
    tiles = _tiles(shape[:last], grid, length)
    count = math.prod(grid[:last]) * length * tiles
    rows = Rows(first[::tiles] * tiles, length * tiles, 1, count)
    return RowLayout(rows, grid, last, each, tiles)


def _blocks(grain: Granularity, axis: int, size: int) -> NDArray[np.int64]:
    """Returns the block of each index of an axis."""
    if grain.by is not None and axis == grain.blocks[-1][0]:
        return grain.by.data.astype(np.int64)
    return np.arange(size, dtype=np.int64) // dict(grain.blocks)[axis]


def _places(
    shape: tuple[int, ...], where: dict[int, NDArray[np.int64]], counts: tuple[int, ...]
) -> NDArray[np.int64]:
    """Returns where in the list of numbers each index of the leading axes begins."""
    out = np.zeros(1, np.int64)
    for axis, size in enumerate(shape):
        step = math.prod(counts[axis + 1 :])
        block = where[axis] * step if axis in where else np.zeros(size, np.int64)
        out = (out[:, None] + block).reshape(-1)
    return out


def _tiles(shape: tuple[int, ...], grid: tuple[int, ...], length: int) -> int:
    """Returns how many rows of so many numbers are made one: rows that follow each other share
    them."""
    same = 1
    for axis in reversed(range(len(shape))):
        if grid[axis] > 1:
            break
        same *= shape[axis]
    most = max(1, _WIDE // length)
    return next((n for n in range(min(most, same), 0, -1) if same % n == 0), 1)
