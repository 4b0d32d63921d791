"""TensorFlow Lite's hybrid layers: float data, and weights of 8 or 4 bits.

Data are quantized at run time per row or image, and integer sums are dequantized.
"""

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
_MIN_PACKED_TERMS, _MIN_PACKED_ROWS = 32, 4
"""Four-bit weights are packed in rows of so many, where there are as many rows."""
Arrays = Mapping[str, Integers]
Numbers = tuple[Float32Array, Float32Array, Float32Array]
"""Quantized values as float32, a scale and a zero point a row."""


# -- quantized data -------------------------------------------------------------------------------


def _finite_rows(rows: Integers) -> Float32Array:
    """Returns rows as float32; raises OpError for infinities and NaN."""
    floats: Float32Array = rows.astype(float32)
    if floats.size and not np.isfinite(floats).all():
        raise OpError("data quantized at run time are finite")
    return floats


def quantize_symmetric(rows: Integers) -> Numbers:
    """Quantizes rows to -127..127 without zero points."""
    floats = _finite_rows(rows)
    maximum = np.abs(floats).max(1, initial=0, keepdims=True)
    # Rows of zeros keep a scale of 1, so that nothing is divided by zero.
    is_zero = maximum == 0
    divisor = np.where(is_zero, float32(1), maximum)
    integers = np.clip(_AWAY(floats * (float32(127) / divisor)), -127, 127)
    scale = np.where(is_zero, float32(1), divisor / float32(127))
    return integers.astype(float32), scale, np.zeros_like(scale)


def _ranges_with_zero(floats: Float32Array) -> tuple[Float32Array, Float32Array, NDArray[np.bool_]]:
    lowest = np.minimum(floats.min(1, initial=0, keepdims=True), float32(0))
    highest = np.maximum(floats.max(1, initial=0, keepdims=True), float32(0))
    return lowest, highest, lowest == highest


def quantize_affine(rows: Integers) -> Numbers:
    """Quantizes rows to -128..127 with zero points, in float64 except for the scale."""
    floats = _finite_rows(rows)
    lowest, highest, is_constant = _ranges_with_zero(floats)
    step = np.where(is_constant, 1.0, np.asarray(highest - lowest, np.float64) / 255.0)
    # The end whose rounding error is the smaller one determines the zero point, as in
    # ChooseQuantizationParams.
    low, high = lowest / step, highest / step
    low_is_nearer = 128 + np.abs(low) < 127 + np.abs(high)
    zero = np.clip(_AWAY(np.where(low_is_nearer, -128 - low, 127 - high)), -128, 127)
    zero = np.where(is_constant, 0.0, zero).astype(float32)
    scale = step.astype(float32)
    integers = np.clip(zero + _AWAY(floats * (float32(1) / scale)), -128, 127)
    return np.where(is_constant, float32(0), integers), scale, zero


def quantize_affine_xnnpack(rows: Integers) -> Numbers:
    """Quantizes rows as XNNPACK does: in float32, by a gain whose inverse is the scale."""
    floats = _finite_rows(rows)
    lowest, highest, is_constant = _ranges_with_zero(floats)
    gain = np.where(
        is_constant, float32(1), float32(255) / np.where(is_constant, float32(1), highest - lowest)
    )
    low, high = lowest * gain, highest * gain
    # XNNPACK compares the error of both ends by the sign of their sum.
    low_is_nearer = (low + float32(-128)) + (high + float32(127)) > 0
    zero = np.rint(
        np.clip(
            np.where(low_is_nearer, float32(-128) - low, float32(127) - high),
            float32(-128),
            float32(127),
        )
    )
    integers = np.clip(np.rint(floats * gain) + zero, -128, 127)
    return integers.astype(float32), np.asarray(float32(1) / gain, float32), zero.astype(float32)


