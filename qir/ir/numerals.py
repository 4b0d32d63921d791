"""Numbers of parameters: as texts that read back to the same bits, and as a type holds them."""

from __future__ import annotations

import math
import struct

import numpy as np
from numpy.typing import NDArray

from qir.errors import TypeRuleError
from qir.ir.dtype import F32, DType

_SINGLE = struct.Struct("f")
_F32_OVERFLOW_FREE = 2.0**127  # below this nothing rounds to infinity


def round_to_dtype(value: float, kind: DType) -> float:
    """Returns the number that a float type holds nearest to this one."""
    if kind is F32 and -_F32_OVERFLOW_FREE < value < _F32_OVERFLOW_FREE:
        # struct rounds to nearest even as NumPy does, and is faster for a single number.
        (single,) = _SINGLE.unpack(_SINGLE.pack(value))
        return float(single)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = float(np.array(float(value)).astype(kind.carrier))
    return rounded if rounded == rounded else math.nan  # one object, so that equal types are equal


def number_text(value: float, kind: DType | None = None) -> str:
    """Returns the shortest decimal that reads back to the same bits in that type; ints without a
    point."""
    if isinstance(value, int):
        return str(value)
    value = float(value)
    is_narrow = kind is not None and kind.is_float and kind.bits < 64
    if (
        kind is None
        or not is_narrow
        or not math.isfinite(value)
        or round_to_dtype(value, kind) != value
    ):
        return repr(value)
    if kind is F32:
        # NumPy prints the shortest decimal that identifies a float32.
        text = str(np.float32(value))
    else:
        candidates = (f"{value:.{digits}g}" for digits in range(1, 17))
        text = next((t for t in candidates if round_to_dtype(float(t), kind) == value), repr(value))
    if (
        round_to_dtype(float(text), kind) != value
    ):  # rounding twice, by way of float64, may tip a tie
        return repr(value)
    return text if any(c in text for c in ".en") else f"{text}.0"


def check_zeros(zeros: NDArray[np.generic], storage: DType) -> None:
    """Raises TypeRuleError for zero points that a cast to the storage type would change."""
    low, high = storage.bounds
    ends_suffice = zeros.size > 1 and zeros.dtype.kind in "iu"
    # The least and the greatest decide for integers; of floats each one must be a whole number.
    for zero in (zeros.min(), zeros.max()) if ends_suffice else zeros.flat:
        if not (isinstance(zero, int | float | np.integer | np.floating) and low <= zero <= high):
            raise TypeRuleError(f"zero point {zero}; those of {storage} are {low} to {high}")
        if zero != int(zero):
            raise TypeRuleError(f"zero point {zero} is no whole number")


def fit_in_64_bits(zeros: tuple[float, ...]) -> bool:
    """Returns whether zero points fit int64, or uint64 where none is negative."""
    if len(zeros) <= 1 and all(-(2**31) <= zero < 2**31 for zero in zeros):
        return True  # the usual case
    integers = [z for z in zeros if isinstance(z, int)]
    low, high = min(integers, default=0), max(integers, default=0)
    return -(2**63) <= low and high < 2 ** (64 if low >= 0 else 63)


def item_bytes(item: object) -> bytes:
    """Returns the bytes of a text element, for hashes; lone surrogates are kept apart."""
    return item if isinstance(item, bytes) else str(item).encode(errors="surrogatepass")
