"""Integers of whole arrays: each loop against a formula in NumPy, on each instruction set."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from qir._kernels import _codes
from qir._kernels._codes import ISAS, ROUNDS, Rows

Numbers = NDArray[np.generic]
Reals = NDArray[np.floating]
REALS: tuple[type[np.floating], ...] = (np.float32, np.float64)
G = TypeVar("G", bound=np.generic)
HALF = Fraction(1, 2)
SIZES = (*range(1, 71), 511, 512, 513, 1100)
ROUNDED: dict[str, Callable[[Reals], Reals]] = {
    "even": np.rint,
    "away": lambda t: np.copysign(np.floor(np.abs(t) + 0.5), t),
    "half_up": lambda t: np.floor(t + 0.5),
    "half_down": lambda t: np.ceil(t - 0.5),
    "up": lambda t: np.copysign(np.ceil(np.abs(t)), t),
    "zero": np.trunc,
    "floor": np.floor,
    "ceil": np.ceil,
}
"""In float64, on float32: nothing is rounded before."""


def raw(array: Numbers) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def unset(shape: tuple[int, ...], kind: type | str) -> Numbers:
    """An array in which what a loop leaves out is seen."""
    out = np.empty(shape, kind)
    raw(out)[:] = 0xA5
    return out


def cut(rows: int, inner: int, run: int) -> Rows:
    """Rows that have numbers of their own each."""
    blocks = -(-inner // run)
    return Rows(np.arange(rows, dtype=np.int64) * blocks, inner, run, rows * blocks)


def spread(values: NDArray[G], rows: int, inner: int, run: int) -> NDArray[G]:
    return np.repeat(values.reshape(rows, -1), run, 1)[:, :inner]


def parameters(rng: np.random.Generator, n: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Powers of two, so that products are exact, and zero points."""
    scale = 2.0 ** rng.integers(-3, 2, n)
    return scale.astype(np.float32), rng.integers(-9, 9, n).astype(np.int32)