# -- layers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _IntegerSums:
    """Integer sums in NHWC, with the scales of data and weights, and the bias."""

    sums: Float32Array
    data: Float32Array
    weights: Float32Array
    bias: Float32Array | None

    def plus(self, product: Float32Array) -> Float32Array:
        return product if self.bias is None else np.asarray(self.bias + product, float32)

    def times_scale_product(self) -> Float32Array:
        """Returns floats: sums times the product of both scales."""
        return self.plus(self.sums * (self.data * self.weights))

    def times_weights_first(self) -> Float32Array:
        """Returns floats: sums times the weights' scale, then the data's."""
        return self.plus((self.sums * self.weights) * self.data)

    def times_data_first(self) -> Float32Array:
        """Returns floats: sums times the data's scale, then the weights'."""
        return self.plus((self.sums * self.data) * self.weights)

    def times_data_fused(self) -> Float32Array:
        """Returns floats: sums times the data's scale, then a fused multiply-add."""
        parts = (self.sums * self.data, self.weights)
        zero = np.zeros((), float32) if self.bias is None else self.bias
        return fma(*np.broadcast_arrays(*parts, zero))


def _integer_sums(
    call: MethodCall,
    arrays: Arrays,
    quantize_rows: Callable[[Integers], Numbers],
    *,
    pixels: bool = False,
) -> _IntegerSums:
    data, weight = ("a", "b") if call.op == "matmul" else ("x", "w")
    quant = call.types[weight].quant
    if quant is not None and quant.granularity is not None and quant.axis is None:
        raise OpError(
            f"{call.op}: with scales in blocks these kernels give no such product; XNNPACK's do"
        )
    w, weight_type = arrays[weight].astype(np.int64), call.affine(weight)
    if call.result.quant is not None or call.types[data].quant is not None:
        raise OpError(f"{call.op}: dynamic layers take floats and give floats")
    if np.any(weight_type.zero):
        raise OpError(f"{call.op}: weights of dynamic layers have no zero point")
    axis = w.ndim - 1 if call.op == "matmul" else 0
    if weight_type.axis is not None and weight_type.axis != axis:
        raise OpError(f"{call.op}: scales of weights are along output channels")
    scales: Float32Array = np.asarray(weight_type.scale, float32)
    bias = arrays["bias"].astype(float32) if "bias" in arrays else None
    if pixels:
        sums, scale = _matmul_sums(call, arrays["x"], w[:, :, 0, 0].T, quantize_rows)
    elif call.op == "conv2d":
        sums, scale = _conv_sums(call, arrays["x"], w, quantize_rows)
    else:
        sums, scale = _matmul_sums(call, arrays[data], w, quantize_rows)
    return _IntegerSums(sums, scale, scales, bias)


def _matmul_sums(
    call: MethodCall, x: Integers, w: Integers, quantize_rows: Callable[[Integers], Numbers]
) -> tuple[Float32Array, Float32Array]:
    integers, scale, zero = quantize_rows(x.reshape(-1, x.shape[-1]))
    centred = (integers - zero).astype(np.int64).reshape(x.shape)
    columns = w.swapaxes(-1, -2) if call.op == "linear" else w
    return accumulate.matmul(centred, columns).astype(float32), scale.reshape(*x.shape[:-1], 1)


def _conv_sums(
    call: MethodCall, x: Integers, w: Integers, quantize_rows: Callable[[Integers], Numbers]
) -> tuple[Float32Array, Float32Array]:
    """Returns sums in NHWC; padding is what the zero point means."""
    # Padding of floats is 0.0, which is the zero point in integers: 0 after subtracting it.
    integers, scale, zero = quantize_rows(x.reshape(len(x), -1))
    centred = (integers - zero).astype(np.int64).reshape(x.shape)
    conv_attrs = {n: call.attrs[n] for n in ("stride", "pad", "dilation", "groups", "layout")}
    sums = accumulate.conv2d(centred, w, **conv_attrs)  # type: ignore[arg-type]
    channels_last = sums if conv_attrs["layout"] == "NHWC" else np.moveaxis(sums, 1, -1)
    return channels_last.astype(float32), scale.reshape(-1, 1, 1, 1)


