"""Means of windows from sums of raw integers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.numerics.affine import Affine
from qir.profiles.methods import FLAG, PluginMethod
from qir.reference.method import (
    Integers,
    float32,
    require_per_tensor,
    require_same_parameters,
    saturate,
)
from qir.reference.windows import channels_first, padded, restore_layout, windows

Whole = NDArray[np.int64]
AVERAGES = ("avg_pool1d", "avg_pool2d", "avg_pool3d")
GLOBAL_MEANS = ("global_avg_pool", "adaptive_avg_pool")
ALL_MEANS = (*AVERAGES, *GLOBAL_MEANS, "reduce_mean")


def sum_quantized(
    x: Integers,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    *,
    ceil: bool,
    layout: str,
) -> tuple[Whole, Whole]:
    """Returns the sum of raw integers in each window, channels first, and how many there are."""
    quantized = channels_first("avg_pool2d", x, layout).astype(np.int64)
    sizes = (quantized.shape[2], quantized.shape[3])
    height, width = windows("avg_pool2d", sizes, kernel, stride, pad, ceil=ceil)
    outside = np.zeros((), np.int64)
    ones = np.ones((1, 1, *sizes), np.int64)
    inside, padded_x = (
        padded(part, height, width, outside).astype(np.int64) for part in (ones, quantized)
    )
    total = np.zeros((*quantized.shape[:2], height.count, width.count), np.int64)
    count = np.zeros((1, 1, height.count, width.count), np.int64)
    # One tap of the window at a time; `inside` counts the taps that are not padding.
    for i, j in np.ndindex(*kernel):
        total += padded_x[..., height.tap(i), width.tap(j)]
        count += inside[..., height.tap(i), width.tap(j)]
    return total, count


def integer_mean(
    x: Integers,
    x_map: Affine,
    out: Affine,
    *,
    kernel: Sequence[int],
    stride: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0, 0, 0),
    ceil: bool = False,
    count_pad: bool = False,
    layout: str = "NCHW",
    divide: bool = False,
) -> Integers:
    """Average pooling of raw integers, halves to even; padding that counts counts as quantized
    value zero.

    A sum is divided by their number in float32, or multiplied by what 1 divided by it is there.
    """
    require_same_parameters("avg_pool2d", x_map, out)
    total, count = sum_quantized(x, kernel, stride, pad, ceil=ceil, layout=layout)
    number = np.asarray(math.prod(kernel)) if count_pad else count
    return restore_layout(integer_mean_of_sums(total, number, x_map, out, divide=divide), layout)


def integer_mean_of_sums(
    sums: Whole, count: int | Whole, x_map: Affine, out: Affine, *, divide: bool = False
) -> Integers:
    """Returns means of sums of raw integers; see `integer_mean`."""
    require_per_tensor("raw_mean", x_map, out)
    require_same_parameters("avg_pool2d", x_map, out)
    total, divisor = sums.astype(float32), np.asarray(count, float32)
    means = np.rint(total / divisor if divide else total * (float32(1) / divisor))
    return saturate(means.astype(np.int64), out)


METHODS: Mapping[str, PluginMethod] = {
    "raw_mean": PluginMethod(
        integer_mean,
        AVERAGES,
        slots=("x",),
        attrs=("kernel", "stride", "pad", "ceil", "count_pad", "layout"),
        params={"divide": FLAG},
        of_sums=integer_mean_of_sums,
    ),
}
"""The methods of this module, by the name that profiles use."""
