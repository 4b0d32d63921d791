"""Range rules against brute force on the raw data, and against torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.calibration import Key, Log, RangeRule, Statistics, Summary, parse_rule
from qir.calibration.record import BatchId
from qir.calibration.rules import entropy, mae, minmax, moving_average, mse, percentile
from qir.errors import DataError, UsageError

Floats = NDArray[np.float32]
SHAPES = ("normal", "laplace", "heavy", "relu", "offset", "lopsided", "outlier")


def sample(kind: str, seed: int, size: int = 20000) -> Floats:
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(size)
    made = {
        "normal": normal,
        "laplace": rng.laplace(size=size),
        "heavy": rng.standard_t(3, size),
        "relu": np.maximum(normal, 0),
        "offset": normal * 0.01 + 7,
        "lopsided": np.where(normal < 0, normal * 0.1, normal**3),
        "outlier": np.append(normal[1:], 1000.0),
    }[kind]
    return made.astype(np.float32)


def summary_of(array: Floats, axis: int | None = None) -> Summary:
    summary = Summary(axis)
    summary.update(array)
    return summary


def log_of(lows: Floats, highs: Floats) -> Log:
    return Log(tuple(BatchId("d", i) for i in range(lows.size)), lows, highs)


@pytest.mark.parametrize("kind", SHAPES)
def test_minmax_is_the_least_and_the_largest(kind: str) -> None:
    for seed in range(3):
        x = sample(kind, seed)
        low, high = minmax(summary_of(x))
        assert (low, high) == (x.min(), x.max()), f"seed {seed}"
        assert low.dtype == high.dtype == np.float32
        assert low.shape == high.shape == ()


def test_minmax_of_channels_is_one_pair_a_channel() -> None:
    x = sample("normal", 0).reshape(10, 4, 500)
    x[:, 2] = np.nan
    low, high = minmax(summary_of(x, axis=1))
    kept = [0, 1, 3]
    assert np.array_equal(low[kept], x[:, kept].min((0, 2)))
    assert np.array_equal(high[kept], x[:, kept].max((0, 2)))
    assert low[2] == high[2] == 0


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("percent", [50, 90, 99, 99.9, 99.99, 99.9999])
def test_a_percentile_is_within_one_bin_of_the_value_of_that_rank(
    kind: str, percent: float
) -> None:
    for seed in range(3):
        x = sample(kind, seed)
        summary = summary_of(x)
        width = 2.0**summary.exponent
        low, high = (float(end) for end in percentile(summary, percent))
        ordered = np.sort(x).astype(float)
        cut = math.floor((100 - percent) / 200 * (x.size - 1) + 1e-9)
        said = f"seed {seed}: {low}..{high}"
        assert ordered[cut] - width <= low <= ordered[cut], said
        assert ordered[-1 - cut] <= high <= ordered[-1 - cut] + width, said


def test_the_whole_percentile_is_minmax() -> None:
    summary = summary_of(sample("laplace", 0))
    assert percentile(summary, 100) == minmax(summary)


def quantization_error(x: NDArray[np.float64], low: float, high: float, levels: int) -> float:
    """The mean squared error of integers for a range that is widened to hold zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / (levels - 1)
    zero = round(-low / scale)
    quantized = np.clip(np.round(x / scale) + zero, 0, levels - 1)
    return float(np.mean((x - (quantized - zero) * scale) ** 2))


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("levels", [16, 256])
def test_mse_comes_close_to_the_best_range_for_the_raw_data(kind: str, levels: int) -> None:
    x = sample(kind, 1).astype(float)
    summary = summary_of(x.astype(np.float32))
    least, most = mse(summary, levels)
    found = quantization_error(x, float(least), float(most), levels)
    plain = quantization_error(x, x.min(), x.max(), levels)
    grid = np.linspace(1, 0.02, 50)
    low, high = min(0, x.min()), max(0, x.max())
    tried = [
        quantization_error(x, low * a, high * b, levels)
        for a in (grid if low else [1.0])
        for b in (grid if high else [1.0])
    ]
    assert found <= plain * 1.001, f"{kind}: {found} against {plain} of minmax"
    assert found <= min(tried) * 1.05, f"{kind}: {found}, the best of a grid is {min(tried)}"


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_mse_is_never_worse_than_minmax_on_the_histogram(kind: str, symmetric: bool) -> None:
    for seed in range(3):
        summary = summary_of(sample(kind, seed))
        edges = np.clip(summary.edges, summary.low, summary.high)
        middles = np.repeat((edges[:-1] + edges[1:]) / 2, summary.bins.astype(int))
        errors = []
        for low, high in (mse(summary, 256, symmetric), minmax(summary)):
            reach = max(-float(low), float(high))
            ends = (-reach, reach) if symmetric else (float(low), float(high))
            errors.append(quantization_error(middles, *ends, 256))
        # zeros count as zero in the rule, as the middle of their bin here
        assert errors[0] <= errors[1] * 1.01, f"seed {seed}"


