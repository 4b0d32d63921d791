"""Convolutions over one and three axes, computed as convolutions over two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qir.errors import OpError
from qir.ir.types import TensorType
from qir.profiles.methods import PluginMethod
from qir.reference.method import (
    Integers,
    MethodCall,
    int_list,
)
from qir.reference.products import ProductKernel, integer_product

Arrays = Mapping[str, Integers]


def run_as_conv2d(call: MethodCall, arrays: Arrays) -> Integers:
    """conv1d and conv3d as the convolution of images that they are: one sum, rounded once."""
    x, w = arrays["x"], arrays["w"]
    stride, pad, dilation = (int_list(call.attrs, name) for name in ("stride", "pad", "dilation"))
    depth: tuple[int, ...] | None = None
    if call.op == "conv1d":
        # A signal is an image of one line.
        x, w = x[:, :, None], w[:, :, None]
        stride, dilation, pad = [1, *stride], [1, *dilation], [0, pad[0], 0, pad[1]]
    # With an odd number of channels a pair spans two taps: the whole window must lie in one row.
    elif call.rule.acc.pairs == "saturate_rows" and w.shape[1] % 2:  # pairs of two slices
        x, w, depth = _windows(x, w, call, stride, pad, dilation)
        stride, dilation, pad = [1, 1], [1, 1], [0] * 4
    else:
        x, w, depth = _slices(x, w, call, stride[0], (pad[0], pad[3]), dilation[0])
        stride, dilation, pad = stride[1:], dilation[1:], [*pad[1:3], *pad[4:]]
    attrs = {
        "stride": tuple(stride),
        "pad": tuple(pad),
        "dilation": tuple(dilation),
        "groups": call.attrs["groups"],
        "layout": "NCHW",
    }
    types = dict(call.types)
    types["x"], types["w"] = (
        TensorType(a.shape, call.types[s].element) for s, a in (("x", x), ("w", w))
    )
    result = TensorType((1,) * 4, call.result.element)
    image = ProductKernel("conv2d", attrs, types, result, replace(call.rule, method=None))
    image_result = integer_product(image, {**arrays, "x": x, "w": w})
    if depth is None:
        return image_result[:, :, 0]
    batch, spatial = len(arrays["x"]), depth[1:] or image_result.shape[2:]
    by_depth = image_result.reshape(batch, depth[0], image_result.shape[1], *spatial)
    # [batch x depth, channels, ...] -> [batch, channels, depth, ...].
    return np.ascontiguousarray(np.moveaxis(by_depth, 1, 2))


def _slices(
    x: Integers, w: Integers, call: MethodCall, stride: int, pad: tuple[int, int], dilation: int
) -> tuple[Integers, Integers, tuple[int]]:
    """Each place along the depth as an image whose channels are those of the slices it sees, of
    each group those of one slice after those of another."""
    # Depth taps become channels: the sum is the same, and so is the order of its terms.
    (channels, taps), zero = w.shape[1:3], call.affine("x").zero
    padded_x = np.pad(x, ((0, 0), (0, 0), pad, (0, 0), (0, 0)), constant_values=int(zero))
    count = _places(padded_x.shape[2], taps, stride, dilation)
    places = np.arange(count)[:, None] * stride + np.arange(taps) * dilation
    windows = np.moveaxis(padded_x[:, :, places], 2, 1)
    groups = x.shape[1] // channels
    by_group = windows.reshape(*windows.shape[:2], groups, channels, *windows.shape[3:]).swapaxes(
        3, 4
    )
    flat = by_group.reshape(x.shape[0] * count, x.shape[1] * taps, *x.shape[3:])
    reordered_w = w.swapaxes(1, 2)
    return flat, reordered_w.reshape(w.shape[0], taps * channels, *w.shape[3:]), (count,)


def _windows(
    x: Integers,
    w: Integers,
    call: MethodCall,
    stride: list[int],
    pad: list[int],
    dilation: list[int],
) -> tuple[Integers, Integers, tuple[int, ...]]:
    """Each place as one element whose channels are what its window sees, of each group the
    channels of one tap after those of another."""
    sides = [(0, 0), (0, 0), *zip(pad[:3], pad[3:], strict=True)]
    padded_x = np.pad(x, sides, constant_values=int(call.affine("x").zero))
    steps = list(zip(padded_x.shape[2:], w.shape[2:], stride, dilation, strict=True))
    counts = tuple(_places(*step) for step in steps)
    groups, channels = x.shape[1] // w.shape[1], w.shape[1]
    taps = math.prod(w.shape[2:])
    elements = np.empty((len(x), groups, taps, channels, *counts), x.dtype)
    for number, tap in enumerate(np.ndindex(*w.shape[2:])):
        depth, rows, columns = (
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilation, counts, stride, strict=True)
        )
        values = padded_x[:, :, depth, rows, columns]
        elements[:, :, number] = values.reshape(len(x), groups, channels, *counts)
    depth_per_group = taps * channels
    flat = np.moveaxis(elements.reshape(len(x), groups * depth_per_group, *counts), 2, 1)
    image = flat.reshape(len(x) * counts[0], groups * depth_per_group, counts[1] * counts[2], 1)
    reordered_w = np.moveaxis(w, 1, -1).reshape(len(w), depth_per_group, 1, 1)
    return image, reordered_w, counts


def _places(size: int, taps: int, stride: int, dilation: int) -> int:
    """Returns how many windows there are along a padded axis; raises OpError for none."""
    count = (size - (taps - 1) * dilation - 1) // stride + 1
    if count < 1:
        raise OpError(f"a kernel of {taps} does not fit a padded side of {size}")
    return count


METHODS: Mapping[str, PluginMethod] = {
    "as_conv2d": PluginMethod(
        run_as_conv2d, ("conv1d", "conv3d"), reads=("acc", "bias", "requant", "stage"), reals=True
    ),
}
"""The methods of this module, by the name that profiles use."""
