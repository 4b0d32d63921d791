"""Metrics by name: one number for how near a result is to another one, or to labels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import DataError, PluginError, UsageError

KIND = "qir.metrics"
Float64Array: TypeAlias = NDArray[np.float64]
Reals: TypeAlias = Float64Array
"""The old name of `Float64Array`; plugins may import it."""


class Metric(ABC):
    """One number for two arrays of one shape, or for labels and the scores of a model.

    It must be a function of the two alone, leave them as they are, and give its best for an array
    and itself.
    """

    name: ClassVar[str]
    better: ClassVar[Literal["high", "low"]]
    """Which numbers are better."""
    unit: ClassVar[str] = ""
    labels: ClassVar[bool] = False
    """Whether `wanted` may be labels: whole numbers, with one axis fewer than the scores."""

    @abstractmethod
    def measure(self, wanted: Float64Array, given: Float64Array) -> float:
        """How near `given` is to `wanted`; both hold at least one number, and no NaN."""

    def right(self, wanted: Float64Array, given: Float64Array) -> NDArray[np.bool_] | None:
        """Returns which rows of `given` are right; None for metrics that do not judge rows."""
        return None

    def __call__(self, wanted: NDArray[np.generic], given: NDArray[np.generic]) -> float:
        """Returns the number of two arrays of any element type; NaN where they hold none to
        compare.

        Raises DataError for arrays of shapes that do not fit, of no numbers, and for labels that
        are no class of the scores.
        """
        a, b = self.fitted(wanted, given)
        if not a.size or not b.size or np.isnan(a).any() or np.isnan(b).any():
            return math.nan
        with np.errstate(all="ignore"):
            return float(self.measure(a, b))

    def fitted(
        self, wanted: NDArray[np.generic], given: NDArray[np.generic]
    ) -> tuple[Float64Array, Float64Array]:
        """Both arrays as float64; scores for labels have their classes along the last axis."""
        if self.labels and is_labels(wanted, given):
            given = given.reshape(*wanted.shape, -1)
            _require_classes(self.name, wanted, given.shape[-1])
        elif wanted.shape != given.shape:
            shapes = f"{list(wanted.shape)} and {list(given.shape)}"
            hint = "; or labels with scores" if self.labels else ""
            raise DataError(f"metric {self.name} compares arrays of one shape, not {shapes}{hint}")
        try:
            return wanted.astype(np.float64), given.astype(np.float64)
        except (TypeError, ValueError):
            raise DataError(f"metric {self.name} compares numbers, not {wanted.dtype}") from None


def is_labels(wanted: NDArray[np.generic], given: NDArray[np.generic]) -> bool:
    """Returns whether `wanted` holds whole numbers, one for each row of the scores `given`.

    Axes of size 1 next to the classes are ignored, as those of a last convolution.
    """
    rank = wanted.ndim
    if wanted.dtype.kind not in "iu" or rank == 0 or given.ndim <= rank:
        return False
    class_axes = sum(size != 1 for size in given.shape[rank:])
    return given.shape[:rank] == wanted.shape and class_axes <= 1


def _require_classes(name: str, labels: NDArray[np.generic], classes: int) -> None:
    """Raises DataError for a label that is no class; those below 0 say that there is no label."""
    bad_labels = np.argwhere(labels.astype(np.int64) >= classes)
    if len(bad_labels):
        place = [int(i) for i in bad_labels[0]]
        label = labels[tuple(place)]
        where = place[0] if len(place) == 1 else place
        raise DataError(
            f"metric {name}: the label of sample {where} is {label}, and the output has {classes} "
            f"classes, 0 to {classes - 1}: count labels from 0, or take another output"
        )


class Sqnr(Metric):
    """How much louder the numbers are than what was lost of them."""

    name = "sqnr"
    better = "high"
    unit = "dB"

    def measure(self, wanted: Float64Array, given: Float64Array) -> float:
        noise = float(np.square(given - wanted).sum())
        signal = float(np.square(wanted).sum())
        if not noise:
            return math.inf
        return 10 * math.log10(signal / noise) if signal else -math.inf


class Cosine(Metric):
    """The cosine of the angle between the two as vectors."""

    name = "cosine"
    better = "high"

    def measure(self, wanted: Float64Array, given: Float64Array) -> float:
        length = math.sqrt(float(np.square(wanted).sum()) * float(np.square(given).sum()))
        if not length:
            return float((wanted == given).all())
        return min(1.0, max(-1.0, float((wanted * given).sum()) / length))


class MeanError(Metric):
    """The mean distance of two elements."""

    name = "mean-error"
    better = "low"

    def measure(self, wanted: Float64Array, given: Float64Array) -> float:
        return float(np.abs(given - wanted).mean())


class Top1(Metric):
    """The share of rows whose largest element is at the label, or where the other's stands."""

    name = "top1"
    better = "high"
    labels = True
    most: ClassVar[int] = 1
    """A row is right where the label is among so many of the largest elements."""

    def measure(self, wanted: Float64Array, given: Float64Array) -> float:
        if not given.ndim:
            return float(wanted == given)
        is_right = self.right(wanted, given)
        return float(is_right.mean()) if is_right.size else math.nan

    def right(self, wanted: Float64Array, given: Float64Array) -> NDArray[np.bool_]:
        """Returns which rows are right; rows with a label below 0 are left out."""
        labels = wanted if wanted.ndim < given.ndim else wanted.argmax(axis=-1)
        rows, labels = given.reshape(-1, given.shape[-1]), labels.reshape(-1).astype(np.int64)
        rows, labels = rows[labels >= 0], labels[labels >= 0]
        # A stable sort: of equal scores the first class wins, as argmax has it.
        best = np.argsort(-rows, axis=-1, kind="stable")[:, : self.most]
        return np.asarray((best == labels[:, None]).any(axis=-1))


