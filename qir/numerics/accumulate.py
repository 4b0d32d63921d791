"""Exact sums of code products: what every integer kernel adds up before it rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.fields import Rule, refuse

Codes = NDArray[np.generic]

# Sums of so many products of two 16-bit differences are exact in float64.
_TERMS = 1 << 19


def wrap(total: NDArray[np.floating]) -> NDArray[np.int32]:
    """Whole numbers below 2^53 as 32-bit integers that wrap."""
    return total.astype(np.int64).astype(np.int32)


def check(rule: Rule) -> None:
    """ProfileError for a product that is not executed as a rule says.

    Sums are exact 32-bit ones of codes, a bias is in their unit, later stages work on reals.
    """
    if rule.method is not None:
        raise refuse(rule, "method", str(rule.method))
    for field, value, can in (
        ("acc.type", rule.acc.type, ("i32",)),
        ("acc.overflow", rule.acc.overflow, ("wrap",)),
        ("acc.pairs", rule.acc.pairs, ("exact",)),
        ("acc.pad", rule.acc.pad, ("zero_point",)),
        ("bias.domain", rule.bias.domain, ("given_acc", "rounded_acc")),
        ("weights.given", rule.weights.given, ("codes",)),
        ("params.round", rule.params.round, ("none",)),
        ("stage.relu", rule.stage.relu, ("real",)),
        ("stage.sum", rule.stage.sum, ("real",)),
        ("stage.sum_reads", rule.stage.sum_reads, ("as_is",)),
        ("stage.other", rule.stage.other, ("float",)),
    ):
        if value not in can:
            raise refuse(rule, field, value)


def centred(
    codes: Codes, zero: int | NDArray[np.integer], axis: int | None = None
) -> NDArray[np.float64]:
    """code - zero as whole numbers in float64, zero points lying along an axis if they are many."""
    zeros = np.asarray(zero, np.int64)
    if zeros.ndim and axis is not None:
        shape = [1] * codes.ndim
        shape[axis] = -1
        zeros = zeros.reshape(shape)
    return (codes.astype(np.int64) - zeros).astype(np.float64)


def matmul(
    a: Codes,
    b: Codes,
    a_zero: int | NDArray[np.integer] = 0,
    b_zero: int | NDArray[np.integer] = 0,
) -> NDArray[np.int32]:
    """Sums of (a - a_zero) * (b - b_zero), NumPy's matmul rules; b's zero points lie along columns.

    Raises OpError for a dot product of more terms than are summed exactly.
    """
    if a.shape[-1] > _TERMS:
        raise OpError(f"a dot product of {a.shape[-1]} terms; up to {_TERMS} are summed exactly")
    left = centred(a, a_zero)
    right = centred(b, b_zero, -1)
    return wrap(np.matmul(left, right))


def conv2d(
    x: Codes,
    w: Codes,
    x_zero: int | NDArray[np.integer] = 0,
    w_zero: int | NDArray[np.integer] = 0,
    *,
    stride: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    layout: str = "NCHW",
) -> NDArray[np.int32]:
    """Sums of a convolution on codes; padding counts as the zero point. Weights are OIHW.

    Raises OpError for shapes that do not fit.
    """
    nchw = x if layout == "NCHW" else np.moveaxis(x, -1, 1)
    if nchw.ndim != 4 or w.ndim != 4:
        raise OpError(f"conv2d: x has rank {x.ndim} and w rank {w.ndim}; both have 4")
    channels, wanted = nchw.shape[1], w.shape[1] * groups
    if channels != wanted or w.shape[0] % groups:
        raise OpError(
            f"conv2d: x has {channels} channels, w ({w.shape[0]} from {w.shape[1]}) "
            f"in {groups} groups wants {wanted}"
        )
    padded = np.pad(centred(nchw, x_zero), ((0, 0), (0, 0), (pad[0], pad[2]), (pad[1], pad[3])))
    weights = centred(w, w_zero, 0)
    n, oh, ow = nchw.shape[0], *_sizes(padded.shape[2:], w.shape[2:], stride, dilation)
    total = np.zeros((n, w.shape[0], oh, ow))
    split = padded.reshape(n, groups, channels // groups, *padded.shape[2:])
    sums = total.reshape(n, groups, w.shape[0] // groups, oh * ow)
    by_group = weights.reshape(groups, w.shape[0] // groups, w.shape[1], *w.shape[2:])
    # A product of matrices for each tap of the kernel: no copy of all windows, and fast.
    for i, j in np.ndindex(*w.shape[2:]):
        rows = slice(i * dilation[0], i * dilation[0] + (oh - 1) * stride[0] + 1, stride[0])
        columns = slice(j * dilation[1], j * dilation[1] + (ow - 1) * stride[1] + 1, stride[1])
        tap = split[..., rows, columns].reshape(n, groups, channels // groups, oh * ow)
        if tap.shape[2] == 1:
            sums += by_group[None, :, :, 0, i, j, None] * tap
        else:
            sums += np.matmul(by_group[..., i, j], tap)
    out = wrap(total)
    return out if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(out, 1, -1))


def _sizes(
    image: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[int, int]:
    found = [
        (size - (k - 1) * d - 1) // s + 1
        for size, k, s, d in zip(image, kernel, stride, dilation, strict=True)
    ]
    if min(found) < 1:
        raise OpError(
            f"conv2d: a kernel {tuple(kernel)} does not fit a padded image {tuple(image)}"
        )
    return found[0], found[1]
