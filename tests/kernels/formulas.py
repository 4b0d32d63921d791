"""What each step computes, in plain NumPy: slow, obvious, and written without the kernels."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

F32 = np.float32
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def rounded(real: Floats, zero: int, low: int, high: int) -> Ints:
    """clamp(rne(real) + zero), clamped before it is rounded; a NaN is the low code."""
    real = np.where(real > F32(low - zero), real, F32(low - zero))
    real = np.where(real < F32(high - zero), real, F32(high - zero))
    return np.rint(real).astype(np.int64) + zero


def converted(real: Floats, low: int, high: int) -> Ints:
    """clamp(rne(real)), clamped as an integer: what does not fit 32 bits is their least."""
    fits = (real >= F32(-(2.0**31))) & (real < F32(2.0**31))
    whole = np.where(fits, np.rint(np.where(fits, real, F32(0))), -(2.0**31))
    return whole.astype(np.int64).clip(low, high)


def wrapped(acc: Ints) -> Floats:
    """Sums as a 32-bit register holds them, in float32."""
    return acc.astype(np.uint64).astype(np.uint32).view(np.int32).astype(F32)


def fma(
    a: NDArray[np.generic], b: NDArray[np.generic] | float, c: NDArray[np.generic] | float
) -> Floats:
    """f32(a * b + c) with one rounding: by rounding to odd in float64."""
    product = a.astype(np.float64) * np.asarray(b, F32).astype(np.float64)  # exact
    addend = np.broadcast_to(np.asarray(c, F32).astype(np.float64), product.shape)
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    even = total.view(np.int64) & 1 == 0
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, odd, total).astype(F32)


def accumulate(
    x: NDArray[np.generic],
    weight: NDArray[np.generic],
    stride: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    x_zero: int = 0,
) -> Ints:
    """The exact sums of a convolution of NHWC integers with OIHW weights."""
    n, h, w, c = x.shape
    out, taken, kh, kw = weight.shape
    padded = np.zeros((n, h + pad[0] + pad[2], w + pad[1] + pad[3], c), np.int64)
    padded[:, pad[0] : pad[0] + h, pad[1] : pad[1] + w] = x.astype(np.int64) - x_zero
    oh = (padded.shape[1] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (padded.shape[2] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    acc = np.zeros((n, oh, ow, out), np.int64)
    each = out // groups
    for ky in range(kh):
        for kx in range(kw):
            top, left = ky * dilation[0], kx * dilation[1]
            rows = slice(top, top + (oh - 1) * stride[0] + 1, stride[0])
            columns = slice(left, left + (ow - 1) * stride[1] + 1, stride[1])
            taps = padded[:, rows, columns]
            for g in range(groups):
                mine = slice(g * each, (g + 1) * each)
                right = weight[mine, :, ky, kx].astype(np.int64).T
                acc[..., mine] += taps[..., g * taken : (g + 1) * taken] @ right
    return acc


def windows(
    shape: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Each output place with the input places of its window, row by row, padding left out."""
    for oy in range(out[0]):
        for ox in range(out[1]):
            top, left = oy * stride[0] - pad[0], ox * stride[1] - pad[1]
            ys = [top + i * dilation[0] for i in range(kernel[0])]
            xs = [left + i * dilation[1] for i in range(kernel[1])]
            yield (
                oy,
                ox,
                [(y, x) for y in ys for x in xs if 0 <= y < shape[0] and 0 <= x < shape[1]],
            )
