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


def lazy_quantize(profile: Profile, reals: ArrayData, kind: QuantType) -> ArrayData:
    """Returns what `codes_of` gives. Raises as it does, of a large array when a part is asked
    for."""
    if not _is_sliceable(kind):
        return quantize_by_profile(profile, read_box(reals, full_box(reals.shape)), kind)
    shape, carrier = reals.shape, kind.storage.carrier

    def make(box: Box) -> Tensor:
        found = np.empty([s.stop - s.start for s in box], carrier)
        for piece in _block_aligned_boxes(box, kind.granularity) if found.size else ():
            inside = tuple(
                slice(p.start - b.start, p.stop - b.start) for p, b in zip(piece, box, strict=True)
            )
            found[inside] = quantize_by_profile(
                profile, read_box(reals, piece), quant_type_of_box(kind, shape, piece)
            )
        return found

    bounds = (kind.low, kind.high) if kind.storage.is_integer else None
    return lazy_array(shape, carrier, make, bounds)


def quant_type_of_box(kind: QuantType, shape: tuple[int, ...], box: Box) -> QuantType:
    """Returns the quantized type of a box that ends at block borders, or is within one block."""
    grain = kind.granularity
    if grain is None:
        return kind
    sizes = dict(grain.blocks)
    blocks = [
        slice(s.start // sizes[i], -(-s.stop // sizes[i])) if i in sizes else slice(0, 1)
        for i, s in enumerate(box)
    ]
    grid = tuple(-(-n // sizes[i]) if i in sizes else 1 for i, n in enumerate(shape))

    def cut(numbers: tuple[float, ...] | Array | None) -> tuple[float, ...] | Array | None:
        if numbers is None:
            return None
        if not isinstance(numbers, Array):
            few = len(numbers) < 2 or grain.axis is None
            return numbers if few else numbers[blocks[grain.axis or 0]]
        if numbers.contents.size == 1:
            return numbers
        held = numbers.data.reshape(grid)[tuple(blocks)]
        held = held.reshape(-1) if grain.axis is not None else held
        return Array(np.ascontiguousarray(held), numbers.type.with_shape(held.shape), numbers.name)

    return replace(kind, scale=cut(kind.scale), zero=cut(kind.zero), plus=cut(kind.plus))


def _is_sliceable(kind: QuantType) -> bool:
    """Returns whether the parameters of a box can be sliced out of those of the tensor."""
    if kind.granularity is None:
        return True
    lists = (kind.scale, kind.zero, kind.plus)
    several = [n for n in lists if isinstance(n, tuple) and len(n) > 1]
    return (
        kind.granularity.by is None
        and kind.declared is None
        and not any(a.type.quant for a in lists if isinstance(a, Array))
        and (kind.granularity.axis is not None or not several)
    )


def _block_aligned_boxes(box: Box, grain: Granularity | None) -> Iterator[Box]:
    """Splits a box into boxes that end at block borders, or are within one block."""
    sizes = dict(grain.blocks) if grain else {}
    axes = [_split_at_block(s, sizes.get(i, 1)) for i, s in enumerate(box)]
    return itertools.product(*axes)


def _split_at_block(range_: slice, size: int) -> list[slice]:
    """Splits a range where its first complete block begins."""
    first = min(-(-range_.start // size) * size, range_.stop)
    found = [slice(range_.start, first), slice(first, range_.stop)]
    return [s for s in found if s.start < s.stop] or [range_]


# -- packing --------------------------------------------------------------------------------------


def lazy_unpack(
    data: ArrayData, kind: DType, shape: Sequence[int], order: Order = "low"
) -> ArrayData:
    """Returns the integers of that shape in packed bytes, computed when they are read."""
    each = 8 // kind.bits
    flat = reshape(data, (data.size,))
    bounds = kind.bounds if kind.is_integer else None

    def read(first: int, last: int) -> Tensor:
        skip = first % each
        held = np.asarray(read_box(flat, (slice(first // each, -(-last // each)),)), np.uint8)
        return unpack(held, kind, (held.size * each,), order=order)[skip : skip + last - first]

    if is_small(shape):
        return np.asarray(read(0, math.prod(shape)).reshape(shape), order="C")
    if not shape or shape[-1] % each:
        return LazyArray(shape, kind.carrier, None, bounds, read)
    wide = reshape(data, (*shape[:-1], shape[-1] // each))

    def make(box: Box) -> Tensor:
        *lead, last = box
        skip, stop = last.start // each, -(-last.stop // each)
        held = np.asarray(read_box(wide, (*lead, slice(skip, stop))), np.uint8, order="C")
        sizes = (*held.shape[:-1], held.shape[-1] * each)
        skip = last.start - skip * each
        return unpack(held, kind, sizes, order=order)[..., skip : skip + last.stop - last.start]

    return LazyArray(shape, kind.carrier, make, bounds, read)


def lazy_pack(
    codes: ArrayData, kind: DType, shape: Sequence[int], order: Order = "low"
) -> ArrayData:
    """Returns packed rows, padded with zeros, computed when they are read.

    The axes of the shape after the leading ones, which count the rows, hold the bytes of a row.
    """
    each, rank = 8 // kind.bits, codes.ndim - 1
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    depth = codes.shape[-1]

    def make(box: Box) -> Tensor:
        first, *rest = box[rank:]
        start, stop = first.start * steps[rank], first.stop * steps[rank]
        ends = slice(min(start * each, depth), min(stop * each, depth))
        held = read_box(codes, (*box[:rank], ends))
        wide = np.zeros((*held.shape[:-1], (stop - start) * each), kind.carrier)
        wide[..., : held.shape[-1]] = held
        found = pack(wide, kind, order=order, row=1)
        sizes = (*held.shape[:-1], first.stop - first.start, *shape[rank + 1 :])
        lead = tuple(slice(0, n) for n in sizes[: rank + 1])
        return found.reshape(sizes)[*lead, *rest]

    return lazy_array(shape, np.dtype(np.uint8), make)


def iter_packed(codes: ArrayData, kind: DType) -> Iterator[NDArray[np.uint8]]:
    """Yields, part by part, the bytes that `pack` gives."""
    each = 8 // kind.bits
    rest = np.empty(0, codes.dtype)
    for piece in iter_pieces(codes):
        run = np.concatenate([rest, piece.reshape(-1)]) if rest.size else piece.reshape(-1)
        whole = run.size - run.size % each
        if whole:
            yield pack(run[:whole], kind)
        rest = run[whole:]
    if rest.size:
        yield pack(rest, kind)
