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
    assert metric("top1")(A, B) == metric("agreement")(A, B) == 0.5


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
    with pytest.raises(UsageError, match="no metric 'snr': there are agreement, cosine, "):
        metric("snr")
    monkeypatch.setattr(registry, "find", lambda kind, name: dict)
    with pytest.raises(PluginError, match=r"no class derived from qir\.inspect\.Metric"):
        metric("sqnr")


SCORES = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3], [0.2, 0.2, 0.6], [0.9, 0.0, 0.1]], np.float32)


def test_labels_are_compared_with_the_largest_scores() -> None:
    labels = np.array([1, 2, 2, 0])
    assert metric("top1")(labels, SCORES) == 0.75
    assert metric("top1")(labels, SCORES.reshape(4, 3, 1, 1)) == 0.75
    assert metric("top5")(labels, SCORES) == 1.0
    wide = np.tile(np.arange(9, dtype=np.float32), (4, 1))  # the five largest are 4 to 8
    assert metric("top5")(np.array([3, 4, 8, 0]), wide) == 0.5
    assert metric("top1")(np.array([1, -1, -1, 1]), SCORES) == 0.5, "below 0: no label"
    with pytest.raises(DataError, match="label of sample 1 is 3, and the output has 3 classes, 0 "):
        metric("top1")(np.array([1, 3, 0, 0]), SCORES)
    with pytest.raises(DataError, match=r"not \[3\] and \[4, 3\]; or labels with scores"):
        metric("top1")(labels[:3], SCORES)
    with pytest.raises(DataError, match="one shape, not"):
        metric("sqnr")(labels, SCORES)


def test_perplexity_is_of_probabilities_and_of_logits_alike() -> None:
    labels = np.array([[1, 2], [2, 0]])
    logits = np.array([[[1, 2, 3], [0, 5, -1]], [[2, 2, 2], [-3, 1, 0]]], np.float64)
    share = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    of_labels = [share[i, j, labels[i, j]] for i in range(2) for j in range(2)]
    formula = math.prod(1 / x for x in of_labels) ** (1 / 4)
    assert metric("perplexity")(labels, logits) == pytest.approx(formula)
    assert metric("perplexity")(labels, share) == pytest.approx(formula)
    assert metric("perplexity")(labels, np.log(share)) == pytest.approx(formula)
    some = np.array([[1, -1], [-1, -1]])
    assert metric("perplexity")(some, logits) == pytest.approx(1 / of_labels[0])


def test_rank_correlation_shares_the_ranks_of_ties() -> None:
    a, b = np.array([1.0, 2.0, 2.0, 5.0, 9.0]), np.array([2.0, 1.0, 4.0, 4.0, 8.0])
    ranks = np.array([1, 2.5, 2.5, 4, 5]), np.array([2, 1, 3.5, 3.5, 5])
    assert metric("spearman")(a, b) == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert metric("spearman")(a, 3 * a + 1) == 1.0
    assert metric("spearman")(a, -a) == -1.0


def test_peak_signal_to_noise_ratio_takes_the_peak_from_what_is_wanted() -> None:
    rng = np.random.default_rng(3)
    wanted = rng.random((2, 4, 4))
    given = wanted + rng.normal(0, 0.1, wanted.shape)
    each = [10 * math.log10(1 / np.mean((w - g) ** 2)) for w, g in zip(wanted, given, strict=True)]
    assert metric("psnr")(wanted, given) == pytest.approx(np.mean(each))
    assert metric("psnr")(255 * wanted, 255 * given) == pytest.approx(np.mean(each))
    assert metric("psnr")(2 * wanted - 1, 2 * given - 1) == pytest.approx(np.mean(each))
