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
    element: QuantType, shape: Shape, new_axes: Mapping[int, int], rank: int
) -> QuantType | None:
    """Returns the type after axis a moved to `places[a]`; None if a scale axis has no place."""
    if element.granularity is None:
        return element
    if any(a not in new_axes for a, _ in element.granularity.blocks):
        return None
    if element.axis is not None:
        # One scale an index: the list of scales stays, only its axis is another.
        return replace(element, granularity=Granularity(((new_axes[element.axis], 1),)))
    axes = [a for a, _ in element.granularity.blocks]
    order = sorted(axes, key=lambda a: new_axes[a])
    # `by` lists a group for each index of the last axis, so that axis must stay the last.
    if element.granularity.by is not None and order != axes:
        return None
    sizes = dict(element.granularity.blocks)
    granularity = Granularity(tuple((new_axes[a], sizes[a]) for a in order), element.granularity.by)

    def turn(grid: Grid) -> Grid:
        shape_after = [1] * rank
        for a in order:
            shape_after[new_axes[a]] = grid.shape[a]
        others = [a for a in range(grid.ndim) if a not in sizes]
        return grid.transpose(*order, *others).reshape(shape_after)

    return _with_moved_parameters(element, shape, granularity, turn)


def slice_axes(
    element: QuantType, shape: Shape, slices: Mapping[int, tuple[int, int, int]]
) -> QuantType | None:
    """Returns the type of a slice that keeps complete blocks; None where it splits a block."""
    if element.granularity is None or unless_along_axes(element, *slices) is not None:
        return element
    if element.axis is not None or element.granularity.by is not None:
        return None
    index = [slice(None)] * len(shape)
    for axis, size in element.granularity.blocks:
        if axis not in slices:
            continue
        (start, stop, step), size_before = slices[axis], shape[axis]
        is_block_end = isinstance(size_before, int) and (stop == size_before or stop % size == 0)
        # A slice may cut the last block short, but no other.
        if step != 1 or start % size or not is_block_end or stop <= start:
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
        axis = _surviving_axis(old, new, element.axis)
        return None if axis is None else replace(element, granularity=Granularity(((axis, 1),)))
    if element.granularity.by is not None or 0 in old:
        return None
    blocks = _split_blocks(old, new, element.granularity.blocks)
    if blocks is None:
        return None
    granularity = Granularity(blocks)
    grid = dims.known_shape(granularity.grid(new))
    assert grid is not None
    return _with_moved_parameters(element, shape, granularity, lambda array: array.reshape(grid))


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
    for old_run, new_run in _matching_runs(old, new):
        # Axes of size 1 change no order of elements, so they are left out.
        old_run, new_run = [a for a in old_run if old[a] > 1], [a for a in new_run if new[a] > 1]
        if not any(a in sizes for a in old_run):
            continue
        # An axis that the reshape leaves alone keeps its blocks, whatever their size.
        if len(old_run) == len(new_run) == 1:
            out.append((new_run[0], sizes[old_run[0]]))
            continue
        length = _merged_block([(old[a], min(sizes.get(a, old[a]), old[a])) for a in old_run])
        if length is None or math.prod(old[a] for a in old_run) % length:
            return None
        split = _split_block([new[a] for a in new_run], length)
        if split is None:
            return None
        # A block as long as its axis is no granularity; one axis is named so that the type keeps
        # the grid.
        smaller = [(a, b) for a, b in zip(new_run, split, strict=True) if b < new[a]]
        out += smaller or [(new_run[0], new[new_run[0]])]
    return tuple(out) or None


def _matching_runs(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Pairs the shortest runs of old and new axes of equal size; axes of 1 join the next run."""
    out, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        old_run, new_run, old_product, new_product = list[int](), list[int](), 1, 1
        while not old_run or not new_run or old_product != new_product:
            if i < len(old) and (old_product <= new_product or j == len(new)):
                old_run.append(i)
                old_product, i = old_product * old[i], i + 1
            elif j < len(new):
                new_run.append(j)
                new_product, j = new_product * new[j], j + 1
            else:
                break
        out.append((old_run, new_run))
    return out


def _merged_block(axes: list[tuple[int, int]]) -> int | None:
    """Returns the block length in the merged axes; None if the block is not contiguous there."""
    length, is_complete = 1, True
    for size, block in reversed(axes):
        # From the last axis outwards: a block is contiguous while all inner axes are complete, and
        # from there on it may have one index only.
        if is_complete:
            length *= block
            if block < size and size % block:
                return None
            is_complete = block == size
        elif block != 1:
            return None
    return length


def _split_block(sizes: list[int], length: int) -> list[int] | None:
    """Returns the block length on each of the split axes; None if it is no block there."""
    out: list[int] = []
    for size in reversed(sizes):
        # The block covers this axis and continues on the one before.
        if length % size == 0:
            out.append(size)
            length //= size
        elif size % length == 0:
            out.append(length)
            length = 1
        else:
            return None
    return out[::-1]


def _with_moved_parameters(
    element: QuantType, shape: Shape, granularity: Granularity, move: Callable[[Grid], Grid]
) -> QuantType | None:
    """Returns the type with every parameter array moved: scale, zero, offset, declared range."""
    assert element.granularity is not None
    grid = dims.known_shape(element.granularity.grid(shape))
    declared, is_list = element.declared, granularity.axis is not None
    try:
        return replace(
            element,
            granularity=granularity,
            scale=_move_param(element.scale, grid, move, is_list),
            zero=_move_param(element.zero, grid, move, is_list),
            plus=None if element.plus is None else _move_floats(element.plus, grid, move, is_list),
            declared=declared
            and DeclaredBounds(
                _move_floats(declared.low, grid, move, is_list),
                _move_floats(declared.high, grid, move, is_list),
                declared.level,
            ),
        )
    except _CannotMove:
        return None


def _move_floats(
    value: tuple[float, ...] | Array,
    grid: tuple[int, ...] | None,
    move: Callable[[Grid], Grid],
    is_list: bool,
) -> tuple[float, ...] | Array:
    moved = _move_param(value, grid, move, is_list)
    assert moved is not None
    return moved


def _move_param(
    value: Param, grid: tuple[int, ...] | None, move: Callable[[Grid], Grid], is_list: bool
) -> Param:
    if isinstance(value, tuple):
        # One number for the whole tensor needs no moving.
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
    # One scale an index is stored as a list, blocks as a grid of the tensor's rank.
    data = np.ascontiguousarray(data.reshape(-1) if is_list else data)
    return Array(data, TensorType(data.shape, value.type.element), value.name)
