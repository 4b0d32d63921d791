"""TensorFlow Lite's elementwise integer kernels, and products along an axis.

Whole numbers are scaled by 31-bit multipliers with a shift, rounded twice or once as the rule's
`requant.round` says; curves of 16-bit integers are between 513 numbers of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.affine import Affine
from qir.numerics.fields import Requant, Rule
from qir.numerics.quantize import dequantize, quantize
from qir.numerics.rounding import ROUNDINGS
from qir.profiles.methods import FLAG, PluginMethod
from qir.reference.fixed_point import multiply_fixed_point, to_fixed_point
from qir.reference.method import (
    Float32Array,
    Integers,
    MethodCall,
    float32,
    require_per_tensor,
    saturate,
)
from qir.reference.products import ProductKernel, integer_product
from qir.reference.table import compute

from .fixed_point import LONG, bit_length, reciprocal, shift_right_rounding

Whole = NDArray[np.int64]
_AWAY = ROUNDINGS["away"]


def _centred(integers: Integers, affine: Affine) -> Whole:
    return np.asarray(integers.astype(np.int64) - int(affine.zero))


# -- by one multiplier ----------------------------------------------------------------------------


def fixed_abs(x: Integers, x_map: Affine, out: Affine, *, rule: Rule) -> Integers:
    """|q - z| by the multiplier of the scales' quotient."""
    require_per_tensor("fixed_abs", x_map, out)
    value = np.abs(_centred(x, x_map))
    if float32(x_map.scale) != float32(out.scale):
        value = multiply_fixed_point(
            value, *to_fixed_point(float(float32(x_map.scale) / float32(out.scale))), rule
        )
    return saturate(value + int(out.zero), out)


def fixed_clip(
    x: Integers,
    x_map: Affine,
    out: Affine,
    *,
    rule: Rule,
    min: float | None = None,
    max: float | None = None,
) -> Integers:
    """(q - z) by the multiplier of the scales' quotient, between the integers of two ends."""
    require_per_tensor("fixed_clip", x_map, out)
    multiplier = to_fixed_point(float(float32(x_map.scale) / float32(out.scale)))
    scaled = multiply_fixed_point(_centred(x, x_map), *multiplier, rule) + int(out.zero)
    low, high = (
        bound
        if value is None
        else int(_AWAY(np.asarray(float32(value) / float32(out.scale)))) + int(out.zero)
        for value, bound in ((min, out.low), (max, out.high))
    )
    return saturate(np.clip(scaled, low, high), out)


def fixed_relu(x: Integers, x_map: Affine, out: Affine, *, rule: Rule) -> Integers:
    """`fixed_clip` from zero up."""
    return fixed_clip(x, x_map, out, rule=rule, min=0.0)


# -- two operands ---------------------------------------------------------------------------------


