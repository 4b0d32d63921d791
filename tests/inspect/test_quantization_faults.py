"""Each cause of noise is found on a tensor that has exactly that fault, and on no other.

The shares of noise that remedies remove are compared with what NumPy measures when the remedy is
applied.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.analysis.quantization_faults import (
    NoiseCause,
    clipped,
    dead_channel,
    outlier_channel,
    shifted_mean,
    wide_range,
)
from qir.calibration import Summary
from qir.inspect.tensor_errors import Errors

SEED = 20261124
LEVELS = 256
Floats = NDArray[np.float64]


def stored(x: Floats, low: float, high: float) -> Floats:
    """What 256 even steps from low to high keep of x."""
    step = (high - low) / (LEVELS - 1)
    return np.clip(np.rint(x / step), np.rint(low / step), np.rint(high / step)) * step


def noise(x: Floats, y: Floats) -> float:
    return float(np.square(y - x).sum())


@dataclass
class Made:
    """A tensor, channels by values, its range, and what is stored of it."""

    x: Floats
    low: float
    high: float
    given: Floats

    @classmethod
    def of(cls, x: Floats, low: float | None = None, high: float | None = None) -> "Made":
        low = float(x.min()) if low is None else low
        high = float(x.max()) if high is None else high
        return cls(x, low, high, stored(x, low, high))


def sound() -> Floats:
    return np.random.default_rng(SEED).uniform(-1, 1, (16, 4000))


def with_outlier() -> Made:
    x = sound()
    x[5] *= 40
    return Made.of(x, -40, 40)


def with_clipping() -> Made:
    return Made.of(sound(), -0.8, 0.8)


def with_wide_range() -> Made:
    x = np.random.default_rng(SEED).uniform(-0.01, 0.01, (2, 1_000_000))
    x[:, 0] = 1, -1
    return Made.of(x, -1, 1)


def with_shift() -> Made:
    made = Made.of(sound(), -1, 1)
    made.given = made.given + np.linspace(-0.02, 0.03, 16)[:, None]
    return made


def with_dead() -> Made:
    x = sound()
    x[3] = x[9] = 0.0
    return Made.of(x, -1, 1)


MADE: dict[str, Callable[[], Made]] = {
    "outlier channel": with_outlier,
    "clipped": with_clipping,
    "wide range": with_wide_range,
    "shifted mean": with_shift,
    "dead channel": with_dead,
    "": lambda: Made.of(sound(), -1, 1),
}


def found(made: Made) -> dict[str, NoiseCause]:
    """What each function says of a tensor, measured as a check measures it."""
    errors = Errors(0, (made.low, made.high))
    for part in np.split(np.arange(made.x.shape[1]), 4):
        errors.add(made.x[:, part], made.given[:, part], made.x[:, part])
    summary = Summary()
    summary.update(made.x.astype(np.float32))
    sizes = np.maximum(np.abs(errors.low), np.abs(errors.high))
    seen = float(errors.high.max() - errors.low.min())
    total, beyond = float(errors.own.sum()), float(errors.beyond.sum())
    all_of = (
        outlier_channel(sizes),
        clipped(
            total,
            beyond,
            float(errors.outside.sum() / errors.count.sum()),
            seen,
            made.high - made.low,
        ),
        wide_range(summary, made.low, made.high, LEVELS),
        shifted_mean(errors.error, errors.count, float(errors.noise.sum())),
        dead_channel(errors.low, errors.high),
    )
    return {fault.cause: fault for fault in all_of if fault is not None}


@pytest.mark.parametrize("cause", MADE)
def test_a_tensor_with_one_fault_has_that_alone(cause: str) -> None:
    causes = set(found(MADE[cause]()))
    if cause == "outlier channel":
        causes -= {"wide range"}  # of the tensor as a whole its range is too wide, too
    assert causes == ({cause} if cause else set())


def test_a_scale_for_each_channel_gives_what_is_said() -> None:
    made = with_outlier()
    fault = found(made)["outlier channel"]
    apart = np.stack([stored(row, -abs(row).max(), abs(row).max()) for row in made.x])
    left = noise(made.x, apart) / noise(made.x, made.given)
    assert 1 - fault.removed == pytest.approx(left, rel=0.05)
    assert "channel 5 reaches 40" in fault.detail
    assert outlier_channel(np.zeros(4)) is None


def test_a_range_that_covers_all_gives_what_is_said() -> None:
    made = with_clipping()
    fault = found(made)["clipped"]
    left = noise(made.x, stored(made.x, -1, 1)) / noise(made.x, made.given)
    assert 1 - fault.removed == pytest.approx(left, rel=0.05)


@pytest.mark.slow
def test_a_narrower_range_gives_what_is_said() -> None:
    made = with_wide_range()
    fault = found(made)["wide range"]
    best = min(noise(made.x, stored(made.x, -end, end)) for end in np.linspace(0.01, 1, 400))
    left = best / noise(made.x, made.given)
    assert 1 - fault.removed == pytest.approx(left, rel=0.1)
    assert left < 0.5


def test_a_bias_gives_exactly_what_is_said() -> None:
    made = with_shift()
    fault = found(made)["shifted mean"]
    error = made.given - made.x
    left = float(np.square(error - error.mean(axis=1, keepdims=True)).sum())
    assert 1 - fault.removed == pytest.approx(left / noise(made.x, made.given), rel=1e-9)
    assert fault.measured
    assert fault.detail.startswith("channel 15 is off by 0.03")


def test_dead_channels_are_counted() -> None:
    fault = found(with_dead())["dead channel"]
    assert (fault.detail, fault.removed) == ("2 of 16 channels are constant", 0.0)
