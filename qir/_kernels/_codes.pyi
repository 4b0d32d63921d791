from typing import Final

import numpy as np
from numpy.typing import NDArray

ISAS: Final[tuple[str, ...]]
"""Instruction sets that this processor can use, the best first."""
ROUNDS: Final[tuple[str, ...]]
CARRIERS: Final[tuple[str, ...]]
"""Types of integers that are dequantized: kind and bytes."""

Bytes = NDArray[np.uint8]

class Rows:
    """How an array of so many elements is cut into runs that share parameters.

    Row i has `inner` elements; each `run` of them shares parameters, run after run from first[i].
    ValueError for parameters beyond `count`.
    """

    def __init__(self, first: NDArray[np.int64], inner: int, run: int, count: int) -> None: ...
    @property
    def size(self) -> int:
        """How many elements."""

    @property
    def count(self) -> int:
        """How many parameters of each kind."""

def encode(
    x: Bytes,
    codes: Bytes,
    rows: Rows,
    *,
    wide: bool,
    itemsize: int,
    round: str,
    low: int,
    high: int,
    factor: Bytes,
    after: NDArray[np.int32],
    nan: NDArray[np.int32],
    minus: Bytes | None = None,
    before: Bytes | None = None,
    steps: Bytes | None = None,
    table: NDArray[np.int32] | None = None,
    divide: bool = False,
    sums: bool = False,
    isa: str | None = None,
) -> bool:
    """Codes of float32 (float64 if `wide`), or of int32 if `sums`; says whether there was a NaN.

    round((x - minus) * factor + before) + after, held in [low, high]. The parameters are of the
    type computed in. With a table, in place of rounding: table[k] of what is not below k of the
    steps, which rise. ValueError for arrays of another length.
    """

def fixed(
    acc: NDArray[np.int32],
    codes: Bytes,
    rows: Rows,
    *,
    multiplier: NDArray[np.int32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    zero: NDArray[np.int32],
    itemsize: int,
    low: int,
    high: int,
    twice: bool,
) -> None:
    """Sums times multiplier * 2**(left - right - 31), plus zero, held in [low, high].

    In whole numbers: rounded after the product and after the shift (gemmlowp), or once, halves up.
    ValueError for shifts of 31 and more, or arrays of another length.
    """

def decode(
    codes: Bytes,
    y: Bytes,
    rows: Rows,
    *,
    wide: bool,
    carrier: str,
    scale: Bytes,
    zero: Bytes | None = None,
    minus: Bytes | None = None,
    plus: Bytes | None = None,
    table: Bytes | None = None,
    isa: str | None = None,
) -> None:
    """(codes - zero) * scale - minus + plus in float32, or float64 if `wide`.

    With a table of 256 numbers, those take the place of the codes, which are bytes.
    ValueError for arrays of another length.
    """

def lookup(codes: Bytes, table: Bytes, y: Bytes, *, itemsize: int, entry: int) -> None:
    """table[i] of integers in 1 or 2 bytes, taken as unsigned; entries of 1, 2, 4 or 8 bytes."""

def pack(
    codes: Bytes,
    to: Bytes,
    n: int,
    *,
    bits: int,
    itemsize: int,
    is_signed: bool,
    high: bool = False,
) -> bool:
    """Rows of n integers packed in bytes (`to` has two axes); False if one has more bits."""

def unpack(
    data: Bytes,
    codes: Bytes,
    n: int,
    *,
    bits: int,
    itemsize: int,
    is_signed: bool,
    high: bool = False,
) -> None:
    """The rows of n integers that `pack` packed."""

def recode(
    codes: Bytes, y: Bytes, *, bits: int, itemsize: int, from_signed: bool, to_signed: bool
) -> bool:
    """The same bits as signed or unsigned integers; False if one has more bits."""
