"""Quantizes, packs and unpacks large arrays lazily, with the same bytes as at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import DType
from qir.ir.lazy_arrays import (
    ArrayData,
    Box,
    LazyArray,
    full_box,
    is_small,
    iter_pieces,
    lazy_array,
    read_box,
    reshape,
)
from qir.ir.types import Array, Granularity, QuantType
from qir.numerics.packing import Order, pack, unpack
from qir.profiles.library import quantize_by_profile
from qir.profiles.profile import Profile

Tensor = NDArray[np.generic]


# -- quantize -------------------------------------------------------------------------------------


def lazy_quantize(profile: Profile, floats: ArrayData, kind: QuantType) -> ArrayData:
    """Returns what `quantize_by_profile` returns, computed when it is read if it is large.

    Raises as `quantize_by_profile`; for a large array when a part is read.
    """
    if not _is_sliceable(kind):
        return quantize_by_profile(profile, read_box(floats, full_box(floats.shape)), kind)
    shape, carrier = floats.shape, kind.storage.carrier

    def make(box: Box) -> Tensor:
        quantized = np.empty([s.stop - s.start for s in box], carrier)
        for piece in _block_aligned_boxes(box, kind.granularity) if quantized.size else ():
            inside = tuple(
                slice(p.start - b.start, p.stop - b.start) for p, b in zip(piece, box, strict=True)
            )
            quantized[inside] = quantize_by_profile(
                profile, read_box(floats, piece), quant_type_of_box(kind, shape, piece)
            )
        return quantized

    bounds = (kind.low, kind.high) if kind.storage.is_integer else None
    return lazy_array(shape, carrier, make, bounds)


def quant_type_of_box(kind: QuantType, shape: tuple[int, ...], box: Box) -> QuantType:
    """Returns the quantized type of a box that ends at block borders, or is within one block."""
    granularity = kind.granularity
    if granularity is None:
        return kind
    sizes = dict(granularity.blocks)
    blocks = [
        slice(s.start // sizes[i], -(-s.stop // sizes[i])) if i in sizes else slice(0, 1)
        for i, s in enumerate(box)
    ]
    grid = tuple(-(-n // sizes[i]) if i in sizes else 1 for i, n in enumerate(shape))

    def cut(numbers: tuple[float, ...] | Array | None) -> tuple[float, ...] | Array | None:
        if numbers is None:
            return None
        if not isinstance(numbers, Array):
            is_shared = len(numbers) < 2 or granularity.axis is None
            return numbers if is_shared else numbers[blocks[granularity.axis or 0]]
        if numbers.contents.size == 1:
            return numbers
        part = numbers.data.reshape(grid)[tuple(blocks)]
        part = part.reshape(-1) if granularity.axis is not None else part
        return Array(np.ascontiguousarray(part), numbers.type.with_shape(part.shape), numbers.name)

    return replace(kind, scale=cut(kind.scale), zero=cut(kind.zero), plus=cut(kind.plus))


def _is_sliceable(kind: QuantType) -> bool:
    """Returns whether the parameters of a box can be sliced out of those of the tensor."""
    if kind.granularity is None:
        return True
    lists = (kind.scale, kind.zero, kind.plus)
    inline_lists = [n for n in lists if isinstance(n, tuple) and len(n) > 1]
    return (
        kind.granularity.by is None
        and kind.declared is None
        and not any(a.type.quant for a in lists if isinstance(a, Array))
        and (kind.granularity.axis is not None or not inline_lists)
    )


def _block_aligned_boxes(box: Box, granularity: Granularity | None) -> Iterator[Box]:
    """Splits a box into boxes that end at block borders, or are within one block."""
    sizes = dict(granularity.blocks) if granularity else {}
    axes = [_split_at_block(s, sizes.get(i, 1)) for i, s in enumerate(box)]
    return itertools.product(*axes)


def _split_at_block(range_: slice, size: int) -> list[slice]:
    """Splits a range where its first complete block begins."""
    border = min(-(-range_.start // size) * size, range_.stop)
    parts = [slice(range_.start, border), slice(border, range_.stop)]
    return [s for s in parts if s.start < s.stop] or [range_]


# -- packing --------------------------------------------------------------------------------------


def lazy_unpack(
    data: ArrayData, kind: DType, shape: Sequence[int], order: Order = "low"
) -> ArrayData:
    """Returns the integers of that shape in packed bytes, computed when they are read."""
    per_byte = 8 // kind.bits
    flat = reshape(data, (data.size,))
    bounds = kind.bounds if kind.is_integer else None

    def read(first: int, last: int) -> Tensor:
        skip = first % per_byte
        packed = np.asarray(
            read_box(flat, (slice(first // per_byte, -(-last // per_byte)),)), np.uint8
        )
        return unpack(packed, kind, (packed.size * per_byte,), order=order)[
            skip : skip + last - first
        ]

    if is_small(shape):
        return np.asarray(read(0, math.prod(shape)).reshape(shape), order="C")
    # Rows that do not end at a byte border are read by flat index alone.
    if not shape or shape[-1] % per_byte:
        return LazyArray(shape, kind.carrier, None, bounds, read)
    rows = reshape(data, (*shape[:-1], shape[-1] // per_byte))

    def make(box: Box) -> Tensor:
        *lead, last = box
        skip, stop = last.start // per_byte, -(-last.stop // per_byte)
        packed = np.asarray(read_box(rows, (*lead, slice(skip, stop))), np.uint8, order="C")
        sizes = (*packed.shape[:-1], packed.shape[-1] * per_byte)
        skip = last.start - skip * per_byte
        return unpack(packed, kind, sizes, order=order)[..., skip : skip + last.stop - last.start]

    return LazyArray(shape, kind.carrier, make, bounds, read)


def lazy_pack(
    quantized: ArrayData, kind: DType, shape: Sequence[int], order: Order = "low"
) -> ArrayData:
    """Returns packed rows, padded with zeros, computed when they are read.

    The axes of the shape after the leading ones, which count the rows, hold the bytes of a row.
    """
    per_byte, rank = 8 // kind.bits, quantized.ndim - 1
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    depth = quantized.shape[-1]

    def make(box: Box) -> Tensor:
        first, *inner = box[rank:]
        start, stop = first.start * strides[rank], first.stop * strides[rank]
        ends = slice(min(start * per_byte, depth), min(stop * per_byte, depth))
        part = read_box(quantized, (*box[:rank], ends))
        # The last row of a block may be shorter: the rest of its bytes is zero.
        padded = np.zeros((*part.shape[:-1], (stop - start) * per_byte), kind.carrier)
        padded[..., : part.shape[-1]] = part
        packed = pack(padded, kind, order=order, row=1)
        sizes = (*part.shape[:-1], first.stop - first.start, *shape[rank + 1 :])
        outer = tuple(slice(0, n) for n in sizes[: rank + 1])
        return packed.reshape(sizes)[*outer, *inner]

    return lazy_array(shape, np.dtype(np.uint8), make)


def iter_packed(quantized: ArrayData, kind: DType) -> Iterator[NDArray[np.uint8]]:
    """Yields, part by part, the bytes that `pack` gives."""
    per_byte = 8 // kind.bits
    leftover = np.empty(0, quantized.dtype)
    for piece in iter_pieces(quantized):
        run = np.concatenate([leftover, piece.reshape(-1)]) if leftover.size else piece.reshape(-1)
        complete = run.size - run.size % per_byte
        if complete:
            yield pack(run[:complete], kind)
        # Integers that do not fill a byte wait for the next piece.
        leftover = run[complete:]
    if leftover.size:
        yield pack(leftover, kind)
