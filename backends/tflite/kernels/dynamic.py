"""TensorFlow Lite's layers of float data and 8- or 4-bit weights. Data are quantized at run time
per row or image, and integer sums are dequantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics import accumulate
from qir.numerics.rounding import ROUNDINGS, fma
from qir.profiles.methods import FLAG, Param, PluginMethod
from qir.reference.method import Float32Array, Integers, MethodCall, float32

_AWAY = ROUNDINGS["away"]
_LONG, _MANY = 32, 4
"""Four-bit weights are packed in rows of so many, where there are as many rows."""
Arrays = Mapping[str, Integers]
Numbers = tuple[Float32Array, Float32Array, Float32Array]
"""Quantized values as float32, a scale and a zero point a row."""


# -- quantized data -------------------------------------------------------------------------------


def _clear(rows: Integers) -> Float32Array:
    """Rows of float32 that have a least and a greatest number."""
    reals: Float32Array = rows.astype(float32)
    if reals.size and not np.isfinite(reals).all():
        raise OpError("data quantized at run time are finite")
    return reals


def reached(rows: Integers) -> Numbers:
    """Quantized values from -127 to 127 around zero."""
    reals = _clear(rows)
    reach = np.abs(reals).max(1, initial=0, keepdims=True)
    still = reach == 0
    kept = np.where(still, float32(1), reach)
    codes = np.clip(_AWAY(reals * (float32(127) / kept)), -127, 127)
    scale = np.where(still, float32(1), kept / float32(127))
    return codes.astype(float32), scale, np.zeros_like(scale)


def _ends(reals: Float32Array) -> tuple[Float32Array, Float32Array, NDArray[np.bool_]]:
    least = np.minimum(reals.min(1, initial=0, keepdims=True), float32(0))
    most = np.maximum(reals.max(1, initial=0, keepdims=True), float32(0))
    return least, most, least == most


def spanned(rows: Integers) -> Numbers:
    """Quantized values from -128 to 127 between the ends, in float64 but for the scale."""
    reals = _clear(rows)
    least, most, still = _ends(reals)
    step = np.where(still, 1.0, np.asarray(most - least, np.float64) / 255.0)
    low, high = least / step, most / step
    nearer = 128 + np.abs(low) < 127 + np.abs(high)
    zero = np.clip(_AWAY(np.where(nearer, -128 - low, 127 - high)), -128, 127)
    zero = np.where(still, 0.0, zero).astype(float32)
    scale = step.astype(float32)
    codes = np.clip(zero + _AWAY(reals * (float32(1) / scale)), -128, 127)
    return np.where(still, float32(0), codes), scale, zero


def inverted(rows: Integers) -> Numbers:
    """Returns the same in float32, by a gain whose inverse is the scale: XNNPACK's."""
    reals = _clear(rows)
    least, most, still = _ends(reals)
    gain = np.where(still, float32(1), float32(255) / np.where(still, float32(1), most - least))
    low, high = least * gain, most * gain
    above = (low + float32(-128)) + (high + float32(127)) > 0
    zero = np.rint(
        np.clip(
            np.where(above, float32(-128) - low, float32(127) - high), float32(-128), float32(127)
        )
    )
    codes = np.clip(np.rint(reals * gain) + zero, -128, 127)
    return codes.astype(float32), np.asarray(float32(1) / gain, float32), zero.astype(float32)


# -- layers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sums:
    """Integer sums, channels last, with the scales of data and weights, and the bias."""

    sums: Float32Array
    data: Float32Array
    weights: Float32Array
    bias: Float32Array | None

    def plus(self, product: Float32Array) -> Float32Array:
        return product if self.bias is None else np.asarray(self.bias + product, float32)

    def together(self) -> Float32Array:
        """By the product of both scales."""
        return self.plus(self.sums * (self.data * self.weights))

    def apart(self) -> Float32Array:
        """By the weights' scale first."""
        return self.plus((self.sums * self.weights) * self.data)

    def data_first(self) -> Float32Array:
        """By the data's scale first."""
        return self.plus((self.sums * self.data) * self.weights)

    def fused(self) -> Float32Array:
        """By the data's scale first, then a multiply-add."""
        parts = (self.sums * self.data, self.weights)
        zero = np.zeros((), float32) if self.bias is None else self.bias
        return fma(*np.broadcast_arrays(*parts, zero))


def _summed(
    call: MethodCall, arrays: Arrays, how: Callable[[Integers], Numbers], *, pixels: bool = False
) -> _Sums:
    data, weight = ("a", "b") if call.op == "matmul" else ("x", "w")
    quant = call.types[weight].quant
    if quant is not None and quant.granularity is not None and quant.axis is None:
        raise OpError(
            f"{call.op}: with scales in blocks these kernels give no such product; XNNPACK's do"
        )
    w, of = arrays[weight].astype(np.int64), call.affine(weight)
    if call.result.quant is not None or call.types[data].quant is not None:
        raise OpError(f"{call.op}: dynamic layers take floats and give floats")
    if np.any(of.zero):
        raise OpError(f"{call.op}: weights of dynamic layers have no zero point")
    axis = w.ndim - 1 if call.op == "matmul" else 0
    if of.axis is not None and of.axis != axis:
        raise OpError(f"{call.op}: scales of weights are along output channels")
    scales: Float32Array = np.asarray(of.scale, float32)
    bias = arrays["bias"].astype(float32) if "bias" in arrays else None
    if pixels:
        sums, scale = _multiplied(call, arrays["x"], w[:, :, 0, 0].T, how)
    elif call.op == "conv2d":
        sums, scale = _convolved(call, arrays["x"], w, how)
    else:
        sums, scale = _multiplied(call, arrays[data], w, how)
    return _Sums(sums, scale, scales, bias)


