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
        steps, remainder = np.divmod(sums - self.least, self.step)
        is_met: NDArray[np.bool_] = remainder == 0
        return is_met if self.made is None else is_met & self.made[steps]

    def every(self) -> Integers:
        """Returns all of them, rising."""
        sums = np.arange(self.least, self.greatest + 1, self.step)
        return sums if self.made is None else sums[self.made]


def sum_reach(row: Integers, low: int, high: int) -> Reach:
    """Returns the sums of weights times numbers from `low` to `high`.

    Where gaps may be and the ends are further apart than WIDEST steps, all steps are counted.
    """
    # Each term alone is least at one end of the range, which the sign of its weight decides.
    least = int(np.where(row > 0, row * low, row * high).sum())
    weights, counts = np.unique(np.abs(row[row != 0]), return_counts=True)
    if not weights.size or low == high:
        return Reach(least, least, 1)
    step = int(np.gcd.reduce(weights))
    # What is above the least: so many times each weight, in steps.
    coins = [(int(w) // step, int(c) * (high - low)) for w, c in zip(weights, counts, strict=True)]
    size = sum(value * limit for value, limit in coins) + 1
    greatest = least + (size - 1) * step
    # A set of all steps, whether exact or too large to list, needs no mask.
    if _has_no_gaps(coins) or size > MAX_SPAN:
        return Reach(least, greatest, step)
    return Reach(least, greatest, step, _reachable_sums(coins, size))


def _has_no_gaps(coins: list[tuple[int, int]]) -> bool:
    """Returns whether each coin, from the smallest, fits after what those before it make without
    gaps."""
    end = 0
    for value, limit in coins:
        if value > end + 1:
            return False
        end += value * limit
    return True


def _reachable_sums(coins: list[tuple[int, int]], size: int) -> NDArray[np.bool_]:
    """Returns which sums some number of each coin makes: a bit each, shifted by 1, 2, 4 ...
    coins."""
    bits = 1
    for value, left in coins:
        taken = 1
        while left:
            # Powers of two of one coin make every number of it in a logarithm of shifts.
            taken = min(taken, left)
            bits |= bits << (value * taken)
            left, taken = left - taken, 2 * taken
    raw_bytes = np.frombuffer(bits.to_bytes(-(-size // 8), "little"), np.uint8)
    return np.unpackbits(raw_bytes, count=size, bitorder="little").astype(bool)
