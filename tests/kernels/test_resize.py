"""Bilinear resizing in whole numbers, and multipliers of 31 bits after sums."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from .one import BOUNDS, CODES, ISAS, one, random_integers

Whole = NDArray[np.int64]


def any_taps(rng: np.random.Generator, size: int, out: int, bits: int) -> list[Whole]:
    """Returns neighbours and weights along an axis, some of which are ends or halves."""
    low = rng.integers(0, size, out)
    part = rng.choice([0, 1, 1 << (bits - 1), (1 << bits) - 1, int(rng.integers(1 << bits))], out)
    return [low, np.minimum(low + 1, size - 1), (1 << bits) - part, part]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("away", [False, True])
def test_a_result_is_between_four_neighbours(isa: str, kind: str, away: bool) -> None:
    for c in [*range(1, 71), 200]:
        rng = np.random.default_rng(c)
        bits = (3, 10, 11)[c % 3]
        n, h, w, oh, ow = (int(v) for v in rng.integers(1, 7, 5))
        x = random_integers(rng, kind, (n, h, w, c), ends=c % 4 == 0)
        rows, columns = any_taps(rng, h, oh, bits), any_taps(rng, w, ow, bits)
        total = np.zeros((n, oh, ow, c), np.int64)
        for i in (0, 1):
            for j in (0, 1):
                part = x[:, rows[i]][:, :, columns[j]].astype(np.int64)
                weight = rows[2 + i][:, None, None] * columns[2 + j][:, None]
                total = total + part * weight
        half = 1 << (2 * bits - 1)
        up = (total + half) >> 2 * bits
        expected = np.where(total < 0, -((-total + half) >> 2 * bits), up) if away else up
        got = one(
            "resize_linear", [x], total.shape, CODES[kind], isa=isa, threads=2, shape=x.shape,
            rows=rows, columns=columns, shift=2 * bits, away=away, x_type=kind,
        )  # fmt: skip
        assert np.array_equal(got, expected), c


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": [[2], [0], [8], [0]]}, "rows has a neighbour outside of 2"),
        ({"rows": [[0], [0], [8]]}, "two neighbours and two weights"),
        ({"columns": [[0], [0], [9], [-1]]}, "columns has a weight below 0"),
        ({"columns": [[0], [0], [9], [0]]}, "weights add up to more than"),
    ],
)
def test_taps_are_checked(given: dict[str, Any], message: str) -> None:
    x, taps = np.zeros((1, 2, 2, 3), np.uint8), [[0], [1], [8], [0]]
    options: dict[str, Any] = {"shape": x.shape, "rows": taps, "columns": taps, "shift": 6}
    with pytest.raises(ValueError, match=message):
        one("resize_linear", [x], (1, 1, 1, 3), np.uint8, **options | given)


def fixed_point(sums: Whole, q: Whole, shift: Whole, away: Whole, once: bool) -> list[int]:
    """Returns sums times 31-bit multipliers, one by one, in Python's integers."""
    found = []
    for s, multiplier, exponent, is_away in zip(
        *(a.tolist() for a in np.broadcast_arrays(sums, q, shift, away)), strict=True
    ):
        if once:
            found.append((s * multiplier + (1 << (30 - exponent))) >> (31 - exponent))
            continue
        shifted = (s << max(exponent, 0)) + (1 << 31)
        high = ((shifted % (1 << 32) - (1 << 31)) * multiplier + (1 << 30)) >> 31
        right = max(-exponent, 0)
        rest, floor = high & ((1 << right) - 1), high >> right
        half = ((1 << right) >> 1) + (1 if is_away and high < 0 else 0)
        found.append(floor + (right > 0 and rest >= half))
    return found


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("depthwise", [False, True])
def test_sums_are_multiplied_by_31_bits(isa: str, kind: str, once: bool, depthwise: bool) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        c = int(rng.integers(2, 70))
        out = c if depthwise else int(rng.integers(1, 70))
        x = random_integers(rng, kind, (1, 3, 5, c))
        w = random_integers(rng, "i8", (out, 1 if depthwise else c, 1, 1))
        bias = rng.integers(-9000, 9000, out).astype(np.int32)
        q = rng.integers(1 << 30, 1 << 31, out)
        shift, away = rng.integers(-14, -3, out), rng.integers(0, 2, out)
        if seed % 4 == 0:  # ties, and what leaves 32 bits
            q[:], shift = 1 << 30, rng.integers(-9, 20, out)
        low, high = BOUNDS[kind]
        low, zero = low + seed % 3, int(rng.integers(low, high))
        values, weights = x.reshape(15, c).astype(np.int64), w[:, :, 0, 0].astype(np.int64)
        sums = (values * weights[:, 0] if depthwise else values @ weights.T) + bias
        q_rows, shift_rows, away_rows = (np.tile(a, 15) for a in (q, shift, away))
        made = np.array(fixed_point(sums.reshape(-1), q_rows, shift_rows, away_rows, once))
        expected = np.clip(made.reshape(1, 3, 5, out) + zero, low, high)
        got = one(
            "conv2d", [x], expected.shape, CODES[kind], w, bias, np.ones(1, np.float32), isa=isa,
            threads=2, shape=x.shape, stride=(1, 1), pad=(0, 0, 0, 0), dilation=(1, 1),
            groups=c if depthwise else 1, x_type=kind, x_zero=0, y_type=kind, y_zero=zero, low=low,
            high=high, epilogue=(("factor", np.ones(1, np.float32)), ("fixed", q), ("shift", shift),
            ("away", away), ("once", once)),
        )  # fmt: skip
        assert np.array_equal(got, expected), (seed, out)
