"""Plans the arena: buffers that are not alive together share bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LINE = 64
"""Offsets are multiples of a cache line, which is also the widest vector."""


@dataclass(frozen=True, slots=True)
class Life:
    """A buffer's size, and the first and last step that touch it."""

    size: int
    first: int
    last: int


def place(lives: Sequence[Life]) -> tuple[int, list[int]]:
    """Returns the arena's size and each buffer's offset: largest first, each into its tightest
    gap."""
    offsets = [0] * len(lives)
    placed: list[int] = []
    arena = 0
    for index in sorted(range(len(lives)), key=lambda i: (-lives[i].size, lives[i].first)):
        life = lives[index]
        taken = sorted(
            (offsets[other], offsets[other] + _up(lives[other].size))
            for other in placed
            if lives[other].first <= life.last and life.first <= lives[other].last
        )
        offsets[index] = _gap(taken, _up(life.size))
        arena = max(arena, offsets[index] + _up(life.size))
        placed.append(index)
    return arena, offsets


def _gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in taken:
        room = start - end
        if room >= size and (best is None or room < best[0]):
            best = (room, end)
        end = max(end, stop)
    return end if best is None else best[1]


def _up(size: int) -> int:
    return -(-size // LINE) * LINE
