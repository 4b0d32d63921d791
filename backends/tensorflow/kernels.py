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
from qir.reference.code_means import AVERAGES
from qir.reference.fixed_point import to_fixed_point
from qir.reference.method import (
    Integers,
    MethodCall,
    float32,
    require_per_tensor,
    require_same_parameters,
    saturate,
    variadic_slots,
)
from qir.reference.windows import channels_first, padded, restore_layout, windows

Arrays = Mapping[str, Integers]
Real64 = NDArray[np.float64]
_AWAY = ROUNDINGS["away"]
INT32_END = 2**31
"""The first integer that int32 does not hold."""
FIXED_POINT_BITS = 16
"""Fraction bits of the fixed point in which int32 sums are requantized to u8."""


def declared_range(of: Affine) -> tuple[np.float32, np.float32]:
    """Returns the range that a type declares, else that of its lowest and highest integer."""
    if of.ends is not None:
        return float32(of.ends.low), float32(of.ends.high)
    low, high = ((code - of.zero) * of.scale for code in (of.low, of.high))
    return float32(low), float32(high)


def _integer_count(of: Affine) -> float:
    """Returns how many integers the storage has, whether bounded or not."""
    return 2.0**of.storage.bits


# -- in float64 -----------------------------------------------------------------------------------


def dequantize_range(
    codes: Integers, of: Affine, kind: type[np.floating] = np.float64
) -> NDArray[np.float32]:
    """Dequantizes between the ends of a range, as QuantizedToFloat does.

    The low end is rounded in `kind`.
    """
    low, high = declared_range(of)
    if low == high:
        return np.full(codes.shape, low)
    count = _integer_count(of)
    step = float(high - low) * (count / (count - 1)) / count
    start = float(kind(_AWAY(np.asarray(low / float32(step), float32))) * kind(step))
    from_low = codes.astype(np.float64) - of.storage.bounds[0]
    return np.asarray((start + from_low * step).astype(float32))


def quantize_range(
    reals: NDArray[np.float32], of: Affine, kind: type[np.floating] = np.float64
) -> NDArray[np.int64]:
    """Quantizes by counting from the rounded low end, as FloatToQuantized does, in `kind`."""
    low, high = declared_range(of)
    least, most = of.storage.bounds
    if low == high:
        return np.full(reals.shape, least, np.int64)
    count = _integer_count(of)
    gain = kind(count / (float(high - low) * (count / (count - 1))))
    start = _AWAY(np.asarray(kind(low) * gain, kind))
    from_low = _AWAY(np.asarray(reals.astype(kind) * gain, kind)).astype(np.float64) - start
    return np.asarray(np.clip(from_low + least, least, most)).astype(np.int64)


# -- in float32 -----------------------------------------------------------------------------------


def _dequantize_by_eigen(codes: Integers, of: Affine) -> NDArray[np.float32]:
    low, high = declared_range(of)
    step = (high - low) / float32(_integer_count(of) - 1)
    start = (
        float32(_AWAY(np.asarray(low / step, float32))) * step
        - float32(of.storage.bounds[0]) * step
    )
    return np.asarray(start + codes.astype(float32) * step)


def _quantize_by_eigen(
    reals: NDArray[np.float32], of: Affine, *, cut: bool = True
) -> NDArray[np.int64]:
    """Quantizes as Eigen's code does; `cut` clamps floats to the range first."""
    low, high = declared_range(of)
    least, most = of.storage.bounds
    gain = float32(_integer_count(of) - 1) / (high - low)
    start = float32(_AWAY(np.asarray(low * gain, float32)))
    held = np.clip(reals, low, high) if cut else reals
    steps = _AWAY(np.asarray(held * gain, float32)) - (start - float32(least))
    return np.asarray(np.clip(steps, least, most)).astype(np.int64)


def concat_by_range(call: MethodCall, arrays: Arrays) -> Integers:
    """Joins operands: those of the result's range are copied, others dequantized and quantized
    in float32."""
    out = call.out
    assert out is not None
    parts = []
    for slot in variadic_slots(arrays):
        of, codes = call.affine(slot), arrays[slot]
        require_per_tensor("range_recode_all", of, out)
        if declared_range(of) != declared_range(out):
            codes = saturate(_quantize_by_eigen(_dequantize_by_eigen(codes, of), out), out)
        parts.append(codes)
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
        reals = _dequantize_by_eigen(arrays["x"], x)
        return saturate(_quantize_by_eigen(reals, out, cut=False), out)
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
    by, exponent = to_fixed_point(float(x.scale) / float(out.scale))
    by, exponent = (by, exponent) if exponent <= 30 else (INT32_END - 1, 30)
    held = arrays["x"].astype(float32).astype(np.int64)
    held = np.where(held < INT32_END, held, -INT32_END) - int(x.zero)
    product = held.astype(np.int32).astype(np.int64) * by
    steps = (product + (1 << (30 - exponent))) >> (31 - exponent)
    whole = np.clip(steps, -INT32_END, INT32_END - 1) + int(out.zero)
    return saturate(whole.astype(np.int32).astype(np.int64), out)


