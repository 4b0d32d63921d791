"""The compiled accumulation against the definitions, on every instruction set."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import numpy as np
import pytest

from qir._kernels._statistics import (
    BINS,
    ISAS,
    SUM_BITS,
    SUM_WORDS,
    Tally,
    add_floats,
    add_totals,
)
from tests.calibration.naive import KINDS, histogram, values

# Around the lanes of a sum, the slices of a block, and the block itself.
SIZES = (1, 2, 15, 16, 17, 1023, 1024, 1025, 3000, 16383, 16384, 16385)


def parts(tally: Tally) -> tuple[int | bytes, ...]:
    return (
        tally.finite, tally.nan, tally.above, tally.below, tally.zeros,
        tally.exponent, tally.first, tally.extremes().tobytes(), tally.bins().tobytes(),
    )  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_counts_extremes_and_bins_are_those_of_the_definition(isa: str, kind: str) -> None:
    for seed, size in enumerate(SIZES):
        x = values(np.random.default_rng(seed), kind, size)
        tally = Tally(isa)
        low, high, total, squares = tally.add(x)
        said, naive = f"seed {seed}, {size} values", histogram(x)
        assert (tally.finite, tally.nan, tally.above, tally.below) == (size, 0, 0, 0), said
        assert tally.zeros == np.count_nonzero(x == 0), said
        assert (low, high) == (x.min(), x.max()) == tuple(tally.extremes()), said
        assert not np.signbit(tally.extremes()[tally.extremes() == 0]).any(), said
        assert (tally.exponent, tally.first) == (naive.exponent, naive.first), said
        assert np.array_equal(tally.bins(), naive.bins), said
        exact = [float(v) for v in x]
        grain = 2.0**-52 * size  # what adding so many float64 may lose
        assert abs(total - math.fsum(exact)) <= grain * math.fsum(map(abs, exact)), said
        wanted = math.fsum(v * v for v in exact)
        assert abs(squares - wanted) <= grain * wanted, said


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_gives_the_same_bytes(kind: str) -> None:
    for seed, size in enumerate(SIZES):
        rng = np.random.default_rng(seed)
        x = values(rng, kind, size)
        x[rng.random(size) < 0.01] = rng.choice([np.nan, np.inf, -np.inf])
        results = set()
        for isa in ISAS:
            lows = np.full(5, np.inf, np.float32)
            highs, each = -lows, np.zeros(5)
            tally = Tally(isa)
            sums = tally.add(x, lows, highs, each, 3)
            results.add((parts(tally), sums, lows.tobytes(), highs.tobytes(), each.tobytes()))
        assert len(results) == 1, f"seed {seed}, {size} values"


@pytest.mark.parametrize("isa", ISAS)
def test_what_is_not_finite_is_counted_and_left_out(isa: str) -> None:
    for seed, size in enumerate(SIZES):
        rng = np.random.default_rng(seed)
        x = values(rng, "normal", size)
        spoiled = rng.random(size) < 0.3
        x[spoiled] = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), spoiled.sum())
        tally, clean = Tally(isa), Tally(isa)
        assert tally.add(x) == pytest.approx(clean.add(x[~spoiled])), f"seed {seed}"
        assert tally.nan == np.isnan(x).sum(), f"seed {seed}"
        assert tally.above == np.isposinf(x).sum(), f"seed {seed}"
        assert tally.below == np.isneginf(x).sum(), f"seed {seed}"
        assert tally.finite == clean.finite, f"seed {seed}"
        assert np.array_equal(tally.bins(), clean.bins()), f"seed {seed}"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("inner", [1, 2, 7, 100, 20000])
@pytest.mark.parametrize("spoiled", [0, 0.001])
def test_channels_have_extremes_and_sums_of_their_own(isa: str, inner: int, spoiled: float) -> None:
    for seed, channels in enumerate((1, 2, 3, 17, 300)):
        rng = np.random.default_rng(seed)
        # Sums of integers and quarters are exact in any order.
        x = np.round(values(rng, "normal", int(rng.integers(1, 50000))) * 4000) / np.float32(4)
        x[rng.random(x.size) < spoiled] = np.nan
        x[rng.random(x.size) < spoiled] = np.inf
        lows = np.full(channels, np.inf, np.float32)
        highs = np.full(channels, -np.inf, np.float32)
        sums = np.zeros(channels)
        Tally(isa).add(x, lows, highs, sums, inner)
        whose = np.arange(x.size) // inner % channels
        finite = np.isfinite(x)
        for channel in range(channels):
            mine = x[finite & (whose == channel)]
            said = f"seed {seed}, channel {channel}"
            assert lows[channel] == mine.min(initial=np.inf), said
            assert highs[channel] == mine.max(initial=-np.inf), said
            assert sums[channel] == mine.sum(dtype=np.float64), said


@pytest.mark.parametrize("inner", [1, 5, 1000])
@pytest.mark.parametrize("kind", ["normal", "wide", "tiny and large"])
def test_sums_of_channels_are_near_the_exact_and_alike_on_every_set(inner: int, kind: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x, found = values(rng, kind, int(rng.integers(1, 40)) * inner * 7), {}
        for isa in ISAS:
            lows, highs = np.full(7, np.inf, np.float32), np.full(7, -np.inf, np.float32)
            found[isa] = np.zeros(7)
            Tally(isa).add(x, lows, highs, found[isa], inner)
        assert len({sums.tobytes() for sums in found.values()}) == 1, f"seed {seed}"
        for mine, total in zip(x.reshape(-1, 7, inner).swapaxes(0, 1), found[ISAS[0]], strict=True):
            floats = mine.ravel().tolist()
            bound = len(floats) * 2.0**-53 * math.fsum(map(abs, floats))
            assert abs(total - math.fsum(floats)) <= bound, f"seed {seed}"


def test_any_cut_in_any_order_merges_to_the_same_bytes() -> None:
    for seed in range(100):
        rng = np.random.default_rng(seed)
        x = np.concatenate([values(rng, str(rng.choice(KINDS)), 40) for _ in range(5)])
        whole = Tally()
        whole.add(x)
        pieces = []
        for piece in np.split(rng.permutation(x), np.sort(rng.integers(0, x.size, 6))):
            tally = Tally()
            tally.add(piece)
            pieces.append(tally)
        while len(pieces) > 1:  # a random tree of merges
            other = pieces.pop(int(rng.integers(len(pieces))))
            pieces[int(rng.integers(len(pieces)))].merge(other)
        assert parts(pieces[0]) == parts(whole), f"seed {seed}"


def test_a_histogram_uses_at_least_half_of_its_bins_when_values_reach_from_zero() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        x = (rng.random(5000) * np.exp2(rng.integers(-60, 60))).astype(np.float32)
        tally = Tally()
        tally.add(np.append(x, np.float32(0)))
        assert BINS // 2 <= tally.bins().size <= BINS, f"seed {seed}"


def test_a_host_that_flushes_denormals_changes_nothing() -> None:
    torch = pytest.importorskip("torch")
    x = values(np.random.default_rng(0), "denormal", 5000)
    plain = Tally()
    sums = plain.add(x)
    assert plain.zeros < 100
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes no denormals")
    try:
        flushed = Tally()
        again = flushed.add(x)
        bins, extremes = flushed.bins().tobytes(), flushed.extremes().tobytes()
        assert torch.tensor([1e-40]).mul(1).item() == 0  # the switch is on
    finally:
        torch.set_flush_denormal(False)
    assert (bins, extremes) == (plain.bins().tobytes(), plain.extremes().tobytes())
    assert again[2:] == sums[2:]


def test_a_tally_is_restored_from_its_parts_and_from_no_others() -> None:
    tally = Tally()
    tally.add(np.array([-1, 0, 2.5, np.nan], np.float32))
    counts = np.array([3, 1, 0, 0, 1], np.uint64)
    restored = Tally.restore(counts, tally.extremes(), tally.bins())
    assert parts(restored) == parts(tally)
    with pytest.raises(ValueError, match="add up"):
        Tally.restore(counts + np.uint64(1), tally.extremes(), tally.bins())
    with pytest.raises(ValueError, match="bins where the extremes give"):
        Tally.restore(counts, tally.extremes(), tally.bins()[1:])
    with pytest.raises(ValueError, match="no range"):
        Tally.restore(counts, tally.extremes()[::-1].copy(), tally.bins())
    with pytest.raises(ValueError, match="no range"):
        Tally.restore(counts, np.array([np.nan, 1], np.float32), tally.bins())
    with pytest.raises(ValueError, match="five counts"):
        Tally.restore(counts[1:], tally.extremes(), tally.bins())


def test_channels_that_do_not_fit_are_refused() -> None:
    x, two, three = np.ones(4, np.float32), np.ones(2, np.float32), np.ones(3, np.float32)
    with pytest.raises(ValueError, match="given together"):
        Tally().add(x, two, two.copy())
    for highs, sums in ((three, np.zeros(2)), (two.copy(), np.zeros(3))):
        with pytest.raises(ValueError, match="differ in length"):
            Tally().add(x, two, highs, sums)
    with pytest.raises(ValueError, match="without a channel"):
        Tally().add(x, two[:0], two[:0], np.zeros(0))
    with pytest.raises(ValueError, match="without a channel"):
        Tally().add(x, two, two.copy(), np.zeros(2), 0)
    assert Tally().add(x[:0]) == (math.inf, -math.inf, 0.0, 0.0)


def test_exact_sums_are_those_of_integers() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        rows = int(rng.integers(1, 40))
        totals, more = (np.zeros((rows, SUM_WORDS), np.uint32) for _ in range(2))
        wanted = [Fraction(0)] * rows
        for held in (totals, more):
            for _ in range(30):
                exponents = rng.integers(-149, 130, rows)
                floats = np.ldexp(rng.integers(-(2**53), 2**53, rows).astype(float), exponents)
                if rng.random() < 0.3:
                    floats = np.full(rows, rng.choice([0.0, -(2.0**-149), 2.0**-149]))
                add_floats(held, floats)
                wanted = [w + Fraction(f) for w, f in zip(wanted, floats.tolist(), strict=True)]
        add_totals(totals, more)
        found = [int.from_bytes(row.tobytes(), sys.byteorder, signed=True) for row in totals]
        assert found == [w * 2**SUM_BITS for w in wanted], f"seed {seed}"
    with pytest.raises(ValueError, match="do not fit"):
        add_floats(totals, np.zeros(rows + 1))
    with pytest.raises(ValueError, match="do not fit"):
        add_totals(totals, more[:, :-1].copy())
