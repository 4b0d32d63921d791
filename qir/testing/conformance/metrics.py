"""What every metric is held to: a function of two arrays, best for equal ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from qir.inspect.metrics import Float64Array, Metric
from qir.testing.conformance.checklist import Check, Checklist, demand


def check_metric(given: Metric | type[Metric]) -> tuple[Check, ...]:
    """Holds a metric to its contract, on arrays of many shapes."""
    metric = given() if isinstance(given, type) else given
    checks = Checklist()
    checks.check("has a name, and says which numbers are better", partial(_form, metric))
    checks.check("gives a number", partial(_number, metric))
    checks.check("is best for an array and itself", partial(_best, metric))
    checks.check("is worse for what is further off", partial(_worse, metric))
    checks.check("same arrays, same number; they stay as they are", partial(_pure, metric))
    return checks.told()


def _form(metric: Metric) -> str:
    kind = type(metric)
    demand(isinstance(getattr(kind, "name", None), str), f"{kind.__name__} has no name")
    better = getattr(kind, "better", None)
    demand(better in ("high", "low"), f"better = {better!r}; it is 'high' or 'low'")
    return f"{better} is better"


def _pairs() -> Iterator[tuple[str, Float64Array, Float64Array]]:
    rng = np.random.default_rng(0)
    for shape in ((), (1,), (7,), (3, 5), (2, 3, 4, 4)):
        a = rng.normal(0, 3, shape)
        yield f"shape {list(shape)}", a, a + rng.normal(0, 0.1, shape)
        yield f"zeros {list(shape)}", np.zeros(shape), np.zeros(shape)


def _number(metric: Metric) -> str:
    for name, a, b in _pairs():
        found = metric.measure(a, b)
        real = isinstance(found, float | int | np.floating) and not math.isnan(found)
        demand(real, f"{name}: {found!r} is no number")
    return f"{metric.measure(*next(iter(_pairs()))[1:]):g} for one"


def _sign(metric: Metric) -> int:
    return 1 if metric.better == "high" else -1


def _best(metric: Metric) -> None:
    for name, a, b in _pairs():
        same, other = metric.measure(a, a), metric.measure(a, b)
        said = f"{same:g} for equal arrays, {other:g} for others"
        best = same == other or _sign(metric) * (same - other) >= 0
        demand(best, f"{name}: {said}, and {metric.better} is better")


def _worse(metric: Metric) -> str:
    rng = np.random.default_rng(1)
    a = rng.normal(0, 1, (64, 16))
    noise = rng.normal(0, 1, a.shape)
    found = [metric.measure(a, a + size * noise) for size in (0.01, 0.3, 10.0)]
    said = ", ".join(f"{value:.4g}" for value in found)
    order = [_sign(metric) * value for value in found]
    demand(order == sorted(order, reverse=True), f"as the noise grows: {said}")
    demand(order[0] > order[-1], f"whatever the noise: {said}")
    return said


def _pure(metric: Metric) -> None:
    for name, a, b in _pairs():
        before = a.tobytes(), b.tobytes()
        found = [metric.measure(a, b) for _ in range(3)]
        demand(len(set(found)) == 1, f"{name}: {found}")
        demand((a.tobytes(), b.tobytes()) == before, f"{name}: the arrays have changed")


__all__ = ["check_metric"]