def _is_pointwise(call: MethodCall) -> bool:
    """Returns whether a convolution reads each pixel, and one pixel for each result."""
    attrs, kernel = call.attrs, tuple(call.types["w"].shape[2:])
    steps = [attrs[name] for name in ("stride", "pad")]
    return kernel == (1, 1) and steps == [(1, 1), (0, 0, 0, 0)] and attrs["groups"] == 1


def _pointwise_conv(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes a 1x1 convolution, in which each pixel has a scale and zero point of its own."""
    is_nhwc = call.attrs["layout"] == "NHWC"
    x = arrays["x"] if is_nhwc else np.moveaxis(arrays["x"], 1, -1)
    sums = _integer_sums(call, {**arrays, "x": x}, quantize_affine_xnnpack, pixels=True)
    return _in_layout(call, sums.times_data_fused())


def _in_layout(call: MethodCall, result: Integers) -> Integers:
    """Returns an NHWC result in the layout of the op."""
    if call.op != "conv2d" or call.attrs["layout"] == "NHWC":
        return result
    return np.ascontiguousarray(np.moveaxis(result, -1, 1))


def _is_depthwise(call: MethodCall) -> bool:
    """Returns whether each channel has filters of its own."""
    return call.op == "conv2d" and call.types["w"].shape[1] == 1 and call.attrs["groups"] != 1


def dynamic_rows(call: MethodCall, arrays: Arrays, *, reach: bool = False) -> Integers:
    """Computes a layer as TensorFlow Lite's own kernel; `reach` quantizes data symmetrically."""
    return _integer_sums(
        call, arrays, quantize_symmetric if reach else quantize_affine
    ).times_scale_product()


def dynamic_conv(call: MethodCall, arrays: Arrays, *, lanes: int = 0) -> Integers:
    """Computes a convolution as TensorFlow Lite's own kernels.

    Data are quantized symmetrically where all scales of the weights are equal; otherwise affinely,
    and sums are multiplied by the weights' scales first, except for depthwise ones. Vectors of
    `lanes` channels of a depthwise convolution multiply by the weights' scales first, the channels
    left over by the data's.
    """
    scales = np.ravel(call.affine("w").scale)
    if len(scales) == 1 or (not _is_depthwise(call) and np.all(scales == scales[0])):
        return _in_layout(
            call, _integer_sums(call, arrays, quantize_symmetric).times_scale_product()
        )
    sums = _integer_sums(call, arrays, quantize_affine)
    if _is_depthwise(call) == (lanes == 0):
        return _in_layout(call, sums.times_scale_product())
    if not lanes:
        return _in_layout(call, sums.times_weights_first())
    channels = sums.sums.shape[-1]
    in_vectors = np.arange(channels) < channels // lanes * lanes
    return _in_layout(
        call, np.where(in_vectors, sums.times_weights_first(), sums.times_data_first())
    )


def dynamic_fused(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes a layer as XNNPACK."""
    return _in_layout(call, _integer_sums(call, arrays, quantize_affine_xnnpack).times_data_fused())


def dynamic_fused_conv(
    call: MethodCall, arrays: Arrays, *, lanes: int, unread: bool = False
) -> Integers:
    """Computes a convolution as XNNPACK.

    Depthwise ones are left to a kernel of TensorFlow Lite with vectors of `lanes`; 1x1 ones
    quantize each pixel. With `unread` the kernel reads nothing but padding, which is a defect.
    """
    if _is_depthwise(call):
        return dynamic_conv(call, arrays, lanes=lanes)
    if unread:
        arrays = {**arrays, "x": np.zeros_like(arrays["x"])}
    if _is_pointwise(call):
        return _pointwise_conv(call, arrays)
    return dynamic_fused(call, arrays)


def dynamic_even(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes a layer as XNNPACK if weights have an even number of terms, else as TensorFlow
    Lite."""
    if arrays["w"].shape[-1] % 2:
        return dynamic_rows(call, arrays)
    return dynamic_fused(call, arrays)


def dynamic_packed(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes a layer with 4-bit weights of one scale.

    One row is XNNPACK's. Four and more rows of at least 32 terms are packed: weights are stored
    plus 7, and the excess is added to the bias first. Others are computed by `dynamic_rows`.
    """
    count, size = arrays["w"].shape
    if count == 1:
        return dynamic_even(call, arrays)
    if count < _MIN_PACKED_ROWS or size < _MIN_PACKED_TERMS or size % 2:
        return dynamic_rows(call, arrays)
    if np.any(arrays["w"].astype(np.int64) < -7):
        raise OpError(f"{call.op}: where four-bit weights are packed, -8 spills into another")
    quantized_data: list[Float32Array] = []

    def rows(x: Integers) -> Numbers:
        integers, scale, zero = quantize_symmetric(x)
        quantized_data.append(integers)
        return integers, scale, zero

    sums = _integer_sums(call, {**arrays, "w": arrays["w"].astype(np.int16) + 7}, rows)
    # The weights are stored plus 7; what that adds to every sum is 7 times the sum of the data.
    correction = (float32(-7) * quantized_data[0].sum(1, keepdims=True)).reshape(sums.data.shape)
    initial = sums.plus((correction * sums.data) * sums.weights)
    return np.asarray(initial + (sums.sums * sums.data) * sums.weights, float32)


def dynamic_blocks(call: MethodCall, arrays: Arrays, *, cut: bool = False) -> Integers:
    """Computes a layer with block-quantized 4-bit weights, as XNNPACK does on processors with VNNI.

    Scales are rounded to bfloat16, or truncated if `cut`. Data count from -128. The sum of each
    block is added to the previous ones with one rounding.
    """
    terms, (steps, size) = arrays["w"].shape[1], _bfloat16_scales(call, cut=cut)
    weights = arrays["w"].astype(np.int64)
    integers, scale, zero = quantize_affine_xnnpack(arrays["x"].reshape(-1, terms))
    unsigned = integers.astype(np.int64) + 128
    initial = np.zeros(len(weights), float32)
    # The weights' sums times the zero point go first, block by block, from the accumulator's start.
    for block_index in range(steps.shape[1]):
        block = weights[:, block_index * size : (block_index + 1) * size]
        initial = initial - block.sum(1).astype(float32) * steps[:, block_index]
    total = np.asarray(initial * (zero + float32(128)), float32)
    for block_index in range(steps.shape[1]):
        terms_of_block = slice(block_index * size, (block_index + 1) * size)
        sums = (unsigned[:, terms_of_block] @ weights[:, terms_of_block].T).astype(float32)
        total = fma(sums, np.broadcast_to(steps[:, block_index], sums.shape), total)
    result = total * scale
    if "bias" in arrays:
        result = result + arrays["bias"].astype(float32)
    return np.asarray(result.reshape(*arrays["x"].shape[:-1], len(weights)), float32)


def _bfloat16_scales(call: MethodCall, *, cut: bool) -> tuple[Float32Array, int]:
    """Returns the scales of each row's blocks as bfloat16, and the block size."""
    quant, weight_map = call.types["w"].quant, call.map("w")
    blocks = {} if quant is None or quant.granularity is None else dict(quant.granularity.blocks)
    size, terms = blocks.get(1, 0), call.types["w"].shape[1]
    if blocks.get(0) != 1 or not size or size % 32 or not isinstance(terms, int) or terms % size:
        raise OpError(f"{call.op}: the runtime takes blocks of 32 terms of a row, or 64, 96 ...")
    scales: Float32Array = np.asarray(weight_map.scale, float32).reshape(-1, terms // size)
    if (
        np.any(weight_map.zero)
        or np.any(scales.astype(np.float16) != scales)
        or np.any(scales < 2.0**-14)
    ):
        raise OpError(f"{call.op}: the runtime's blocks have normal float16 scales, no zero points")
    # Round to bfloat16: add half of the dropped bits, ties to even; or truncate.
    bits = scales.view(np.uint32)
    rounding = np.uint32(0) if cut else np.uint32(0x7FFF) + ((bits >> 16) & 1)
    return ((bits + rounding) & np.uint32(0xFFFF0000)).view(float32), size


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