class Top5(Top1):
    """The share of rows with the label, or the other's largest, among the five largest elements."""

    name = "top5"
    most = 5


class Agreement(Top1):
    """The share of rows whose largest element is where the other result's stands."""

    name = "agreement"
    labels = False


class Psnr(Metric):
    """The peak signal-to-noise ratio, the mean of all samples.

    The peak is 1 where what is wanted is within 0 and 1, 2 within -1 and 1, else 255.
    """

    name = "psnr"
    better = "high"
    unit = "dB"

    def measure(self, wanted: Float64Array, given: Float64Array) -> float:
        low, high = float(wanted.min()), float(wanted.max())
        peak = 255.0 if high > 1 or low < -1 else 1.0 if low >= 0 else 2.0
        noise = np.square(given - wanted).reshape(len(wanted) if wanted.ndim else 1, -1)
        with np.errstate(divide="ignore"):
            return float((20 * np.log10(peak) - 10 * np.log10(noise.mean(axis=1))).mean())


class Spearman(Metric):
    """The rank correlation; equal elements share the mean of their ranks."""

    name = "spearman"
    better = "high"

    def measure(self, wanted: Float64Array, given: Float64Array) -> float:
        a, b = (_ranks(array.reshape(-1)) for array in (wanted, given))
        a, b = a - a.mean(), b - b.mean()
        size = math.sqrt(float((a * a).sum()) * float((b * b).sum()))
        if not size:
            return float((wanted == given).all())
        return min(1.0, max(-1.0, float((a * b).sum()) / size))


def _ranks(row: Float64Array) -> Float64Array:
    _, place, count = np.unique(row, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    # Equal elements share the mean of the ranks that they take up.
    return np.asarray((last - (count - 1) / 2)[place])


class Perplexity(Metric):
    """The exponential of the mean cross-entropy, of logits or of probabilities.

    Labels below 0 are left out. Scores in the place of labels count as the distribution wanted.
    """

    name = "perplexity"
    better = "low"
    labels = True

    def measure(self, wanted: Float64Array, given: Float64Array) -> float:
        if not given.ndim:
            return 1.0
        rows = _logarithms(given).reshape(-1, given.shape[-1])
        if wanted.ndim == given.ndim:
            probabilities = np.exp(_logarithms(wanted)).reshape(rows.shape)
            loss = -np.where(probabilities > 0, probabilities * rows, 0.0).sum(axis=-1)
        else:
            labels = wanted.reshape(-1).astype(np.int64)
            is_counted = labels >= 0
            loss = -rows[is_counted, labels[is_counted]]
        return float(np.exp(loss.mean())) if loss.size else math.nan


def _logarithms(scores: Float64Array) -> Float64Array:
    """Returns the logarithms of probabilities, which sum to 1 in each row, or of the softmax of
    logits."""
    sums = scores.sum(axis=-1)
    # Rows of probabilities sum to 1; anything else counts as logits.
    if scores.min() >= 0 and np.abs(sums - 1).max() < 1e-3:
        return np.asarray(np.log(scores))
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def metric(name: str) -> Metric:
    """Returns the metric of that name.

    Raises UsageError if there is none, PluginError for one that is broken.
    """
    if name not in registry.names(KIND):
        raise UsageError(f"no metric {name!r}: there are {', '.join(registry.names(KIND))}")
    entry = registry.find(KIND, name)
    if not (isinstance(entry, type) and issubclass(entry, Metric)):
        owner = registry.owner(KIND, name)
        raise PluginError(f"metric {name!r} of {owner} is no class derived from qir.inspect.Metric")
    return entry()
