"""Quantized kernels of TensorFlow that do not accumulate integers and round once.

They compute by the ranges that types declare, low and high: some in float64, some in float32 as
Eigen, one in 16-bit fixed point. A type without a declared range has that of its lowest and highest
integer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.affine import Affine
from qir.numerics.rounding import ROUNDINGS
from qir.profiles.methods import PluginMethod
from qir.reference.fixed_point import to_fixed_point
from qir.reference.integer_means import AVERAGES, sum_quantized
from qir.reference.method import (
    Integers,
    MethodCall,
    float32,
    require_per_tensor,
    require_same_parameters,
    saturate,
    variadic_slots,
)
from qir.reference.windows import restore_layout

Arrays = Mapping[str, Integers]
Real64 = NDArray[np.float64]
_AWAY = ROUNDINGS["away"]
INT32_END = 2**31
"""The first integer that int32 does not hold."""
FIXED_POINT_BITS = 16
"""Fraction bits of the fixed point in which int32 sums are requantized to u8."""


def declared_range(affine: Affine) -> tuple[np.float32, np.float32]:
    """Returns the range that a type declares, else that of its lowest and highest integer."""
    if affine.ends is not None:
        return float32(affine.ends.low), float32(affine.ends.high)
    low, high = ((integer - affine.zero) * affine.scale for integer in (affine.low, affine.high))
    return float32(low), float32(high)


def _integer_count(affine: Affine) -> float:
    """Returns how many integers the storage has, whether bounded or not."""
    return 2.0**affine.storage.bits


# -- in float64 -----------------------------------------------------------------------------------


def dequantize_range(
    integers: Integers, affine: Affine, kind: type[np.floating] = np.float64
) -> NDArray[np.float32]:
    """Dequantizes between the ends of a range, as QuantizedToFloat does.

    The low end is rounded in `kind`.
    """
    low, high = declared_range(affine)
    if low == high:
        return np.full(integers.shape, low)
    count = _integer_count(affine)
    # QuantizedToFloat's step: the range is widened by count / (count - 1), then divided by count.
    step = float(high - low) * (count / (count - 1)) / count
    # 0 becomes an integer exactly: the low end is rounded to a multiple of the step.
    low_end = float(kind(_AWAY(np.asarray(low / float32(step), float32))) * kind(step))
    from_low = integers.astype(np.float64) - affine.storage.bounds[0]
    return np.asarray((low_end + from_low * step).astype(float32))


def quantize_range(
    floats: NDArray[np.float32], affine: Affine, kind: type[np.floating] = np.float64
) -> NDArray[np.int64]:
    """Quantizes by counting from the rounded low end, as FloatToQuantized does, in `kind`."""
    low, high = declared_range(affine)
    lowest, highest = affine.storage.bounds
    if low == high:
        return np.full(floats.shape, lowest, np.int64)
    count = _integer_count(affine)
    gain = kind(count / (float(high - low) * (count / (count - 1))))
    low_end = _AWAY(np.asarray(kind(low) * gain, kind))
    from_low = _AWAY(np.asarray(floats.astype(kind) * gain, kind)).astype(np.float64) - low_end
    return np.asarray(np.clip(from_low + lowest, lowest, highest)).astype(np.int64)


# -- in float32 -----------------------------------------------------------------------------------


def _dequantize_by_eigen(integers: Integers, affine: Affine) -> NDArray[np.float32]:
    low, high = declared_range(affine)
    # Eigen's QuantizedToFloatInMany divides by count - 1 in float32.
    step = (high - low) / float32(_integer_count(affine) - 1)
    low_end = (
        float32(_AWAY(np.asarray(low / step, float32))) * step
        - float32(affine.storage.bounds[0]) * step
    )
    return np.asarray(low_end + integers.astype(float32) * step)


def _quantize_by_eigen(
    floats: NDArray[np.float32], affine: Affine, *, clamp: bool = True
) -> NDArray[np.int64]:
    """Quantizes as Eigen's code does; `clamp` clamps floats to the range first."""
    low, high = declared_range(affine)
    lowest, highest = affine.storage.bounds
    gain = float32(_integer_count(affine) - 1) / (high - low)
    low_end = float32(_AWAY(np.asarray(low * gain, float32)))
    clamped = np.clip(floats, low, high) if clamp else floats
    steps = _AWAY(np.asarray(clamped * gain, float32)) - (low_end - float32(lowest))
    return np.asarray(np.clip(steps, lowest, highest)).astype(np.int64)


