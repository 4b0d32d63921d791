"""TensorFlow Lite's integer sums, means and pools, to the last bit.

Integers are scaled by 31-bit multipliers with a shift, rounded twice or once as the rule's
`requant.round` says. Each function takes operands, their quantized types, the result's type, and
the rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.affine import Affine
from qir.numerics.fields import Requant, Rule
from qir.numerics.quantize import dequantize, quantize
from qir.numerics.rounding import ROUNDINGS, Floats
from qir.profiles.methods import FLAG, Param, PluginMethod
from qir.reference.fixed_point import multiply_fixed_point, to_fixed_point
from qir.reference.integer_means import AVERAGES, sum_quantized
from qir.reference.method import require_per_tensor
from qir.reference.windows import restore_layout

from .powers import expf

Integers = NDArray[np.generic]
Int64 = NDArray[np.int64]
F = np.float32


def _clamped(values: Int64, out: Affine) -> Integers:
    return np.clip(values, out.low, out.high).astype(out.carrier)


def _minus_zero_point(integers: Integers, affine: Affine, name: str) -> Int64:
    if affine.axis is not None:
        raise OpError(f"{name}: one scale a tensor, not one a channel")
    return np.asarray(integers.astype(np.int64) - int(affine.zero))


# -- two operands ---------------------------------------------------------------------------------


def fixed_sum(
    a: Integers,
    b: Integers,
    a_map: Affine,
    b_map: Affine,
    out: Affine,
    *,
    rule: Rule,
    sign: int = 1,
    once: bool = False,
) -> Integers:
    """Computes a + b, or a - b, in fixed point.

    Both operands get 20 more bits (15 for 16-bit integers), in units of twice the larger scale; the
    sum is scaled to the result. `once`: operands of one shape are rounded once, ties up; those
    that are broadcast are left to another kernel.
    """
    operand_rule = rule
    if once and a.shape == b.shape:
        operand_rule = replace(rule, requant=replace(rule.requant, round="half_up"))
    bits = 20 if a_map.storage.bits == 8 else 15
    # In units of twice the larger scale, the shifted operands and their sum fit into 32 bits.
    unit = 2 * max(float(a_map.scale), float(b_map.scale))
    parts = [
        multiply_fixed_point(
            _minus_zero_point(x, affine, "fixed_sum") << bits,
            *to_fixed_point(float(affine.scale) / unit),
            operand_rule,
        )
        for x, affine in ((a, a_map), (b, b_map))
    ]
    total = (parts[0] + sign * parts[1]).astype(np.int32).astype(np.int64)
    multiplier, exponent = to_fixed_point(unit / ((1 << bits) * float(out.scale)))
    if exponent > 0:
        raise OpError(f"fixed_sum: an operand's scale is 2^{bits - 1} times the result's or more")
    scaled = multiply_fixed_point(total, multiplier, exponent, rule)
    return _clamped(scaled + int(out.zero), out)


def fixed_product(
    a: Integers, b: Integers, a_map: Affine, b_map: Affine, out: Affine, *, rule: Rule
) -> Integers:
    """Computes a * b by a multiplier of (sa * sb) / sc in float32, or by that float itself."""
    ratio = F(F(a_map.scale) * F(b_map.scale)) / F(out.scale)
    product = _minus_zero_point(a, a_map, "fixed_product") * _minus_zero_point(
        b, b_map, "fixed_product"
    )
    if rule.requant.multiplier == "f32":
        if rule.requant.round not in ROUNDINGS:
            raise OpError("fixed_product: a float32 factor is rounded once")
        if ratio >= 2.0**8:
            raise OpError("fixed_product: the scales' product is 256 times the result's or more")
        scaled: Floats = np.clip(product.astype(F) * ratio, F(-(2**31)), F(2**31))
        rounded = ROUNDINGS[rule.requant.round](scaled).astype(np.int64)
    else:
        rounded = multiply_fixed_point(product, *to_fixed_point(float(ratio)), rule)
    return _clamped(rounded + int(out.zero), out)


def aligned_sum(
    a: Integers, b: Integers, a_map: Affine, b_map: Affine, out: Affine, *, sign: int = 1
) -> Integers:
    """Computes a + b, or a - b, as XNNPACK does.

    The quotients of the scales are integers of 21 bits with one shift; the sum is rounded once,
    ties up. Raises OpError for quotients that XNNPACK does not support.
    """
    ra, rb = (float(F(affine.scale) / F(out.scale)) for affine in (a_map, b_map))
    if max(ra, rb) >= 2.0**8:
        raise OpError("aligned_sum: an operand's scale is 256 times the result's or more")
    if min(ra, rb) < 2.0**-10:
        raise OpError("aligned_sum: an operand's scale is below 1/1024 of the result's")
    shift = 20 - (math.frexp(max(ra, rb))[1] - 1)
    left, right = (round(math.ldexp(r, shift)) for r in (ra, rb))
    total = left * _minus_zero_point(a, a_map, "aligned_sum")
    total = total + sign * right * _minus_zero_point(b, b_map, "aligned_sum")
    return _clamped(((total + (1 << (shift - 1))) >> shift) + int(out.zero), out)


# -- one operand ----------------------------------------------------------------------------------


def fixed_recode(x: Integers, x_map: Affine, out: Affine, *, rule: Rule) -> Integers:
    """Computes requantize: (q - z) times the multiplier of the scales' quotient."""
    ratio = float(x_map.scale) / float(out.scale)
    scaled = multiply_fixed_point(
        _minus_zero_point(x, x_map, "fixed_recode"), *to_fixed_point(ratio), rule
    )
    return _clamped(scaled + int(out.zero), out)


