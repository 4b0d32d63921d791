"""What kernels of Intel's extension for PyTorch, oneDNN's and its own, do to the last bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics import dequantize, quantize
from qir.numerics.affine import Affine
from qir.numerics.rounding import fma
from qir.reference.embedding import starts_of
from qir.reference.method import Call, Codes, F, Method, handed_on, one_scale, stored
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


def sums_in_turn(call: Call, arrays: Mapping[str, Codes]) -> Codes:
    """A product of reals in float32, one term after the other, each added in one rounding."""
    a, b = (dequantize(arrays[slot], call.map(slot), call.rule) for slot in ("a", "b"))
    a = a.swapaxes(-1, -2) if call.attrs["trans_a"] else a
    b = b.swapaxes(-1, -2) if call.attrs["trans_b"] else b
    total = np.zeros((*a.shape[:-1], b.shape[-1]), F)
    for k in range(a.shape[-1]):
        total = fma(a[..., k : k + 1], b[..., k : k + 1, :], total)
    return total if call.out is None else quantize(total, call.out, call.rule)


def by_one_factor(x: Codes, x_map: Affine, out: Affine) -> Codes:
    """Codes about 0 times the quotient of the scales, one float32, halves to even."""
    return _scaled("by_one_factor", x.astype(np.int64), x_map, out)


def summed_rows(
    w: Codes,
    w_map: Affine,
    out: Affine,
    *,
    mode: str,
    last: bool,
    padding: int | None,
    indices: Codes,
    offsets: Codes | None = None,
    weights: Codes | None = None,
) -> Codes:
    """Sums of rows of codes by one factor."""
    if mode != "sum" or padding is not None or weights is not None:
        raise OpError("embedding_bag: the runtime sums rows of codes, without padding or weights")
    rows = indices.astype(np.int64)
    if rows.size and not 0 <= rows.min() <= rows.max() < len(w):
        raise OpError("embedding_bag: a row is not there")
    flat, starts = rows.reshape(-1), starts_of("embedding_bag", rows, offsets, last)
    if any(start == end for start, end in pairwise(starts)):
        raise OpError("embedding_bag: for a bag of nothing the runtime hands on what was in memory")
    sums = [np.sum(w[flat[a:b]], 0, dtype=np.int64) for a, b in pairwise(starts)]
    return _scaled("embedding_bag", np.array(sums).reshape(-1, w.shape[1]), w_map, out)


def _scaled(name: str, whole: NDArray[np.int64], of: Affine, out: Affine) -> Codes:
    one_scale(name, of, out)
    if np.any(of.zero) or np.any(out.zero):
        raise OpError(f"{name}: the runtime's kernel takes no zero point but 0")
    factor = F(F(of.scale) / F(out.scale))
    return stored(np.rint(whole.astype(F) * factor).astype(np.int64), out)


METHODS: Mapping[str, Method] = {
    "by_one_factor": Method(by_one_factor),
    "sums_in_turn": Method(sums_in_turn, whole=True, reals=True),
    "summed_rows": Method(
        summed_rows,
        ("w",),
        attrs=("mode", "last", "padding"),
        beside=("indices", "offsets", "weights"),
    ),
    "raw_mean": Method(raw_mean, attrs=("kernel", "stride", "pad", "ceil", "count_pad", "layout")),
}
"""The methods of the extension's profile."""
