"""Plans the arena: buffers that are not alive at the same time share bytes."""

from __future__ import annotations

from collections.abc import Sequence

from qir.records import record

CACHE_LINE = 64
"""Offsets are multiples of a cache line, which is also the size of the widest vector."""


@record
class Lifetime:
    """A buffer's size, and the first and last step that touch it."""

    size: int
    first: int
    last: int


def plan_arena(lives: Sequence[Lifetime]) -> tuple[int, list[int]]:
    """Returns the arena's size and each buffer's offset: largest first, each into its tightest
    gap."""
    offsets = [0] * len(lives)
    placed: list[int] = []
    arena = 0
    # Greedy by size, as in TensorFlow Lite's arena planner: large buffers leave no gaps between
    # them.
    for index in sorted(range(len(lives)), key=lambda i: (-lives[i].size, lives[i].first)):
        life = lives[index]
        # Two buffers conflict where their lifetimes overlap.
        occupied = sorted(
            (offsets[other], offsets[other] + _round_up(lives[other].size))
            for other in placed
            if lives[other].first <= life.last and life.first <= lives[other].last
        )
        offsets[index] = _tightest_gap(occupied, _round_up(life.size))
        arena = max(arena, offsets[index] + _round_up(life.size))
        placed.append(index)
    return arena, offsets


def _tightest_gap(occupied: Sequence[tuple[int, int]], size: int) -> int:
    """Returns the start of the smallest gap between occupied ranges that fits, else their end."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in occupied:
        gap = start - end
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, stop)
    return end if best is None else best[1]


def _round_up(size: int) -> int:
    return -(-size // CACHE_LINE) * CACHE_LINE
