"""Exact sums of integer products, as an integer kernel's accumulator holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError, ProfileError
from qir.numerics import consistency
from qir.numerics.fields import Acc, Rule

Integers = NDArray[np.generic]
Sums = NDArray[np.integer]
"""Whole sums; where a rule holds them in floats, these are float32."""
WRAPPING_INT32 = Acc()
"""Sums of 32 bits that wrap."""

# 2^19 products of two differences of 16-bit values (each below 2^16) stay below 2^51, so that
# float64, and with it BLAS, sums them exactly in any order.
_MAX_TERMS = 1 << 19


def wrap_to_int32(total: NDArray[np.floating]) -> NDArray[np.int32]:
    """Converts integral floats below 2^53 to int32, wrapping."""
    return total.astype(np.int64).astype(np.int32)


def to_accumulator_type(total: NDArray[np.float64], how: Acc) -> Sums:
    """Converts integral floats below 2^53 to the accumulator type of the rule."""
    if how.type == "f32":
        return cast("Sums", total.astype(np.float32))
    if how.type == "i64":
        return total.astype(np.int64)
    if how.overflow == "saturate":
        return np.clip(total, -(2.0**31), 2.0**31 - 1).astype(np.int32)
    return wrap_to_int32(total)


def check(rule: Rule) -> None:
    """Raises ProfileError for a product whose rule names a method, or says what cannot be meant."""
    if rule.method is not None:
        name = rule.profile or "(unnamed)"
        raise ProfileError(f"profile {name}: no method {rule.method} computes integer products")
    consistency.check(rule)


def add_bias(acc: Integers, bias: Integers, how: Acc) -> Integers:
    """Sums with whole numbers in their own unit added."""
    if how.type == "f32":
        return np.asarray(acc.astype(np.float64) + bias.astype(np.float64), np.float32)
    total = acc.astype(np.int64) + bias.astype(np.int64)
    if how.type == "i64":
        return total
    if how.overflow == "saturate":
        # The bias is added to the sum that was saturated already, so that it may bring it back from
        # the end.
        total = np.clip(total, -(2**31), 2**31 - 1)
    return total.astype(np.int32)


def subtract_zero(
    integers: Integers, zero: int | NDArray[np.integer], axis: int | None = None
) -> NDArray[np.float64]:
    """q - zero as whole numbers in float64, zero points lying along an axis if they are many."""
    zeros = np.asarray(zero, np.int64)
    if zeros.ndim and axis is not None:
        shape = [1] * integers.ndim
        shape[axis] = -1
        zeros = zeros.reshape(shape)
    return (integers.astype(np.int64) - zeros).astype(np.float64)


def matmul(
    a: Integers,
    b: Integers,
    a_zero: int | NDArray[np.integer] = 0,
    b_zero: int | NDArray[np.integer] = 0,
    *,
    how: Acc = WRAPPING_INT32,
    raw: tuple[Integers, Integers] | None = None,
) -> Sums:
    """Sums of (a - a_zero) * (b - b_zero), NumPy's matmul rules; b's zero points are along columns.

    `raw` are the quantized values where a and b are less their zeros already. Raises OpError for a
    dot product of more terms than are summed exactly.
    """
    if a.shape[-1] > _MAX_TERMS:
        raise OpError(
            f"a dot product of {a.shape[-1]} terms; up to {_MAX_TERMS} are summed exactly"
        )
    left = subtract_zero(a, a_zero)
    right = subtract_zero(b, b_zero, -1)
    total = np.matmul(left, right)
    # Saturation is a correction of the exact sum, because few pairs reach it and BLAS does the
    # rest.
    if _saturates_pairs(how) and (byte_operands := _as_u8_and_i8(*(raw or (a, b)))):
        rows, columns = byte_operands
        # A vector takes part as a matrix of one row or column, as in NumPy's matmul.
        rows = rows[None] if rows.ndim == 1 else rows
        columns = columns[:, None] if columns.ndim == 1 else columns
        total = total + _pair_saturation_loss(rows, columns).reshape(np.shape(total))
    return to_accumulator_type(np.asarray(total), how)


def _as_u8_and_i8(
    data: Integers, weight: Integers
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """8-bit data as unsigned bytes, and i8 weights; None where no pairs of 16 bits are summed."""
    if data.dtype.itemsize > 1 or weight.dtype != np.int8 or data.dtype.kind not in "iu":
        return None
    # vpmaddubsw multiplies unsigned by signed bytes: kernels move signed data up by 128 and take
    # that off after the sum.
    shift = 128 if data.dtype.kind == "i" else 0
    return data.astype(np.int64) + shift, weight.astype(np.int64)


def _pair_saturation_loss(a: NDArray[np.integer], b: NDArray[np.integer]) -> NDArray[np.float64]:
    """Returns what sums of a @ b lose where terms 2i and 2i + 1 are added in 16 bits that
    saturate."""
    # An odd last term has no partner and cannot saturate: 255 * 128 is below 2^15.
    lost = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))
    if not a.size or not b.size:
        return lost
    # Only pairs whose largest possible sum exceeds 16 bits are looked at; most weights have none.
    largest_products = np.abs(a).max(axis=tuple(range(a.ndim - 1))) * np.abs(
        np.moveaxis(b, -2, -1)
    ).max(axis=tuple(range(b.ndim - 1)))
    paired = largest_products.size // 2 * 2
    low, high = np.int32(-32768), np.int32(32767)
    left, right = a.astype(np.int32), b.astype(np.int32)
    for i in 2 * np.flatnonzero(
        largest_products[0:paired:2] + largest_products[1:paired:2] > 32767
    ):
        pair = left[..., i, None] * right[..., None, i, :]
        pair += left[..., i + 1, None] * right[..., None, i + 1, :]
        lost += np.maximum(np.minimum(pair, high), low) - pair
    return lost


def conv2d(
    x: Integers,
    w: Integers,
    x_zero: int | NDArray[np.integer] = 0,
    w_zero: int | NDArray[np.integer] = 0,
    *,
    stride: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    layout: str = "NCHW",
    how: Acc = WRAPPING_INT32,
) -> Sums:
    """Sums of a quantized convolution; padding counts as the zero point. Weights are OIHW.

    Raises OpError for shapes that do not fit.
    """
    nchw = x if layout == "NCHW" else np.moveaxis(x, -1, 1)
    if nchw.ndim != 4 or w.ndim != 4:
        raise OpError(f"conv2d: x has rank {x.ndim} and w rank {w.ndim}; both have 4")
    channels, expected = nchw.shape[1], w.shape[1] * groups
    if channels != expected or w.shape[0] % groups:
        raise OpError(
            f"conv2d: x has {channels} channels, w ({w.shape[0]} from {w.shape[1]}) "
            f"in {groups} groups wants {expected}"
        )
    sides = ((0, 0), (0, 0), (pad[0], pad[2]), (pad[1], pad[3]))
    # The padding's own contribution is (border - zero) * w: 0 where it is the zero point.
    border = 0 if how.pad == "zero_code" else int(np.asarray(x_zero))
    padded = subtract_zero(np.pad(nchw, sides, constant_values=border), x_zero)
    # oneDNN halves the weights of signed convolutions without VNNI, so that no pair saturates, and
    # doubles the sum: the lowest bit of each weight is lost, and halves go to even.
    is_halved = how.pairs == "halve_signed" and x.dtype == np.int8 and w.dtype == np.int8
    weights = (
        2 * np.rint(subtract_zero(w, w_zero, 0) / 2) if is_halved else subtract_zero(w, w_zero, 0)
    )
    batch, height, width = (
        nchw.shape[0],
        *_output_sizes(padded.shape[2:], w.shape[2:], stride, dilation),
    )
    total = np.zeros((batch, w.shape[0], height, width))
    by_group_x = padded.reshape(batch, groups, channels // groups, *padded.shape[2:])
    sums = total.reshape(batch, groups, w.shape[0] // groups, height * width)
    by_group = weights.reshape(groups, w.shape[0] // groups, w.shape[1], *w.shape[2:])
    has_pairs = _saturates_pairs(how) and not is_halved
    lowest_code = -128 if x.dtype.kind == "i" else 0
    # A kernel that leaves padded taps out adds nothing for them; in unsigned bytes nothing is 0,
    # which is the lowest integer of the data's type.
    outside_value = lowest_code if how.pad == "left_out" else border
    raw = (
        _as_u8_and_i8(np.pad(nchw, sides, constant_values=outside_value), w) if has_pairs else None
    )
    # A product of matrices for each tap of the kernel: no copy of all windows, and fast.
    for i, j in np.ndindex(*w.shape[2:]):
        rows = slice(i * dilation[0], i * dilation[0] + (height - 1) * stride[0] + 1, stride[0])
        columns = slice(j * dilation[1], j * dilation[1] + (width - 1) * stride[1] + 1, stride[1])
        tap = by_group_x[..., rows, columns].reshape(
            batch, groups, channels // groups, height * width
        )
        # Depthwise: a product of numbers, not of matrices of depth one.
        if tap.shape[2] == 1:
            sums += by_group[None, :, :, 0, i, j, None] * tap
        else:
            sums += np.matmul(by_group[..., i, j], tap)
        # Where no pair is of two taps, each tap has its own pairs and its correction is added here.
        if raw is not None and not _pairs_cross_taps(how, w.shape[1]):
            bytes_seen = raw[0].reshape(by_group_x.shape)[..., rows, columns].reshape(tap.shape)
            sums += _pair_saturation_loss(raw[1].reshape(by_group.shape)[..., i, j], bytes_seen)
    if raw is not None and how.pairs == "saturate_rows" and _pairs_cross_taps(how, w.shape[1]):
        byte_data = raw[0].reshape(by_group_x.shape)
        sums += _row_saturation_loss(
            raw[1].reshape(by_group.shape), byte_data, (height, width), stride, dilation
        )
    if raw is not None and how.pairs == "saturate_taps":
        byte_data = raw[0].reshape(by_group_x.shape)
        inside = ((height, width), stride, dilation)
        sums += _tap_saturation_loss(raw[1].reshape(by_group.shape), byte_data, *inside)
        # The kernel also sums the bytes of each window for the zero point of the weights, in 16
        # bits too.
        zeros = np.broadcast_to(np.asarray(w_zero, np.int64), w.shape[0]).reshape(groups, -1)
        sums += _window_sum_saturation(zeros, byte_data, w[0].size, w.shape[2:], *inside)
    out = to_accumulator_type(total, how)
    return out if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(out, 1, -1))


def _pairs_cross_taps(how: Acc, channels: int) -> bool:
    """Returns whether some pair of terms is of two taps."""
    return how.pairs == "saturate_taps" or (how.pairs == "saturate_rows" and channels % 2 == 1)


def _row_saturation_loss(
    w: NDArray[np.int64],
    x: NDArray[np.int64],
    sizes: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> NDArray[np.float64]:
    """Returns what sums lose where terms 2i and 2i + 1 of a window saturate at 16 bits.

    The terms of a window are ordered by tap, then by channel, so that a pair may be of two taps.

    Weights are [groups, out, in, height, width], data [images, groups, in, height, width].
    """
    terms = w.shape[2] * w.shape[3] * w.shape[4]
    windows = np.empty((*x.shape[:2], w.shape[3] * w.shape[4], w.shape[2], *sizes), np.uint8)
    for number, tap in enumerate(np.ndindex(*w.shape[3:])):
        rows, columns = (
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilation, sizes, stride, strict=True)
        )
        windows[:, :, number] = x[..., rows, columns]
    flat = np.moveaxis(w, 2, -1).reshape(*w.shape[:2], terms)
    return _pair_saturation_loss(flat, windows.reshape(*x.shape[:2], terms, sizes[0] * sizes[1]))


def _tap_saturation_loss(
    w: NDArray[np.int64],
    x: NDArray[np.int64],
    sizes: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> NDArray[np.float64]:
    """Returns what sums lose where terms 2i and 2i + 1 of a row of weights are added in 16 bits.

    Weights are [groups, out, in, height, width], data [images, groups, in, height, width].
    """
    # Depthwise kernels of FBGEMM read a row of weights in memory order, two by two.
    taps = list(np.ndindex(*w.shape[2:]))
    lost = np.zeros((len(x), w.shape[0], w.shape[1], *sizes))

    def products(tap: tuple[int, ...]) -> NDArray[np.int64]:
        rows, columns = (
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap[1:], dilation, sizes, stride, strict=True)
        )
        weight = w[:, :, tap[0], tap[1], tap[2]]
        return np.asarray(x[:, :, None, tap[0], rows, columns] * weight[:, :, None, None])

    highest = int(x.max(initial=0))
    for first, second in zip(taps[::2], taps[1::2], strict=False):
        # A cheap bound first: with most weights no window of this pair can reach 2^15.
        reach = sum(np.abs(w[:, :, c, i, j]) for c, i, j in (first, second))
        if int(np.max(reach, initial=0)) * highest <= 32767:
            continue
        pair = products(first) + products(second)
        lost += np.clip(pair, -32768, 32767) - pair
    return lost.reshape(*lost.shape[:3], -1)


def _window_sum_saturation(
    zeros: NDArray[np.int64],
    x: NDArray[np.int64],
    terms: int,
    kernel: Sequence[int],
    sizes: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> NDArray[np.float64]:
    """What sums gain where the quantized values of a window, which the zero points of weights are
    multiplied with, are added in 16 bits that saturate. Zero points are [groups, out]."""
    lost = np.zeros((len(x), *zeros.shape, sizes[0] * sizes[1]))
    if terms * int(x.max(initial=0)) <= 32767 or not zeros.any():
        return lost
    total = np.zeros((*x.shape[:2], *sizes), np.int64)
    for tap in np.ndindex(*kernel):
        rows, columns = (
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilation, sizes, stride, strict=True)
        )
        total += x[..., rows, columns].sum(axis=2)
    excess = np.maximum(total - 32767, 0).reshape(*x.shape[:2], 1, -1)
    return np.asarray(lost + excess * zeros[:, :, None])


def _saturates_pairs(how: Acc) -> bool:
    return how.pairs != "exact"


def _output_sizes(
    image: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[int, int]:
    sizes = [
        (size - (k - 1) * d - 1) // s + 1
        for size, k, s, d in zip(image, kernel, stride, dilation, strict=True)
    ]
    if min(sizes) < 1:
        raise OpError(
            f"conv2d: a kernel {tuple(kernel)} does not fit a padded image {tuple(image)}"
        )
    return sizes[0], sizes[1]
