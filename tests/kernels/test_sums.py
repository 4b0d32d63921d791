"""Sums of windows whose results are looked up by levels, and softmax by given powers."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from . import formulas
from .one import BOUNDS, CODES, ISAS, one, random_integers
from .test_pooling import geometries, size_of

F32 = np.float32
NEVER = np.iinfo(np.int32).max
Levels = NDArray[np.int64]


def levels_of(rng: np.random.Generator, most: int, how: int) -> Levels:
    """Returns 255 levels of sums up to `most`: evenly, unevenly, in steps, or out of reach."""
    if how == 0:
        return np.linspace(0.4, most, 255).round().astype(np.int64)
    if how == 1:
        return np.sort(rng.integers(0, most + 2, 255))
    if how == 2:
        return np.repeat(np.sort(rng.integers(0, most + 2, 5)), 51)
    found = np.linspace(-most / 2, 2 * most, 255).round().astype(np.int64)
    found[found > most] = NEVER
    return found


def bytes_of(sums: Levels, levels: Levels, kind: str) -> NDArray[np.generic]:
    """Returns how many levels are not above each sum, in the order of a type."""
    found = (levels <= sums[..., None]).sum(-1) + BOUNDS[kind][0]
    return np.asarray(found.astype(CODES[kind]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_a_result_is_the_number_of_levels_that_its_sum_reaches(isa: str, kind: str) -> None:
    for seed, (shape, kernel, stride, pad) in enumerate(geometries(5, 60)):
        rng = np.random.default_rng(seed)
        x = random_integers(rng, kind, shape, ends=seed % 5 == 0)
        out, to = size_of(shape, kernel, stride, pad), ("u8", "i8")[seed % 2]
        most = kernel[0] * kernel[1] * 255
        levels = np.stack([levels_of(rng, most, (seed + i) % 4) for i in range(3)])
        kinds = rng.integers(0, 3, out)
        values = x.astype(np.int64) - BOUNDS[kind][0]
        expected = np.zeros((shape[0], *out, shape[3]), CODES[to])
        for oy, ox, window in formulas.windows(shape[1:3], out, kernel, stride, pad):
            sums = sum((values[:, i, j] for i, j in window), np.zeros_like(values[:, 0, 0]))
            expected[:, oy, ox] = bytes_of(sums, levels[kinds[oy, ox]], to)
        got = one(
            "lookup_sums", [x], expected.shape, CODES[to], isa=isa, threads=2, shape=shape,
            kernel=kernel, stride=stride, pad=pad[:2], out=out, levels=levels, kinds=kinds,
            x_type=kind, y_type=to,
        )  # fmt: skip
        assert np.array_equal(got, expected), (seed, shape, kernel, stride, pad)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("how", range(4))
def test_every_sum_of_a_line_has_its_result(isa: str, how: int) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    for count in (1, 2, 49, 1000):
        # One row for each sum: as many of the greatest integers, one other, and zeros.
        sums = np.unique(rng.integers(0, count * 255 + 1, 3000))
        x = np.where(np.arange(count) < (sums // 255)[:, None], 255, 0)
        x[np.arange(len(sums)), np.minimum(sums // 255, count - 1)] += np.where(
            sums // 255 < count, sums % 255, 0
        )
        levels = levels_of(rng, count * 255, how)
        got = one(
            "lookup_sums", [x.astype(np.uint8)], sums.shape, np.uint8, isa=isa, threads=2,
            shape=(len(sums), count, 1, 1), kernel=(count, 1), stride=(1, 1), pad=(0, 0),
            out=(1, 1), levels=levels, kinds=[0],
        )  # fmt: skip
        assert np.array_equal(got, bytes_of(sums, levels, "u8")), (seed, count)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_softmax_by_powers_rounds_halves_up(isa: str, kind: str) -> None:
    rng = np.random.default_rng(17)
    low, high = BOUNDS[kind]
    for width in [*range(1, 71), 1000]:
        x = random_integers(rng, kind, (21, width))
        # Powers of two make shares that are halves; the others are as exponentials are.
        powers = F32(2) ** -np.arange(255, -1, -1, dtype=F32)
        if width % 2:
            powers = np.exp(np.arange(-255, 1) * rng.uniform(0.001, 0.3)).astype(F32)
        scale, zero = F32(1 / 256 if width % 3 else 1 / 700), int(rng.integers(low, high + 1))
        terms = powers[x.astype(np.int64) - x.max(axis=1, keepdims=True) + 255]
        total = np.zeros((21, 1), F32)
        for i in range(width):
            total = total + terms[:, i : i + 1]
        shares = (terms * (F32(1) / (total * scale))).astype(np.float64)
        expected = np.clip(np.floor(shares + 0.5) + zero, low, high).astype(CODES[kind])
        got = one(
            "softmax", [x], x.shape, CODES[kind], isa=isa, threads=2, rows=21, width=width,
            y_scale=scale, y_zero=zero, x_type=kind, y_type=kind, powers=powers,
        )  # fmt: skip
        assert np.array_equal(got, expected), width


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"levels": np.arange(254)}, "254 levels, 255 are needed"),
        ({"levels": np.arange(255)[::-1]}, "the levels of a kind fall"),
        ({"kinds": [0, 0]}, "2 kinds for 1 pixels"),
        ({"kinds": [1]}, "a pixel has levels of no kind"),
    ],
)
def test_levels_are_checked(given: dict[str, Any], message: str) -> None:
    x = np.zeros((1, 2, 2, 3), np.uint8)
    options: dict[str, Any] = {
        "shape": x.shape, "kernel": (2, 2), "stride": (1, 1), "pad": (0, 0), "out": (1, 1),
        "levels": np.arange(255), "kinds": [0],
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        one("lookup_sums", [x], (1, 1, 1, 3), np.uint8, **options | given)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kinds", [("u8", "u8"), ("i8", "i8"), ("u8", "i8")])
def test_sums_by_whole_factors_round_halves_up(isa: str, kinds: tuple[str, str]) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    for size in [*range(1, 71), 5000]:
        a, b = (random_integers(rng, kind, (size,), ends=size % 5 == 0) for kind in kinds)
        left, right = (int(v) for v in rng.integers(-(1 << 21), (1 << 21) + 1, 2))
        shift, zero = int(rng.integers(0, 29)), int(rng.integers(0, 128))
        offset = int(rng.integers(-(1 << 29), 1 << 29))
        total = (a.astype(np.int64) * left + b.astype(np.int64) * right + offset) >> shift
        low, high = BOUNDS[kinds[0]]
        got = one(
            "whole_add", [a, b], a.shape, CODES[kinds[0]], isa=isa, threads=2, shape=(1, 1, size),
            a_factor=left, b_factor=right, offset=offset, shift=shift, y_zero=zero,
            a_type=kinds[0], b_type=kinds[1], y_type=kinds[0],
        )  # fmt: skip
        assert np.array_equal(got, np.clip(total + zero, low, high)), (seed, size)


@pytest.mark.parametrize("isa", ISAS)
def test_zero_points_of_products_may_be_added_after_rounding(isa: str) -> None:
    rng = np.random.default_rng(3)
    for size in [*range(1, 71), 5000]:
        a, b = (random_integers(rng, "i8", (size,)) for _ in range(2))
        product = (a.astype(np.int64) * b).astype(F32) * F32(0.125)  # many are ties
        got = one(
            "mul", [a, b], a.shape, np.int8, isa=isa, shape=(1, 1, size), a_zero=0, b_zero=0,
            multiplier=0.125, y_zero=-5, a_type="i8", b_type="i8", y_type="i8", after=True,
        )  # fmt: skip
        assert np.array_equal(got, np.clip(np.rint(product) - 5, -128, 127)), size