def fixed_leaky_relu(
    x: Integers, x_map: Affine, out: Affine, *, rule: Rule, alpha: float = 0.01
) -> Integers:
    """Computes leaky_relu by one multiplier from zero up, and another one below."""
    value = _minus_zero_point(x, x_map, "fixed_leaky_relu")
    positive_factor = float(F(x_map.scale) / F(out.scale))
    negative_factor = float(F(F(x_map.scale) * F(alpha)) / F(out.scale))
    above, below = (
        multiply_fixed_point(value, *to_fixed_point(factor), rule)
        for factor in (positive_factor, negative_factor)
    )
    return _clamped(np.where(value >= 0, above, below) + int(out.zero), out)


def short_leaky_relu(x: Integers, x_map: Affine, out: Affine, *, alpha: float = 0.01) -> Integers:
    """Computes leaky_relu as XNNPACK does: by factors with 8 fraction bits, ties up.

    Factors that XNNPACK does not support go to TensorFlow Lite's own kernel, which rounds twice.
    """
    ratio = F(x_map.scale) / F(out.scale)
    if not _is_xnnpack_factor(ratio) or not _is_xnnpack_factor(ratio * F(alpha)):
        return fixed_leaky_relu(x, x_map, out, rule=DOUBLE, alpha=alpha)
    value = _minus_zero_point(x, x_map, "short_leaky_relu")
    product = np.where(
        value >= 0, value * to_8_fraction_bits(ratio), value * to_8_fraction_bits(ratio * F(alpha))
    )
    return _clamped(((product + 128) >> 8) + int(out.zero), out)


DOUBLE = Rule("", requant=Requant(round="double", multiplier="q31"))
"""How TensorFlow Lite's own kernels round."""


def _is_xnnpack_factor(ratio: np.float32) -> bool:
    """Returns whether XNNPACK's leaky_relu supports a factor."""
    return 2.0**-8 <= abs(float(ratio)) and 2.0**-8 - 128 <= float(ratio) <= 128


def to_8_fraction_bits(ratio: np.float32) -> int:
    """Returns a number in fixed point with 8 fraction bits."""
    return round(float(ratio) * 256)


