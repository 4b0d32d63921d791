"""Ops on quantized values that are not "accumulate and round once", under the names that profiles
use.

Each function takes the operands' quantized values, their quantized types and the result's, and does
what one kind of kernel does, to the last bit: where it is said float32, every step rounds to
float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError, ProfileError
from qir.ir.attrs import Attr
from qir.numerics.affine import Affine
from qir.numerics.fields import Rule
from qir.numerics.quantize import dequantize, quantize
from qir.numerics.rounding import fma
from qir.profiles.methods import Param, PluginMethod, fault, method_names, plugin_method
from qir.reference import conv_of_other_ranks, integer_means, means, resize, transposed, vectors
from qir.reference.integer_means import AVERAGES, GLOBAL_MEANS
from qir.reference.method import (
    Float32Array,
    Integers,
    MethodCall,
    float32,
    require_per_tensor,
    round_to_int32,
    saturate,
    variadic_slots,
)
from qir.reference.table import compute
from qir.reference.windows import channels_first, pad_window, restore_layout, windows_along_axis

# Coefficients of the rational approximation of the logistic function that Eigen and MLAS use.
_ALPHA = tuple(
    float32(v)
    for v in (
        4.37031012579801e-11,
        1.15627324459942e-07,
        6.08574864600143e-05,
        8.51377133304701e-03,
        2.48287947061529e-01,
    )
)
_BETA = tuple(
    float32(v)
    for v in (
        6.10247389755681e-13,
        5.76102136993427e-09,
        6.29106785017040e-06,
        1.70198817374094e-03,
        1.16817656904453e-01,
        9.93151921023180e-01,
    )
)


def _zero(of: Affine) -> np.float32:
    return float32(of.zero)


# -- two operands ---------------------------------------------------------------------------------


def fma_sum(a: Integers, b: Integers, a_map: Affine, b_map: Affine, out: Affine) -> Integers:
    """a + b: rne(fma(a, ra, fma(b, rb, c))) in float32, on raw integers, one constant for all
    zeros.

    The operand that is one number in the innermost run, if it is `a`, changes places with `b`.
    """
    require_per_tensor("fma_sum", a_map, b_map, out)
    # onnxruntime's broadcast loops put the single number second.
    if runs_of_one(a.shape, b.shape):
        a, b, a_map, b_map = b, a, b_map, a_map
    with np.errstate(all="ignore"):
        ra, rb = (
            float32(a_map.scale) / float32(out.scale),
            float32(b_map.scale) / float32(out.scale),
        )
        # One constant for the three zero points, with the roundings of the kernel's own set-up.
        constant = _zero(out) - fma(ra, _zero(a_map), float32(rb * _zero(b_map)))
        total = fma(a.astype(float32), ra, fma(b.astype(float32), rb, constant))
    return saturate(round_to_int32(total), out)


def runs_of_one(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Returns whether onnxruntime's innermost run has one element of `a`, and several or one of
    `b`.

    The run starts at the last axis where not both are 1, but no further out than `b` or `a`
    reaches: a vector of one next to an image whose last axis is 1 makes runs of one of both.
    """
    if not a or not b:
        return not a or a[-1] == 1
    # Axes where both are 1 are dropped by the broadcaster, so they do not start a run.
    pairs = list(zip(a[::-1], b[::-1], strict=False))
    return next((p for p in pairs if p != (1, 1)), pairs[-1])[0] == 1


def scaled_product(a: Integers, b: Integers, a_map: Affine, b_map: Affine, out: Affine) -> Integers:
    """a * b: rne((a - za) * (b - zb) * m + zc) in float32, m = (sa * sb) / sc."""
    require_per_tensor("scaled_product", a_map, b_map, out)
    with np.errstate(all="ignore"):
        # onnxruntime's QLinearMul multiplies the scales first; another order gives another last
        # bit.
        factor = float32(float32(a_map.scale) * float32(b_map.scale)) / float32(out.scale)
        left = (a.astype(np.int32) - int(a_map.zero)).astype(float32)
        right = (b.astype(np.int32) - int(b_map.zero)).astype(float32)
        total = (left * right) * factor + _zero(out)
    return saturate(round_to_int32(total), out)