def fixed_compare(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Returns a comparison of q - z with eight more bits, each by the multiplier of its own
    scale."""
    operands = {slot: _scaled_for_comparison(call, slot, arrays[slot]) for slot in ("a", "b")}
    # Eight more bits keep the order of floats that one bit of each would lose.
    return compute(call.op, operands, call.attrs)


def _scaled_for_comparison(call: MethodCall, slot: str, integers: Integers) -> Whole:
    affine = call.affine(slot)
    require_per_tensor("fixed_compare", affine)
    q, exponent = to_fixed_point(float(float32(affine.scale)))
    if exponent > 0:
        raise OpError(
            f"fixed_compare: {slot} has scale {float(affine.scale)}; it takes less than 1"
        )
    return multiply_fixed_point(_centred(integers, affine) << 8, q, exponent, call.rule)


def code_compare(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Returns a comparison of the quantized values, whatever their scales."""
    return compute(call.op, arrays, call.attrs)


def fixed_quotient(a: Integers, b: Integers, a_map: Affine, b_map: Affine, out: Affine) -> Integers:
    """a / b by a reciprocal of 31 bits, then by the multiplier of sa / (sb * sc)."""
    require_per_tensor("fixed_quotient", a_map, b_map, out)
    dividend, divisor = np.broadcast_arrays(_centred(a, a_map), _centred(b, b_map))
    if not divisor.all():
        raise OpError("fixed_quotient: a divisor is zero")
    # The sign goes to the dividend; the reciprocal is of positive numbers.
    dividend, divisor = np.where(divisor < 0, -dividend, dividend), np.abs(divisor)
    inverse, shift = reciprocal(divisor, 31)
    # Normalize the dividend to 31 bits, so that the product keeps the most bits.
    headroom = 31 - bit_length(np.where(dividend < 0, -dividend - 1, dividend) * 2 + 1) + 1
    quotient = LONG.multiply(LONG.wrap(dividend << headroom), inverse)
    ratio = float(float32(a_map.scale) / float32(float32(b_map.scale) * float32(out.scale)))
    factor, exponent = to_fixed_point(ratio)
    result = _divide_by_power_of_2(LONG.multiply(quotient, factor), shift + headroom - exponent)
    return saturate(result + int(out.zero), out)


def _divide_by_power_of_2(x: Whole, by: Whole) -> Whole:
    """x / 2^by, halves away from zero; beyond 31 a shift counts from zero again, as on x86."""
    # x86 shifts count modulo 32.
    exceeds_31 = by > 31
    rounded = shift_right_rounding(x, np.where(exceeds_31, 0, by))
    return np.where(exceeds_31, (x >> (by & 31)) + (x >= 0), rounded)


def unshifted(call: MethodCall, arrays: Mapping[str, Integers], *, apart: bool = False) -> Integers:
    """Returns a product of two tensors in which the zero point of b counts as 0.

    `apart`: it counts, and where it is not 0 sums are rounded twice by a 31-bit multiplier.
    """
    if not isinstance(call, ProductKernel) or "b" not in arrays:
        raise OpError(f"{call.op}: unshifted is of products of two tensors, a and b")
    b = call.affine("b")
    rule = replace(call.rule, method=None)
    if apart and b.zero.any():
        twice = Requant(multiplier="q31", compute="f64", unit="f32", round="double")
        return integer_product(replace(call, rule=replace(rule, requant=twice)), arrays)
    operand_types = {**call.maps, "b": replace(b, zero=b.zero * 0)}
    return integer_product(replace(call, rule=rule, maps=operand_types), arrays)


def padding_alone(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Returns a convolution that reads nothing but padding."""
    if not isinstance(call, ProductKernel) or "x" not in arrays:
        raise OpError(f"{call.op}: padding_alone is of convolutions of quantized values")
    x = np.full_like(arrays["x"], int(call.affine("x").zero))
    return integer_product(replace(call, rule=replace(call.rule, method=None)), {**arrays, "x": x})


# -- along axes -----------------------------------------------------------------------------------


def fixed_square(
    a: Integers, b: Integers, a_map: Affine, b_map: Affine, out: Affine, *, rule: Rule
) -> Integers:
    """(a - b)^2: both with 7 more bits in units of twice the larger scale, then scaled to the
    result."""
    require_per_tensor("fixed_square", a_map, b_map, out)
    # In units of twice the larger scale, both operands are below 1/2 after the shift.
    unit = 2 * max(float(a_map.scale), float(b_map.scale))
    left, right = (
        multiply_fixed_point(
            _centred(x, affine) << 7, *to_fixed_point(float(affine.scale) / unit), rule
        )
        for x, affine in ((a, a_map), (b, b_map))
    )
    ratio = unit * unit / ((1 << 14) * float(out.scale))
    result = multiply_fixed_point((left - right) ** 2, *to_fixed_point(ratio), rule)
    return saturate(result + int(out.zero), out)


def cut_root(x: Integers, x_map: Affine, out: Affine) -> Integers:
    """Returns the root in float32 in steps of the result, what is after the point left out."""
    require_per_tensor("cut_root", x_map, out)
    if np.any(_centred(x, x_map) < 0):
        raise OpError("cut_root: a value below the zero point has no square root")
    steps = np.sqrt(_centred(x, x_map).astype(float32) * float32(x_map.scale)) / float32(out.scale)
    return saturate(steps.astype(np.int64) + int(out.zero), out)


def fixed_powers(
    x: Integers,
    x_map: Affine,
    out: Affine,
    *,
    axes: Sequence[int] = (),
    keep: bool = True,
) -> Integers:
    """Returns the product of q - z, one after the other, by a 15-bit multiplier after each."""
    require_per_tensor("fixed_powers", x_map, out)
    reduced_axes = tuple(a % x.ndim for a in axes) or tuple(range(x.ndim))
    other_axes = [a for a in range(x.ndim) if a not in reduced_axes]
    count = math.prod(x.shape[a] for a in reduced_axes)
    value = _centred(x, x_map).transpose(*other_axes, *reduced_axes)
    value = value.reshape(*(x.shape[a] for a in other_axes), count)
    if not count:
        raise OpError("fixed_powers: a product of no quantized values")
    # The count-th root of the result's scale: the multiplier is applied once for each factor.
    ratio = float(float32(x_map.scale)) / float(float32(out.scale)) ** (1.0 / count)
    q, exponent = to_fixed_point(ratio)
    multiplier = min((q + (1 << 15)) >> 16, (1 << 15) - 1)
    shift, half = 15 - exponent, np.int64(1) << (14 - exponent)
    total = value[..., 0]
    for index in range(1, count + 1):
        product = total * value[..., index] if index < count else total
        total = LONG.wrap((product * multiplier + half) >> shift)
    result = saturate(total + int(out.zero), out)
    return np.expand_dims(result, reduced_axes) if keep else result


# -- rows of a table -----------------------------------------------------------------------------


def even_table(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Rows of quantized values as they are, or as floats; four-bit rows of odd length share a byte,
    which is read wrongly."""
    w, out = call.affine("w"), call.out
    if w.storage.bits == 4 and arrays["w"].shape[-1] % 2:
        raise OpError("even_table: four-bit rows of odd length, of which the wrong half is read")
    if out is not None and (w.axis is not None or not w.same_map(out)):
        raise OpError("even_table: rows keep their map, which is one for all")
    table = arrays["w"] if out is not None else dequantize(arrays["w"], w, call.rule)
    rows = compute(call.op, {**arrays, "w": table}, call.attrs)
    assert isinstance(rows, np.ndarray)
    return rows


# -- in vectors -----------------------------------------------------------------------------------


def quantize_vectors(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Float values to quantized values: eight at a time by 1 / s, halves to even; those left over
    by s in float64, away."""
    out = call.out
    if out is None or call.types["x"].quant is not None:
        raise OpError("quantize_vectors: quantizes floats")
    require_per_tensor("quantize_vectors", out)
    x = arrays["x"].astype(float32)
    with np.errstate(all="ignore"):
        vectors = np.rint(x * (float32(1) / float32(out.scale)))
        tail = _AWAY(x.astype(np.float64) / float(out.scale)).astype(float32)
    # Whole groups of eight; the remainder loop has another rounding.
    in_vectors = np.arange(x.size).reshape(x.shape) < x.size // 8 * 8
    steps = np.where(in_vectors, vectors, tail) + float32(out.zero)
    return np.clip(np.nan_to_num(steps), out.low, out.high).astype(out.carrier)


# -- functions of 16-bit values -------------------------------------------------------------------


def _sample_with_correction(
    call: MethodCall, function: Callable[[Float32Array], Float32Array]
) -> Whole:
    """513 numbers in float32, each moved by half of what the middle after it would be off."""
    x, out = call.affine("x"), call.out
    assert out is not None
    low, high = x.storage.bounds
    start, end = (
        float32(float32(x.scale) * float32(integer - int(x.zero))) for integer in (low, high)
    )
    lowest_value, highest_value = (
        float32(float32(out.scale) * float32(integer - int(out.zero))) for integer in (low, high)
    )
    step = float32(end - start) / float32(512)
    # 65536 steps of the result's type over its whole range.
    steps = float32(65536) / float32(highest_value - lowest_value)
    offsets = np.arange(512, dtype=float32) * step
    next_offsets = np.arange(1, 513, dtype=float32) * step
    samples = function(start + offsets) * steps
    midpoints = _AWAY(function(start + offsets + step / float32(2)) * steps)
    rounded = _AWAY(samples)
    error = _AWAY((function(start + next_offsets) * steps + rounded) / float32(2)) - midpoints
    last_sample = _AWAY(function(np.array([end], float32)) * steps)
    entries = np.append(rounded - _AWAY(error / float32(2)), last_sample)
    return np.asarray(np.clip(entries, low, high), np.int64)


def _curve(call: MethodCall, x: Float32Array) -> Float32Array:
    """Returns a function in float32; where it has no value, the end of the integers that it goes
    to."""
    out = call.out
    assert out is not None
    values: Float32Array
    with np.errstate(all="ignore"):
        if call.op == "rsqrt":
            values = np.asarray(float32(1) / np.sqrt(x), float32)
        elif call.op == "gelu" and call.attrs["approximate"] == "none":
            # erfc keeps the tail's precision where 1 + erf would cancel.
            complement = compute("erfc", {"x": x * float32(-math.sqrt(0.5))}, {}).astype(float32)
            values = float32(0.5) * x * complement
        elif call.op == "gelu":
            argument = (float32(_SQRT_2_OVER_PI) * (x + float32(0.044715) * x * x * x)).astype(
                np.float64
            )
            values = float32(0.5) * x * (float32(1) + np.tanh(argument).astype(float32))
        else:
            values = compute(call.op, {"x": x}, call.attrs).astype(float32)
    if call.op in ("log", "rsqrt"):
        limit = out.low if call.op == "log" else out.high
        values = np.where(
            x <= 0, float32(out.scale) * float32(limit - int(out.zero)), values
        ).astype(float32)
    return np.asarray(values, float32)


_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


def each_code(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Returns a curve in float32 of what integers mean; of what has no value, the end that it goes
    to."""
    out = call.out
    if out is None:
        raise OpError("each_code: gives quantized values")
    return quantize(
        _curve(call, dequantize(arrays["x"], call.affine("x"), call.rule)), out, call.rule
    )


def between(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Returns a curve of 16-bit integers between 513 numbers; of what has no value, the end it goes
    to."""
    out = call.out
    if out is None or out.storage.bits != 16 or call.affine("x").storage.bits != 16:
        raise OpError("between: 16-bit integers")
    require_per_tensor("between", call.affine("x"), out)
    table = _sample_with_correction(call, lambda x: _curve(call, x))
    integers = arrays["x"].astype(np.int64)
    index, remainder = 256 + (integers >> 7), integers & 0x7F
    slope = (table[index + 1] - table[index]) * remainder
    return saturate(table[index] + ((slope + 64) >> 7), out)


_COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
METHODS: Mapping[str, PluginMethod] = {
    "fixed_abs": PluginMethod(
        fixed_abs, ("abs",), reads=("requant",), slots=("x",), pointwise=True
    ),
    "fixed_clip": PluginMethod(
        fixed_clip,
        ("clip",),
        reads=("requant",),
        slots=("x",),
        attrs=("min", "max"),
        pointwise=True,
    ),
    "fixed_relu": PluginMethod(
        fixed_relu, ("relu",), reads=("requant",), slots=("x",), pointwise=True
    ),
    "fixed_compare": PluginMethod(
        fixed_compare, _COMPARISONS, reads=("requant",), reals=True, pointwise=True
    ),
    "code_compare": PluginMethod(code_compare, _COMPARISONS, reals=True, pointwise=True),
    "fixed_square": PluginMethod(
        fixed_square, ("squared_difference",), reads=("requant",), slots=("a", "b"), pointwise=True
    ),
    "cut_root": PluginMethod(cut_root, ("sqrt",), slots=("x",), pointwise=True),
    "fixed_quotient": PluginMethod(fixed_quotient, ("div",), slots=("a", "b"), pointwise=True),
    "fixed_powers": PluginMethod(
        fixed_powers, ("reduce_prod",), slots=("x",), attrs=("axes", "keep")
    ),
    "between": PluginMethod(between, ("exp", "log", "rsqrt", "gelu", "elu")),
    "each_code": PluginMethod(
        each_code, ("exp", "log", "elu", "gelu"), reads=("quantize", "dequantize"), pointwise=True
    ),
    "unshifted": PluginMethod(
        unshifted, ("matmul",), reads=("acc", "bias", "requant", "stage"), params={"apart": FLAG}
    ),
    "padding_alone": PluginMethod(
        padding_alone, ("conv2d",), reads=("acc", "bias", "requant", "stage")
    ),
    "even_table": PluginMethod(even_table, ("embedding",), reads=("dequantize",), reals=True),
    "quantize_vectors": PluginMethod(quantize_vectors, ("quantize",)),
}
"""The methods of this module, by the name that profiles use."""