def fixed_hard_swish(x: Integers, x_map: Affine, out: Affine) -> Integers:
    """Computes hard_swish in 16 bits, by 15-bit multipliers for x and for relu6(x + 3)."""
    value = _minus_zero_point(x, x_map, "fixed_hard_swish") << 7
    # Seven more bits, so that the scale is 128 times finer.
    fine_scale = F(F(1 / 128) * F(x_map.scale))
    (output_multiplier, output_exponent), (gate_multiplier, gate_exponent) = (
        _multiplier_15_bits(float(F(fine_scale / unit)))
        for unit in (F(out.scale), F(3.0 / 32768.0))
    )
    if output_exponent > 0:
        raise OpError("fixed_hard_swish: the result's scale is below 1/128 of the operand's")
    # gate = relu6(x + 3) / 6 as a 16-bit fraction: half of the saturated x / 3, plus a half.
    gate = value
    if gate_exponent > 0:
        gate = _saturating_shift(gate, gate_exponent - 1)
    gate = _rounding_doubling_high_half(gate, gate_multiplier)
    if gate_exponent > 0:
        gate = _saturating_shift(gate, 1)
    elif gate_exponent < 0:
        gate = _rounding_shift_right(gate, -gate_exponent)
    gate = (gate + (1 << 15)) >> 1
    product = gate * _rounding_doubling_high_half(value, output_multiplier)
    half_product = np.where(product >= 0, product >> 15, -(-product >> 15))
    return _clamped(_rounding_shift_right(half_product, -output_exponent) + int(out.zero), out)


def _multiplier_15_bits(m: float) -> tuple[int, int]:
    """Returns a 15-bit multiplier and its exponent."""
    q, exponent = to_fixed_point(m)
    return min((q + (1 << 15)) >> 16, (1 << 15) - 1), exponent


def _saturating_shift(x: Int64, by: int) -> Int64:
    return np.asarray(np.clip(x << by, -(1 << 15), (1 << 15) - 1))


def _rounding_doubling_high_half(x: Int64, q: int) -> Int64:
    """Returns the rounding, doubling high half of a product of 16-bit numbers."""
    nudged = x * q + np.where(x >= 0, 1 << 14, 1 - (1 << 14))
    return np.where(nudged >= 0, nudged >> 15, -(-nudged >> 15))


def _rounding_shift_right(x: Int64, exponent: int) -> Int64:
    """Divides 16-bit integers by a power of two, ties away from zero.

    The mask of the dropped bits has 16 bits, too: dividing by 2^16 and more gives 1, or -1 for
    negative ones.
    """
    mask = (1 << exponent) - 1 if exponent < 16 else -1
    return np.asarray((x >> exponent) + ((x & mask) > (mask >> 1) + (x < 0)))


def logistic_steps(x: Integers, x_map: Affine, out: Affine, *, rule: Rule) -> Integers:
    """Computes 1 / (1 + exp(-x)), each step in float32."""
    powers = expf(-dequantize(x, x_map, rule).astype(F))
    return quantize(F(1) / (F(1) + powers), out, rule)


def share_table(x: Integers, x_map: Affine, out: Affine, *, axis: int = -1) -> Integers:
    """Computes softmax by a float32 table of exponentials.

    The sum is in the order of the axis, and one quotient a row multiplies all its terms.
    """
    if x_map.storage.bits > 8:
        raise OpError("share_table: a table over 8-bit integers; wider integers are not supported")
    integers = np.moveaxis(_minus_zero_point(x, x_map, "share_table"), axis, -1)
    if not integers.size:
        return np.zeros(x.shape, out.carrier)
    terms = share_terms(x_map)[integers.max(-1, keepdims=True) - integers]
    # A running sum keeps the order of the axis, which np.sum would change.
    total = np.cumsum(terms, -1, dtype=F)[..., -1:]
    quotients = terms * (F(1) / (total * F(out.scale)))
    rounded = np.floor(quotients.astype(np.float64) + 0.5).astype(np.int64) + int(out.zero)
    return np.moveaxis(_clamped(rounded, out), -1, axis)


