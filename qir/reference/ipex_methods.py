"""What oneDNN's fused kernels do under Intel's extension for PyTorch, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qir.errors import OpError
from qir.numerics.affine import Affine
from qir.reference.method import Codes, Method, one_scale, stored
from qir.reference.windows import channels_back, channels_first, padded, windows


def raw_mean(
    x: Codes,
    x_map: Affine,
    out: Affine,
    *,
    kernel: Sequence[int],
    stride: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0, 0, 0),
    ceil: bool = False,
    count_pad: bool = False,
    layout: str = "NCHW",
) -> Codes:
    """Average pooling of raw codes, halves to even; padding that counts counts as code zero."""
    one_scale("raw_mean", x_map, out)
    if not x_map.same_map(out):
        raise OpError("raw_mean: operand and result have one map")
    codes = channels_first("avg_pool2d", x, layout).astype(np.int64)
    sizes = (codes.shape[2], codes.shape[3])
    height, width = windows("avg_pool2d", sizes, kernel, stride, pad, ceil=ceil)
    outside = np.zeros((), np.int64)
    inside = padded(np.ones((1, 1, *sizes), np.int64), height, width, outside)
    framed = padded(codes, height, width, outside)
    total = np.zeros((*codes.shape[:2], height.count, width.count), np.int64)
    count = np.zeros((1, 1, height.count, width.count), np.int64)
    for i, j in np.ndindex(*kernel):
        total += framed[..., height.tap(i), width.tap(j)]
        count += inside[..., height.tap(i), width.tap(j)]
    divisor = np.full((), math.prod(kernel)) if count_pad else count
    # A quotient of whole numbers so small is rounded only where it is no tie.
    whole = np.rint(total / divisor).astype(np.int64)
    return channels_back(stored(whole, out), layout)


METHODS: Mapping[str, Method] = {
    "raw_mean": Method(raw_mean, attrs=("kernel", "stride", "pad", "ceil", "count_pad", "layout")),
}
"""The methods of the extension's profile."""
