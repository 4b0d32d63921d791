"""Range rules by name: those of plugins, ours among them, and how they are written.

An observer looks at a tensor's statistics, never at the tensor: so it serves data that were
calibrated before it was written.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qir import registry
from qir.calibration.record import Log
from qir.calibration.rules import (
    Range,
    bin_midpoints,
    entropy,
    lowest_cost,
    mae,
    margin,
    mean_extremes,
    median_extremes,
    minmax,
    moving_average,
    mse,
    percentile,
    require_histogram,
    sigma,
)
from qir.calibration.summary import Summary
from qir.errors import DataError, PluginError, QirError, UsageError

KIND = "qir.observers"
Floats = NDArray[np.float64]


class Parameter(NamedTuple):
    """The parameter of a rule: what it is without one given, and the most it may be."""

    default: float
    most: float


@dataclass(frozen=True, slots=True)
class Readers:
    """The layers that read a tensor, channel by channel: what an error there costs."""

    energy: Floats
    """The sum of the squared weights that multiply each channel."""
    low: Floats
    """The least value that was seen of each channel."""
    high: Floats
    """The largest value that was seen of each channel."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a tensor whose range is wanted, and what the range is for."""

    summary: Summary
    """Counts, extremes, moments and a histogram of all values."""
    parameter: float = math.nan
    """What is after the colon of `name:parameter`, or the default."""
    levels: int = 256
    """How many quantized values there will be."""
    symmetric: bool = False
    """Whether the quantized values are around zero."""
    log: Log | None = None
    """The extremes of each batch, in order; for rules that say `ordered`."""
    readers: Readers | None = None
    """The layers that read the tensor; None where others do, or its channels were not kept."""


class Observer(ABC):
    """A range rule: what part of the values of a tensor the quantized values shall cover.

    It must be a function of what it is given, so that the same batches give the same range in any
    order, on any machine. `ordered` says that it reads the batches one after another.
    """

    name: ClassVar[str]
    parameter: ClassVar[Parameter | None] = None
    """The parameter that it takes; None: none."""
    ordered: ClassVar[bool] = False
    widens: ClassVar[bool] = False
    """Whether ranges reach past what was seen, for data that calibration did not see."""

    @abstractmethod
    def range(self, seen: Seen) -> Range:
        """Returns the least and the largest value to cover, no wider than what was seen unless it
        `widens`.

        DataError when nothing finite was seen; UsageError for channels (`seen.summary.axis`) where
        it knows only whole tensors.
        """


class MinMax(Observer):
    """Covers all values that were seen."""

    name = "minmax"

    def range(self, seen: Seen) -> Range:
        return minmax(seen.summary)


class Percentile(Observer):
    """The middle so many percent of the values."""

    name = "percentile"
    parameter = Parameter(99.99, 100.0)

    def range(self, seen: Seen) -> Range:
        return percentile(seen.summary, seen.parameter)


class Entropy(Observer):
    """The range whose quantized values keep the most information."""

    name = "entropy"

    def range(self, seen: Seen) -> Range:
        return entropy(seen.summary, seen.levels, seen.symmetric)


class Mse(Observer):
    """The range whose quantized values have the least mean squared error."""

    name = "mse"

    def range(self, seen: Seen) -> Range:
        return mse(seen.summary, seen.levels, seen.symmetric)


class Mae(Observer):
    """The range whose quantized values have the least mean absolute error."""

    name = "mae"

    def range(self, seen: Seen) -> Range:
        return mae(seen.summary, seen.levels, seen.symmetric)


class Sigma(Observer):
    """The mean of the values and so many standard deviations to both sides."""

    name = "k-sigma"
    parameter = Parameter(4.0, 1000.0)

    def range(self, seen: Seen) -> Range:
        return sigma(seen.summary, seen.parameter)


class Margin(Observer):
    """The extremes, each moved outwards by a share of their distance."""

    name = "margin"
    parameter = Parameter(0.125, 10.0)
    widens = True

    def range(self, seen: Seen) -> Range:
        return margin(seen.summary, seen.parameter)


class MeanExtremes(Observer):
    """The means of the extremes of the batches."""

    name = "mean"
    ordered = True

    def range(self, seen: Seen) -> Range:
        return mean_extremes(_log(seen))


class Median(Observer):
    """The medians of the extremes of the batches."""

    name = "median"
    ordered = True

    def range(self, seen: Seen) -> Range:
        return median_extremes(_log(seen))


class Average(Observer):
    """Averages that follow the extremes of each batch."""

    name = "average"
    parameter = Parameter(0.01, 1.0)
    ordered = True

    def range(self, seen: Seen) -> Range:
        return moving_average(_log(seen), seen.parameter)


