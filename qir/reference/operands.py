"""What every op asks of its operands, and how it rounds its result.

Floats are widened to float64, computed there and rounded once to their own type. Integers keep
their type and wrap as NumPy's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError, ParseError
from qir.ir.dtype import DType, dtype_of
from qir.numerics.rounding import round_to_odd_float32

Array: TypeAlias = NDArray[np.generic]
Float64Array: TypeAlias = NDArray[np.float64]


def numeric_dtype(op: str, slot: str, x: Array) -> DType:
    """Returns the element type of a numeric operand; raises OpError if it holds no numbers."""
    try:
        kind = dtype_of(x)
    except ParseError:
        raise OpError(f"{op}: {slot} is {x.dtype}, it takes floats or integers") from None
    if not (kind.is_float or kind.is_integer):
        raise OpError(f"{op}: {slot} is {kind}, it takes floats or integers")
    return kind


def common_dtype(op: str, **operands: Array | None) -> DType:
    """Returns the one element type of the operands present; raises OpError if they differ or hold
    no numbers."""
    kinds = {slot: numeric_dtype(op, slot, x) for slot, x in operands.items() if x is not None}
    first_slot, kind = next(iter(kinds.items()))
    for slot, other in kinds.items():
        if other != kind:
            raise OpError(f"{op}: {first_slot} is {kind}, {slot} is {other}; cast one of them")
    return kind


def require_floats(op: str, **operands: Array | None) -> None:
    """Raises OpError unless the operands present are of one float type."""
    kind = common_dtype(op, **operands)
    if not kind.is_float:
        raise OpError(f"{op}: {next(iter(operands))} is {kind}, it takes floats")


def require_rank(op: str, slot: str, x: Array, axes: int) -> None:
    """Raises OpError unless x has that many axes."""
    if x.ndim != axes:
        raise OpError(f"{op}: {slot} has {x.ndim} axes, it takes {axes}")


def normalize_axis(op: str, axis: int, axes: int) -> int:
    """Returns the axis counted from the front; raises OpError if there is no such axis."""
    if not -axes <= axis < axes:
        raise OpError(f"{op}: axis {axis}, but x has {axes} axes")
    return axis % axes


def int_tuple(op: str, name: str, values: Sequence[int], count: int, least: int) -> tuple[int, ...]:
    """Returns the attribute as that many whole numbers; raises OpError if it is not, or one is
    below `least`."""
    if len(values) != count:
        raise OpError(f"{op}: {name} has {len(values)} numbers, it takes {count}")
    if any(v < least for v in values):
        raise OpError(f"{op}: {name} is {tuple(values)}, each must be {least} or more")
    return tuple(int(v) for v in values)


def to_float64(x: Array) -> Array:
    """Floats as float64, itself if it is that already; integers as they are."""
    return x.astype(np.float64, copy=False) if dtype_of(x).is_float else x


def compute_dtype(x: Array) -> np.dtype[np.generic]:
    """Returns the type that `to_float64` returns x in."""
    return np.dtype(np.float64) if dtype_of(x).is_float else x.dtype


def round_to_dtype(y: Array, to: np.dtype[np.generic]) -> Array:
    """y rounded once, to nearest even, to the type of the result."""
    if y.dtype == to:
        return y
    with np.errstate(all="ignore"):
        if to in (np.float32, np.float16) or y.dtype != np.float64:
            return y.astype(to)
        # NumPy has no cast from float64 to the narrow floats but by float32; rounding to odd there
        # keeps the second rounding from counting twice.
        return round_to_odd_float32(y.astype(np.float64)).astype(to)


def wrap_to_width(y: Array, kind: DType) -> Array:
    """Integers of a width that no NumPy type has, in two's complement of that width."""
    spare_bits = 8 * y.dtype.itemsize - kind.bits
    if not kind.is_integer or not spare_bits or y.dtype != kind.carrier:
        return y
    shift = y.dtype.type(spare_bits)
    # Shifting up and down again drops the upper bits, and extends the sign of signed ones.
    return np.asarray(np.right_shift(np.left_shift(y, shift), shift))


def contiguous(x: Array) -> Array:
    """Returns the elements in C order without gaps, so that results do not depend on the layout."""
    if x.flags.c_contiguous and x.flags.aligned:
        return x
    return np.array(x, order="C")


def truncate_to_integer(x: Array, to: DType) -> Array:
    """Float values cut toward zero, of which the low bits are kept, on every machine alike.

    They pass through i32 where `to` has up to 16 bits, or is signed and has up to 32, else
    through i64 (u64 above it if `to` is wide enough); what does not fit there, NaN too, becomes
    its least number: -2^31 or -2^63. So do onnxruntime and NumPy on x86.
    """
    bits = 32 if to.bits <= 16 or (to.kind == "int" and to.bits <= 32) else 64
    limit = 2.0 ** (bits - 1)
    truncated = np.trunc(x.astype(np.float64))
    in_range = (truncated >= -limit) & (truncated < limit)
    out = np.where(in_range, truncated, -limit).astype(f"i{bits // 8}").astype(to.carrier)
    if to.bits < 64 or to.kind == "int":
        return np.asarray(out)
    in_upper_half = (truncated >= limit) & (truncated < 2 * limit)
    return np.where(in_upper_half, np.where(in_upper_half, truncated, 0).astype(np.uint64), out)
