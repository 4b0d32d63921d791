"""Metrics: one number for how near the results of two runs are, by name; ours like a plugin's."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import DataError, PluginError, UsageError

KIND = "qir.metrics"
Reals: TypeAlias = NDArray[np.float64]


class Metric(ABC):
    """One number for two arrays of one shape.

    It must be a function of the two alone, leave them as they are, and give its best for an array
    and itself.
    """

    name: ClassVar[str]
    better: ClassVar[Literal["high", "low"]]
    """Which numbers are better."""
    unit: ClassVar[str] = ""

    @abstractmethod
    def measure(self, wanted: Reals, given: Reals) -> float:
        """How near `given` is to `wanted`; both hold at least one number, and no NaN."""

    def __call__(self, wanted: NDArray[np.generic], given: NDArray[np.generic]) -> float:
        """The number of two arrays of any element type; NaN where they hold none to compare.

        Raises DataError for arrays of two shapes, or of no numbers.
        """
        if wanted.shape != given.shape:
            shapes = f"{list(wanted.shape)} and {list(given.shape)}"
            raise DataError(f"metric {self.name} compares arrays of one shape, not {shapes}")
        try:
            a, b = wanted.astype(np.float64), given.astype(np.float64)
        except (TypeError, ValueError):
            raise DataError(f"metric {self.name} compares numbers, not {wanted.dtype}") from None
        if not a.size or np.isnan(a).any() or np.isnan(b).any():
            return math.nan
        with np.errstate(all="ignore"):
            return float(self.measure(a, b))


class Sqnr(Metric):
    """How much louder the numbers are than what was lost of them."""

    name = "sqnr"
    better = "high"
    unit = "dB"

    def measure(self, wanted: Reals, given: Reals) -> float:
        noise = float(np.square(given - wanted).sum())
        signal = float(np.square(wanted).sum())
        if not noise:
            return math.inf
        return 10 * math.log10(signal / noise) if signal else -math.inf


class Cosine(Metric):
    """The cosine of the angle between the two as vectors."""

    name = "cosine"
    better = "high"

    def measure(self, wanted: Reals, given: Reals) -> float:
        length = math.sqrt(float(np.square(wanted).sum()) * float(np.square(given).sum()))
        if not length:
            return float((wanted == given).all())
        return min(1.0, max(-1.0, float((wanted * given).sum()) / length))


class MeanError(Metric):
    """The mean distance of two elements."""

    name = "mean-error"
    better = "low"

    def measure(self, wanted: Reals, given: Reals) -> float:
        return float(np.abs(given - wanted).mean())


class Top1(Metric):
    """The share of rows whose largest element stands in the same place."""

    name = "top1"
    better = "high"

    def measure(self, wanted: Reals, given: Reals) -> float:
        if not wanted.ndim:
            return float(wanted == given)
        return float((wanted.argmax(axis=-1) == given.argmax(axis=-1)).mean())


def metric(name: str) -> Metric:
    """The metric of that name.

    Raises UsageError if there is none, PluginError for one that is broken.
    """
    if name not in registry.names(KIND):
        raise UsageError(f"no metric {name!r}: there are {', '.join(registry.names(KIND))}")
    found = registry.find(KIND, name)
    if not (isinstance(found, type) and issubclass(found, Metric)):
        by = registry.owner(KIND, name)
        raise PluginError(f"metric {name!r} of {by} is no class derived from qir.inspect.Metric")
    return found()
