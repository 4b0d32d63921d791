"""What oneDNN's fused kernels do under Intel's extension for PyTorch, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qir.numerics.affine import Affine
from qir.reference.method import Codes, Method, handed_on, one_scale, stored
from qir.reference.tflite_methods import code_sums
from qir.reference.windows import channels_back


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
    handed_on("avg_pool2d", x_map, out)
    total, count = code_sums(x, kernel, stride, pad, ceil=ceil, layout=layout)
    divisor = math.prod(kernel) if count_pad else count
    # Quotients of whole numbers this small are ties in float64 where they are ties.
    whole = np.rint(total / divisor).astype(np.int64)
    return channels_back(stored(whole, out), layout)


METHODS: Mapping[str, Method] = {
    "raw_mean": Method(raw_mean, attrs=("kernel", "stride", "pad", "ceil", "count_pad", "layout")),
}
"""The methods of the extension's profile."""
