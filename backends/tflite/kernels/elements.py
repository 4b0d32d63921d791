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

from .fixed import LONG, bit_length, reciprocal, shift_right_rounding

Whole = NDArray[np.int64]
_AWAY = ROUNDINGS["away"]


def _centred(codes: Integers, of: Affine) -> Whole:
    return np.asarray(codes.astype(np.int64) - int(of.zero))


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
    by = to_fixed_point(float(float32(x_map.scale) / float32(out.scale)))
    whole = multiply_fixed_point(_centred(x, x_map), *by, rule) + int(out.zero)
    low, high = (
        end
        if value is None
        else int(_AWAY(np.asarray(float32(value) / float32(out.scale)))) + int(out.zero)
        for value, end in ((min, out.low), (max, out.high))
    )
    return saturate(np.clip(whole, low, high), out)


def fixed_relu(x: Integers, x_map: Affine, out: Affine, *, rule: Rule) -> Integers:
    """`fixed_clip` from zero up."""
    return fixed_clip(x, x_map, out, rule=rule, min=0.0)


# -- two operands ---------------------------------------------------------------------------------


def fixed_compare(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Returns a comparison of q - z with eight more bits, each by the multiplier of its own
    scale."""
    sides = {slot: _compared(call, slot, arrays[slot]) for slot in ("a", "b")}
    return compute(call.op, sides, call.attrs)


def _compared(call: MethodCall, slot: str, codes: Integers) -> Whole:
    of = call.affine(slot)
    require_per_tensor("fixed_compare", of)
    q, exponent = to_fixed_point(float(float32(of.scale)))
    if exponent > 0:
        raise OpError(f"fixed_compare: {slot} has scale {float(of.scale)}; it takes less than 1")
    return multiply_fixed_point(_centred(codes, of) << 8, q, exponent, call.rule)


def code_compare(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Returns a comparison of the quantized values, whatever their scales."""
    return compute(call.op, arrays, call.attrs)


def fixed_quotient(a: Integers, b: Integers, a_map: Affine, b_map: Affine, out: Affine) -> Integers:
    """a / b by a reciprocal of 31 bits, then by the multiplier of sa / (sb * sc)."""
    require_per_tensor("fixed_quotient", a_map, b_map, out)
    over, under = np.broadcast_arrays(_centred(a, a_map), _centred(b, b_map))
    if not under.all():
        raise OpError("fixed_quotient: a divisor is zero")
    over, under = np.where(under < 0, -over, over), np.abs(under)
    inverse, shift = reciprocal(under, 31)
    room = 31 - bit_length(np.where(over < 0, -over - 1, over) * 2 + 1) + 1
    quotient = LONG.multiply(LONG.wrap(over << room), inverse)
    by = float(float32(a_map.scale) / float32(float32(b_map.scale) * float32(out.scale)))
    factor, exponent = to_fixed_point(by)
    made = _down(LONG.multiply(quotient, factor), shift + room - exponent)
    return saturate(made + int(out.zero), out)


def _down(x: Whole, by: Whole) -> Whole:
    """x / 2^by, halves away from zero; beyond 31 a shift counts from zero again, as on x86."""
    beyond = by > 31
    near = shift_right_rounding(x, np.where(beyond, 0, by))
    return np.where(beyond, (x >> (by & 31)) + (x >= 0), near)


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
    maps = {**call.maps, "b": replace(b, zero=b.zero * 0)}
    return integer_product(replace(call, rule=rule, maps=maps), arrays)


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
    twice = 2 * max(float(a_map.scale), float(b_map.scale))
    left, right = (
        multiply_fixed_point(_centred(x, of) << 7, *to_fixed_point(float(of.scale) / twice), rule)
        for x, of in ((a, a_map), (b, b_map))
    )
    by = twice * twice / ((1 << 14) * float(out.scale))
    made = multiply_fixed_point((left - right) ** 2, *to_fixed_point(by), rule)
    return saturate(made + int(out.zero), out)


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
    over = tuple(a % x.ndim for a in axes) or tuple(range(x.ndim))
    kept = [a for a in range(x.ndim) if a not in over]
    count = math.prod(x.shape[a] for a in over)
    value = _centred(x, x_map).transpose(*kept, *over)
    value = value.reshape(*(x.shape[a] for a in kept), count)
    if not count:
        raise OpError("fixed_powers: a product of no quantized values")
    by = float(float32(x_map.scale)) / float(float32(out.scale)) ** (1.0 / count)
    q, exponent = to_fixed_point(by)
    short = min((q + (1 << 15)) >> 16, (1 << 15) - 1)
    rest, half = 15 - exponent, np.int64(1) << (14 - exponent)
    total = value[..., 0]
    for index in range(1, count + 1):
        product = total * value[..., index] if index < count else total
        total = LONG.wrap((product * short + half) >> rest)
    made = saturate(total + int(out.zero), out)
    return np.expand_dims(made, over) if keep else made


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
    made = compute(call.op, {**arrays, "w": table}, call.attrs)
    assert isinstance(made, np.ndarray)
    return made


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
        body = np.rint(x * (float32(1) / float32(out.scale)))
        tail = _AWAY(x.astype(np.float64) / float(out.scale)).astype(float32)
    places = np.arange(x.size).reshape(x.shape) < x.size // 8 * 8
    made = np.where(places, body, tail) + float32(out.zero)
    return np.clip(np.nan_to_num(made), out.low, out.high).astype(out.carrier)


# -- functions of 16-bit values -------------------------------------------------------------------


def _table(call: MethodCall, function: Callable[[Float32Array], Float32Array]) -> Whole:
    """513 numbers in float32, each moved by half of what the middle after it would be off."""
    x, out = call.affine("x"), call.out
    assert out is not None
    low, high = x.storage.bounds
    start, end = (float32(float32(x.scale) * float32(code - int(x.zero))) for code in (low, high))
    least, most = (
        float32(float32(out.scale) * float32(code - int(out.zero))) for code in (low, high)
    )
    step = float32(end - start) / float32(512)
    steps = float32(65536) / float32(most - least)
    places = np.arange(512, dtype=float32) * step
    after = np.arange(1, 513, dtype=float32) * step
    here = function(start + places) * steps
    middle = _AWAY(function(start + places + step / float32(2)) * steps)
    first = _AWAY(here)
    off = _AWAY((function(start + after) * steps + first) / float32(2)) - middle
    last = _AWAY(function(np.array([end], float32)) * steps)
    made = np.append(first - _AWAY(off / float32(2)), last)
    return np.asarray(np.clip(made, low, high), np.int64)


def _curve(call: MethodCall, x: Float32Array) -> Float32Array:
    """Returns a function in float32; where it has no value, the end of the integers that it goes
    to."""
    out = call.out
    assert out is not None
    made: Float32Array
    with np.errstate(all="ignore"):
        if call.op == "rsqrt":
            made = np.asarray(float32(1) / np.sqrt(x), float32)
        elif call.op == "gelu" and call.attrs["approximate"] == "none":
            tail = compute("erfc", {"x": x * float32(-math.sqrt(0.5))}, {}).astype(float32)
            made = float32(0.5) * x * tail
        elif call.op == "gelu":
            wide = (float32(_GELU) * (x + float32(0.044715) * x * x * x)).astype(np.float64)
            made = float32(0.5) * x * (float32(1) + np.tanh(wide).astype(float32))
        else:
            made = compute(call.op, {"x": x}, call.attrs).astype(float32)
    if call.op in ("log", "rsqrt"):
        end = out.low if call.op == "log" else out.high
        made = np.where(x <= 0, float32(out.scale) * float32(end - int(out.zero)), made).astype(
            float32
        )
    return np.asarray(made, float32)


_GELU = math.sqrt(2 / math.pi)


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
    table = _table(call, lambda x: _curve(call, x))
    codes = arrays["x"].astype(np.int64)
    at, rest = 256 + (codes >> 7), codes & 0x7F
    slope = (table[at + 1] - table[at]) * rest
    return saturate(table[at] + ((slope + 64) >> 7), out)


METHODS: Mapping[str, PluginMethod] = {
    "fixed_abs": PluginMethod(fixed_abs, ("abs",), reads=("requant",), slots=("x",)),
    "fixed_clip": PluginMethod(
        fixed_clip, ("clip",), reads=("requant",), slots=("x",), attrs=("min", "max")
    ),
    "fixed_relu": PluginMethod(fixed_relu, ("relu",), reads=("requant",), slots=("x",)),
    "fixed_compare": PluginMethod(
        fixed_compare,
        ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"),
        reads=("requant",),
        reals=True,
    ),
    "code_compare": PluginMethod(
        code_compare,
        ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"),
        reals=True,
    ),
    "fixed_square": PluginMethod(
        fixed_square, ("squared_difference",), reads=("requant",), slots=("a", "b")
    ),
    "cut_root": PluginMethod(cut_root, ("sqrt",), slots=("x",)),
    "fixed_quotient": PluginMethod(fixed_quotient, ("div",), slots=("a", "b")),
    "fixed_powers": PluginMethod(
        fixed_powers, ("reduce_prod",), slots=("x",), attrs=("axes", "keep")
    ),
    "between": PluginMethod(between, ("exp", "log", "rsqrt", "gelu", "elu")),
    "each_code": PluginMethod(
        each_code, ("exp", "log", "elu", "gelu"), reads=("quantize", "dequantize")
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
