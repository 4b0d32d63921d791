"""Strides of tensors and views, and the contiguous runs of an elementwise kernel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Sizes = tuple[int, ...]
Strides = tuple[int, ...]
"""The distance of adjacent elements along each axis, in elements."""


def contiguous_strides(sizes: Sizes, *, channels_last: bool = False) -> Strides:
    """Returns the strides of a contiguous tensor, with channels second or last."""
    axes = [*range(len(sizes))]
    if channels_last:
        axes = [0, *axes[2:], 1]
    strides, step = [0] * len(sizes), 1
    for axis in reversed(axes):
        strides[axis] = step
        step *= max(sizes[axis], 1)
    return tuple(strides)


def is_contiguous(sizes: Sizes, strides: Strides, *, channels_last: bool = False) -> bool:
    """Returns whether strides are contiguous in a layout; those of axes of size 1 do not count."""
    expected = contiguous_strides(sizes, channels_last=channels_last)
    return all(n == 1 or s == w for n, s, w in zip(sizes, strides, expected, strict=True))


def suggests_channels_last(sizes: Sizes, strides: Strides) -> bool:
    """Returns whether a kernel makes its result channels_last for an operand with these strides.

    This is torch's `suggest_memory_format`: of images and volumes, by the order of strides alone,
    with or without gaps.
    """
    if len(sizes) not in (4, 5) or not strides[1] or 0 in sizes:
        return False
    # Channels must be the fastest axis, then width, height (and depth), and the batch the slowest.
    smallest = 0
    for axis in (1, *range(len(sizes) - 1, 1, -1), 0):
        # The second test: N = 1 with equal strides of batch and channels is contiguous, as in
        # torch.
        if strides[axis] < smallest or (axis == 0 and smallest == strides[1]):
            return False
        smallest = strides[axis] * max(sizes[axis], 1)
    return True


def as_image(sizes: Sizes, strides: Strides) -> tuple[Sizes, Strides]:
    """Returns sizes and strides of a 3-D tensor as those of the image of height 1 it is viewed
    as."""
    if len(sizes) != 3:
        return sizes, strides
    return (*sizes[:2], 1, sizes[2]), unsqueezed(sizes, strides, (2,))


def has_ambiguous_layout(sizes: Sizes, strides: Strides) -> bool:
    """Returns whether a tensor is contiguous in channels_last but suggests another layout.

    So are images of one pixel or of width 1, whose strides along axes of size 1 are of another
    order.
    """
    sizes, strides = as_image(sizes, strides)
    if len(sizes) not in (4, 5) or 0 in sizes:
        return False
    return is_contiguous(sizes, strides, channels_last=True) and not suggests_channels_last(
        sizes, strides
    )


def unsqueezed(sizes: Sizes, strides: Strides, axes: Sizes) -> Strides:
    """Returns strides with axes of size 1 inserted, as torch.unsqueeze computes them."""
    new_sizes, new_strides, rank = [*sizes], [*strides], len(sizes) + len(axes)
    # torch gives an inserted axis the stride size * stride of the axis that follows it.
    for axis in sorted(axis % rank for axis in axes):
        new_strides.insert(
            axis, new_sizes[axis] * new_strides[axis] if axis < len(new_sizes) else 1
        )
        new_sizes.insert(axis, 1)
    return tuple(new_strides)


def squeezed(sizes: Sizes, strides: Strides, axes: Sizes) -> Strides:
    """Returns strides without axes of size 1: the named ones, or all."""
    removed = {axis % len(sizes) for axis in axes} or {a for a, n in enumerate(sizes) if n == 1}
    return tuple(step for axis, step in enumerate(strides) if axis not in removed)


def viewed(sizes: Sizes, strides: Strides, shape: Sizes) -> Strides:
    """Returns the strides of a tensor in another shape: of a view if there is one, else of a
    contiguous copy."""
    copy_strides = contiguous_strides(shape)
    if not sizes or not shape or 0 in sizes:
        return copy_strides
    # As torch's `computeStride`: each run of operand axes that is contiguous in itself is split
    # into result axes.
    view_strides, target_axis, base_stride = list(copy_strides), len(shape) - 1, strides[-1]
    run_size = split_size = 1
    for axis in range(len(sizes) - 1, -1, -1):
        run_size *= sizes[axis]
        if axis and (sizes[axis - 1] == 1 or strides[axis - 1] == run_size * base_stride):
            continue
        # Split the run, from its end, into result axes until both have the same number of elements.
        while target_axis >= 0 and (split_size < run_size or shape[target_axis] == 1):
            view_strides[target_axis] = split_size * base_stride
            split_size *= shape[target_axis]
            target_axis -= 1
        if split_size != run_size:
            return copy_strides
        if axis:
            base_stride, run_size, split_size = strides[axis - 1], 1, 1
    return tuple(view_strides) if target_axis < 0 else copy_strides


def contiguous_run(
    sizes: Sizes, strides: Strides, operands: Sequence[tuple[Sizes, Strides]]
) -> int:
    """Returns how many elements of a result a kernel computes as one vector loop.

    1 means that elements are no neighbours: each is computed by itself.
    """
    # The axis of the smallest stride is the innermost loop of the kernel.
    all_strides = [
        strides,
        *(broadcast_strides(sizes, *operand_strides) for operand_strides in operands),
    ]
    axes = sorted((a for a, n in enumerate(sizes) if n > 1), key=lambda axis: strides[axis])
    if not axes:
        return 1
    inner_strides = [operand_strides[axes[0]] for operand_strides in all_strides]
    # Vectors need stride 1, or 0 for one operand that is repeated.
    if (
        any(step not in (0, 1) for step in inner_strides)
        or sum(step == 0 for step in inner_strides) > 1
    ):
        return 1
    length = sizes[axes[0]]
    # An outer axis continues the run where its stride is that of the end of the inner axis.
    for inner_axis, outer_axis in pairwise(axes):
        if any(
            operand_strides[outer_axis] != sizes[inner_axis] * operand_strides[inner_axis]
            for operand_strides in all_strides
        ):
            break
        length *= sizes[outer_axis]
    return length


def broadcast_strides(sizes: Sizes, of: Sizes, strides: Strides) -> Strides:
    """Returns an operand's strides along the axes of a result; 0 where it is repeated."""
    leading = len(sizes) - len(of)
    strides_there = (
        step if n == m else 0 for n, m, step in zip(of, sizes[leading:], strides, strict=True)
    )
    return (*(0,) * leading, *strides_there)
