"""An observer and a metric."""

from __future__ import annotations

import numpy as np

from qir.calibration import Observer, Parameter, Range, Seen
from qir.errors import DataError, UsageError
from qir.inspect import Metric
from qir.inspect.metrics import Float64Array


class Robust(Observer):
    """The mean and so many standard deviations."""

    name = "acme-robust"
    parameter = Parameter(4.0, 100.0)

    def range(self, seen: Seen) -> Range:
        summary = seen.summary
        if not summary.finite:
            raise DataError("no finite value was seen, so there is no range")
        if summary.axis is not None:
            raise UsageError("range rule acme-robust is for whole tensors")
        reach = seen.parameter * summary.variance**0.5
        ends = np.clip([summary.mean - reach, summary.mean + reach], *summary.extremes)
        return Range(*ends.astype(np.float32))


class Furthest(Metric):
    """The largest distance of two elements."""

    name = "acme-furthest"
    better = "low"

    def measure(self, wanted: Float64Array, given: Float64Array) -> float:
        return float(np.abs(wanted - given).max())