def share_terms(x_map: Affine) -> NDArray[np.float32]:
    """Returns exp(-scale * k) for each difference k to the maximum."""
    return expf(-F(x_map.scale) * np.arange(256, dtype=F))


# -- windows --------------------------------------------------------------------------------------


def rounded_quotient(total: Int64, count: Int64 | int) -> Int64:
    """Divides integers, ties away from zero."""
    nudged = np.where(total > 0, total + count // 2, total - count // 2)
    return np.asarray(np.where(nudged >= 0, nudged // count, -(-nudged // count)))


def mean_away(
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
    """Computes average pooling of raw integers without padding; ties round away from the integer
    zero."""
    if count_pad:
        raise OpError("mean_away: padding is not counted")
    total, count = sum_quantized(x, kernel, stride, pad, ceil=ceil, layout=layout)
    return restore_layout(mean_away_of_sums(total, count, x_map, out), layout)


def mean_away_of_sums(sums: Int64, count: int | Int64, x_map: Affine, out: Affine) -> Integers:
    """Returns sums of raw integers by their number, ties away from the integer zero."""
    if not x_map.same_map(out):
        raise OpError("mean_away: operand and result have one map")
    return _clamped(rounded_quotient(sums, count), out)


def _sums_along(x: Integers, axes: Sequence[int], keep: bool) -> tuple[Int64, int]:
    """Returns the sums of raw integers along axes, and how many each is of."""
    reduced_axes = tuple(a % x.ndim for a in axes) or tuple(range(x.ndim))
    count = math.prod(x.shape[a] for a in reduced_axes)
    return x.astype(np.int64).sum(reduced_axes, keepdims=keep), count


def fixed_mean(
    x: Integers,
    x_map: Affine,
    out: Affine,
    *,
    rule: Rule,
    axes: Sequence[int] = (),
    keep: bool = True,
) -> Integers:
    """Computes the sum of q - z times a multiplier that is divided by the count."""
    return fixed_mean_of_sums(*_sums_along(x, axes, keep), x_map, out, rule=rule)


def fixed_mean_of_sums(
    sums: Int64, count: int, x_map: Affine, out: Affine, *, rule: Rule
) -> Integers:
    """Returns means of sums of raw integers; see `fixed_mean`."""
    require_per_tensor("fixed_mean", x_map)
    q, exponent = to_fixed_point(float(x_map.scale) / float(out.scale))
    # The shift keeps the divided multiplier in 32 bits, as TensorFlow Lite's Mean does.
    shift = min(63 - (64 - count.bit_length()), 32, 31 + exponent)
    q, exponent = (q << shift) // count, exponent - shift
    total = sums - count * int(x_map.zero)
    return _clamped(multiply_fixed_point(total, q, exponent, rule) + int(out.zero), out)


def mean_before(
    x: Integers,
    x_map: Affine,
    out: Affine,
    *,
    axes: Sequence[int] = (),
    keep: bool = True,
    round: str = "away",
) -> Integers:
    """Computes the sum of q - z times (s / s_out) / count in float32; see `_quantize_sums`."""
    return mean_before_of_sums(*_sums_along(x, axes, keep), x_map, out, round=round)


def mean_before_of_sums(
    sums: Int64, count: int, x_map: Affine, out: Affine, *, round: str = "away"
) -> Integers:
    """Returns means of sums of raw integers; see `mean_before`."""
    require_per_tensor("mean_before", x_map)
    gain = F(x_map.scale) / F(out.scale) / F(count)
    return _quantize_sums("mean_before", sums, count * int(x_map.zero), gain, out, round)


def total_before(
    x: Integers,
    x_map: Affine,
    out: Affine,
    *,
    axes: Sequence[int] = (),
    keep: bool = True,
    round: str = "away",
) -> Integers:
    """Computes the sum of q - z times s / s_out in float32; see `_quantize_sums`."""
    return total_before_of_sums(*_sums_along(x, axes, keep), x_map, out, round=round)


def total_before_of_sums(
    sums: Int64, count: int, x_map: Affine, out: Affine, *, round: str = "away"
) -> Integers:
    """Returns sums of raw integers in the result's type; see `total_before`."""
    require_per_tensor("total_before", x_map)
    gain = F(x_map.scale) / F(out.scale)
    return _quantize_sums("total_before", sums, count * int(x_map.zero), gain, out, round)


def _quantize_sums(
    name: str, sums: Int64, zeros: int, gain: np.float32, out: Affine, round: str
) -> Integers:
    """Quantizes sums by a gain, with the zero point inside the rounding.

    Raw integers are summed; what `zeros` are too much is subtracted from the zero point.
    """
    if round not in ("away", "even"):
        raise OpError(f"{name}: round = {round!r}; it is away or even")
    steps: Floats = sums.astype(F) * gain + (F(out.zero) - F(zeros) * gain)
    rounded: Floats = ROUNDINGS[round](np.clip(steps, out.low, out.high))
    return rounded.astype(out.carrier)


METHODS: Mapping[str, PluginMethod] = {
    "fixed_sum": PluginMethod(
        fixed_sum,
        ("add", "sub"),
        reads=("requant",),
        slots=("a", "b"),
        params={"sign": Param((1, -1)), "once": FLAG},
        pointwise=True,
    ),
    "aligned_sum": PluginMethod(
        aligned_sum,
        ("add", "sub"),
        slots=("a", "b"),
        params={"sign": Param((1, -1))},
        pointwise=True,
    ),
    "fixed_product": PluginMethod(
        fixed_product, ("mul",), reads=("requant",), slots=("a", "b"), pointwise=True
    ),
    "fixed_recode": PluginMethod(
        fixed_recode, ("requantize",), reads=("requant",), slots=("x",), pointwise=True
    ),
    "fixed_leaky_relu": PluginMethod(
        fixed_leaky_relu,
        ("leaky_relu",),
        reads=("requant",),
        slots=("x",),
        attrs=("alpha",),
        pointwise=True,
    ),
    "short_leaky_relu": PluginMethod(
        short_leaky_relu, ("leaky_relu",), slots=("x",), attrs=("alpha",), pointwise=True
    ),
    "fixed_hard_swish": PluginMethod(
        fixed_hard_swish, ("hard_swish",), slots=("x",), pointwise=True
    ),
    "logistic_steps": PluginMethod(
        logistic_steps, ("sigmoid",), reads=("quantize", "dequantize"), slots=("x",), pointwise=True
    ),
    "share_table": PluginMethod(
        share_table, ("softmax",), slots=("x",), attrs=("axis",), terms=share_terms
    ),
    "mean_away": PluginMethod(
        mean_away,
        AVERAGES,
        slots=("x",),
        attrs=("kernel", "stride", "pad", "ceil", "count_pad", "layout"),
        of_sums=mean_away_of_sums,
    ),
    "fixed_mean": PluginMethod(
        fixed_mean,
        ("reduce_mean",),
        reads=("requant",),
        slots=("x",),
        attrs=("axes", "keep"),
        of_sums=fixed_mean_of_sums,
    ),
    "mean_before": PluginMethod(
        mean_before,
        ("reduce_mean",),
        slots=("x",),
        attrs=("axes", "keep"),
        params={"round": Param(("away", "even"))},
        of_sums=mean_before_of_sums,
    ),
    "total_before": PluginMethod(
        total_before,
        ("reduce_sum",),
        slots=("x",),
        attrs=("axes", "keep"),
        params={"round": Param(("away", "even"))},
        of_sums=total_before_of_sums,
    ),
}
"""The methods of this module, by the name that profiles use."""
