"""Estimates the noise that rounding adds to a network, for factors that divide its channels.

Of a layer whose weights share one scale and whose input shares another, the noise at an output is

    sum of w^2 * dx^2 / 12  +  taps * sum of x^2 * dw^2 / 12

with the steps dx and dw of input and weights: a 255th of the largest value, a 127th of the largest
weight. Factors move both: an input channel divided by s has its weights multiplied by s. Noise of
an output counts as much as the next layers' weights magnify it, relative to their signal. The sum
over layers is what the result of the network loses, as far as layers add their noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64Array = NDArray[np.float64]
SHARPNESS = 30.0
"""Of the smooth maximum, sum(v^SHARPNESS)^(1/SHARPNESS): it has a gradient at every large value."""
REFRESH = 4
"""Steps for which the maxima of weights are kept: computing them takes most of the time."""
STEPS = 120
"""Steps of the descent; the noise of the networks measured changes little after 100."""
FIRST_RATE, LAST_RATE = 0.1, 0.01
"""How far one step moves the logarithm of a factor, about, at the beginning and at the end."""
_MOMENTUM, _SPREAD = 0.9, 0.99
"""Decay of the mean gradient and of its mean square (Kingma and Ba, Adam, 2014)."""


@dataclass(frozen=True)
class NoisyLayer:
    """What the noise of one layer depends on; `inputs` and `outputs` index the factors, if any."""

    largest: NDArray[np.float32]
    """The largest weight over the taps, by group, output channel and input channel."""
    energy: Float64Array
    """The importance of outputs times squared weights, summed, by input channel."""
    importance: Float64Array
    """By output channel."""
    reach: Float64Array
    """The largest magnitude of the input, by channel."""
    power: Float64Array
    """The mean square of the input times the number of taps, by channel."""
    inputs: int | None
    outputs: int | None

    def maxima(self, factors: Sequence[Float64Array]) -> tuple[Float64Array, Float64Array]:
        """Returns the largest weight of each output with its inputs' factors, and of each input
        with its outputs' factors."""
        groups, outputs, inputs = self.largest.shape
        s, t = self._factors(factors)
        by_output = self.largest * s.reshape(groups, 1, inputs).astype(np.float32)
        by_input = self.largest * (1 / t).reshape(groups, outputs, 1).astype(np.float32)
        return (
            by_output.max(axis=2).reshape(-1).astype(np.float64),
            by_input.max(axis=1).reshape(-1).astype(np.float64),
        )

    def _factors(self, factors: Sequence[Float64Array]) -> tuple[Float64Array, Float64Array]:
        groups, outputs, inputs = self.largest.shape
        return (
            np.ones(groups * inputs) if self.inputs is None else factors[self.inputs],
            np.ones(groups * outputs) if self.outputs is None else factors[self.outputs],
        )

    def noise(
        self,
        factors: Sequence[Float64Array],
        gradients: Sequence[Float64Array],
        maxima: tuple[Float64Array, Float64Array] | None = None,
    ) -> float:
        """Returns the noise, and adds its derivatives by the factors' logarithms to `gradients`.

        `maxima` may be those of factors shortly before.
        """
        groups, outputs, inputs = self.largest.shape
        s, t = self._factors(factors)
        by_output, by_input = maxima or self.maxima(factors)
        by_output, by_input = by_output / t, by_input * s
        x_step, x_shares = _smooth_max(self.reach / s)
        w_step, output_shares = _smooth_max(by_output)
        _, input_shares = _smooth_max(by_input)
        # An error that is spread evenly over a step has the variance step**2 / 12. The range of
        # 8-bit data has 255 steps, that of symmetric weights 127 to each side.
        x_unit, w_unit = (x_step / 255) ** 2 / 12, (w_step / 127) ** 2 / 12
        from_input = self.energy * s**2 * x_unit
        above = (self.importance * t**2).reshape(groups, outputs)
        below = (self.power / s**2).reshape(groups, inputs)
        from_weights = w_unit * float(np.sum(above.sum(axis=1) * below.sum(axis=1)))
        total = float(from_input.sum())
        if self.inputs is not None:
            shared = (above.sum(axis=1)[:, None] * below).reshape(-1) * w_unit
            gradients[self.inputs][:] += 2 * (from_input - total * x_shares) + 2 * (
                from_weights * input_shares - shared
            )
        if self.outputs is not None:
            shared = (above * below.sum(axis=1)[:, None]).reshape(-1) * w_unit
            gradients[self.outputs][:] += 2 * (shared - from_weights * output_shares)
        return total + from_weights


def _smooth_max(values: Float64Array) -> tuple[float, Float64Array]:
    """Returns the maximum, and the share of each value in its derivative by logarithms."""
    top = float(values.max(initial=0))
    if not top:
        return 0.0, np.zeros_like(values)
    powers = (values / top) ** SHARPNESS
    return top * float(powers.sum()) ** (1 / SHARPNESS), powers / powers.sum()


def minimize_noise(
    layers: Sequence[NoisyLayer],
    factors: Sequence[Float64Array],
    bounds: Sequence[tuple[Float64Array, Float64Array]],
) -> list[Float64Array]:
    """Returns factors within bounds that make the noise of all layers small.

    `factors` are where the descent begins. It runs on logarithms, in which a factor and its inverse
    are the same distance from 1, and keeps the best factors that it has met.
    """
    logs = [np.log(f) for f in factors]
    ends = [(np.log(low), np.log(high)) for low, high in bounds]
    means, squares = ([np.zeros_like(v) for v in logs] for _ in range(2))
    best, least = [f.copy() for f in factors], np.inf
    maxima: list[tuple[Float64Array, Float64Array]] = []
    for step in range(1, STEPS + 1):
        gradients = [np.zeros_like(v) for v in logs]
        current = [np.exp(v) for v in logs]
        is_exact = step % REFRESH == 1 or step == STEPS
        if is_exact:
            maxima = [layer.maxima(current) for layer in layers]
        noise = sum(
            layer.noise(current, gradients, kept)
            for layer, kept in zip(layers, maxima, strict=True)
        )
        # Maxima of earlier factors give an estimate, which may be too low to be the best.
        if is_exact and noise < least:
            best, least = current, noise
        rate = FIRST_RATE * (LAST_RATE / FIRST_RATE) ** (step / STEPS)
        for i, gradient in enumerate(gradients):
            means[i] += (1 - _MOMENTUM) * (gradient - means[i])
            squares[i] += (1 - _SPREAD) * (gradient**2 - squares[i])
            # Adam's correction of means that began at zero.
            mean = means[i] / (1 - _MOMENTUM**step)
            size = np.sqrt(squares[i] / (1 - _SPREAD**step))
            moved = logs[i] - rate * mean / np.maximum(size, 1e-300)
            logs[i] = np.clip(moved, *ends[i])
    return best
