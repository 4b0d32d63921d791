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

_PARALLEL_SUMS = 4
"""So many sums run next to each other."""
_LANES = 8
"""Columns of a vector."""
_LEVELS = 4
_MIN_LEVEL_POWER = 4
"""Sums of 2^4 rows at least are put together, and so many of these again."""


def down_columns(data: Float32Array) -> Float32Array:
    """Returns the sums along the middle axis of three: columns that fill four vectors (or four
    columns where there is no vector) go row by row; those that are left over, each fourth row by
    itself."""
    columns = data.shape[2]
    vector_columns = _PARALLEL_SUMS * (_LANES if columns >= _LANES else 1)
    complete = columns // vector_columns * vector_columns
    parts = [_cascade_sum(data[:, :, :complete]), _sum_fourths(data[:, :, complete:])]
    return np.concatenate(parts, axis=1)


def _sum_fourths(data: Float32Array) -> Float32Array:
    """Four sums of each fourth row; the rows that are left over go into the first."""
    fourths = data.shape[1] // _PARALLEL_SUMS * _PARALLEL_SUMS
    sums = [_cascade_sum(data[:, k:fourths:_PARALLEL_SUMS]) for k in range(_PARALLEL_SUMS)]
    for row in range(fourths, data.shape[1]):
        sums[0] = sums[0] + data[:, row]
    return _add_all(sums)


def _cascade_sum(data: Float32Array) -> Float32Array:
    """Runs of rows are added, then runs of these sums, and so on."""
    rows = data.shape[1]
    # Four levels share the rows: each takes a quarter of the bits of their number.
    power = max(_MIN_LEVEL_POWER, max(rows - 1, 0).bit_length() // _LEVELS)
    # torch's cascade sum (SumKernel.cpp): a level is added to the next after `step` of its sums.
    step = 1 << power
    sums = [np.zeros((data.shape[0], data.shape[2]), float32) for _ in range(_LEVELS)]
    for row in range(rows):
        sums[0] = sums[0] + data[:, row]
        rows_done = row + 1
        for level in range(1, _LEVELS if rows_done % step == 0 else 0):
            sums[level] = sums[level] + sums[level - 1]
            sums[level - 1] = np.zeros_like(sums[0])
            if rows_done & (step - 1) << level * power:
                break
    return _add_all(sums)


def _add_all(sums: list[Float32Array]) -> Float32Array:
    total = sums[0]
    for part in sums[1:]:
        total = total + part
    return total


def mean_of_volumes(quantized: Integers, x: Affine, out: Affine, rule: Rule) -> Integers:
    """Means of whole volumes that are channels_last: of floats, which are made integers again."""
    floats = (quantized.astype(np.int32) - int(x.zero)).astype(float32) * float32(x.scale)
    images, *sides, channels = quantized.shape
    total = down_columns(floats.reshape(images, math.prod(sides), channels))
    mean = (total / float32(math.prod(sides))).reshape(images, *(1,) * len(sides), channels)
    return quantize(mean, out, rule)


__all__ = ["down_columns", "mean_of_volumes"]