def random_floats(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Eighths, so that there are ties of every factor, and what no code holds."""
    x = rng.integers(-900, 900, shape) / 8
    ends = rng.choice([np.inf, -np.inf, 1e38, -0.0, 1e-45, 70000.5, -70000.5], shape)
    return np.where(rng.random(shape) < 0.1, ends, x).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("round", ROUNDS)
def test_codes_are_rounded_and_held_in_their_bounds(isa: str, round: str) -> None:
    rng = np.random.default_rng(1)
    for inner in SIZES:
        for run in (1, 32, inner):
            for carrier in (np.uint8, np.int16, np.int32):
                x = random_floats(rng, (2, inner))
                count = 2 * -(-inner // run)
                factor, zero = parameters(rng, count)
                found = unset(x.shape, carrier)
                low, high = (3, 250) if carrier is np.uint8 else (-30000, 30000)
                _codes.encode(
                    raw(x),
                    raw(found),
                    cut(2, inner, run),
                    wide=False,
                    itemsize=found.itemsize,
                    round=round,
                    low=low,
                    high=high,
                    factor=raw(factor),
                    after=zero,
                    nan=zero,
                    isa=isa,
                )
                scaled = x * spread(factor, 2, inner, run)
                whole = ROUNDED[round](scaled.astype(np.float64)) + spread(zero, 2, inner, run)
                assert np.array_equal(found, np.clip(whole, low, high)), (inner, run, carrier)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_each_part_of_encoding_has_its_place(isa: str, kind: type[np.floating]) -> None:
    rng = np.random.default_rng(2)
    rows, inner, run = 3, 1000, 7
    for run in (1, 7, 40, inner):
        count = rows * -(-inner // run)
        scale: Reals = rng.uniform(0.1, 1, count).astype(kind)
        minus: Reals = rng.normal(size=count).astype(kind)
        before: Reals = rng.normal(size=count).astype(kind)
        x: Reals = rng.normal(size=(rows, inner)).astype(kind) * 50
        x[:, 5] = np.nan
        nan = rng.integers(0, 255, count).astype(np.int32)
        found = unset(x.shape, np.int8)
        assert _codes.encode(
            raw(x),
            raw(found),
            cut(rows, inner, run),
            wide=kind is np.float64,
            itemsize=1,
            round="even",
            low=-128,
            high=127,
            factor=raw(scale),
            after=np.zeros(count, np.int32),
            nan=nan,
            minus=raw(minus),
            before=raw(before),
            divide=True,
            isa=isa,
        )
        m, s, b = (spread(v, rows, inner, run) for v in (minus, scale, before))
        scaled = (x - m) / s + b
        fill = spread(nan, rows, inner, run)
        wanted = np.where(np.isnan(x), fill, np.clip(np.rint(scaled), -128, 127))
        assert np.array_equal(found, wanted.astype(np.int64).astype(np.int8)), run


@pytest.mark.parametrize("isa", ISAS)
def test_sums_of_32_bits_are_scaled_in_either_type(isa: str) -> None:
    rng = np.random.default_rng(3)
    acc = rng.integers(-(2**31), 2**31, (2, 700)).astype(np.int32)
    for kind in REALS:
        for itemsize, carrier in ((1, np.uint8), (4, np.int32)):
            factor: Reals = rng.uniform(1e-8, 1e-6, 2).astype(kind)
            found = unset(acc.shape, carrier)
            zero = np.array([3, 200], np.int32)
            assert not _codes.encode(
                raw(acc),
                raw(found),
                cut(2, 700, 700),
                wide=kind is np.float64,
                itemsize=itemsize,
                round="even",
                low=0,
                high=255,
                factor=raw(factor),
                after=zero,
                nan=zero,
                sums=True,
                isa=isa,
            )
            sums: Reals = acc.astype(kind)
            whole = np.rint(sums * factor[:, None]).astype(np.float64) + zero[:, None]
            assert np.array_equal(found, np.clip(whole, 0, 255))


def by_shift(acc: int, multiplier: int, left: int, right: int, twice: bool) -> int:
    """gemmlowp's, in Python's whole numbers: halves up in the high half, then away from zero."""
    if not twice:
        return math.floor(Fraction(acc * multiplier * 2**left, 2 ** (31 + right)) + HALF)
    shifted = (acc * 2**left + 2**31) % 2**32 - 2**31
    product = Fraction(shifted * multiplier, 2**31)
    high = min(math.floor(product + HALF), 2**31 - 1)
    rest = Fraction(abs(high), 2**right) + HALF
    return int(math.copysign(math.floor(rest), high))


@pytest.mark.parametrize("twice", [False, True])
def test_sums_are_scaled_in_whole_numbers(twice: bool) -> None:
    rng = np.random.default_rng(8)
    for run in (1, 90):
        count = 90 // run * 2
        acc = rng.integers(-(2**31), 2**31, (2, 90)) >> rng.integers(0, 24, (2, 90))
        acc[:, :7] = -(2**31), 2**31 - 1, 0, 1, 3, -3, -1  # ties of a power of two
        multiplier = rng.integers(1 << 30, 1 << 31, count).astype(np.int32)
        multiplier[0] = 1 << 30
        left, right = (rng.integers(0, 12, count).astype(np.int32) for _ in range(2))
        left[rng.random(count) < 0.5] = 0
        left[0] = right[0] = 0
        zero = rng.integers(-99, 99, count).astype(np.int32)
        for carrier in ("i1", "u2", "i4"):
            found = unset(acc.shape, carrier)
            low, high = int(np.iinfo(carrier).min), int(np.iinfo(carrier).max)
            _codes.fixed(
                acc.astype(np.int32).reshape(-1),
                raw(found),
                cut(2, 90, run),
                multiplier=multiplier,
                left=left,
                right=right,
                zero=zero,
                itemsize=found.itemsize,
                low=low,
                high=high,
                twice=twice,
            )
            each = [spread(v, 2, 90, run).ravel().tolist() for v in (multiplier, left, right, zero)]
            for a, m, up, down, z, code in zip(
                acc.ravel().tolist(), *each, found.ravel().tolist(), strict=True
            ):
                wanted = by_shift(a, m, up, down, twice) + z
                assert code == max(low, min(high, wanted)), (a, m, up, down, z)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", REALS)
def test_the_entry_of_a_table_is_that_of_the_steps_passed(
    isa: str, kind: type[np.floating]
) -> None:
    rng = np.random.default_rng(9)
    for count in (0, 1, 15, 255):
        steps: Reals = np.sort(rng.normal(size=count)).astype(kind)
        table = rng.permutation(count + 1).astype(np.int32)
        for n in SIZES:
            x: Reals = rng.normal(size=n).astype(kind)
            x[: min(n, count) // 2] = steps[: min(n, count) // 2]
            x[n // 2] = np.inf
            found, one = unset((n,), np.uint8), np.ones(1, np.int32)
            _codes.encode(
                raw(x),
                raw(found),
                cut(1, n, n),
                wide=kind is np.float64,
                itemsize=1,
                round="even",
                low=0,
                high=255,
                factor=raw(np.ones(1, kind)),
                after=one,
                nan=one,
                steps=raw(steps),
                table=table,
                isa=isa,
            )
            assert np.array_equal(found, table[np.searchsorted(steps, x, "right")]), (count, n)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", REALS)
def test_reals_are_made_in_the_order_that_is_said(isa: str, kind: type[np.floating]) -> None:
    rng = np.random.default_rng(4)
    for carrier in ("u1", "i1", "u2", "i2", "u4", "i4"):
        for inner in SIZES:
            for run in (1, 5, inner):
                quantized = rng.integers(0, 256, (2, inner * int(carrier[1]))).astype(np.uint8)
                held = quantized.view(carrier)
                count = 2 * -(-inner // run)
                parts = {
                    name: rng.normal(size=count).astype(kind)
                    for name in ("scale", "zero", "minus", "plus")
                    if name == "scale" or rng.random() < 0.5
                }
                y = unset(held.shape, kind)
                _codes.decode(
                    raw(quantized),
                    raw(y),
                    cut(2, inner, run),
                    wide=kind is np.float64,
                    carrier=carrier,
                    isa=isa,
                    **{name: raw(v) for name, v in parts.items()},
                )
                p = {name: spread(v, 2, inner, run) for name, v in parts.items()}
                wanted: Reals = held.astype(kind)
                if "zero" in p:
                    wanted = wanted - p["zero"]
                wanted = wanted * p["scale"]
                if "minus" in p:
                    wanted = wanted - p["minus"]
                if "plus" in p:
                    wanted = wanted + p["plus"]
                assert np.array_equal(y, wanted), (carrier, inner, run, list(parts))


@pytest.mark.parametrize("isa", ISAS)
def test_bytes_may_stand_for_numbers_of_a_table(isa: str) -> None:
    rng = np.random.default_rng(5)
    table: NDArray[np.float64] = rng.normal(size=256)
    for n in SIZES:
        quantized = rng.integers(0, 256, n).astype(np.uint8)
        y = unset((n,), np.float64)
        scale, rows = raw(np.array([0.3])), cut(1, n, n)
        _codes.decode(
            quantized, raw(y), rows, wide=True, carrier="u1", scale=scale, table=raw(table), isa=isa
        )
        assert np.array_equal(y, table[quantized] * 0.3)


@pytest.mark.parametrize("entry", [np.int8, np.uint16, np.float32, np.int64])
def test_lookup_reads_bytes_and_pairs_of_them(entry: type) -> None:
    rng = np.random.default_rng(6)
    for carrier in (np.uint8, np.uint16):
        every = np.iinfo(carrier).max + 1
        table: Numbers = rng.integers(0, 99, every).astype(entry)
        for n in (0, 1, 7, 1000):
            quantized = rng.integers(0, every, n).astype(carrier)
            y = unset((n,), entry)
            size = quantized.itemsize
            _codes.lookup(raw(quantized), raw(table), raw(y), itemsize=size, entry=table.itemsize)
            assert np.array_equal(y, table[quantized])


# -- bits -----------------------------------------------------------------------------------------


def dense(quantized: list[int], bits: int, width: int, high: bool) -> bytes:
    """One long whole number, in Python's own arithmetic."""
    fields = [code % (1 << bits) for code in quantized]
    if not high:
        return sum(v << i * bits for i, v in enumerate(fields)).to_bytes(width, "little")
    whole = 0
    for v in fields:
        whole = whole << bits | v
    return (whole << (8 * width - bits * len(fields))).to_bytes(width, "big")


@pytest.mark.parametrize("bits", range(1, 65))
def test_every_width_is_packed_and_unpacked(bits: int) -> None:
    rng = np.random.default_rng(bits)
    itemsize = next(size for size in (1, 2, 4, 8) if bits <= 8 * size)
    for signed in (False, True):
        for n in (0, 1, 2, 7, 8, 9, 16, 37, 71):
            for high in (False, True):
                least = -(1 << (bits - 1)) if signed else 0
                count = [int.from_bytes(rng.bytes(9), "little") % (1 << bits) for _ in range(3 * n)]
                kind = f"{'i' if signed else 'u'}{itemsize}"
                quantized = np.array([least + v for v in count], kind).reshape(3, n)
                width = -(-n * bits // 8) + int(rng.integers(0, 3))
                packed = np.full((3, width), 0xAA, np.uint8)
                form = {"bits": bits, "itemsize": itemsize}
                assert _codes.pack(raw(quantized), packed, n, is_signed=signed, high=high, **form)
                for row, line in zip(quantized.tolist(), packed, strict=True):
                    assert line.tobytes() == dense(row, bits, width, high), (signed, n, high)
                back = np.empty_like(quantized)
                _codes.unpack(packed, raw(back), n, is_signed=signed, high=high, **form)
                assert np.array_equal(back, quantized)


@pytest.mark.parametrize(("bits", "itemsize"), [(1, 1), (4, 1), (7, 1), (12, 2), (24, 4), (40, 8)])
def test_codes_that_have_more_bits_are_told(bits: int, itemsize: int) -> None:
    for signed in (False, True):
        least, most = (
            (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        )
        kind = f"{'i' if signed else 'u'}{itemsize}"
        packed = np.empty((1, 100 * itemsize), np.uint8)
        for last, fits in ((most, True), (least, True), (most + 1, False)):
            quantized = np.array([*[0] * 98, last], kind)
            assert fits is _codes.pack(
                raw(quantized), packed, 99, bits=bits, itemsize=itemsize, is_signed=signed
            )
            out = np.empty_like(quantized)
            assert fits is _codes.recode(
                raw(quantized),
                raw(out),
                bits=bits,
                itemsize=itemsize,
                from_signed=signed,
                to_signed=not signed,
            )
            if fits:
                read = out.view(f"{'u' if signed else 'i'}{itemsize}")[98]
                assert int(read) % (1 << bits) == last % (1 << bits)
                assert (read < 0) == (not signed and last >> (bits - 1) == 1)


def test_what_does_not_fit_together_is_refused() -> None:
    one, rows = np.zeros(8, np.uint8), Rows(np.zeros(1, np.int64), 8, 8, 1)
    zero, scale = np.zeros(1, np.int32), raw(np.ones(1, np.float32))
    good = {"wide": False, "itemsize": 1, "round": "even", "low": 0, "high": 255}
    good |= {"factor": scale, "after": zero, "nan": zero}
    x = np.zeros(32, np.uint8)
    _codes.encode(x, one, rows, **good)  # type: ignore[arg-type]
    for change in (
        {"factor": scale[:2]},
        {"factor": None},
        {"after": np.zeros(2, np.int32)},
        {"after": np.full(1, 1 << 20, np.int32)},
        {"itemsize": 3},
        {"low": -(1 << 40)},
        {"round": "odd"},
        {"isa": "abacus"},
        {"wide": True},
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            _codes.encode(x, one, rows, **(good | change))  # type: ignore[arg-type]
    for first, inner, run, count in (
        ([0], 8, 4, 1),
        ([-1], 8, 8, 1),
        ([0], 0, 1, 1),
        ([2], 4, 4, 2),
    ):
        with pytest.raises(ValueError, match="parameter"):
            Rows(np.array(first, np.int64), inner, run, count)
    plain = {"bits": 4, "itemsize": 1, "is_signed": False}
    for n, change in ((17, {}), (8, {"bits": 9}), (-1, {}), (8, {"itemsize": 2}), (1 << 62, {})):
        with pytest.raises(ValueError):  # noqa: PT011
            _codes.pack(one, np.zeros((1, 4), np.uint8), n, **(plain | change))  # type: ignore[arg-type]
        with pytest.raises(ValueError):  # noqa: PT011
            _codes.unpack(np.zeros((1, 4), np.uint8), one, n, **(plain | change))  # type: ignore[arg-type]
    for table, steps in ((zero[:0], scale[:0]), (zero, None), (np.zeros(3, np.int32), scale)):
        with pytest.raises(ValueError):  # noqa: PT011
            _codes.encode(x, one, rows, table=table, steps=steps, **good)  # type: ignore[arg-type]
    shifted = {"multiplier": zero, "left": zero, "right": zero, "zero": zero, "low": 0, "high": 9}
    shifted |= {"itemsize": 1, "twice": True}
    acc = np.zeros(8, np.int32)
    _codes.fixed(acc, one, rows, **shifted)  # type: ignore[arg-type]
    for change in (
        {"left": zero + 31},
        {"right": zero - 1},
        {"multiplier": zero - 1},
        {"itemsize": 8},
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            _codes.fixed(acc, one, rows, **(shifted | change))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="7 sums for 8 quantized values"):
        _codes.fixed(acc[:7], one, rows, **shifted)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="table has 9 bytes"):
        _codes.lookup(one, np.zeros(9, np.uint8), one, itemsize=1, entry=1)


def test_threads_work_on_one_array_at_once() -> None:
    rng = np.random.default_rng(7)
    quantized = rng.integers(0, 16, 100_000).astype(np.uint8)

    def once(_: int) -> bytes:
        packed = np.empty((1, 50_000), np.uint8)
        assert _codes.pack(quantized, packed, quantized.size, bits=4, itemsize=1, is_signed=False)
        return packed.tobytes()

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(once, range(16)))) == 1