# -- tables ---------------------------------------------------------------------------------------


def _table(
    of: Affine, out: Affine, rule: Rule, function: Callable[[Float32Array], Float32Array]
) -> Integers:
    """The result's code for each quantized value there is, from the least on."""
    least, greatest = of.storage.bounds
    # Two bytes make 65,536 entries; a table of 32-bit integers would not fit the memory.
    if greatest - least > 1 << 16:
        raise OpError(f"a table over all values of {of.storage} is too long")
    quantized = np.arange(least, greatest + 1).astype(of.carrier)
    return quantize(function(dequantize(quantized, of, rule).astype(float32)), out, rule)


def _lookup(table: Integers, integers: Integers, of: Affine) -> Integers:
    return table[integers.astype(np.int64) - of.storage.bounds[0]]


def logistic(x: Float32Array) -> Float32Array:
    """1 / (1 + exp(-x)) by a rational approximation in float32, fused multiply-adds throughout."""
    # MlasLogisticKernel clips its argument to 18 on either side.
    x = np.clip(x, float32(-18), float32(18))
    square = x * x
    # Horner's scheme from the highest coefficient: p is the odd numerator over x, q the
    # denominator.
    p = fma(square, _ALPHA[0], _ALPHA[1])
    for alpha in _ALPHA[2:]:
        p = fma(p, square, alpha)
    q = fma(square, _BETA[0], _BETA[1])
    for beta in _BETA[2:]:
        q = fma(q, square, beta)
    return np.asarray(np.clip((p * x) / q + float32(0.5), float32(0), float32(1)), float32)


def logistic_table(x: Integers, x_map: Affine, out: Affine, *, rule: Rule) -> Integers:
    """Sigmoid: a table of quantize(logistic(dequantize(code)))."""
    require_per_tensor("logistic_table", x_map, out)
    return _lookup(_table(x_map, out, rule, logistic), x, x_map)


def recode(x: Integers, x_map: Affine, out: Affine, *, rule: Rule) -> Integers:
    """Returns the integers of the same floats in another quantized type: kept where the maps agree,
    else by a table."""
    if x_map.same_map(out):
        return x
    if x_map.axis is not None or out.axis is not None:
        return quantize(dequantize(x, x_map, rule), out, rule)
    return _lookup(_table(x_map, out, rule, lambda floats: floats), x, x_map)


def recode_all(
    xs: Sequence[Integers], x_maps: Sequence[Affine], out: Affine, *, axis: int, rule: Rule
) -> Integers:
    """Concat: each operand in the result's quantized type."""
    maps = zip(xs, x_maps, strict=True)
    return np.concatenate([recode(x, of, out, rule=rule) for x, of in maps], axis)


_BITS = 8
"""The widest quantized values that a table of 256 exponents takes."""


def exponent_table(
    x: Integers,
    x_map: Affine,
    out: Affine,
    *,
    axis: int = -1,
    quotient: str = "f32",
    overflow: str = "saturate",
) -> Integers:
    """Softmax: exponents from a float32 table that is shifted so that the greatest quantized value
    is last.

    The terms are summed in float32, in the order of the axis; the result's scale counts as
    1 / floor(1 / scale). `quotient` is the type in which a term is multiplied by that and divided
    by the sum. In float32 the product overflows on short axes, such as one of length one: the
    conversion of infinity to 32 bits gives the zero point, or one end of a signed type.
    `overflow` is what becomes of a result beyond the quantized values: `wrap` keeps the low byte of
    a signed one, and gives -1 for one above 255.
    """
    require_per_tensor("exponent_table", x_map, out)
    if x_map.storage.bits > _BITS:
        raise OpError(
            f"softmax: exponent_table has an exponent for each of 256 values, {x_map.storage} has "
            "more; dequantize before it and quantize after it"
        )
    if not x.size:
        return np.zeros(x.shape, out.carrier)
    quantized = np.moveaxis(x, axis, -1).astype(np.int64)
    length = quantized.shape[-1]
    scale = float(float32(x_map.scale))
    # The table is scaled so that a sum of `length` greatest terms stays below float32's maximum.
    headroom = (
        max(0.0, float(float32(math.log(float(np.finfo(float32).max / float32(length))))) - 5.0)
        / scale
    )
    table = np.exp((np.arange(256, dtype=np.float64) - 255 + headroom) * scale).astype(float32)
    # The greatest quantized value of each row takes the last entry.
    terms = table[quantized - quantized.max(-1, keepdims=True) + 255]
    # cumsum adds one after the other, as the kernel does; sum would add in pairs.
    total = np.cumsum(terms, -1, dtype=float32)[..., -1:]
    quotient_type = np.float64 if quotient == "f64" else float32
    with np.errstate(over="ignore"):
        levels = np.floor(float32(1) / float32(out.scale)).astype(quotient_type)
        share = np.rint(terms.astype(quotient_type) * levels / total.astype(quotient_type))
    if quotient == "f64":
        shifted = np.clip(share, 0, _ABOVE_8_BITS).astype(np.int64) + int(out.zero)
    else:
        shifted = _convert_to_int32(share, int(out.zero), signed=out.storage.kind == "int")
    if overflow == "wrap" and out.storage.kind == "int":
        shifted = np.where(shifted > 255, -1, shifted).astype(np.int8).astype(np.int64)
    return np.moveaxis(saturate(shifted, out), -1, axis)


