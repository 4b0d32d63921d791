"""Sums, products, tables, and integers from and to floats."""

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from . import formulas
from .one import BOUNDS, CODES, ISAS, one, random_integers

F32 = np.float32
TYPES = list(product(["u8", "i8"], repeat=3))


def shared(values: NDArray[np.generic], shape: tuple[int, int, int]) -> NDArray[np.generic]:
    return np.broadcast_to(values.reshape(shape[0], -1, shape[2]), shape)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("a_type", "b_type", "y_type"), TYPES)
def test_add_is_two_fused_roundings(isa: str, a_type: str, b_type: str, y_type: str) -> None:
    every = np.arange(65536)
    a = (every % 256).astype(np.uint8).view(CODES[a_type])
    b = (every // 256).astype(np.uint8).view(CODES[b_type])
    for a_gain, b_gain, offset in (
        (0.5, 0.25, 3.5),
        (0.7310586, 0.2689414, -17.3),
        (3, 1e-3, 1),
        (1e7, 2.0**23, -1e9),  # some sums do not fit 32 bits
        (1e30, np.inf, -1e38),
    ):
        got = one(
            "add",
            [a, b],
            a.shape,
            CODES[y_type],
            isa=isa,
            shape=(1, 1, a.size),
            a_gain=a_gain,
            b_gain=b_gain,
            offset=offset,
            a_type=a_type,
            b_type=b_type,
            y_type=y_type,
        )
        with np.errstate(all="ignore"):
            real = formulas.fma(a, a_gain, formulas.fma(b, b_gain, offset))
        assert np.array_equal(got, formulas.converted(real, *BOUNDS[y_type]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("a_type", "b_type", "y_type"), TYPES)
def test_mul_adds_its_zero_before_rounding(isa: str, a_type: str, b_type: str, y_type: str) -> None:
    every = np.arange(65536)
    a = (every % 256).astype(np.uint8).view(CODES[a_type])
    b = (every // 256).astype(np.uint8).view(CODES[b_type])
    less = 0 if y_type == "u8" else -77
    for multiplier, zero in ((2.0**-7, 3), (0.0123, less), (1e6, 5), (1e30, 5), (np.inf, 3)):
        a_zero, b_zero = BOUNDS[a_type][0] + 77, BOUNDS[b_type][1] - 100
        got = one(
            "mul",
            [a, b],
            a.shape,
            CODES[y_type],
            isa=isa,
            shape=(1, 1, a.size),
            a_zero=a_zero,
            b_zero=b_zero,
            multiplier=multiplier,
            y_zero=zero,
            a_type=a_type,
            b_type=b_type,
            y_type=y_type,
        )
        whole = (a.astype(np.int64) - a_zero) * (b.astype(np.int64) - b_zero)
        with np.errstate(all="ignore"):
            real = whole.astype(F32) * F32(multiplier) + F32(zero)
        assert np.array_equal(got, formulas.converted(real, *BOUNDS[y_type]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["add", "mul"])
@pytest.mark.parametrize("broadcast", [None, "a", "b"])
def test_one_operand_may_be_shared_by_rows(isa: str, kind: str, broadcast: str | None) -> None:
    rng = np.random.default_rng(6)
    for inner in (1, 3, 15, 16, 17, 40, 63, 64, 65, 129):
        for outer, rows in ((1, 1), (2, 5), (3, 1), (1, 700)):
            full, one_row = (outer, rows, inner), (outer, 1, inner)
            a = random_integers(rng, "u8", one_row if broadcast == "a" else full)
            b = random_integers(rng, "i8", one_row if broadcast == "b" else full)
            left, right = shared(a, full), shared(b, full)
            if kind == "add":
                options = {"a_gain": 0.7, "b_gain": 0.4, "offset": 20.0, "low": 9, "high": 200}
                real = formulas.fma(left, 0.7, formulas.fma(right, 0.4, 20.0))
            else:
                options = {
                    "a_zero": 3,
                    "b_zero": -5,
                    "multiplier": 0.01,
                    "y_zero": 99,
                    "low": 9,
                    "high": 200,
                }
                whole = (left.astype(np.int64) - 3) * (right.astype(np.int64) + 5)
                real = whole.astype(F32) * F32(0.01) + F32(99)
            got = one(
                kind,
                [a, b],
                full,
                np.uint8,
                isa=isa,
                threads=2,
                shape=full,
                b_type="i8",
                broadcast=broadcast,
                **options,
            )
            assert np.array_equal(got, formulas.rounded(real, 0, 9, 200)), (inner, outer, rows)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_floats_are_computed_as_numpy_does(isa: str, op: str) -> None:
    rng = np.random.default_rng(72)
    by_name = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, 1e-45, -1e-40], F32)
    for shape in ((1, 1, 1), (1, 1, 70_001), (2, 5, 17), (3, 40, 1), (1, 3, 4000), (2, 1, 3)):
        for broadcast in (None, "a", "b"):
            one_row = (shape[0], 1, shape[2])
            a, b = (
                rng.normal(0, 3, one_row if broadcast == slot else shape).astype(F32)
                for slot in "ab"
            )
            for x in (a, b):
                flat = x.reshape(-1)
                flat[: len(special)] = rng.permutation(special)[: flat.size]
            got = one(
                "real", [a, b], shape, F32, isa=isa, threads=2, op=op, shape=shape,
                broadcast=broadcast,
            )  # fmt: skip
            with np.errstate(all="ignore"):
                wanted = by_name[op](a, b)
            assert np.array_equal(got, wanted, equal_nan=True), (shape, broadcast)
            numbers = ~np.isnan(wanted)
            assert np.array_equal(np.signbit(got)[numbers], np.signbit(wanted)[numbers])


@pytest.mark.parametrize("isa", ISAS)
def test_lookup_reads_the_table_by_byte(isa: str) -> None:
    rng = np.random.default_rng(7)
    for kind in ("u8", "i8"):
        table = random_integers(rng, kind, (256,))
        for size in [*range(1, 140), 100_000]:
            x = random_integers(rng, kind, (size,))
            got = one(
                "lookup", [x], x.shape, table.dtype.type, isa=isa, threads=2, size=size, table=table
            )
            assert np.array_equal(got, table[x.view(np.uint8)])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("entry", [np.float16, np.float32, np.int64, np.bool_])
def test_entries_of_a_table_may_be_wider_than_a_byte(isa: str, entry: type[np.generic]) -> None:
    rng = np.random.default_rng(71)
    table = rng.normal(0, 40, 256).astype(entry)
    for size in [1, 63, 64, 65, 100_000]:
        x = random_integers(rng, "i8", (size,))
        got = one("lookup", [x], x.shape, entry, isa=isa, threads=2, size=size, table=table)
        assert np.array_equal(got, table[x.view(np.uint8)])


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, -3.4e38, 1e-45, -1e-45, 1e10, -1e10]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_quantize_divides_rounds_to_even_and_saturates(isa: str, kind: str) -> None:
    rng = np.random.default_rng(8)
    for size in [*range(1, 71), 40_000]:
        for scale, zero in ((0.5, 7), (0.0371, 0), (1e-30, 100), (3e30, 1), (1e-42, 3)):
            x = (rng.normal(0, 60, size) * F32(scale)).astype(F32)
            x[rng.random(size) < 0.3] = F32(scale) * F32(2.5)  # a half, most often
            x[: len(SPECIAL)] = SPECIAL[:size]
            x = rng.permutation(x)
            low, high = (None, None) if size % 2 else (BOUNDS[kind][0] + 9, 90)
            got = one(
                "quantize",
                [x],
                x.shape,
                CODES[kind],
                isa=isa,
                shape=x.shape,
                scale=scale,
                zero=zero,
                y_type=kind,
                low=low,
                high=high,
            )
            with np.errstate(all="ignore"):
                real = (x / F32(scale)).astype(F32)
            bounds = BOUNDS[kind] if low is None else (low, high or 0)
            assert np.array_equal(got, formulas.rounded(real, zero, *bounds)), (size, scale)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_dequantize_subtracts_in_integers(isa: str, kind: str) -> None:
    rng = np.random.default_rng(9)
    for size in [*range(1, 71), 40_000]:
        x = random_integers(rng, kind, (size,))
        for scale, zero in ((0.0371, 33), (1e-40, 0)):
            got = one(
                "dequantize",
                [x],
                x.shape,
                F32,
                isa=isa,
                threads=2,
                shape=x.shape,
                scale=scale,
                zero=zero,
                x_type=kind,
            )
            real = (x.astype(np.int32) - zero).astype(F32) * F32(scale)
            assert np.array_equal(got.view(np.uint32), real.view(np.uint32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1, 1), (2, 3, 5, 7), (1, 3, 64, 65), (2, 70, 3, 3), (0, 2, 3, 3), (1, 20000, 1, 2)],
)
def test_floats_change_layout_on_their_way(isa: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(10)
    x = rng.normal(0, 3, shape).astype(F32)
    moved = tuple(shape[i] for i in (0, 2, 3, 1))
    y = one(
        "quantize",
        [x],
        moved,
        np.int8,
        isa=isa,
        threads=2,
        shape=shape,
        scale=0.03,
        zero=-4,
        y_type="i8",
        nhwc=True,
    )
    expected = formulas.rounded((x / F32(0.03)).astype(F32), -4, -128, 127).transpose(0, 2, 3, 1)
    assert np.array_equal(y, expected)
    back = one(
        "dequantize",
        [y],
        shape,
        F32,
        isa=isa,
        threads=2,
        shape=moved,
        scale=0.03,
        zero=-4,
        x_type="i8",
        nchw=True,
    )
    assert np.array_equal(back, ((expected + 4).astype(F32) * F32(0.03)).transpose(0, 3, 1, 2))
