"""Strides of tensors and views, and the contiguous runs of an elementwise kernel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Sizes = tuple[int, ...]
Steps = tuple[int, ...]
"""How far apart two neighbours along each axis are."""


def dense(sizes: Sizes, *, last: bool = False) -> Steps:
    """Returns one element after the other, channels second or last."""
    axes = [*range(len(sizes))]
    if last:
        axes = [0, *axes[2:], 1]
    steps, step = [0] * len(sizes), 1
    for axis in reversed(axes):
        steps[axis] = step
        step *= max(sizes[axis], 1)
    return tuple(steps)


def fills(sizes: Sizes, steps: Steps, *, last: bool = False) -> bool:
    """Returns whether a tensor is so, without gaps; axes of 1 say nothing."""
    wanted = dense(sizes, last=last)
    return all(n == 1 or s == w for n, s, w in zip(sizes, steps, wanted, strict=True))


def suggests_last(sizes: Sizes, steps: Steps) -> bool:
    """Returns whether what is made of a tensor gets channels last: one of images or volumes whose
    steps are in that order, gaps or not."""
    if len(sizes) not in (4, 5) or not steps[1] or 0 in sizes:
        return False
    least = 0
    for axis in (1, *range(len(sizes) - 1, 1, -1), 0):
        if steps[axis] < least or (axis == 0 and least == steps[1]):
            return False
        least = steps[axis] * max(sizes[axis], 1)
    return True


def row(sizes: Sizes, steps: Steps) -> tuple[Sizes, Steps]:
    """Returns a line of channels as the image of one row that it is viewed as; an image as it
    is."""
    if len(sizes) != 3:
        return sizes, steps
    return (*sizes[:2], 1, sizes[2]), unsqueezed(sizes, steps, (2,))


def both(sizes: Sizes, steps: Steps) -> bool:
    """Returns whether what is channels_last makes results that do not: of images of one element, or
    one wide, whose steps along the axes of 1 are of another order."""
    sizes, steps = row(sizes, steps)
    if len(sizes) not in (4, 5) or 0 in sizes:
        return False
    return fills(sizes, steps, last=True) and not suggests_last(sizes, steps)


def unsqueezed(sizes: Sizes, steps: Steps, axes: Sizes) -> Steps:
    """Steps with axes of 1 put in, each as far apart as what is after it reaches."""
    held, made, rank = [*sizes], [*steps], len(sizes) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        made.insert(axis, held[axis] * made[axis] if axis < len(held) else 1)
        held.insert(axis, 1)
    return tuple(made)


def squeezed(sizes: Sizes, steps: Steps, axes: Sizes) -> Steps:
    """Steps without axes of 1: those that are named, or all."""
    gone = {axis % len(sizes) for axis in axes} or {a for a, n in enumerate(sizes) if n == 1}
    return tuple(step for axis, step in enumerate(steps) if axis not in gone)


def viewed(sizes: Sizes, steps: Steps, wanted: Sizes) -> Steps:
    """Steps of a tensor in another shape: a view where there is one, else a copy in order."""
    plain = dense(wanted)
    if not sizes or not wanted or 0 in sizes:
        return plain
    made, at, base = list(plain), len(wanted) - 1, steps[-1]
    held = seen = 1
    for axis in range(len(sizes) - 1, -1, -1):
        held *= sizes[axis]
        if axis and (sizes[axis - 1] == 1 or steps[axis - 1] == held * base):
            continue
        while at >= 0 and (seen < held or wanted[at] == 1):
            made[at] = seen * base
            seen *= wanted[at]
            at -= 1
        if seen != held:
            return plain
        if axis:
            base, held, seen = steps[axis - 1], 1, 1
    return tuple(made) if at < 0 else plain


def run(sizes: Sizes, steps: Steps, operands: Sequence[tuple[Sizes, Steps]]) -> int:
    """Returns how many elements of a result one run makes, each read where it is; 1: they are no
    neighbours, and each is computed by itself."""
    every = [steps, *(spread(sizes, *of) for of in operands)]
    axes = sorted((a for a, n in enumerate(sizes) if n > 1), key=lambda axis: steps[axis])
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


def spread(sizes: Sizes, of: Sizes, steps: Steps) -> Steps:
    """Steps of an operand along the axes of a result; 0 where it is repeated."""
    gone = len(sizes) - len(of)
    kept = (step if n == m else 0 for n, m, step in zip(of, sizes[gone:], steps, strict=True))
    return (*(0,) * gone, *kept)
