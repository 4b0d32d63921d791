"""The compiled accumulation against the definitions, on every instruction set."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qir._kernels._statistics import BINS, ISAS, Tally
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
            highs = -lows
            tally = Tally(isa)
            sums = tally.add(x, lows, highs, 3)
            results.add((parts(tally), sums, lows.tobytes(), highs.tobytes()))
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
def test_channel_extremes_are_those_of_each_channel(isa: str, inner: int, spoiled: float) -> None:
    for seed, channels in enumerate((1, 2, 3, 17, 300)):
        rng = np.random.default_rng(seed)
        x = values(rng, "normal", int(rng.integers(1, 50000)))
        x[rng.random(x.size) < spoiled] = np.nan
        x[rng.random(x.size) < spoiled] = np.inf
        lows = np.full(channels, np.inf, np.float32)
        highs = np.full(channels, -np.inf, np.float32)
        Tally(isa).add(x, lows, highs, inner)
        whose = np.arange(x.size) // inner % channels
        finite = np.isfinite(x)
        for channel in range(channels):
            mine = x[finite & (whose == channel)]
            said = f"seed {seed}, channel {channel}"
            assert lows[channel] == mine.min(initial=np.inf), said
            assert highs[channel] == mine.max(initial=-np.inf), said


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
    with pytest.raises(ValueError, match="differ in length"):
        Tally().add(x, two, three)
    with pytest.raises(ValueError, match="without a channel"):
        Tally().add(x, two[:0], two[:0])
    with pytest.raises(ValueError, match="without a channel"):
        Tally().add(x, two, two.copy(), 0)
    assert Tally().add(x[:0]) == (math.inf, -math.inf, 0.0, 0.0)