_ABOVE_8_BITS = 1 << 20
"""More quantized values than any storage of 8 bits has."""


def _convert_to_int32(share: Float32Array, zero: int, *, signed: bool) -> NDArray[np.int64]:
    """Whole floats plus a zero point, as 32 bits hold them; x86 converts what is too large.

    To -2^31 where it is signed; unsigned it keeps the low bits of 64, which are 0 beyond those.
    """
    if signed:
        wrapped = np.where(share < 2**31, share, -(2**31)).astype(np.int64) + zero
        return wrapped.astype(np.int32).astype(np.int64)
    return (np.where(share < 2**63, share, 0).astype(np.int64) + zero) & 0xFFFFFFFF


# -- pooling --------------------------------------------------------------------------------------


def mean_of_reals(
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
    """Average pooling: float values added in float32, row by row; rne(mean / scale + zero).

    A window that is the whole image is left to the global pool, as onnxruntime's kernel does.
    """
    require_per_tensor("mean_of_reals", x_map, out)
    quantized = x if x.ndim != 4 else channels_first("avg_pool2d", x, layout)
    sizes, spatial = quantized.shape[2:], x.ndim - 2
    if tuple(kernel) == sizes and not any(pad):
        return mean_of_codes(x, x_map, out, layout=layout)
    windows = windows_along_axis(
        f"avg_pool{spatial}d", sizes, kernel, stride, pad, (1,) * spatial, ceil=ceil
    )
    floats = float32(x_map.scale) * (quantized.astype(np.int32) - int(x_map.zero)).astype(float32)
    outside = np.zeros((), float32)
    inside = pad_window(np.ones((1, 1, *sizes), float32), windows, outside)
    # Padding is the float 0, and `inside` says which taps it takes: they count only with
    # `count_pad`.
    padded_x = pad_window(floats, windows, outside)
    counts = tuple(window.count for window in windows)
    total = np.zeros((*quantized.shape[:2], *counts), float32)
    count = np.zeros((1, 1, *counts), float32)
    for tap in np.ndindex(*kernel):
        places = [window.tap(i) for window, i in zip(windows, tap, strict=True)]
        taps = (slice(None), slice(None), *places)
        total = np.add(total, padded_x[taps], dtype=float32)
        count = np.add(count, inside[taps], dtype=float32)
    with np.errstate(all="ignore"):
        divisor = np.full((), math.prod(kernel), float32) if count_pad else count
        mean: Float32Array = np.divide(total, divisor, dtype=float32)
        codes_out = round_to_int32(mean / float32(out.scale) + _zero(out))
    result = saturate(codes_out, out)
    return result if spatial != 2 else restore_layout(result, layout)


def mean_of_codes(x: Integers, x_map: Affine, out: Affine, *, layout: str = "NCHW") -> Integers:
    """Global average pooling: rne(sum(q - z) * (s / (s_out * n))) + z_out, the sum in integers."""
    require_per_tensor("mean_of_codes", x_map, out)
    axes = tuple(range(2, x.ndim) if layout == "NCHW" else range(1, x.ndim - 1))
    count = math.prod(x.shape[a] for a in axes)
    total = (x.astype(np.int64) - int(x_map.zero)).sum(axes, keepdims=True).astype(np.int32)
    # MLAS folds the count into the multiplier, so a mean takes one rounding after the integer sum.
    factor = float32(x_map.scale) / float32(float32(out.scale) * float32(count))
    zero = int(out.zero)
    scaled = np.clip(
        total.astype(float32) * factor, float32(out.low - zero), float32(out.high - zero)
    )
    return saturate(np.rint(scaled).astype(np.int64) + zero, out)


def nearest_by_step(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Returns the nearest quantized values, at places that are products by a step."""
    return _move(call, arrays, lambda given, attrs: resize.STEPPED(**given, **attrs))


# -- by name --------------------------------------------------------------------------------------


METHODS: Mapping[str, PluginMethod] = {
    "fma_sum": PluginMethod(fma_sum, ("add",), slots=("a", "b"), pointwise=True),
    "scaled_product": PluginMethod(scaled_product, ("mul",), slots=("a", "b"), pointwise=True),
    "logistic_table": PluginMethod(
        logistic_table, ("sigmoid",), reads=("quantize", "dequantize"), slots=("x",), pointwise=True
    ),
    "recode": PluginMethod(
        recode, ("requantize",), reads=("quantize", "dequantize"), slots=("x",), pointwise=True
    ),
    "recode_all": PluginMethod(
        recode_all, ("concat",), reads=("quantize", "dequantize"), slots=("xs",), attrs=("axis",)
    ),
    "exponent_table": PluginMethod(
        exponent_table,
        ("softmax",),
        slots=("x",),
        attrs=("axis",),
        params={"quotient": Param(("f32", "f64")), "overflow": Param(("saturate", "wrap"))},
        bits=_BITS,
    ),
    "mean_of_reals": PluginMethod(
        mean_of_reals,
        AVERAGES,
        slots=("x",),
        attrs=("kernel", "stride", "pad", "ceil", "count_pad", "layout"),
    ),
    "mean_along": PluginMethod(
        mean_of_reals,
        AVERAGES,
        slots=("x",),
        attrs=("kernel", "stride", "pad", "ceil", "count_pad"),
    ),
    "mean_of_codes": PluginMethod(mean_of_codes, GLOBAL_MEANS, slots=("x",), attrs=("layout",)),
    "nearest_by_step": PluginMethod(
        nearest_by_step, ("resize_nearest",), reads=("quantize", "dequantize"), reals=True
    ),
    **integer_means.METHODS,
    **conv_of_other_ranks.METHODS,
    **means.METHODS,
    **transposed.METHODS,
    **vectors.METHODS,
}
"""The methods that profiles of several runtimes name; those of one are in its backend's folder."""


def computes_on_floats(rule: Rule) -> bool:
    """Returns whether the method that a rule names dequantizes quantized values of any quantized
    type."""
    method = plugin_method(rule.method.name) if rule.method else None
    return method is not None and method.any_map


def applies_relu(rule: Rule) -> bool:
    """Returns whether the method that a rule names sees to a relu that follows."""
    method = plugin_method(rule.method.name) if rule.method else None
    return method is not None and method.tails


def is_pointwise(name: str) -> bool:
    """Returns whether a method computes each element by itself, wherever it is."""
    method = plugin_method(name)
    return name == "reals" or (method is not None and method.pointwise)


@np.errstate(all="ignore")
def run(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Runs the method that a rule names on the quantized operands of an op, without warnings.

    Raises ProfileError for a method or parameter that is not known, OpError where the method does
    not take such operands.
    """
    method_rule = call.rule.method
    if method_rule is None:
        raise OpError(f"{call.op}: the rule names no method")
    # Two names are not functions: `reals` is the float op between dequantize and quantize, `move`
    # the op that moves integers.
    if method_rule.name == "reals":
        return _run_on_floats(call, arrays)
    if method_rule.name == "move":
        return _move(call, arrays, partial(compute, call.op))
    method = plugin_method(method_rule.name)
    if method is None:
        known = ", ".join(method_names())
        raise ProfileError(
            f"profile {call.rule.profile}: no method {method_rule.name!r}; known: {known}"
        )
    if problem := fault(method_rule):
        raise ProfileError(f"profile {call.rule.profile}: {problem}")
    if call.out is None and not (method.any_map or method.reals):
        raise OpError(f"{call.op}: {method_rule.name} gives quantized values, the result is float")
    if method.slots is None:
        return method.function(call, arrays, **method_rule.params)
    # A profile may name a method for an op whose operands it does not have: said here, not as a
    # KeyError.
    missing = {s for s in method.slots if s != "xs" and s not in arrays}
    missing |= {"xs"} if "xs" in method.slots and "xs.0" not in arrays else set()
    missing |= {name for name in method.attrs if name not in call.attrs}
    if missing:
        raise OpError(f"{call.op} has no {min(missing)}, which method {method_rule.name} needs")
    operands: list[object] = [arrays[s] for s in method.slots if s != "xs"]
    maps: list[object] = [call.affine(s) for s in method.slots if s != "xs"]
    if "xs" in method.slots:
        slots = variadic_slots(arrays)
        operands.append([arrays[s] for s in slots])
        maps.append([call.affine(s) for s in slots])
    attrs = {name: call.attrs[name] for name in method.attrs}
    rule = {"rule": call.rule} if method.reads else {}
    extra_operands = {slot: arrays[slot] for slot in method.beside if slot in arrays}
    return method.function(
        *operands, *maps, call.out, **attrs, **method_rule.params, **rule, **extra_operands
    )


def of_sums(
    rule: Rule, sums: NDArray[np.int64], count: int, x_map: Affine, out: Affine
) -> Integers | None:
    """Returns what the method of a rule makes of sums of `count` integers; None where it needs more
    than these."""
    method = plugin_method(rule.method.name) if rule.method else None
    if rule.method is None or method is None or method.of_sums is None:
        return None
    given = {"rule": rule} if method.reads else {}
    with np.errstate(all="ignore"):
        return method.of_sums(sums, count, x_map, out, **rule.method.params, **given)


def _run_on_floats(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Returns the float op between dequantize and quantize."""
    floats = {
        slot: dequantize(data, call.affine(slot), call.rule) if call.types[slot].quant else data
        for slot, data in arrays.items()
    }
    result = compute(call.op, floats, call.attrs)
    return result if call.out is None else quantize(result, call.out, call.rule)


def _is_permuted_axis(operand: Affine, out: Affine, perm: Attr) -> bool:
    """Returns whether a quantized type is the same, its axis moved as the elements are."""
    if operand.axis is None or out.axis is None or not isinstance(perm, tuple):
        return False
    has_same_numbers = np.array_equal(operand.scale, out.scale) and np.array_equal(
        operand.zero, out.zero
    )
    return has_same_numbers and perm[out.axis] == operand.axis


MoveFunction = Callable[[Mapping[str, Integers], Mapping[str, Attr]], Integers]


def _move(call: MethodCall, arrays: Mapping[str, Integers], function: MoveFunction) -> Integers:
    """Returns the quantized op, after they are in the result's quantized type."""
    if call.out is None:
        return _run_on_floats(call, arrays)
    out = call.out
    maps = {slot: call.affine(slot) for slot in arrays if call.types[slot].quant}
    if call.op == "transpose" and "x" in maps and out.axis is not None:
        is_permuted = _is_permuted_axis(maps["x"], out, call.attrs["perm"])
        return function(arrays, call.attrs) if is_permuted else _run_on_floats(call, arrays)
    if any(mapping.axis != out.axis for mapping in maps.values() if mapping.axis is not None):
        return _run_on_floats(
            call, arrays
        )  # no map of the result can be said of what is not moved yet
    converted = {
        slot: recode(data, call.affine(slot), out, rule=call.rule)
        if call.types[slot].quant
        else data
        for slot, data in arrays.items()
    }
    return function(converted, call.attrs)
