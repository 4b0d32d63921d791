"""Integers that are made part by part are those that are made all at once."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.ir import lazy_arrays
from qir.ir.dtype import F32, dtype
from qir.ir.lazy_arrays import ArrayData, Box, LazyArray, boxes, full_box, iter_pieces, lazy_array
from qir.ir.types import Array, Granularity, QuantType, TensorType
from qir.numerics import pack
from qir.numerics.packing import Order
from qir.profiles import (
    iter_packed,
    lazy_pack,
    lazy_quantize,
    lazy_unpack,
    profile,
    quantize_by_profile,
)

Tensor = NDArray[np.generic]
SEED = 61


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large, and parts are small."""
    monkeypatch.setattr(lazy_arrays, "MIN_LAZY_SIZE", 0)
    monkeypatch.setattr(lazy_arrays, "PIECE_SIZE", 50)


def some(rng: np.random.Generator, shape: tuple[int, ...]) -> Iterator[Box]:
    for _ in range(6):
        yield tuple(slice(*sorted(rng.integers(0, n + 1, 2).tolist())) for n in shape)


def same(rng: np.random.Generator, held: ArrayData, wanted: Tensor) -> None:
    """Boxes at random, the run of all, and the whole are those of the array."""
    assert isinstance(held, LazyArray)
    assert (held.shape, held.dtype) == (wanted.shape, wanted.dtype)
    for box in some(rng, wanted.shape):
        found = held.read_box(box)
        assert found.shape == wanted[box].shape, box
        assert (found == wanted[box]).all(), box
    run = b"".join(piece.tobytes() for piece in iter_pieces(held))
    assert run == wanted.tobytes()
    if held.bounds is not None and wanted.size:
        assert held.bounds[0] <= int(wanted.min()) <= int(wanted.max()) <= held.bounds[1]
    assert (held.read_all() == wanted).all()


def running(data: Tensor) -> LazyArray:
    """What is read from one place to another, as from a file."""
    return LazyArray(data.shape, data.dtype, None, None, lambda first, last: data[first:last])


SHAPES = [(3, 5), (4, 8), (7,), (2, 3, 6), (5, 64), (9, 33), (1, 1)]