def _requantize_channels(codes: Integers, x: Affine, out: Affine) -> Integers:
    scale, _ = x.along(codes.ndim)
    reach = scale.astype(float32) * float32(2.0**31)
    if x.ends is not None:
        shape = np.shape(scale)
        reach = np.maximum(np.abs(x.ends.low), np.abs(x.ends.high)).astype(float32).reshape(shape)
    factor = float32(out.storage.bounds[1]) * (reach / declared_range(out)[1]) / float32(2.0**31)
    return saturate(np.rint(codes.astype(float32) * factor).astype(np.int64), out)


def _requantize_fixed_point(codes: Integers, x: Affine, out: Affine) -> NDArray[np.int64]:
    """Computes 64-bit arithmetic that wraps, on integers that were converted to float32."""
    (low, high), (least, most) = declared_range(x), declared_range(out)
    one = 1 << FIXED_POINT_BITS
    span = float(most - least)
    factor = int(255.0 * one * float(high - low) / span)
    middle = (low + high) / float32(2) * float32(255.0 / (most - least))
    start = int(float32(middle * float32(one))) - int(
        _AWAY(np.asarray(one * (float(least) * 255.0) / span))
    )
    with np.errstate(over="ignore"):
        products = codes.astype(float32).astype(np.int64) * np.int64(factor)
    return np.asarray((products >> 32) + start + one // 2 >> FIXED_POINT_BITS)


# -- products of two tensors ----------------------------------------------------------------------


def multiply_by_range(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes QuantizedMul: the int32 product of integers minus what 0 is quantized to."""
    a, b, out = call.affine("a"), call.affine("b"), call.out
    if out is None or out.storage.bits != 32:
        raise OpError("range_product: products of quantized values have 32 bits")
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
    alone = next((slot for slot in ("a", "b") if arrays[slot].size == 1), "")
    total: NDArray[np.int64] = np.zeros((), np.int64)
    for slot in ("a", "b"):
        of, codes = call.affine(slot), arrays[slot]
        require_per_tensor("range_sum", of, out)
        if of.storage.bits > 8 or of.storage.bounds[0] < 0:
            raise OpError(f"range_sum: {slot} holds {of.storage}, not u8")
        if slot == alone:
            total = total + quantize_range(dequantize_range(codes, of, float32), out)
        else:
            first, second = quantize_range(
                dequantize_range(np.arange(2, dtype=np.uint8), of, float32), out
            )
            scaled = first + codes.astype(np.int64) * (second - first)
            total = total + np.clip(scaled, *out.storage.bounds)
    return np.asarray(total).astype(np.int32)


# -- activations and pools ------------------------------------------------------------------------


def clamp_by_range(call: MethodCall, arrays: Arrays) -> Integers:
    """Computes Relu and clip: clamps integers between those of the bounds."""
    x, out = call.affine("x"), call.out
    assert out is not None
    require_same_parameters(call.op, x, out)
    low, high = (0.0, None) if call.op == "relu" else (call.attrs["min"], call.attrs["max"])
    codes = arrays["x"]
    if isinstance(low, float):
        codes = np.maximum(codes, _quantized_bound(low, x))
    return np.minimum(codes, _quantized_bound(high, x)) if isinstance(high, float) else codes


def _quantized_bound(real: float, of: Affine) -> np.generic:
    return of.carrier.type(int(quantize_range(np.asarray(real, float32), of)))


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
    codes: NDArray[np.int64] = channels_first("avg_pool2d", x, layout).astype(np.int64)
    sizes = (codes.shape[2], codes.shape[3])
    height, width = windows("avg_pool2d", sizes, kernel, stride, pad, ceil=ceil)
    outside = np.zeros((), np.int64)
    inside = padded(np.ones((1, 1, *sizes), np.int64), height, width, outside)
    framed = padded(codes, height, width, outside)
    total = np.zeros((*codes.shape[:2], height.count, width.count), np.int64)
    count = np.zeros((1, 1, height.count, width.count), np.int64)
    for i, j in np.ndindex(*kernel):
        taps = (..., height.tap(i), width.tap(j))
        total += framed[taps].astype(np.int64)
        count += inside[taps].astype(np.int64)
    divisor = np.full((), math.prod(kernel)) if count_pad else count
    whole = np.sign(total) * (np.abs(total) // divisor)
    return restore_layout(saturate(whole, out), layout)


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
