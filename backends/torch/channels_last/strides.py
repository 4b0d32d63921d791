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
    wanted = contiguous_strides(sizes, channels_last=channels_last)
    return all(n == 1 or s == w for n, s, w in zip(sizes, strides, wanted, strict=True))


def suggests_channels_last(sizes: Sizes, strides: Strides) -> bool:
    """Returns whether a kernel makes its result channels_last for an operand with these strides.

    This is torch's `suggest_memory_format`: of images and volumes, by the order of strides alone,
    with or without gaps.
    """
    if len(sizes) not in (4, 5) or not strides[1] or 0 in sizes:
        return False
    least = 0
    for axis in (1, *range(len(sizes) - 1, 1, -1), 0):
        if strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(sizes[axis], 1)
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
    held, made, rank = [*sizes], [*strides], len(sizes) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        made.insert(axis, held[axis] * made[axis] if axis < len(held) else 1)
        held.insert(axis, 1)
    return tuple(made)


def squeezed(sizes: Sizes, strides: Strides, axes: Sizes) -> Strides:
    """Returns strides without axes of size 1: the named ones, or all."""
    gone = {axis % len(sizes) for axis in axes} or {a for a, n in enumerate(sizes) if n == 1}
    return tuple(step for axis, step in enumerate(strides) if axis not in gone)


def viewed(sizes: Sizes, strides: Strides, wanted: Sizes) -> Strides:
    """Returns the strides of a tensor in another shape: of a view if there is one, else of a
    contiguous copy."""
    plain = contiguous_strides(wanted)
    if not sizes or not wanted or 0 in sizes:
        return plain
    # As torch's `computeStride`: each run of operand axes that is contiguous in itself is split
    # into result axes.
    made, at, base = list(plain), len(wanted) - 1, strides[-1]
    held = seen = 1
    for axis in range(len(sizes) - 1, -1, -1):
        held *= sizes[axis]
        if axis and (sizes[axis - 1] == 1 or strides[axis - 1] == held * base):
            continue
        while at >= 0 and (seen < held or wanted[at] == 1):
            made[at] = seen * base
            seen *= wanted[at]
            at -= 1
        if seen != held:
            return plain
        if axis:
            base, held, seen = strides[axis - 1], 1, 1
    return tuple(made) if at < 0 else plain


def contiguous_run(
    sizes: Sizes, strides: Strides, operands: Sequence[tuple[Sizes, Strides]]
) -> int:
    """Returns how many elements of a result a kernel computes as one vector loop.

    1 means that elements are no neighbours: each is computed by itself.
    """
    every = [strides, *(broadcast_strides(sizes, *of) for of in operands)]
    axes = sorted((a for a, n in enumerate(sizes) if n > 1), key=lambda axis: strides[axis])
    if not axes:
        return 1
    inner = [of[axes[0]] for of in every]
    if any(step not in (0, 1) for step in inner) or sum(step == 0 for step in inner) > 1:
        return 1
    length = sizes[axes[0]]
    for near, far in pairwise(axes):
        if any(of[far] != sizes[near] * of[near] for of in every):
            break
        length *= sizes[far]
    return length


def broadcast_strides(sizes: Sizes, of: Sizes, strides: Strides) -> Strides:
    """Returns an operand's strides along the axes of a result; 0 where it is repeated."""
    gone = len(sizes) - len(of)
    kept = (step if n == m else 0 for n, m, step in zip(of, sizes[gone:], strides, strict=True))
    return (*(0,) * gone, *kept)
