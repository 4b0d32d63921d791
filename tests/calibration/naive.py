"""The definitions of calibration statistics, written down naively in NumPy and Python."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 2048


@dataclass(frozen=True)
class Naive:
    """The statistics of finite values."""

    exponent: int
    first: int
    bins: NDArray[np.int64]


def histogram(values: NDArray[np.float32]) -> Naive:
    """The finest dyadic histogram of finite values, in exact integer arithmetic."""
    low, high = float(values.min()), float(values.max())
    reach = max(abs(low), abs(high))
    exponent = max(math.frexp(reach)[1] - 24, -149) if reach else -149
    while bin_of(high, exponent) - bin_of(low, exponent) + 1 > BINS:
        exponent += 1
    places = np.array([bin_of(float(value), exponent) for value in values.ravel()])
    return Naive(exponent, int(places.min()), np.bincount(places - places.min()))


def bin_of(value: float, exponent: int) -> int:
    """Which multiple of 2**exponent is the last that is not above the value."""
    top, bottom = value.as_integer_ratio()
    return (top << max(0, -exponent)) // (bottom << max(0, exponent))


def values(rng: np.random.Generator, kind: str, size: int) -> NDArray[np.float32]:
    """Values of a kind that calibration meets, or that is known to go wrong."""
    normal = rng.standard_normal(size)
    with np.errstate(over="ignore", under="ignore"):
        made = {
            "normal": normal,
            "relu": np.maximum(normal, 0),
            "negative": -np.abs(normal),
            "constant": np.full(size, normal[0] if size else 0.0),
            "zero": np.zeros(size),
            "signed zero": np.where(normal < 0, -0.0, 0.0),
            "offset": normal * 1e-3 + 1000,
            "denormal": normal * 1e-40,
            "huge": normal * 1e37,
            "wide": normal * np.exp2(rng.integers(-120, 100, size)),
            "tiny and large": np.where(normal < 0, normal * 1e-42, normal * 1e30),
        }[kind]
        return made.astype(np.float32)


KINDS = (
    "normal", "relu", "negative", "constant", "zero", "signed zero",
    "offset", "denormal", "huge", "wide", "tiny and large",
)  # fmt: skip
