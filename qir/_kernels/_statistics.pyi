from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

SUM_WORDS: Final[int]
"""Words of 32 bits, the lowest first, of an exact sum: a signed integer."""
SUM_BITS: Final[int]
"""Sums are in units of 2**-SUM_BITS, of which every float32 is a multiple."""
BINS: Final[int]
"""The most bins a histogram has."""
ISAS: Final[Sequence[str]]
"""Instruction sets that this processor can fill a tally with, the best last."""
DEFAULT: Final[str]
"""The one that fills a tally, unless another is named."""

class Tally:
    """Counts, extremes and the dyadic histogram of one tensor.

    Bin i holds the values in [(first + i), (first + i + 1)) * 2**exponent. Everything is a function
    of the values seen, whatever their order and grouping. `add` and `merge` run without the GIL;
    other threads that use the tally wait for them.
    """

    def __init__(self, isa: str | None = None) -> None:
        """Start empty; ValueError for an instruction set that is not in ISAS."""

    def add(
        self,
        x: NDArray[np.float32],
        lows: NDArray[np.float32] | None = None,
        highs: NDArray[np.float32] | None = None,
        sums: NDArray[np.float64] | None = None,
        inner: int = 1,
    ) -> tuple[float, float, float, float]:
        """Add contiguous values; return low, high, sum and sum of squares of the finite ones.

        With `lows`, `highs` and `sums`, value i also widens channel `i // inner % len(lows)`, and
        is added to its sum in an order that the array's size decides. ValueError when these
        differ in length, when only some of them are given, or when there are values and no
        channel.
        """

    def merge(self, other: Tally) -> None:
        """Add what `other` holds, exactly."""

    @property
    def finite(self) -> int: ...
    @property
    def nan(self) -> int: ...
    @property
    def above(self) -> int:
        """How many +inf."""

    @property
    def below(self) -> int:
        """How many -inf."""

    @property
    def zeros(self) -> int:
        """How many finite values are +0 or -0."""

    @property
    def exponent(self) -> int: ...
    @property
    def first(self) -> int: ...
    def extremes(self) -> NDArray[np.float32]:
        """The least and the largest finite value; +inf and -inf when there are none."""

    def bins(self) -> NDArray[np.uint64]: ...
    @staticmethod
    def restore(
        counts: NDArray[np.uint64], extremes: NDArray[np.float32], bins: NDArray[np.uint64]
    ) -> Tally:
        """A tally from (finite, nan, above, below, zeros), extremes and bins.

        ValueError when they contradict each other.
        """

def add_floats(totals: NDArray[np.uint32], floats: NDArray[np.float64]) -> None:
    """Add finite multiples of 2**-SUM_BITS to exact sums, one a row; ValueError for other sizes."""

def add_totals(totals: NDArray[np.uint32], more: NDArray[np.uint32]) -> None:
    """Add exact sums to others, row by row; ValueError for other sizes."""
