"""Quantized values as bits: dense rows of bytes, as files have them, and the same bits as another
type."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from qir._kernels import _codes
from qir.errors import OpError
from qir.ir.dtype import DType, dtype

Codes = NDArray[np.generic]
Order: TypeAlias = Literal["low", "high"]
"""From which end of a byte bits are filled: `low` has the first of two nibbles in the low half,
as ONNX has it; `high` in the high half, and numbers of several bytes begin with the highest."""


def pack(
    integers: Codes, kind: DType | str, *, order: Order = "low", row: int = 0
) -> NDArray[np.uint8]:
    """Packs integers of a type into bytes, without gaps between them.

    `row` 0: all quantized values in one run of bytes. Else each row (the last axis) starts at a
    byte and is padded with zero bits to a multiple of `row` bytes, and the result has the leading
    axes. Raises OpError for quantized values that the type does not hold.
    """
    kind = dtype(kind) if isinstance(kind, str) else kind
    integers = carried(integers, kind)
    rows, length, leading = _rows(integers.shape, kind, row, order)
    out = np.empty((rows, _width(length, kind, row)), np.uint8)
    if not _codes.pack(_bytes(integers), out, length, high=order == "high", **_form(kind)):
        bits_of(integers, kind)  # says which code has more bits
    return out.reshape(*leading, out.shape[-1])


def unpack(
    data: NDArray[np.uint8],
    kind: DType | str,
    shape: tuple[int, ...],
    *,
    order: Order = "low",
    row: int = 0,
) -> Codes:
    """Unpacks bytes that `pack` made into integers of that shape.

    Raises OpError where the bytes are not as many as the quantized values take.
    """
    kind = dtype(kind) if isinstance(kind, str) else kind
    rows, length, _ = _rows(shape, kind, row, order)
    data = np.asarray(data)
    width = _width(length, kind, row)
    if data.dtype != np.uint8:
        raise OpError(f"unpack: packed values are bytes, not {data.dtype}")
    if data.size != rows * width:
        raise OpError(f"unpack: {data.size} bytes, {list(shape)} of {kind} take {rows * width}")
    packed = np.ascontiguousarray(data).reshape(rows, width)
    out = np.empty(shape, kind.carrier)
    _codes.unpack(packed, _bytes(out), length, high=order == "high", **_form(kind))
    return out


def recode(integers: Codes, of: DType | str, to: DType | str) -> Codes:
    """Reads the same bits as another element type of the same width.

    OpError for types whose widths differ, or quantized values of another type.
    """
    old, new = (dtype(k) if isinstance(k, str) else k for k in (of, to))
    if old.bits != new.bits:
        raise OpError(f"recode: {old} has {old.bits} bits, {new} has {new.bits}")
    integers = carried(integers, old)
    if old.bits == 8 * integers.itemsize:
        return integers.view(new.carrier)
    out = np.empty(integers.shape, new.carrier)
    form = {"from_signed": old.kind == "int", "to_signed": new.kind == "int"}
    if not _codes.recode(
        _bytes(integers), _bytes(out), bits=old.bits, itemsize=integers.itemsize, **form
    ):
        bits_of(integers, old)  # says which code has more bits
    return out


def carried(integers: Codes, kind: DType) -> Codes:
    """Quantized values in the type's own carrier, without gaps; ml_dtypes has small integers of its
    own.

    OpError for an array of another type.
    """
    integers = np.asarray(integers, order="C")
    if kind.bits == 0:
        raise OpError(f"{kind} has no bits")
    if integers.dtype == kind.carrier:
        return integers
    # ml_dtypes' small integers hold one value a byte; only their NumPy type differs from the
    # carrier.
    if integers.dtype.name in ("int2", "uint2", "int4", "uint4") and kind.is_integer:
        return integers.astype(kind.carrier)
    raise OpError(f"quantized values of {kind} are {kind.carrier}, not {integers.dtype}")


# -- the definition -------------------------------------------------------------------------------


def bits_of(integers: Codes, kind: DType) -> NDArray[np.unsignedinteger]:
    """Each integer's bits in the low end of an unsigned integer; OpError if they are too many."""
    integers = carried(integers, kind)
    if kind.is_integer and integers.size:
        low, high = kind.bounds
        if (
            kind.bits < 8 * integers.itemsize
        ) and not low <= integers.min() <= integers.max() <= high:
            bad_value = int(integers.max()) if integers.max() > high else int(integers.min())
            raise OpError(f"value {bad_value} does not fit {kind}, {low} to {high}")
    raw = integers.view(f"u{integers.itemsize}")
    return raw & raw.dtype.type(_mask(kind)) if kind.bits < 8 * integers.itemsize else raw