def test_searching_rules_cut_off_an_outlier_that_minmax_keeps() -> None:
    summary = summary_of(np.append(sample("normal", 0), np.float32(50)))
    assert minmax(summary).high == 50
    for symmetric in (False, True):
        assert mse(summary, 16, symmetric).high < 25
        assert entropy(summary, 256, symmetric).high < 25
    assert percentile(summary, 99.9).high < 5


def naive_divergence(counts: list[float], start: int, stop: int, levels: int) -> float:
    """The divergence of a clipped, coded histogram from the clipped one, one bin at a time."""
    inner = counts[start:stop]
    reference = list(inner)
    reference[0] += sum(counts[:start])
    reference[-1] += sum(counts[stop:])
    candidate = [0.0] * len(inner)
    for level in range(levels):
        mine = [i for i in range(len(inner)) if i * levels // len(inner) == level]
        used = [i for i in mine if reference[i] > 0]
        for i in used:
            candidate[i] = sum(inner[j] for j in mine) / len(used)
    total, mass = sum(reference), sum(candidate)
    divergence = 0.0
    for p, q in zip(reference, candidate, strict=True):
        if p > 0:
            divergence += p / total * math.log(p / total / max(q / mass, 1e-4 / len(inner)))
    return divergence


def test_entropy_takes_the_range_of_the_least_divergence() -> None:
    for seed, kind in enumerate(("laplace", "relu", "heavy")):
        x = sample(kind, seed, 3000)
        x = x[x >= 0]
        summary = summary_of(x)
        counts = [float(n) for n in summary.bins]
        counts[0] -= summary.zeros
        assert summary.edges[0] == 0
        found = float(entropy(summary, 128).high)
        width = 2.0**summary.exponent
        stop = len(counts) if found == summary.high else round(found / width)
        divergences = {
            size: naive_divergence(counts, 0, size, 128)
            for size in sorted({*range(128, len(counts), 50), stop, len(counts)})
        }
        assert divergences[stop] <= min(divergences.values()) * 1.05, f"seed {seed}, {kind}"


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("text", ["minmax", "percentile:99", "entropy", "mse", "mae", "k-sigma:2"])
def test_ranges_lie_within_the_extremes_and_are_the_same_again(kind: str, text: str) -> None:
    x = sample(kind, 0)
    rule = parse_rule(text)
    for symmetric in (False, True):
        low, high = rule.range(summary_of(x), symmetric=symmetric)
        assert x.min() <= low <= high <= x.max(), f"{low}..{high}"
        again = rule.range(summary_of(x[::-1]), symmetric=symmetric)
        assert (low, high) == again


@pytest.mark.parametrize("text", ["minmax", "percentile", "entropy", "mse", "mae", "k-sigma"])
@pytest.mark.parametrize("value", [0.0, -0.0, 3.0, -3.0, 1e-45, 3e38, -3e38])
def test_a_constant_tensor_has_the_range_of_its_value(text: str, value: float) -> None:
    x = np.full(100, value, np.float32)
    for symmetric in (False, True):
        low, high = parse_rule(text).range(summary_of(x), symmetric=symmetric)
        assert (low, high) == (x[0], x[0])
        assert not np.signbit(low) or value < 0


@pytest.mark.parametrize("constant", [0.01, 0.3, 1.0])
def test_a_moving_average_equals_torchs_bit_for_bit(constant: float) -> None:
    torch = pytest.importorskip("torch")
    observers = pytest.importorskip("torch.ao.quantization.observer")
    for seed in range(5):
        rng = np.random.default_rng(seed)
        observer = observers.MovingAverageMinMaxObserver(averaging_constant=constant)
        statistics = Statistics("model")
        for number in range(20):
            x = (rng.standard_normal(50) * rng.random() * 10).astype(np.float32)
            observer(torch.from_numpy(x))
            with statistics.batch("data", number) as batch:
                batch.update("t", x)
        low, high = moving_average(statistics.log(Key("t")), constant)
        assert low == observer.min_val.numpy(), f"seed {seed}"
        assert high == observer.max_val.numpy(), f"seed {seed}"


def test_rules_are_read_from_text_and_print_as_it() -> None:
    assert str(parse_rule("minmax")) == "minmax"
    assert parse_rule("percentile") == RangeRule("percentile", 99.99)
    assert str(parse_rule("percentile:99.999")) == "percentile:99.999"
    assert parse_rule("average:0.1").parameter == 0.1
    for text, said in {
        "middle": "no range rule 'middle': there are auto, average, entropy, k-sigma, mae",
        "k-sigma:0": "more than 0",
        "mae:3": "takes no parameter",
        "minmax:3": "takes no parameter",
        "percentile:many": "'many' is not a number",
        "percentile:": "'' is not a number",
        "percentile:101": "at most 100",
        "percentile:nan": "at most 100",
        "average:0": "more than 0",
    }.items():
        with pytest.raises(UsageError, match=said):
            parse_rule(text)


def test_what_has_no_range_is_refused_in_words() -> None:
    nothing, channels = summary_of(np.full(3, np.nan, np.float32)), Summary(1)
    channels.update(np.ones((2, 3)))
    for text in ("minmax", "percentile", "entropy", "mse", "mae", "k-sigma"):
        with pytest.raises(DataError, match="no finite value"):
            parse_rule(text).range(nothing)
        if text != "minmax":
            with pytest.raises(UsageError, match="whole tensors"):
                parse_rule(text).range(channels)
    for text in ("average", "mean", "median"):
        with pytest.raises(DataError, match="an average of the batches needs their log"):
            parse_rule(text).range(channels)
        with pytest.raises(DataError, match="no batch"):
            parse_rule(text).range(
                channels, log_of(np.empty(0, np.float32), np.empty(0, np.float32))
            )
    with pytest.raises(DataError, match="no batch"):
        moving_average(log_of(np.empty(0, np.float32), np.empty(0, np.float32)))
    for levels in (1, 0, -1):
        with pytest.raises(UsageError, match="at least 2"):
            mse(summary_of(np.ones(3, np.float32)), levels)


@pytest.mark.parametrize("kind", SHAPES)
def test_mae_comes_close_to_the_best_range_for_the_raw_data(kind: str) -> None:
    x = sample(kind, 1).astype(float)
    low, high = min(0.0, x.min()), max(0.0, x.max())

    def cost(least: float, most: float) -> float:
        least, most = min(least, 0.0), max(most, 0.0)
        scale = (most - least) / 255
        zero = round(-least / scale)
        quantized = np.clip(np.round(x / scale) + zero, 0, 255)
        return float(np.mean(np.abs(x - (quantized - zero) * scale)))

    found = cost(*map(float, mae(summary_of(x.astype(np.float32)))))
    grid = np.linspace(1, 0.02, 20)
    ends = [(a, b) for a in (grid if low else [1.0]) for b in (grid if high else [1.0])]
    assert found <= min(cost(low * a, high * b) for a, b in ends) * 1.05


def test_k_sigma_is_the_mean_and_so_many_deviations_within_the_extremes() -> None:
    x = np.random.default_rng(7).standard_normal(5000).astype(np.float32) * 3 + 1
    low, high = parse_rule("k-sigma:2").range(summary_of(x))
    mean, deviation = x.astype(float).mean(), x.astype(float).std()
    np.testing.assert_allclose([low, high], [mean - 2 * deviation, mean + 2 * deviation], rtol=1e-6)
    assert parse_rule("k-sigma:100").range(summary_of(x)) == minmax(summary_of(x))


def test_mean_and_median_are_those_of_the_extremes_of_batches_in_any_order() -> None:
    rng = np.random.default_rng(8)
    batches = [(rng.standard_normal(9) * rng.random() * 9).astype(np.float32) for _ in range(7)]
    lows, highs = ([f(b).astype(float) for b in batches] for f in (np.min, np.max))
    ranges = set()
    for order in (range(7), reversed(range(7))):
        statistics = Statistics("model")
        for number in order:
            with statistics.batch("data", number) as batch:
                batch.update("t", batches[number])
        log = statistics.log(Key("t"))
        for text, middle in (("mean", np.mean), ("median", np.median)):
            found = parse_rule(text).range(statistics[Key("t")], log)
            np.testing.assert_allclose(found, [middle(lows), middle(highs)], rtol=1e-6)
            ranges.add((text, float(found.low), float(found.high)))
    assert len(ranges) == 2
