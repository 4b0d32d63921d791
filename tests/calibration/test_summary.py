"""Summaries against NumPy on the raw data, and their independence of order."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from qir.calibration import Summary
from qir.errors import DataError, UsageError
from tests.calibration.naive import KINDS, histogram, values

Floats = NDArray[np.float32]
floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
batches = st.lists(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=1, min_side=0), elements=floats),
    min_size=1,
    max_size=6,
)


def summary_of(*arrays: NDArray[np.generic], axis: int | None = None) -> Summary:
    summary = Summary(axis)
    for array in arrays:
        summary.update(array)
    return summary


@given(batches, st.randoms(use_true_random=False))
def test_batches_in_any_order_and_grouping_give_equal_summaries(
    arrays: list[Floats], random: Random
) -> None:
    whole = summary_of(*arrays)
    shuffled = random.sample(arrays, len(arrays))
    pieces = [summary_of(array) for array in shuffled]
    while len(pieces) > 1:
        other = pieces.pop(random.randrange(len(pieces)))
        pieces[random.randrange(len(pieces))].merge(other)
    assert pieces[0] == whole
    assert summary_of(*shuffled) == whole


@given(
    st.lists(
        hnp.arrays(np.float32, st.tuples(st.integers(0, 3), st.just(3)), elements=floats),
        min_size=1,
        max_size=5,
    ),
    st.randoms(use_true_random=False),
)
def test_channel_extremes_do_not_depend_on_order(arrays: list[Floats], random: Random) -> None:
    whole = summary_of(*arrays, axis=1)
    merged = summary_of(axis=1)
    for array in random.sample(arrays, len(arrays)):
        merged.merge(summary_of(array, axis=1))
    assert merged == whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_summary_says_what_numpy_says_of_the_raw_data(kind: str) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        arrays = [values(rng, kind, int(rng.integers(1, 3000))) for _ in range(5)]
        raw = np.concatenate(arrays)
        summary, naive = summary_of(*arrays), histogram(raw)
        assert summary.count == summary.finite == raw.size, f"seed {seed}"
        assert (summary.low, summary.high) == (raw.min(), raw.max()), f"seed {seed}"
        assert np.array_equal(summary.bins, naive.bins), f"seed {seed}"
        assert summary.exponent == naive.exponent, f"seed {seed}"
        edges = summary.edges
        assert np.array_equal(np.histogram(raw.astype(float), edges)[0][:-1], naive.bins[:-1])
        exact = [Fraction(float(value)) for value in raw]
        mean = sum(exact) / len(exact)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in exact) / len(exact))
        spread = float(max(abs(value) for value in exact))
        assert abs(summary.mean - float(mean)) <= 1e-12 * spread, f"seed {seed}"
        assert abs(math.sqrt(summary.variance) - deviation) <= 1e-6 * spread, f"seed {seed}"


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_channels_lie_on_any_axis_of_any_layout(axis: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        shape = tuple(int(n) for n in rng.integers(1, 8, 4))
        array = rng.standard_normal(shape).astype(np.float32)
        array = array.transpose(rng.permutation(4))[:, ::-1]
        others = tuple(i for i in range(4) if i != axis)
        summary = summary_of(array, axis=axis)
        assert np.array_equal(summary.channel_low, array.min(others)), f"seed {seed}"
        assert np.array_equal(summary.channel_high, array.max(others)), f"seed {seed}"


def test_the_layout_of_an_array_leaves_no_trace() -> None:
    array = np.random.default_rng(0).standard_normal((7, 33, 65)).astype(np.float32)
    assert summary_of(np.asfortranarray(array)) == summary_of(array)
    assert summary_of(array[::2, :, ::3]) == summary_of(array[::2, :, ::3].copy())


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float64, np.int8, np.uint8, np.int32, np.bool_, ml_dtypes.bfloat16]
)
def test_other_numbers_are_taken_as_float32(dtype: type[np.generic]) -> None:
    array = (np.random.default_rng(0).standard_normal(1000) * 40).astype(dtype)
    assert summary_of(array) == summary_of(array.astype(np.float32))


def test_float64_beyond_float32_counts_as_infinite() -> None:
    summary = summary_of(np.array([1e300, -1e300, 1.0]))
    assert (summary.above, summary.below, summary.finite) == (1, 1, 1)


def test_scalars_and_read_only_arrays_are_taken() -> None:
    array = np.arange(6, dtype=np.float32)
    array.setflags(write=False)
    assert summary_of(array).high == 5
    assert summary_of(np.array(2, np.float32)).bins.tolist() == [1]


def test_an_empty_summary_has_no_extremes_and_merges_to_nothing() -> None:
    empty = summary_of(np.empty((0, 3)), np.empty((2, 0)))
    assert (empty.count, empty.low, empty.high) == (0, math.inf, -math.inf)
    assert math.isnan(empty.mean)
    assert math.isnan(empty.variance)
    assert empty.edges.size == empty.bins.size == 0
    summary = summary_of(np.ones(3))
    before = summary_of(np.ones(3))
    summary.merge(empty)
    assert summary == before


def test_summaries_of_different_values_differ() -> None:
    one = summary_of(np.array([1.0, 2.0, 3.0]))
    assert one != summary_of(np.array([1.0, 2.0, 3.0 + 2**-20]))
    assert one != summary_of(np.array([1.0, 2.0, 3.0, np.nan]))
    assert one != summary_of(np.array([1.0, 2.0, 2.0, 3.0]))
    assert summary_of(np.eye(2), axis=0) != summary_of(np.eye(2), axis=1)


def test_each_update_returns_its_own_extremes() -> None:
    summary = summary_of(np.array([-5.0, 5.0]))
    assert summary.update(np.array([1, 2, np.nan, np.inf])) == (1, 2)
    assert summary.update(np.array([np.nan])) == (math.inf, -math.inf)


def test_channels_and_arrays_that_do_not_fit_are_refused() -> None:
    summary = summary_of(np.ones((2, 3)), axis=1)
    with pytest.raises(DataError, match="axis 1 has 4 channels, in other batches 3"):
        summary.update(np.ones((2, 4)))
    with pytest.raises(DataError, match="axis 1 has 4 channels, in other batches 3"):
        summary.merge(summary_of(np.ones((2, 4)), axis=1))
    with pytest.raises(DataError, match=r"no channel axis 1 in an array of shape \(3,\)"):
        summary.update(np.ones(3))
    with pytest.raises(DataError, match="axis 1 and by axis None"):
        summary.merge(Summary())
    with pytest.raises(UsageError, match="negative"):
        Summary(-1)
    for array in (np.array(["a"]), np.array([object()]), np.array([1j])):
        with pytest.raises(DataError, match="statistics are of floats"):
            summary_of(array)
    assert summary == summary_of(np.ones((2, 3)), axis=1)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_channel_means_are_those_of_exact_sums(axis: int) -> None:
    rng = np.random.default_rng(axis)
    arrays = [rng.standard_normal((n, 3, 4, 2)).astype(np.float32) for n in (2, 5)]
    if axis == 0:
        arrays = [a[:2] for a in arrays]
    summary = Summary(axis)
    for array in arrays:
        summary.update(array)
    exact = [
        sum((Fraction(float(v)) for a in arrays for v in np.take(a, i, axis).ravel()), Fraction(0))
        for i in range(arrays[0].shape[axis])
    ]
    each = sum(a.size for a in arrays) // len(exact)
    assert summary.channel_mean is not None
    np.testing.assert_allclose(
        summary.channel_mean, [float(total / each) for total in exact], rtol=1e-12, atol=1e-15
    )


def test_a_channel_has_no_mean_where_values_are_infinite_or_sums_are_unknown() -> None:
    summary = Summary(0)
    assert summary.channel_mean is None
    summary.update(np.array([[1.0, np.inf], [2.0, 3.0]], np.float32))
    assert summary.channel_mean is None
    assert summary.channel_totals == (1 << 149, 5 << 149)


@given(batches)
def test_the_whole_of_a_summary_by_channel_is_that_of_the_same_values(arrays: list[Floats]) -> None:
    by_channel = [np.repeat(array, 3).reshape(3, -1) for array in arrays]
    assert summary_of(*by_channel, axis=0).whole() == summary_of(*by_channel)
