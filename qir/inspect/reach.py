"""Which sums a row of weights makes of integers: what no input makes cannot part two runtimes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_SPAN = 1 << 22
"""Steps between the least and the greatest sum up to which each is decided, where gaps are."""
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """The sums of one row: those between two ends, in steps, that some quantized values make."""

    least: int
    greatest: int
    step: int
    """The greatest common divisor of the weights."""
    made: NDArray[np.bool_] | None = None
    """Of each step from the least, whether some quantized values make it; None: all are counted."""

    @property
    def count(self) -> int:
        """How many there are."""
        if self.made is not None:
            return int(self.made.sum())
        return (self.greatest - self.least) // self.step + 1

    def meets(self, sums: Integers) -> NDArray[np.bool_]:
        """Returns which of some sums between the ends are among them."""
        steps, rest = np.divmod(sums - self.least, self.step)
        met: NDArray[np.bool_] = rest == 0
        return met if self.made is None else met & self.made[steps]

    def every(self) -> Integers:
        """Returns all of them, rising."""
        sums = np.arange(self.least, self.greatest + 1, self.step)
        return sums if self.made is None else sums[self.made]


def sum_reach(row: Integers, low: int, high: int) -> Reach:
    """Returns the sums of weights times numbers from `low` to `high`.

    Where gaps may be and the ends are further apart than WIDEST steps, all steps are counted.
    """
    least = int(np.where(row > 0, row * low, row * high).sum())
    weights, counts = np.unique(np.abs(row[row != 0]), return_counts=True)
    if not weights.size or low == high:
        return Reach(least, least, 1)
    step = int(np.gcd.reduce(weights))
    # What is above the least: so many times each weight, in steps.
    coins = [(int(w) // step, int(c) * (high - low)) for w, c in zip(weights, counts, strict=True)]
    size = sum(value * most for value, most in coins) + 1
    greatest = least + (size - 1) * step
    if _has_no_gaps(coins) or size > MAX_SPAN:
        return Reach(least, greatest, step)
    return Reach(least, greatest, step, _reachable_sums(coins, size))


def _has_no_gaps(coins: list[tuple[int, int]]) -> bool:
    """Returns whether each coin, from the smallest, fits after what those before it make without
    gaps."""
    end = 0
    for value, most in coins:
        if value > end + 1:
            return False
        end += value * most
    return True


def _reachable_sums(coins: list[tuple[int, int]], size: int) -> NDArray[np.bool_]:
    """Returns which sums some number of each coin makes: a bit each, shifted by 1, 2, 4 ...
    coins."""
    bits = 1
    for value, most in coins:
        some = 1
        while most:
            some = min(some, most)
            bits |= bits << (value * some)
            most, some = most - some, 2 * some
    held = np.frombuffer(bits.to_bytes(-(-size // 8), "little"), np.uint8)
    return np.unpackbits(held, count=size, bitorder="little").astype(bool)
