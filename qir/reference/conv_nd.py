"""Convolution along any number of axes, and transposed convolution, tap by tap of the kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from qir.errors import OpError
from qir.reference.operands import (
    Array,
    common_dtype,
    int_tuple,
    require_rank,
    round_to_dtype,
    to_float64,
)
from qir.reference.product import product

Ints = Sequence[int]


def _conv(n: int) -> Callable[..., Array]:
    op = f"conv{n}d"

    @np.errstate(all="ignore")
    def run(
        x: Array,
        w: Array,
        bias: Array | None = None,
        *,
        stride: Ints = (1,) * n,
        pad: Ints = (0,) * 2 * n,
        dilation: Ints = (1,) * n,
        groups: int = 1,
    ) -> Array:
        s, d, p = _check(op, n, x, w, bias, (stride, dilation, pad), groups)
        if x.shape[1] != w.shape[1] * groups or len(w) % groups:
            raise OpError(f"{op}: x {list(x.shape)} and w {list(w.shape)} do not fit")
        # Padding takes part as zeros, so an infinite weight that meets it gives NaN, as in
        # onnxruntime.
        padded_x = np.pad(to_float64(x), [(0, 0), (0, 0), *zip(p[:n], p[n:], strict=True)])
        spans = [(k - 1) * b + 1 for k, b in zip(w.shape[2:], d, strict=True)]
        sizes = [(g - r) // a + 1 for g, r, a in zip(padded_x.shape[2:], spans, s, strict=True)]
        if min(sizes) < 0:
            raise OpError(f"{op}: a window of {spans} is larger than the padded input")
        kernels = to_float64(w).reshape(groups, len(w) // groups, *w.shape[1:])
        sums = np.zeros((len(x), groups, len(w) // groups, int(np.prod(sizes))), padded_x.dtype)
        for tap in np.ndindex(w.shape[2:]):
            elements = padded_x[(slice(None), slice(None), *_places(tap, d, s, sizes))]
            columns = elements.reshape(len(x), groups, w.shape[1], int(np.prod(sizes)))
            sums = np.add(sums, product(kernels[(..., *tap)], columns))
        return _finish(sums.reshape(len(x), len(w), *sizes), bias, x)

    return run


def _transposed(n: int) -> Callable[..., Array]:
    op = f"conv_transpose{n}d"

    @np.errstate(all="ignore")
    def run(
        x: Array,
        w: Array,
        bias: Array | None = None,
        *,
        stride: Ints = (1,) * n,
        pad: Ints = (0,) * 2 * n,
        dilation: Ints = (1,) * n,
        groups: int = 1,
        output_pad: Ints = (0,) * n,
    ) -> Array:
        s, d, p = _check(op, n, x, w, bias, (stride, dilation, pad), groups)
        output_pads = int_tuple(op, "output_pad", output_pad, n, 0)
        if x.shape[1] != len(w) or len(w) % groups:
            raise OpError(f"{op}: x {list(x.shape)} and w {list(w.shape)} do not fit")
        padded_sizes = [
            (i - 1) * a + (k - 1) * b + 1 + m
            for i, a, k, b, m in zip(x.shape[2:], s, w.shape[2:], d, output_pads, strict=True)
        ]
        sizes = [q - p[i] - p[i + n] for i, q in enumerate(padded_sizes)]
        if min(sizes) < 0:
            raise OpError(f"{op}: pad {p} takes away more than {padded_sizes}")
        kernels = to_float64(w).reshape(groups, len(w) // groups, *w.shape[1:])
        columns = to_float64(x).reshape(len(x), groups, len(w) // groups, math.prod(x.shape[2:]))
        sums = np.zeros((len(x), w.shape[1] * groups, *padded_sizes), columns.dtype)
        # Each tap adds its products to the positions that it reaches.
        for tap in np.ndindex(w.shape[2:]):
            products = product(kernels[(..., *tap)].swapaxes(1, 2), columns)
            target = (slice(None), slice(None), *_places(tap, d, s, x.shape[2:]))
            sums[target] = np.add(sums[target], products.reshape(*sums.shape[:2], *x.shape[2:]))
        # The pads are cut off the full result.
        inside = tuple(slice(p[i], p[i] + size) for i, size in enumerate(sizes))
        return _finish(sums[(slice(None), slice(None), *inside)], bias, x)

    return run


def _check(
    op: str,
    n: int,
    x: Array,
    w: Array,
    bias: Array | None,
    lists: tuple[Ints, Ints, Ints],
    groups: int,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    common_dtype(op, x=x, w=w, bias=bias)
    require_rank(op, "x", x, n + 2)
    require_rank(op, "w", w, n + 2)
    if groups < 1:
        raise OpError(f"{op}: groups {groups}")
    stride, dilation, pad = lists
    return (
        int_tuple(op, "stride", stride, n, 1),
        int_tuple(op, "dilation", dilation, n, 1),
        int_tuple(op, "pad", pad, 2 * n, 0),
    )


def _places(
    tap: tuple[int, ...], dilation: tuple[int, ...], stride: tuple[int, ...], sizes: Ints
) -> tuple[slice, ...]:
    """Where one element of the kernel meets the longer side, place after place."""
    starts = [t * d for t, d in zip(tap, dilation, strict=True)]
    return tuple(
        slice(start, start + max(size - 1, 0) * step + (size > 0), step)
        for start, step, size in zip(starts, stride, sizes, strict=True)
    )


def _finish(sums: Array, bias: Array | None, x: Array) -> Array:
    if bias is not None:
        if bias.size != sums.shape[1]:
            raise OpError(f"a bias of {bias.size} numbers for {sums.shape[1]} channels")
        sums = np.add(sums, to_float64(bias).reshape(-1, *(1,) * (sums.ndim - 2)))
    return np.ascontiguousarray(round_to_dtype(sums, x.dtype))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "conv1d": _conv(1),
    "conv3d": _conv(3),
    "conv_transpose1d": _transposed(1),
    "conv_transpose2d": _transposed(2),
    "conv_transpose3d": _transposed(3),
}