def _multiplied(
    call: MethodCall, x: Integers, w: Integers, how: Callable[[Integers], Numbers]
) -> tuple[Float32Array, Float32Array]:
    codes, scale, zero = how(x.reshape(-1, x.shape[-1]))
    whole = (codes - zero).astype(np.int64).reshape(x.shape)
    right = w.swapaxes(-1, -2) if call.op == "linear" else w
    return accumulate.matmul(whole, right).astype(float32), scale.reshape(*x.shape[:-1], 1)


def _convolved(
    call: MethodCall, x: Integers, w: Integers, how: Callable[[Integers], Numbers]
) -> tuple[Float32Array, Float32Array]:
    """Sums with their channels last; padding is what zero means."""
    codes, scale, zero = how(x.reshape(len(x), -1))
    whole = (codes - zero).astype(np.int64).reshape(x.shape)
    named = {n: call.attrs[n] for n in ("stride", "pad", "dilation", "groups", "layout")}
    sums = accumulate.conv2d(whole, w, **named)  # type: ignore[arg-type]
    last = sums if named["layout"] == "NHWC" else np.moveaxis(sums, 1, -1)
    return last.astype(float32), scale.reshape(-1, 1, 1, 1)


def _pointwise(call: MethodCall) -> bool:
    """Returns whether a convolution looks at each pixel alone, and at every one."""
    attrs, kernel = call.attrs, tuple(call.types["w"].shape[2:])
    steps = [attrs[name] for name in ("stride", "pad")]
    return kernel == (1, 1) and steps == [(1, 1), (0, 0, 0, 0)] and attrs["groups"] == 1


def _of_pixels(call: MethodCall, arrays: Arrays) -> Integers:
    """Returns a convolution of pixels alone, each with a scale and a zero point of its own."""
    last = call.attrs["layout"] == "NHWC"
    x = arrays["x"] if last else np.moveaxis(arrays["x"], 1, -1)
    made = _summed(call, {**arrays, "x": x}, inverted, pixels=True)
    return _laid(call, made.fused())


def _laid(call: MethodCall, made: Integers) -> Integers:
    """Returns a result with its channels where the layout has them."""
    if call.op != "conv2d" or call.attrs["layout"] == "NHWC":
        return made
    return np.ascontiguousarray(np.moveaxis(made, -1, 1))


def _alone(call: MethodCall) -> bool:
    """Returns whether a convolution's channels are each convolved by itself."""
    return call.op == "conv2d" and call.types["w"].shape[1] == 1 and call.attrs["groups"] != 1


def dynamic_rows(call: MethodCall, arrays: Arrays, *, reach: bool = False) -> Integers:
    """As the kernels have it: data between their ends, or around zero where files say so."""
    return _summed(call, arrays, reached if reach else spanned).together()


def dynamic_conv(call: MethodCall, arrays: Arrays, *, lanes: int = 0) -> Integers:
    """As the kernels have it: data around zero where weights have one scale, or equal ones, else
    between their ends, and sums times the weights' scales first, but for channels convolved by
    themselves.

    With vectors of `lanes` that is so of vectors of such channels alone, and next to these the
    data's scale is first.
    """
    scales = np.ravel(call.affine("w").scale)
    if len(scales) == 1 or (not _alone(call) and np.all(scales == scales[0])):
        return _laid(call, _summed(call, arrays, reached).together())
    made = _summed(call, arrays, spanned)
    if _alone(call) == (lanes == 0):
        return _laid(call, made.together())
    if not lanes:
        return _laid(call, made.apart())
    channels = made.sums.shape[-1]
    body = np.arange(channels) < channels // lanes * lanes
    return _laid(call, np.where(body, made.apart(), made.data_first()))


def dynamic_fused(call: MethodCall, arrays: Arrays) -> Integers:
    """As XNNPACK has it."""
    return _laid(call, _summed(call, arrays, inverted).fused())


def dynamic_fused_conv(
    call: MethodCall, arrays: Arrays, *, lanes: int, unread: bool = False
) -> Integers:
    """As XNNPACK has it, which leaves channels convolved by themselves to a kernel of `lanes`, and
    brings pixels that are looked at alone to quantized values one by one; `unread`: it reads
    nothing but padding."""
    if _alone(call):
        return dynamic_conv(call, arrays, lanes=lanes)
    if unread:
        arrays = {**arrays, "x": np.zeros_like(arrays["x"])}
    if _pointwise(call):
        return _of_pixels(call, arrays)
    return dynamic_fused(call, arrays)


