"""Metrics are found by name, and say what their formulas say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qir import registry
from qir.errors import DataError, PluginError, UsageError
from qir.inspect import metric

A = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, 1.0]], np.float32)
B = np.array([[1.0, -2.5, 2.0], [4.0, 0.5, 1.0]], np.float32)


def test_each_is_its_formula() -> None:
    a, b = A.astype(np.float64).ravel(), B.astype(np.float64).ravel()
    noise = ((a - b) ** 2).sum()
    assert metric("sqnr")(A, B) == pytest.approx(10 * math.log10((a**2).sum() / noise))
    assert metric("cosine")(A, B) == pytest.approx(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
    assert metric("mean-error")(A, B) == abs(a - b).mean()
    assert metric("top1")(A, B) == 0.5


@pytest.mark.parametrize("name", registry.names("qir.metrics"))
def test_ends_are_told_apart_from_numbers(name: str) -> None:
    found = metric(name)
    zeros = np.zeros((2, 2), np.float32)
    assert not math.isnan(found(zeros, zeros))
    assert math.isnan(found(zeros, np.full_like(zeros, np.nan)))
    assert math.isnan(found(zeros[:0], zeros[:0]))
    assert math.isfinite(found(np.array(2, np.float32), np.array(3, np.float32)))
    with pytest.raises(DataError, match=r"one shape, not \[2, 2\] and \[1, 2\]"):
        found(zeros, zeros[:1])
    with pytest.raises(DataError, match="compares numbers"):
        found(np.array(["a"], object), np.array(["b"], object))


def test_one_that_there_is_not_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no metric 'snr': there are cosine, mean-error, sqnr, to"):
        metric("snr")
    monkeypatch.setattr(registry, "find", lambda kind, name: dict)
    with pytest.raises(PluginError, match=r"no class derived from qir\.inspect\.Metric"):
        metric("sqnr")