def concat_by_range(call: MethodCall, arrays: Arrays) -> Integers:
    """Joins operands: those of the result's range are copied, others dequantized and quantized
    in float32."""
    out = call.out
    assert out is not None
    parts = []
    for slot in variadic_slots(arrays):
        affine, integers = call.affine(slot), arrays[slot]
        require_per_tensor("range_recode_all", affine, out)
        if declared_range(affine) != declared_range(out):
            integers = saturate(
                _quantize_by_eigen(_dequantize_by_eigen(integers, affine), out), out
            )
        parts.append(integers)
    axis = call.attrs["axis"]
    assert isinstance(axis, int)
    return np.concatenate(parts, axis)


# -- int32 to bytes -------------------------------------------------------------------------------


def requantize_by_range(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes Requantize.

    With one scale a channel it is one float32 factor, ties to even. Else it is 16-bit fixed point
    to u8, and dequantize and quantize in float32 to i8.
    """
    x, out = call.affine("x"), call.out
    assert out is not None
    if out.axis is not None or out.storage.bits != 8 or x.storage.bits != 32:
        raise OpError("range_recode: 32-bit values become 8-bit values of one scale")
    if x.axis is not None:
        return _requantize_channels(arrays["x"], x, out)
    if out.storage.bounds[0] < 0:
        floats = _dequantize_by_eigen(arrays["x"], x)
        return saturate(_quantize_by_eigen(floats, out, clamp=False), out)
    return saturate(_requantize_fixed_point(arrays["x"], x, out), out)


def requantize_uniform(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes Requantize of uniform ops.

    Integers are converted to float32 and back, to the lowest one where int32 does not hold them.
    Minus a zero point they are multiplied by 31 bits, rounded once with ties up, and clamped to 32
    bits. Sums with either zero point wrap.
    """
    x, out = call.affine("x"), call.out
    assert out is not None
    require_per_tensor("wrapped_recode", x, out)
    # Multiplier of 31 bits and exponent, so that multiplier * 2^(exponent - 31) = scale ratio.
    multiplier, exponent = to_fixed_point(float(x.scale) / float(out.scale))
    multiplier, exponent = (multiplier, exponent) if exponent <= 30 else (INT32_END - 1, 30)
    # float32 has 24 bits: large sums lose low bits here, as in TensorFlow's kernel.
    converted = arrays["x"].astype(float32).astype(np.int64)
    converted = np.where(converted < INT32_END, converted, -INT32_END) - int(x.zero)
    product = converted.astype(np.int32).astype(np.int64) * multiplier
    steps = (product + (1 << (30 - exponent))) >> (31 - exponent)
    rounded = np.clip(steps, -INT32_END, INT32_END - 1) + int(out.zero)
    return saturate(rounded.astype(np.int32).astype(np.int64), out)


def _requantize_channels(integers: Integers, x: Affine, out: Affine) -> Integers:
    scale, _ = x.along(integers.ndim)
    # The range of int32 sums is 2^31 times the scale of each channel.
    limits = scale.astype(float32) * float32(2.0**31)
    if x.ends is not None:
        shape = np.shape(scale)
        limits = np.maximum(np.abs(x.ends.low), np.abs(x.ends.high)).astype(float32).reshape(shape)
    factor = float32(out.storage.bounds[1]) * (limits / declared_range(out)[1]) / float32(2.0**31)
    return saturate(np.rint(integers.astype(float32) * factor).astype(np.int64), out)


def _requantize_fixed_point(integers: Integers, x: Affine, out: Affine) -> NDArray[np.int64]:
    """Computes 64-bit arithmetic that wraps, on integers that were converted to float32."""
    (low, high), (lowest, highest) = declared_range(x), declared_range(out)
    one = 1 << FIXED_POINT_BITS
    span = float(highest - lowest)
    factor = int(255.0 * one * float(high - low) / span)
    middle = (low + high) / float32(2) * float32(255.0 / (highest - lowest))
    offset = int(float32(middle * float32(one))) - int(
        _AWAY(np.asarray(one * (float(lowest) * 255.0) / span))
    )
    with np.errstate(over="ignore"):
        # Overflow of the 64-bit product is what TensorFlow computes, too.
        products = integers.astype(float32).astype(np.int64) * np.int64(factor)
    return np.asarray((products >> 32) + offset + one // 2 >> FIXED_POINT_BITS)


# -- products of two tensors ----------------------------------------------------------------------


def multiply_by_range(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes QuantizedMul: the int32 product of integers minus what 0 is quantized to."""
    a, b, out = call.affine("a"), call.affine("b"), call.out
    if out is None or out.storage.bits != 32:
        raise OpError("range_product: products of quantized values have 32 bits")
    # The integer of 0.0 takes the place of the zero point that these types do not have.
    left, right = (
        arrays[s].astype(np.int64) - int(quantize_range(np.asarray(0, float32), of))
        for s, of in (("a", a), ("b", b))
    )
    return saturate(left * right, out)


def add_by_range(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes QuantizedAdd: both operands are scaled to steps of the int32 result, and added.

    The step of each operand is rounded to steps of the result. The first operand of one element is
    dequantized and quantized to the result's range instead.
    """
    out = call.out
    if out is None or out.storage.bits != 32:
        raise OpError("range_sum: sums of quantized values have 32 bits")
    # TensorFlow's QuantizedAdd takes the scalar path for a first operand of one element.
    single_slot = next((slot for slot in ("a", "b") if arrays[slot].size == 1), "")
    total: NDArray[np.int64] = np.zeros((), np.int64)
    for slot in ("a", "b"):
        affine, integers = call.affine(slot), arrays[slot]
        require_per_tensor("range_sum", affine, out)
        if affine.storage.bits > 8 or affine.storage.bounds[0] < 0:
            raise OpError(f"range_sum: {slot} holds {affine.storage}, not u8")
        if slot == single_slot:
            total = total + quantize_range(dequantize_range(integers, affine, float32), out)
        else:
            # The step is what integers 0 and 1 differ by after rounding, as in the kernel.
            integer_of_0, integer_of_1 = quantize_range(
                dequantize_range(np.arange(2, dtype=np.uint8), affine, float32), out
            )
            scaled = integer_of_0 + integers.astype(np.int64) * (integer_of_1 - integer_of_0)
            total = total + np.clip(scaled, *out.storage.bounds)
    return np.asarray(total).astype(np.int32)


# -- activations and pools ------------------------------------------------------------------------


def clamp_by_range(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes Relu and clip: clamps integers between those of the bounds."""
    x, out = call.affine("x"), call.out
    assert out is not None
    require_same_parameters(call.op, x, out)
    low, high = (0.0, None) if call.op == "relu" else (call.attrs["min"], call.attrs["max"])
    integers = arrays["x"]
    if isinstance(low, float):
        integers = np.maximum(integers, _quantized_bound(low, x))
    return np.minimum(integers, _quantized_bound(high, x)) if isinstance(high, float) else integers


def _quantized_bound(bound: float, affine: Affine) -> np.generic:
    return affine.carrier.type(int(quantize_range(np.asarray(bound, float32), affine)))


def truncated_mean(
    x: Integers,
    x_map: Affine,
    out: Affine,
    *,
    kernel: Sequence[int],
    stride: Sequence[int] = (1, 1),
    pad: Sequence[int] = (0, 0, 0, 0),
    ceil: bool = False,
    count_pad: bool = False,
    layout: str = "NCHW",
) -> Integers:
    """Computes average pooling of the raw integers; the division truncates."""
    require_per_tensor("cut_mean", x_map, out)
    require_same_parameters("avg_pool2d", x_map, out)
    total, count = sum_quantized(x, kernel, stride, pad, ceil=ceil, layout=layout)
    divisor = np.full((), math.prod(kernel)) if count_pad else count
    truncated = np.sign(total) * (np.abs(total) // divisor)
    return restore_layout(saturate(truncated, out), layout)


METHODS: Mapping[str, PluginMethod] = {
    "range_recode": PluginMethod(requantize_by_range, ("requantize",)),
    "wrapped_recode": PluginMethod(requantize_uniform, ("requantize",)),
    "range_recode_all": PluginMethod(concat_by_range, ("concat",)),
    "range_product": PluginMethod(multiply_by_range, ("mul",)),
    "range_sum": PluginMethod(add_by_range, ("add",)),
    "range_bounds": PluginMethod(clamp_by_range, ("relu", "clip")),
    "cut_mean": PluginMethod(
        truncated_mean,
        AVERAGES,
        slots=("x",),
        attrs=("kernel", "stride", "pad", "ceil", "count_pad", "layout"),
    ),
}
"""The methods of this module, by the name that profiles use."""
