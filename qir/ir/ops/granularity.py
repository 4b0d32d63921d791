"""Moves the granularity of a quantized type with the axes of its tensor.

Each function returns the quantized type after a transpose, slice or reshape, or None where no
quantized type can express the result (the caller then asks to dequantize first).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir import dims
from qir.ir.dims import Shape
from qir.ir.types import Array, DeclaredBounds, Granularity, Param, QuantType, TensorType

Grid: TypeAlias = NDArray[np.generic]
Blocks: TypeAlias = "tuple[tuple[int, int], ...]"


class _CannotMove(Exception):
    """Parameters that cannot be moved: dynamic ones, or arrays that do not fit the blocks."""


def unless_along_axes(element: QuantType, *axes: int) -> QuantType | None:
    """Returns the type unchanged where its scales vary along none of those axes, else None."""
    if element.granularity is None or not {a for a, _ in element.granularity.blocks} & set(axes):
        return element
    return None


def permute_axes(
    element: QuantType, shape: Shape, places: Mapping[int, int], rank: int
) -> QuantType | None:
    """Returns the type after axis a moved to `places[a]`; None if a scale axis has no place."""
    if element.granularity is None:
        return element
    if any(a not in places for a, _ in element.granularity.blocks):
        return None
    if element.axis is not None:
        return replace(element, granularity=Granularity(((places[element.axis], 1),)))
    old = [a for a, _ in element.granularity.blocks]
    order = sorted(old, key=lambda a: places[a])
    # `by` lists a group for each index of the last axis, so that axis must stay the last.
    if element.granularity.by is not None and order != old:
        return None
    sizes = dict(element.granularity.blocks)
    grain = Granularity(tuple((places[a], sizes[a]) for a in order), element.granularity.by)

    def turn(grid: Grid) -> Grid:
        wide = [1] * rank
        for a in order:
            wide[places[a]] = grid.shape[a]
        rest = [a for a in range(grid.ndim) if a not in sizes]
        return grid.transpose(*order, *rest).reshape(wide)

    return _with_moved_parameters(element, shape, grain, turn)


def slice_axes(
    element: QuantType, shape: Shape, parts: Mapping[int, tuple[int, int, int]]
) -> QuantType | None:
    """Returns the type of a slice that keeps complete blocks; None where it splits a block."""
    if element.granularity is None or unless_along_axes(element, *parts) is not None:
        return element
    if element.axis is not None or element.granularity.by is not None:
        return None
    index = [slice(None)] * len(shape)
    for axis, size in element.granularity.blocks:
        if axis not in parts:
            continue
        (start, stop, step), whole = parts[axis], shape[axis]
        ends = isinstance(whole, int) and (stop == whole or stop % size == 0)
        if step != 1 or start % size or not ends or stop <= start:
            return None
        index[axis] = slice(start // size, -(-stop // size))
    return _with_moved_parameters(
        element, shape, element.granularity, lambda grid: grid[tuple(index)]
    )


def reshape(element: QuantType, shape: Shape, target: Shape) -> QuantType | None:
    """Returns the type after a reshape that keeps the scale axis, or blocks that stay blocks."""
    if element.granularity is None:
        return element
    old, new = dims.known_shape(shape), dims.known_shape(target)
    if old is None or new is None:
        return None
    if element.axis is not None:
        found = _surviving_axis(old, new, element.axis)
        return None if found is None else replace(element, granularity=Granularity(((found, 1),)))
    if element.granularity.by is not None or 0 in old:
        return None
    blocks = _split_blocks(old, new, element.granularity.blocks)
    if blocks is None:
        return None
    grain = Granularity(blocks)
    grid = dims.known_shape(grain.grid(new))
    assert grid is not None
    return _with_moved_parameters(element, shape, grain, lambda held: held.reshape(grid))


def _surviving_axis(old: tuple[int, ...], new: tuple[int, ...], axis: int) -> int | None:
    """Returns the new position of an axis that the reshape neither splits nor merges."""
    before = math.prod(old[:axis])
    for i, size in enumerate(new):
        if math.prod(new[:i]) == before and size == old[axis]:
            return i
    return None


def _split_blocks(old: tuple[int, ...], new: tuple[int, ...], blocks: Blocks) -> Blocks | None:
    """Returns the blocks in the new shape, for each run of axes that hold the same elements."""
    sizes, out = dict(blocks), list[tuple[int, int]]()
    for mine, theirs in _matching_runs(old, new):
        mine, theirs = [a for a in mine if old[a] > 1], [a for a in theirs if new[a] > 1]
        if not any(a in sizes for a in mine):
            continue
        if len(mine) == len(theirs) == 1:
            out.append((theirs[0], sizes[mine[0]]))
            continue
        flat = _merged_block([(old[a], min(sizes.get(a, old[a]), old[a])) for a in mine])
        if flat is None or math.prod(old[a] for a in mine) % flat:
            return None
        made = _split_block([new[a] for a in theirs], flat)
        if made is None:
            return None
        kept = [(a, b) for a, b in zip(theirs, made, strict=True) if b < new[a]]
        out += kept or [(theirs[0], new[theirs[0]])]
    return tuple(out) or None


def _matching_runs(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Pairs the shortest runs of old and new axes of equal size; axes of 1 join the next run."""
    out, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        mine, theirs, here, there = list[int](), list[int](), 1, 1
        while not mine or not theirs or here != there:
            if i < len(old) and (here <= there or j == len(new)):
                mine.append(i)
                here, i = here * old[i], i + 1
            elif j < len(new):
                theirs.append(j)
                there, j = there * new[j], j + 1
            else:
                break
        out.append((mine, theirs))
    return out