class Auto(Observer):
    """Of other rules that with the least squared error, through the weights that read the tensor.

    It costs what the rounded values lose, times the mean energy of weights, and what the clipped
    values lose, times the energy in the channels that reach beyond the range. The tried rules are
    minmax, percentile:99.999, percentile:99.99, mse and mae.
    """

    name = "auto"

    def range(self, seen: Seen) -> Range:
        require_histogram(seen.summary, self.name)
        levels, symmetric = seen.levels, seen.symmetric
        candidates = [
            minmax(seen.summary),
            *(percentile(seen.summary, percent) for percent in (99.999, 99.99)),
            *(rule(seen.summary, levels, symmetric) for rule in (mse, mae)),
        ]
        return lowest_cost(candidates, lambda ends: _cost(seen, ends))


def _cost(seen: Seen, ends: Range) -> float:
    """Returns what a range costs, by the histogram and the readers' weights."""
    values, counts = bin_midpoints(seen.summary)
    low, high = min(0.0, float(ends.low)), max(0.0, float(ends.high))
    # A symmetric type reaches as far on both sides, whatever the range is.
    if seen.symmetric:
        low, high = -max(-low, high), max(-low, high)
    # The histogram's values are rounded as the quantizer would, to multiples of the scale.
    scale = (high - low) / (seen.levels - 1)
    if not scale > 0:
        return math.inf if seen.summary.high > seen.summary.low else 0.0
    inside = (values >= low) & (values <= high)
    rounded_values = np.clip(np.rint(values / scale) * scale, low, high)
    errors = counts * np.square(values - rounded_values)
    rounded, clipped = float(errors[inside].sum()), float(errors[~inside].sum())
    if seen.readers is None:
        return rounded + clipped
    energy, least_seen, most_seen = seen.readers.energy, seen.readers.low, seen.readers.high
    # How far each channel reaches beyond the range: clipping costs most where these are read with
    # large weights.
    beyond = np.square(np.maximum(most_seen - high, 0)) + np.square(np.maximum(low - least_seen, 0))
    # Rounding errors are in all channels alike, so they are weighted by the mean.
    mean_energy = float(energy.mean())
    clipped_energy = float((beyond * energy).sum() / beyond.sum()) if beyond.any() else mean_energy
    return rounded * mean_energy + clipped * clipped_energy


def _log(seen: Seen) -> Log:
    if seen.log is None:
        raise DataError("an average of the batches needs their log")
    return seen.log


def observer(name: str) -> Observer:
    """Returns the range rule of that name.

    Raises UsageError if there is none, PluginError for one that is broken.
    """
    if name not in registry.names(KIND):
        raise UsageError(unknown(name))
    found = registry.find(KIND, name)
    if not (isinstance(found, type) and issubclass(found, Observer)):
        by = registry.owner(KIND, name)
        raise PluginError(
            f"observer {name!r} of {by} is no class derived from qir.calibration.Observer"
        )
    return found()


def unknown(name: str) -> str:
    """Returns what to say of a rule that does not exist."""
    return f"no range rule {name!r}: there are {', '.join(registry.names(KIND))}"


@dataclass(frozen=True)
class RangeRule:
    """A range rule with its parameter, written `minmax`, `percentile:99.99`, `average:0.01` ..."""

    name: str
    parameter: float = math.nan

    def __str__(self) -> str:
        return self.name if math.isnan(self.parameter) else f"{self.name}:{self.parameter!r}"

    @property
    def ordered(self) -> bool:
        """Whether it reads the log of the batches."""
        return observer(self.name).ordered

    def range(
        self,
        summary: Summary,
        log: Log | None = None,
        *,
        levels: int = 256,
        symmetric: bool = False,
        readers: Readers | None = None,
    ) -> Range:
        """Apply the rule; the rules that search do it for so many levels, with zero amid or not.

        DataError when nothing finite was seen, or without the log that an ordered rule reads;
        UsageError for channels where the rule needs a histogram; PluginError for a rule that gives
        no range.
        """
        seen = Seen(summary, self.parameter, levels, symmetric, log, readers)
        try:
            low, high = map(_float32, observer(self.name).range(seen))
        except QirError:
            raise
        # Observers are plugins: whatever they raise becomes one clear error.
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise PluginError(f"observer {self.name!r} breaks: {message}") from error
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise PluginError(f"observer {self.name!r} gives {low}..{high}, which is no range")
        return Range(low, high)


def _float32(end: ArrayLike) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    # Adding 0 turns -0 into +0.
    return np.asarray(end, np.float32) + np.float32(0)


def parse_rule(text: str) -> RangeRule:
    """Parses a range rule; UsageError lists the rules, or what is wrong with the parameter."""
    name, colon, number_text = text.partition(":")
    parameter = observer(name).parameter
    if parameter is None:
        if colon:
            raise UsageError(f"range rule {name} takes no parameter, {text!r} gives one")
        return RangeRule(name)
    if not colon:
        return RangeRule(name, parameter.default)
    try:
        value = float(number_text)
    except ValueError:
        raise UsageError(f"range rule {text!r}: {number_text!r} is not a number") from None
    if not 0 < value <= parameter.most:
        raise UsageError(f"range rule {text!r}: give more than 0 and at most {parameter.most:g}")
    return RangeRule(name, value)