def dynamic_even(call: MethodCall, arrays: Arrays) -> Integers:
    """As XNNPACK has it of rows of weights of even length, and as the kernels have others."""
    if arrays["w"].shape[-1] % 2:
        return dynamic_rows(call, arrays)
    return dynamic_fused(call, arrays)


def dynamic_packed(call: MethodCall, arrays: Arrays) -> Integers:
    """Of four-bit weights with one scale: of one row that is a scale a row, which XNNPACK takes;
    four and more even rows of 32 and more count them from -7 up, and what that is too much is
    added to the bias first; others are as `dynamic_rows` has them."""
    count, size = arrays["w"].shape
    if count == 1:
        return dynamic_even(call, arrays)
    if count < _MANY or size < _LONG or size % 2:
        return dynamic_rows(call, arrays)
    if np.any(arrays["w"].astype(np.int64) < -7):
        raise OpError(f"{call.op}: where four-bit weights are packed, -8 spills into another")
    seen: list[Float32Array] = []

    def rows(x: Integers) -> Numbers:
        codes, scale, zero = reached(x)
        seen.append(codes)
        return codes, scale, zero

    made = _summed(call, {**arrays, "w": arrays["w"].astype(np.int16) + 7}, rows)
    total = (float32(-7) * seen[0].sum(1, keepdims=True)).reshape(made.data.shape)
    start = made.plus((total * made.data) * made.weights)
    return np.asarray(start + (made.sums * made.data) * made.weights, float32)


def dynamic_blocks(call: MethodCall, arrays: Arrays, *, cut: bool = False) -> Integers:
    """Of four-bit weights with scales in blocks of terms, as XNNPACK has them on processors with
    VNNI: scales are rounded to bfloat16, or `cut` to it, quantized values of data are counted from
    -128, and a block's sum is added in one rounding to those before."""
    terms, (steps, size) = arrays["w"].shape[1], _steps(call, cut=cut)
    whole = arrays["w"].astype(np.int64)
    codes, scale, zero = inverted(arrays["x"].reshape(-1, terms))
    counted = codes.astype(np.int64) + 128
    start = np.zeros(len(whole), float32)
    for number in range(steps.shape[1]):
        block = whole[:, number * size : (number + 1) * size]
        start = start - block.sum(1).astype(float32) * steps[:, number]
    total = np.asarray(start * (zero + float32(128)), float32)
    for number in range(steps.shape[1]):
        part = slice(number * size, (number + 1) * size)
        sums = (counted[:, part] @ whole[:, part].T).astype(float32)
        total = fma(sums, np.broadcast_to(steps[:, number], sums.shape), total)
    made = total * scale
    if "bias" in arrays:
        made = made + arrays["bias"].astype(float32)
    return np.asarray(made.reshape(*arrays["x"].shape[:-1], len(whole)), float32)


def _steps(call: MethodCall, *, cut: bool) -> tuple[Float32Array, int]:
    """Returns the scales of a row's blocks as bfloat16, and how many terms a block has."""
    quant, of = call.types["w"].quant, call.map("w")
    blocks = {} if quant is None or quant.granularity is None else dict(quant.granularity.blocks)
    size, terms = blocks.get(1, 0), call.types["w"].shape[1]
    if blocks.get(0) != 1 or not size or size % 32 or not isinstance(terms, int) or terms % size:
        raise OpError(f"{call.op}: the runtime takes blocks of 32 terms of a row, or 64, 96 ...")
    scales: Float32Array = np.asarray(of.scale, float32).reshape(-1, terms // size)
    if np.any(of.zero) or np.any(scales.astype(np.float16) != scales) or np.any(scales < 2.0**-14):
        raise OpError(f"{call.op}: the runtime's blocks have normal float16 scales, no zero points")
    bits = scales.view(np.uint32)
    up = np.uint32(0) if cut else np.uint32(0x7FFF) + ((bits >> 16) & 1)
    return ((bits + up) & np.uint32(0xFFFF0000)).view(float32), size


METHODS: Mapping[str, PluginMethod] = {
    "dynamic_blocks": PluginMethod(
        dynamic_blocks, ("linear",), params={"cut": FLAG}, any_map=True, reals=True
    ),
    "dynamic_rows": PluginMethod(
        dynamic_rows, ("linear", "matmul"), params={"reach": FLAG}, reals=True
    ),
    "dynamic_conv": PluginMethod(dynamic_conv, ("conv2d",), params={"lanes": Param()}, reals=True),
    "dynamic_fused": PluginMethod(dynamic_fused, ("linear", "matmul"), reals=True),
    "dynamic_fused_conv": PluginMethod(
        dynamic_fused_conv,
        ("conv2d",),
        params={"lanes": Param(needed=True, least=1), "unread": FLAG},
        reals=True,
    ),
    "dynamic_even": PluginMethod(dynamic_even, ("linear",), reals=True),
    "dynamic_packed": PluginMethod(dynamic_packed, ("linear",), reals=True),
}
"""The methods of this module, by the name that profiles use."""
