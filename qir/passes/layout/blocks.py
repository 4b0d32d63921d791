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
    # Axes of size 1 hold no order, so they belong to no group.
    before_axes = [i for i, size in enumerate(before) if size != 1]
    after_axes = [i for i, size in enumerate(after) if size != 1]
    groups: list[Block] = []
    while before_axes and after_axes:
        sizes = _group_sizes(before, after, before_axes, after_axes)
        groups.append(Block(tuple(before_axes[: sizes[0]]), tuple(after_axes[: sizes[1]])))
        before_axes, after_axes = before_axes[sizes[0] :], after_axes[sizes[1] :]
    if before_axes or after_axes:
        last_group = groups.pop() if groups else Block((), ())
        groups.append(Block((*last_group.before, *before_axes), (*last_group.after, *after_axes)))
    return groups


def _group_sizes(
    before: Shape, after: Shape, before_axes: list[int], after_axes: list[int]
) -> tuple[int, int]:
    """Returns how many axes of each side make a group."""
    i = j = 1
    a, b = before[before_axes[0]], after[after_axes[0]]
    while a != b or a is None:
        if not isinstance(a, int) or not isinstance(b, int):
            return len(before_axes), len(after_axes)
        if a < b and i < len(before_axes):
            a = dims.multiply(a, before[before_axes[i]])
            i += 1
        elif b < a and j < len(after_axes):
            b = dims.multiply(b, after[after_axes[j]])
            j += 1
        else:
            return len(before_axes), len(after_axes)
    return i, j


def reshaped(before: Shape, after: Shape, perm: Perm) -> Reshaped | None:
    """Returns what stands for `reshape(transpose(x, perm))`, which is of shape `after`, on x
    itself.

    `before` is the shape that the reshape reads. None where the joined axes are apart in x.
    """
    after = _with_derived_size(before, after)
    groups = blocks(before, after)
    if any(not block.before or not block.after for block in groups):
        return None
    moved_axes = sorted(perm[i] for i, size in enumerate(before) if size != 1)
    positions = {axis: i for i, axis in enumerate(moved_axes)}
    # storage_axes[i]: where the axes of group i stand in x. A group must be contiguous there.
    storage_axes = [[positions[perm[axis]] for axis in block.before] for block in groups]
    # A group whose axes stand apart in x cannot be one axis of a reshape of x.
    if any(max(axes) - min(axes) >= len(axes) for axes in storage_axes):
        return None
    reordered_groups = [i for i, axes in enumerate(storage_axes) if axes != sorted(axes)]
    order = sorted(range(len(groups)), key=lambda i: min(storage_axes[i]))
    # Case 1: whole groups are exchanged; the transpose moves behind the reshape.
    if order != sorted(order):
        if reordered_groups:
            return None
        shape, perm_back = _reordered(after, groups, order)
        return Reshaped(shape, perm_back)
    identity = tuple(range(len(after)))
    # Case 2: only axes of size 1 moved; the reshape alone is enough.
    if not reordered_groups:
        return Reshaped(after, identity)
    block = groups[reordered_groups[0]]
    # Case 3: axes were exchanged within one joined group; its elements come in another order, which
    # the weights that read them can be brought into.
    sizes = dims.known_shape(tuple(before[axis] for axis in block.before))
    if len(reordered_groups) > 1 or len(block.after) > 1 or sizes is None:
        return None
    source_axes = sorted(perm[axis] for axis in block.before)
    source_positions = [source_axes.index(perm[axis]) for axis in block.before]
    stored = [0] * len(source_positions)
    for size, position in zip(sizes, source_positions, strict=True):
        stored[position] = size
    index = np.arange(np.prod(sizes)).reshape(stored).transpose(source_positions).reshape(-1)
    return Reshaped(after, identity, block.after[0], index)


def _with_derived_size(before: Shape, after: Shape) -> Shape:
    """Returns the shape with its one unknown size, where the other sizes leave no choice."""
    if after.count(None) != 1:
        return after
    known_product = dims.product(tuple(size for size in after if size is not None))
    size = dims.divide(dims.product(before), known_product)
    return tuple(size if d is None else d for d in after)


def _reordered(after: Shape, groups: list[Block], order: list[int]) -> tuple[Shape, Perm]:
    """Returns the shape whose groups are in that order, and the transpose that brings them back."""
    starts = [block.after[0] for block in groups]
    ends = [*starts[1:], len(after)]
    axes = [*range(starts[0])]
    for i in order:
        axes += range(starts[i], ends[i])
    return tuple(after[axis] for axis in axes), tuple(axes.index(i) for i in range(len(after)))
