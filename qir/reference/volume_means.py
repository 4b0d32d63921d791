"""The order in which torch adds float values across rows that are next to each other in memory:
sums of channels of what is channels_last. Every step rounds to float32.
"""

from __future__ import annotations

import math

import numpy as np

from qir.numerics.affine import Affine
from qir.numerics.fields import Rule
from qir.numerics.quantize import quantize
from qir.reference.method import Float32Array, Integers, float32

_WAYS = 4
"""So many sums run next to each other."""
_LANES = 8
"""Columns of a vector."""
_LEVELS = 4
_LEAST = 4
"""Sums of 2^4 rows at least are put together, and so many of these again."""


def down_columns(data: Float32Array) -> Float32Array:
    """Returns the sums along the middle axis of three: columns that fill four vectors (or four
    columns where there is no vector) go row by row; those that are left over, each fourth row by
    itself."""
    columns = data.shape[2]
    wide = _WAYS * (_LANES if columns >= _LANES else 1)
    whole = columns // wide * wide
    parts = [_by_levels(data[:, :, :whole]), _by_fourths(data[:, :, whole:])]
    return np.concatenate(parts, axis=1)


def _by_fourths(data: Float32Array) -> Float32Array:
    """Four sums of each fourth row; the rows that are left over go into the first."""
    fourths = data.shape[1] // _WAYS * _WAYS
    sums = [_by_levels(data[:, k:fourths:_WAYS]) for k in range(_WAYS)]
    for row in range(fourths, data.shape[1]):
        sums[0] = sums[0] + data[:, row]
    return _added(sums)


def _by_levels(data: Float32Array) -> Float32Array:
    """Runs of rows are added, then runs of these sums, and so on."""
    rows = data.shape[1]
    power = max(_LEAST, max(rows - 1, 0).bit_length() // _LEVELS)
    step = 1 << power
    sums = [np.zeros((data.shape[0], data.shape[2]), float32) for _ in range(_LEVELS)]
    for row in range(rows):
        sums[0] = sums[0] + data[:, row]
        done = row + 1
        for level in range(1, _LEVELS if done % step == 0 else 0):
            sums[level] = sums[level] + sums[level - 1]
            sums[level - 1] = np.zeros_like(sums[0])
            if done & (step - 1) << level * power:
                break
    return _added(sums)


def _added(sums: list[Float32Array]) -> Float32Array:
    total = sums[0]
    for part in sums[1:]:
        total = total + part
    return total


def mean_of_volumes(codes: Integers, x: Affine, out: Affine, rule: Rule) -> Integers:
    """Means of whole volumes that are channels_last: of floats, which are made integers again."""
    reals = (codes.astype(np.int32) - int(x.zero)).astype(float32) * float32(x.scale)
    images, *sides, channels = codes.shape
    total = down_columns(reals.reshape(images, math.prod(sides), channels))
    mean = (total / float32(math.prod(sides))).reshape(images, *(1,) * len(sides), channels)
    return quantize(mean, out, rule)


__all__ = ["down_columns", "mean_of_volumes"]
