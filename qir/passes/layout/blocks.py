"""Axes that a reshape merges and splits, for data in another axis order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qir.ir import dims
from qir.ir.dims import Shape
from qir.rewrite.axis_permutation import Perm


@dataclass(frozen=True, slots=True)
class Block:
    """Axes that a reshape joins, and those that it makes of them; none has size 1."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Reshaped:
    """What a reshape makes of a tensor that did not pass a transpose before."""

    shape: Shape
    perm: Perm
    """The transpose that gives what the reshape made after the transpose."""
    axis: int | None = None
    """The axis within which the elements are in another order."""
    index: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Where each element along that axis stands now."""


def blocks(before: Shape, after: Shape) -> list[Block]:
    """Returns the smallest groups of axes that hold the same elements, in order.

    Where sizes that no number is known of are in the way, all that is left is one group.
    """
    left = [i for i, size in enumerate(before) if size != 1]
    right = [i for i, size in enumerate(after) if size != 1]
    found: list[Block] = []
    while left and right:
        count = _least(before, after, left, right)
        found.append(Block(tuple(left[: count[0]]), tuple(right[: count[1]])))
        left, right = left[count[0] :], right[count[1] :]
    if left or right:
        last = found.pop() if found else Block((), ())
        found.append(Block((*last.before, *left), (*last.after, *right)))
    return found


def _least(before: Shape, after: Shape, left: list[int], right: list[int]) -> tuple[int, int]:
    """Returns how many axes of each side make a group."""
    i = j = 1
    a, b = before[left[0]], after[right[0]]
    while a != b or a is None:
        if not isinstance(a, int) or not isinstance(b, int):
            return len(left), len(right)
        if a < b and i < len(left):
            a = dims.multiply(a, before[left[i]])
            i += 1
        elif b < a and j < len(right):
            b = dims.multiply(b, after[right[j]])
            j += 1
        else:
            return len(left), len(right)
    return i, j


def reshaped(before: Shape, after: Shape, perm: Perm) -> Reshaped | None:
    """Returns what stands for `reshape(transpose(x, perm))`, which is of shape `after`, on x
    itself.

    `before` is the shape that the reshape reads. None where the joined axes are apart in x.
    """
    after = _closed(before, after)
    parts = blocks(before, after)
    if any(not block.before or not block.after for block in parts):
        return None
    solid = sorted(perm[i] for i, size in enumerate(before) if size != 1)
    place = {axis: i for i, axis in enumerate(solid)}
    lying = [[place[perm[axis]] for axis in block.before] for block in parts]
    if any(max(axes) - min(axes) >= len(axes) for axes in lying):
        return None
    mixed = [i for i, axes in enumerate(lying) if axes != sorted(axes)]
    order = sorted(range(len(parts)), key=lambda i: min(lying[i]))
    if order != sorted(order):
        if mixed:
            return None
        shape, moved = _in_order(after, parts, order)
        return Reshaped(shape, moved)
    plain = tuple(range(len(after)))
    if not mixed:
        return Reshaped(after, plain)
    block = parts[mixed[0]]
    sizes = dims.known_shape(tuple(before[axis] for axis in block.before))
    if len(mixed) > 1 or len(block.after) > 1 or sizes is None:
        return None
    found = sorted(perm[axis] for axis in block.before)
    there = [found.index(perm[axis]) for axis in block.before]
    stored = [0] * len(there)
    for size, at in zip(sizes, there, strict=True):
        stored[at] = size
    index = np.arange(np.prod(sizes)).reshape(stored).transpose(there).reshape(-1)
    return Reshaped(after, plain, block.after[0], index)


def _closed(before: Shape, after: Shape) -> Shape:
    """Returns the shape with its one unknown size, where the other sizes leave no choice."""
    if after.count(None) != 1:
        return after
    rest = dims.product(tuple(size for size in after if size is not None))
    size = dims.divide(dims.product(before), rest)
    return tuple(size if d is None else d for d in after)


def _in_order(after: Shape, parts: list[Block], order: list[int]) -> tuple[Shape, Perm]:
    """Returns the shape whose groups are in that order, and the transpose that brings them back."""
    starts = [block.after[0] for block in parts]
    ends = [*starts[1:], len(after)]
    axes = [*range(starts[0])]
    for i in order:
        axes += range(starts[i], ends[i])
    return tuple(after[axis] for axis in axes), tuple(axes.index(i) for i in range(len(after)))