@pytest.mark.parametrize("name", ["u4", "i4", "u2", "i2"])
@pytest.mark.parametrize("order", ["low", "high"])
def test_bytes_are_unpacked_and_packed_part_by_part(name: str, order: Order) -> None:
    rng = np.random.default_rng(SEED)
    kind = dtype(name)
    each = 8 // kind.bits
    for shape in SHAPES:
        quantized = rng.integers(kind.bounds[0], kind.bounds[1] + 1, shape).astype(kind.carrier)
        data = pack(quantized, kind, order=order).reshape(-1)
        same(rng, lazy_unpack(data, kind, shape, order), quantized)
        same(rng, lazy_unpack(running(data), kind, shape, order), quantized)
        if order == "low":
            assert b"".join(p.tobytes() for p in iter_packed(quantized, kind)) == data.tobytes()
        rows = pack(quantized, kind, order=order, row=1)
        wide = np.zeros((*shape[:-1], 4 * -(-shape[-1] // each)), np.uint8)
        wide[..., : rows.shape[-1]] = rows
        same(rng, lazy_pack(quantized, kind, wide.shape, order), wide)
        deep = wide.reshape(*shape[:-1], -1, 4)
        same(rng, lazy_pack(quantized, kind, deep.shape, order), deep)


def test_axes_are_turned_and_shapes_changed_part_by_part() -> None:
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((7, 13, 6)).astype(np.float32)
    for perm in itertools.permutations(range(3)):
        same(rng, lazy_arrays.transposed(x, perm), x.transpose(perm))
    held = lazy_array(x.shape, x.dtype, lambda box: x[box])
    same(rng, lazy_arrays.reshape(held, (91, 6)), x.reshape(91, 6))
    same(rng, lazy_arrays.crop(held, (5, 13, 2)), x[:5, :, :2])
    quantized = np.arange(-8, 28, dtype=np.int8).reshape(4, 9) % 16 - 8
    moved = lazy_arrays.add_offset(
        lazy_array(quantized.shape, quantized.dtype, lambda box: quantized[box]), 8, U1
    )
    same(rng, moved, (quantized + 8).astype(np.uint8))
    assert lazy_arrays.arrays_equal(held, x)
    assert not lazy_arrays.arrays_equal(
        lazy_arrays.transposed(x, (0, 2, 1)), lazy_arrays.transposed(x + 1, (0, 2, 1))
    )


U1 = np.dtype(np.uint8)

GRAINS = [None, ((0, 1),), ((1, 1),), ((0, 16), (1, 1)), ((0, 1), (1, 8)), ((0, 5), (1, 3))]


@pytest.mark.parametrize("storage", ["u4", "i8", "i16"])
@pytest.mark.parametrize("blocks", [*GRAINS, ((0, 1000), (1, 1))])
def test_reals_are_quantized_part_by_part(
    storage: str, blocks: tuple[tuple[int, int], ...] | None
) -> None:
    rng = np.random.default_rng(SEED)
    for shape, zero in itertools.product([(40, 30), (4, 9, 5)], ["none", "code", "real"]):
        x = rng.standard_normal(shape).astype(np.float32)
        quant = typed(rng, storage, blocks, shape, zero)
        rules = profile("native")
        same(rng, lazy_quantize(rules, x, quant), quantize_by_profile(rules, x, quant))


def typed(
    rng: np.random.Generator,
    storage: str,
    blocks: tuple[tuple[int, int], ...] | None,
    shape: tuple[int, ...],
    zero: str,
) -> QuantType:
    kind = dtype(storage)
    if blocks is None:
        number = {"none": (), "code": (3,), "real": (3.25,)}[zero]
        return QuantType(kind, F32, (0.125,), number)
    grain = Granularity(blocks)
    grid = grain.grid(shape) if grain.axis is None else (shape[grain.axis],)
    sizes = tuple(n for n in grid if isinstance(n, int))
    scale = Array.of((rng.random(sizes) + 0.1).astype(np.float32), "scale")
    zeros = rng.integers(0, 8, sizes).astype(kind.carrier)
    made = Array(zeros, TensorType(sizes, kind), "zero")
    real = Array.of(zeros.astype(np.float32) + np.float32(0.25), "zero")
    if zero == "none":
        return QuantType(kind, F32, scale, (), grain)
    return QuantType(kind, F32, scale, made if zero == "code" else real, grain)


def test_a_table_is_looked_up_part_by_part() -> None:
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((600,)).astype(np.float32)
    scale = Array.of((rng.random(19) + 1).astype(np.float32), "scale")
    table = Array.of(np.linspace(-1, 1, 16, dtype=np.float32) ** 3, "codes")
    grain = Granularity(((0, 32),))
    quant = QuantType(dtype("u4"), F32, scale, (), grain, kind="lut", codes=table)
    same(
        rng,
        lazy_quantize(profile("native"), x, quant),
        quantize_by_profile(profile("native"), x, quant),
    )


def test_boxes_follow_each_other_and_are_small() -> None:
    for shape in [(), (0, 3), (3, 0), (7,), (200,), (3, 200), (9, 3, 4), (2, 3, 100), (40, 40)]:
        found = list(boxes(shape))
        counted = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        runs = [counted[box].reshape(-1) for box in found]
        assert np.concatenate(runs).tolist() == counted.reshape(-1).tolist()
        assert max(run.size for run in runs) <= lazy_arrays.PIECE_SIZE


def test_the_last_whole_arrays_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_arrays, "CACHE_BYTES", 250)
    made = []

    def one() -> LazyArray:
        def make(box: Box) -> Tensor:
            made.append(box)
            return np.ones([s.stop - s.start for s in box], np.uint8)

        return LazyArray((10, 10), np.dtype(np.uint8), make)

    held = [one() for _ in range(3)]
    for each in held:
        assert not each.read_all().flags.writeable
    count = len(made)
    held[1].read_all(), held[2].read_box(full_box((10, 10)))
    assert len(made) == count
    held[0].read_all()  # was the first to go
    assert len(made) > count
    gone = weakref.ref(held.pop())
    del each
    gc.collect()
    assert gone() is None


def test_an_array_tells_hash_and_equality_without_its_elements() -> None:
    x = np.arange(600, dtype=np.float32).reshape(20, 30)
    kind = TensorType(x.shape, F32)
    held = lazy_array(x.shape, x.dtype, lambda box: x[box])
    assert isinstance(held, LazyArray)
    one, other = Array(held, kind), Array(x, kind)
    assert one == other
    assert held._cached is None
    assert (one.data == other.data).all()
