"""Transposed convolutions of quantized values, as the convolutions that they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.ir.ops.layers import TRANSPOSED_CONVOLUTIONS
from qir.ir.types import Element, TensorType, uniform
from qir.numerics.affine import Affine
from qir.profiles.methods import FLAG, PluginMethod
from qir.reference.conv_of_other_ranks import run_as_conv2d
from qir.reference.method import (
    Integers,
    MethodCall,
    int_list,
    require_per_tensor,
)
from qir.reference.products import ProductKernel, integer_product

Arrays = Mapping[str, Integers]


def transposed(call: MethodCall, arrays: Arrays, *, misread: bool = False) -> Integers:
    """Computes a transposed convolution as a plain one; gaps in the data hold the zero point.

    With `misread` weights are read as oneDNN reads those that torch hands it: as other weights,
    wherever the numbers of input and output channels differ.
    """
    spatial = call.types["x"].rank - 2
    x, weight_map = call.affine("x"), call.affine("w")
    require_per_tensor(call.op, x)
    attrs, groups = call.attrs, call.attrs["groups"]
    assert isinstance(groups, int)
    w = _swap_channels(
        _swap_channels_as_read(arrays["w"], groups) if misread else arrays["w"], groups
    )
    # A transposed convolution is a convolution of x with gaps of stride - 1 zeros and a mirrored
    # kernel. Mirroring data and result instead keeps the weights, and so the order of each sum.
    spread_x = _reverse_spatial(_insert_gaps(arrays["x"], attrs, w.shape[2:], int(x.zero)))
    if (
        min(
            spread_x.shape[2 + i] - (w.shape[2 + i] - 1) * d
            for i, d in enumerate(int_list(attrs, "dilation"))
        )
        < 1
    ):
        raise OpError(f"{call.op}: pad takes away more than there is")
    types = dict(call.types)
    types["x"] = TensorType(spread_x.shape, call.types["x"].element)
    types["w"] = TensorType(w.shape, _weight_type(call, weight_map, groups))
    plain_attrs: dict[str, Attr] = {
        "stride": (1,) * spatial,
        "pad": (0,) * 2 * spatial,
        "dilation": attrs["dilation"],
        "groups": groups,
    }
    operands = {**arrays, "x": spread_x, "w": w}
    if spatial == 2:
        result = TensorType((1,) * 4, call.result.element)
        rule = replace(call.rule, method=None)
        image = ProductKernel("conv2d", {**plain_attrs, "layout": "NCHW"}, types, result, rule)
        return _reverse_spatial(integer_product(image, operands))
    flat = ProductKernel(f"conv{spatial}d", plain_attrs, types, call.result, call.rule)
    return _reverse_spatial(run_as_conv2d(flat, operands))


def _swap_channels_as_read(w: Integers, groups: int) -> Integers:
    """Returns weights whose channel axes were swapped in memory but not in the shape, twice.

    They stay the same where both axes have one length.
    """
    in_channels, out_channels = w.shape[0] // groups, w.shape[1]
    kernel = w.shape[2:]
    misread = w.reshape(groups, out_channels, in_channels, *kernel).swapaxes(1, 2)
    misread = misread.reshape(groups, out_channels, in_channels, *kernel).swapaxes(1, 2)
    return misread.reshape(w.shape)


def _weight_type(call: MethodCall, of: Affine, groups: int) -> Element:
    """Returns the quantized type of weights that are turned round: each group has the same
    scales."""
    if of.axis is None:
        return call.types["w"].element
    if of.axis != 1:
        raise OpError(f"{call.op}: scales of weights are along output channels, axis 1")
    # Output channels of a transposed convolution are counted within a group, those of a convolution
    # through all groups.
    return uniform(of.storage, np.tile(of.scale, groups), np.tile(of.zero, groups), axis=0)


def _swap_channels(w: Integers, groups: int) -> Integers:
    """Weights [in, out / groups, ...] as [out, in / groups, ...]."""
    by_group = w.reshape(groups, len(w) // groups, *w.shape[1:]).swapaxes(1, 2)
    return by_group.reshape(groups * w.shape[1], len(w) // groups, *w.shape[2:])


def _reverse_spatial(x: Integers) -> Integers:
    """Returns an image or volume with its last element first."""
    return np.ascontiguousarray(np.flip(x, tuple(range(2, x.ndim))))


def _insert_gaps(
    x: Integers, attrs: Mapping[str, Attr], kernel: Sequence[int], zero: int
) -> Integers:
    """Returns the data with gaps of stride - 1 between elements, padded by what the kernel sees."""
    spatial = x.ndim - 2
    stride, pad, dilation, output_pad = (
        int_list(attrs, name) for name in ("stride", "pad", "dilation", "output_pad")
    )
    # The full convolution: each element meets each tap, and `pad` then cuts the edges off.
    sides = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    sizes = [(size - 1) * s + 1 for size, s in zip(x.shape[2:], stride, strict=True)]
    padded_sizes = [
        size + 2 * side + m for size, side, m in zip(sizes, sides, output_pad, strict=True)
    ]
    out = np.full((*x.shape[:2], *padded_sizes), zero, x.dtype)
    target = tuple(slice(b, b + size, s) for b, size, s in zip(sides, sizes, stride, strict=True))
    out[(slice(None), slice(None), *target)] = x
    cropped = tuple(slice(pad[i], padded_sizes[i] - pad[i + spatial]) for i in range(spatial))
    return np.ascontiguousarray(out[(slice(None), slice(None), *cropped)])


METHODS: Mapping[str, PluginMethod] = {
    "transposed": PluginMethod(
        transposed,
        tuple(sorted(TRANSPOSED_CONVOLUTIONS)),
        reads=("acc", "bias", "requant", "stage"),
        params={"misread": FLAG},
        reals=True,
    ),
}
"""The methods of this module, by the name that profiles use."""