def from_bits(bits: NDArray[np.unsignedinteger], kind: DType) -> Codes:
    """Quantized values of a type from their bits; its sign, if it has one, is the highest
    of them."""
    raw = bits.astype(f"u{kind.carrier.itemsize}", copy=False)
    # Sign extension: flipping the sign bit and subtracting it fills the upper bits.
    if kind.kind == "int" and kind.bits < 8 * raw.itemsize:
        sign = raw.dtype.type(1 << (kind.bits - 1))
        with np.errstate(over="ignore"):  # it is meant to wrap
            raw = (raw ^ sign) - sign
    return raw.view(kind.carrier)


def define_pack(
    bits: NDArray[np.unsignedinteger], kind: DType, order: Order, row: int
) -> NDArray[np.uint8]:
    """Returns what `pack` means, bit by bit: rows of quantized values to rows of bytes."""
    rows, length = bits.shape
    bit_positions = np.arange(kind.bits) if order == "low" else np.arange(kind.bits)[::-1]
    bit_array = (bits[:, :, None] >> bit_positions.astype(bits.dtype)) & bits.dtype.type(1)
    flat = np.zeros((rows, 8 * _width(length, kind, row)), np.uint8)
    flat[:, : length * kind.bits] = bit_array.reshape(rows, length * kind.bits)
    return np.packbits(flat, 1, "little" if order == "low" else "big")


def define_unpack(
    data: NDArray[np.uint8], kind: DType, length: int, order: Order
) -> NDArray[np.unsignedinteger]:
    """Returns what `unpack` means: rows of bytes to the bits of each integer; padding is not looked
    at."""
    rows = len(data)
    flat = np.unpackbits(data, 1, None, "little" if order == "low" else "big")
    bit_array = flat[:, : length * kind.bits].reshape(rows, length, kind.bits)
    bit_positions = np.arange(kind.bits) if order == "low" else np.arange(kind.bits)[::-1]
    carrier = np.dtype(f"u{kind.carrier.itemsize}")
    shifted = bit_array.astype(carrier) << bit_positions.astype(carrier)
    return np.asarray(np.bitwise_or.reduce(shifted, axis=2, dtype=carrier))


def _mask(kind: DType) -> int:
    return (1 << kind.bits) - 1


def _width(length: int, kind: DType, row: int) -> int:
    """Returns the bytes of a row."""
    # -(-n // d) rounds up: a row may end inside a byte.
    dense = -(-length * kind.bits // 8)
    return -(-dense // row) * row if row else dense


def _bytes(array: Codes) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


class _PackedForm(TypedDict):
    """A type as the compiled loops see it."""

    bits: int
    itemsize: int
    is_signed: bool


def _form(kind: DType) -> _PackedForm:
    return {
        "bits": kind.bits,
        "itemsize": kind.carrier.itemsize,
        "is_signed": kind.kind == "int",
    }


def _rows(
    shape: tuple[int, ...], kind: DType, row: int, order: Order
) -> tuple[int, int, tuple[int, ...]]:
    """Returns how many rows, how many quantized values each, and the axes that stay."""
    if order not in ("low", "high"):
        raise OpError(f"bits are filled from the 'low' or the 'high' end, not {order!r}")
    if row < 0:
        raise OpError(f"rows are padded to one byte or more, not {row}")
    if kind.bits == 0:
        raise OpError(f"{kind} has no bits")
    if not row:
        return 1, math.prod(shape), ()
    if not shape:
        raise OpError("a scalar has no rows to pad")
    return math.prod(shape[:-1]), shape[-1], tuple(shape[:-1])