def _merged_block(axes: list[tuple[int, int]]) -> int | None:
    """Returns the block length in the merged axes; None if the block is not contiguous there."""
    flat, whole = 1, True
    for size, block in reversed(axes):
        if whole:
            flat *= block
            if block < size and size % block:
                return None
            whole = block == size
        elif block != 1:
            return None
    return flat


def _split_block(sizes: list[int], flat: int) -> list[int] | None:
    """Returns the block length on each of the split axes; None if it is no block there."""
    out: list[int] = []
    for size in reversed(sizes):
        if flat % size == 0:
            out.append(size)
            flat //= size
        elif size % flat == 0:
            out.append(flat)
            flat = 1
        else:
            return None
    return out[::-1]


def _with_moved_parameters(
    element: QuantType, shape: Shape, grain: Granularity, move: Callable[[Grid], Grid]
) -> QuantType | None:
    """Returns the type with every parameter array moved: scale, zero, offset, declared range."""
    assert element.granularity is not None
    grid = dims.known_shape(element.granularity.grid(shape))
    declared, simple = element.declared, grain.axis is not None
    try:
        return replace(
            element,
            granularity=grain,
            scale=_move_param(element.scale, grid, move, simple),
            zero=_move_param(element.zero, grid, move, simple),
            plus=None if element.plus is None else _move_floats(element.plus, grid, move, simple),
            declared=declared
            and DeclaredBounds(
                _move_floats(declared.low, grid, move, simple),
                _move_floats(declared.high, grid, move, simple),
                declared.level,
            ),
        )
    except _CannotMove:
        return None


def _move_floats(
    value: tuple[float, ...] | Array,
    grid: tuple[int, ...] | None,
    move: Callable[[Grid], Grid],
    simple: bool,
) -> tuple[float, ...] | Array:
    found = _move_param(value, grid, move, simple)
    assert found is not None
    return found


def _move_param(
    value: Param, grid: tuple[int, ...] | None, move: Callable[[Grid], Grid], simple: bool
) -> Param:
    if isinstance(value, tuple):
        if len(value) < 2:
            return value
        if grid is None or math.prod(grid) != len(value):
            raise _CannotMove
        numbers = np.array(value)
        return tuple(move(numbers.reshape(grid)).reshape(-1).tolist())
    if (
        value is None
        or value.contents.shape != grid
        or (value.type.quant and value.type.quant.granularity)
    ):
        raise _CannotMove
    data = move(value.data)
    data = np.ascontiguousarray(data.reshape(-1) if simple else data)
    return Array(data, TensorType(data.shape, value.type.element), value.name)
