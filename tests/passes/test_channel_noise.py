"""The estimate of rounding noise: its derivatives, its descent, and what rounding really does."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.analysis.channel_noise import NoisyLayer, minimize_noise

Float64Array = NDArray[np.float64]


def layers(rng: np.random.Generator) -> tuple[list[NoisyLayer], list[Float64Array]]:
    """A product, a depthwise layer and a product, with two groups of channels between them."""

    def layer(
        groups: int, outputs: int, inputs: int, before: int | None, after: int | None
    ) -> NoisyLayer:
        weights = np.exp(rng.normal(0, 1.5, (groups, outputs, inputs)))
        importance = np.exp(rng.normal(0, 1, groups * outputs))
        energy = (weights**2 * importance.reshape(groups, outputs, 1)).sum(axis=1).reshape(-1)
        reach = np.exp(rng.normal(0, 1, groups * inputs))
        return NoisyLayer(weights, energy, importance, reach, (reach / 3) ** 2, before, after)

    found = [layer(1, 6, 4, None, 0), layer(6, 1, 1, 0, 1), layer(1, 3, 6, 1, None)]
    return found, [np.exp(rng.normal(0, 0.5, 6)) for _ in range(2)]


def noise(found: list[NoisyLayer], factors: list[Float64Array]) -> float:
    return sum(each.noise(factors, [np.zeros(6), np.zeros(6)]) for each in found)


@pytest.mark.parametrize("seed", range(5))
def test_derivatives_are_those_of_differences(seed: int) -> None:
    found, factors = layers(np.random.default_rng(seed))
    gradients = [np.zeros(6), np.zeros(6)]
    total = sum(each.noise(factors, gradients) for each in found)
    for group in range(2):
        for channel in range(6):
            step = 1e-6
            more = [f.copy() for f in factors]
            more[group][channel] *= np.exp(step)
            measured = (noise(found, more) - total) / step
            # The smooth maximum of rows stands for that of pairs: shares may be off a little.
            assert gradients[group][channel] == pytest.approx(measured, abs=0.05 * total)


@pytest.mark.parametrize("seed", range(5))
def test_the_descent_stays_within_bounds_and_lowers_the_noise(seed: int) -> None:
    found, factors = layers(np.random.default_rng(seed))
    low, high = np.full(6, 0.25), np.full(6, 4.0)
    low[2] = high[2] = 1.0
    start = [np.clip(f, low, high) for f in factors]
    made = minimize_noise(found, start, [(low, high)] * 2)
    assert noise(found, made) < 0.95 * noise(found, start)
    for row in made:
        assert np.all(row >= low * (1 - 1e-9))
        assert np.all(row <= high * (1 + 1e-9))
        assert row[2] == pytest.approx(1)


def test_the_estimate_is_what_rounding_does_to_a_product() -> None:
    rng = np.random.default_rng(11)
    weights, x = rng.normal(size=(8, 16)), rng.normal(size=(4000, 16))
    reach, power = np.abs(x).max(axis=0), (x * x).mean(axis=0)
    layer = NoisyLayer(
        np.abs(weights)[None], (weights**2).sum(axis=0), np.ones(8), reach, power, None, None
    )
    w_step, x_step = np.abs(weights).max() / 127, reach.max() / 255
    rounded = np.rint(x / x_step) * x_step @ (np.rint(weights / w_step) * w_step).T
    measured = ((rounded - x @ weights.T) ** 2).mean(axis=0).sum()
    assert layer.noise([], []) == pytest.approx(measured, rel=0.15)
