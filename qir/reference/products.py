"""Convolutions and matrix products on integers: exact sums that are requantized once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.ir.ops import Call, spec
from qir.ir.types import QuantType, TensorType
from qir.numerics import (
    Affine,
    AnyMap,
    Rule,
    accumulate,
    affine_of,
    dequantize,
    map_of,
    multiplier,
    quantize_bias,
    requantize,
    requantize_bias,
)
from qir.numerics.consistency import ONE_BY_ONE
from qir.numerics.rounding import round_to_float_type
from qir.numerics.sums import (
    AddedTensor,
    Sum,
    accumulator_unit,
    data_offset_term,
    dequantize_sum,
    quantize_by_range,
)
from qir.numerics.sums import quantize_sum as codes_of_sum
from qir.records import record
from qir.reference.table import Operands

Integers = NDArray[np.generic]


@record
class ProductKernel:
    """One quantized op: its attributes, operand types, result type and rule."""

    op: str
    attrs: Mapping[str, Attr]
    types: Mapping[str, TensorType]
    result: TensorType
    rule: Rule
    maps: Mapping[str, Affine] = field(default_factory=dict)
    """Quantized types that the kernel chose itself, such as for float weights, by slot."""
    tails: tuple[str, ...] = ()
    """The fused relu that the method applies itself."""

    def affine(self, slot: str) -> Affine:
        """Returns the quantized type of an operand; raises OpError where it is not quantized, or
        other than plain ones."""
        return self.maps[slot] if slot in self.maps else affine_of(self.quant(slot))

    def map(self, slot: str) -> AnyMap:
        """Returns the quantized type of an operand, of any kind; raises OpError where it is not
        quantized."""
        return mapping_of(self.quant(slot))

    def quant(self, slot: str) -> QuantType:
        """Returns the quantized type of an operand; raises OpError where it is not quantized."""
        quant = self.types[slot].quant
        if quant is None:
            raise OpError(f"{self.op}: {slot} is {self.types[slot]}, quantized values are needed")
        return _require_parameters(self.op, slot, quant)

    @property
    def out(self) -> Affine | None:
        """The quantized type of the result; None where it is float."""
        quant = self.result.quant
        return None if quant is None else affine_of(_require_parameters(self.op, "", quant))

    @property
    def out_map(self) -> AnyMap | None:
        """The quantized type of the result, of any kind; None where it is float."""
        quant = self.result.quant
        return None if quant is None else mapping_of(_require_parameters(self.op, "", quant))


def _require_parameters(op: str, slot: str, quant: QuantType) -> QuantType:
    if quant.dynamic:
        name = f"{slot}.scale" if slot else "scale"
        raise OpError(f"{op}: {slot or 'its result'} is {quant}; {name} is to give the number")
    return quant


def is_affine(quant: QuantType) -> bool:
    """Returns whether a type is affine with an integer zero, per tensor or per axis."""
    has_integer_zero = quant.kind == "uniform" and quant.plus is None and not quant.has_float_zero
    has_quantized_scales = any(a.type.quant for a in quant.arrays())
    is_per_axis = quant.granularity is None or quant.axis is not None
    return (
        has_integer_zero and quant.storage.is_integer and is_per_axis and not has_quantized_scales
    )


def mapping_of(quant: QuantType) -> AnyMap:
    """Returns the parameters of a type of any kind: `Affine` where possible, else `Map`."""
    return affine_of(quant) if is_affine(quant) else map_of(quant)


def is_integer_product(kernel: ProductKernel) -> bool:
    """Returns whether the scales factor out of every sum, so that the sums are of integers."""
    traits = spec(kernel.op).traits
    data, weight = (kernel.types[s or ""].quant for s in (traits.data, traits.weight))
    if data is None or weight is None:
        return False
    # The offset adds scale_w * plus * sum(w): a term of its own, so that the sums stay integer.
    if has_offset_term(kernel):
        data = replace(data, plus=None)
    if not (_has_integer_steps(data) and _has_integer_steps(weight)):
        return False
    result = kernel.result.quant
    if result is not None and not (is_affine(result) or is_quantized_by_range(result, kernel.rule)):
        return False
    if _has_scales_along_rows(kernel):
        return False
    if kernel.op == "conv2d":
        # Scales along input channels would change within one sum.
        return data.granularity is None and weight.axis in (None, 0)
    return _has_one_scale_per_sum(kernel, traits.data) and _has_one_scale_per_sum(
        kernel, traits.weight or ""
    )


def has_offset_term(kernel: ProductKernel) -> bool:
    """Returns whether the data's offset adds one separate term to each integer sum."""
    traits = spec(kernel.op).traits
    data, weight = (kernel.types[s or ""].quant for s in (traits.data, traits.weight))
    if kernel.rule.bias.plus != "ends" or kernel.op == "conv2d" or data is None or weight is None:
        return False
    is_per_tensor = data.granularity is None and data.declared is not None
    return (
        is_per_tensor
        and data.plus is not None
        and _is_per_tensor_or_channel(kernel, traits.weight or "")
    )


def is_quantized_by_range(result: QuantType, rule: Rule) -> bool:
    """Returns whether the result is quantized by the ends of its declared range."""
    return rule.requant.plus == "ends" and result.plus is not None and result.declared is not None


def _has_scales_along_rows(kernel: ProductKernel) -> bool:
    """Returns whether the result has scales along another axis than the channels."""
    traits, result = spec(kernel.op).traits, kernel.result.quant
    if result is None or result.axis is None:
        return False
    channels = kernel.result.rank - 1 if kernel.op != "conv2d" or _has_channels_last(kernel) else 1
    is_plain = all(_is_per_tensor_or_channel(kernel, s or "") for s in (traits.data, traits.weight))
    return is_plain and result.axis != channels


def _has_integer_steps(quant: QuantType) -> bool:
    """Returns whether a type is affine with an integer zero, up to 16 bits, any granularity."""
    has_integer_zero = quant.kind == "uniform" and quant.plus is None and not quant.has_float_zero
    has_quantized_scales = any(a.type.quant for a in quant.arrays())
    return (
        has_integer_zero
        and quant.storage.is_integer
        and quant.storage.bits <= 16
        and not has_quantized_scales
    )


def _has_one_scale_per_sum(kernel: ProductKernel, slot: str) -> bool:
    """Returns whether all terms of one sum have the same scale."""
    quant = kernel.types[slot].quant
    assert quant is not None
    if quant.granularity is None:
        return True
    rank = kernel.types[slot].rank
    return rank > 1 and _summed_axis(kernel, slot) not in (
        axis for axis, _ in quant.granularity.blocks
    )


def _summed_axis(kernel: ProductKernel, slot: str) -> int:
    """Returns the axis of an operand that is summed over."""
    rank = kernel.types[slot].rank
    if slot in ("x", "w"):
        return rank - 1
    is_last = (slot == "a") != (kernel.attrs[f"trans_{slot}"] is True)
    return rank - 1 if is_last or rank < 2 else rank - 2


def integer_product(
    kernel: ProductKernel, arrays: Operands, summand: AddedTensor | None = None
) -> Integers:
    """Computes an integer product with its bias, requantized once.

    A float bias is added to a float result, in its own type, and wherever the profile keeps it
    float. A summand is added in units of the result. Raises OpError for another bias.
    """
    total, sums = _sum_products(kernel, arrays)
    result, rule = kernel.result.quant, kernel.rule
    if result is not None and is_quantized_by_range(result, rule):
        return quantize_by_range(dequantize_sum(total), map_of(result), rule)
    out = kernel.out
    if out is None:
        return round_to_float_type(dequantize_sum(total), kernel.result.express.carrier)
    result_map = _broadcast_result_params(out, total.acc, sums)
    assert result_map is not None
    is_rescaled = rule.requant.wide == "rescaled" and out.storage.bits >= 32
    has_addend = total.steps is not None or total.bias is not None or summand is not None
    # With a float addend the sum is scaled, added to and rounded in floats; without one a single
    # multiplier does it.
    if has_addend or is_rescaled or rule.requant.order in ONE_BY_ONE:
        return codes_of_sum(total, out, result_map, summand)
    # From here on the sum is an integer alone, and one multiplication and one rounding give the
    # result.
    factor = multiplier(sums.x, sums.w, result_map, rule, gain=total.gain)
    if not sums.spread:
        return requantize(total.acc, factor, out, rule, axis=total.axis)
    return _requantize_elementwise(total.acc, factor, out, rule, total.axis)


def _sum_products(kernel: ProductKernel, arrays: Operands) -> tuple[Sum, _Sums]:
    """Returns the integer sums with the bias where the rule adds it."""
    traits = spec(kernel.op).traits
    accumulate.check(kernel.rule)
    has_offset = has_offset_term(kernel)
    if has_offset:
        # The integer sums ignore the offset of the data; its share comes in as a bias below.
        plain_data = affine_of(replace(kernel.quant(traits.data), plus=None))
        kernel = replace(kernel, maps={**kernel.maps, traits.data: plain_data})
    is_plain = all(_is_per_tensor_or_channel(kernel, s or "") for s in (traits.data, traits.weight))
    sums = _sum_per_channel(kernel, arrays) if is_plain else _sum_per_row(kernel, arrays)
    axis = sums.acc.ndim - 1 if kernel.op != "conv2d" or _has_channels_last(kernel) else 1
    total = Sum(sums.acc, sums.x, sums.w, kernel.rule, axis, _alpha(kernel))
    if traits.bias in arrays:
        total = _add_bias(kernel, total, arrays[traits.bias or ""], sums)
    return (_add_offset_term(kernel, total, arrays, sums) if has_offset else total), sums


def sum_of_bias(kernel: ProductKernel, bias: Integers | None, channels: int) -> Sum:
    """Returns a row of sums of no products, one a channel, with the bias next to or in them."""
    traits = spec(kernel.op).traits
    accumulate.check(kernel.rule)
    x = kernel.affine(traits.data)
    w = _packed_weight_params(kernel, kernel.affine(traits.weight or ""))
    acc = np.zeros((1, channels), np.int32)
    made = Sum(acc, x, w, kernel.rule, 1, _alpha(kernel))
    return made if bias is None else _add_bias(kernel, made, bias, _Sums(acc, x, w, False))


def _add_offset_term(kernel: ProductKernel, total: Sum, arrays: Operands, sums: _Sums) -> Sum:
    """Returns the sums with what the offset of the data adds to them next to the bias."""
    slot = spec(kernel.op).traits.weight or ""
    weights = _as_matmul_side(kernel, slot, arrays[slot]).astype(np.int64) - sums.w.zero
    offset = data_offset_term(weights.sum(-2), sums.x, sums.w)
    with np.errstate(all="ignore"):
        return replace(
            total, bias=offset if total.bias is None else np.asarray(total.bias + offset)
        )


def _add_bias(kernel: ProductKernel, total: Sum, bias: Integers, sums: _Sums) -> Sum:
    """Returns the sums with a bias next to or in them, as the profile says."""
    kind = kernel.types[spec(kernel.op).traits.bias or ""]
    is_float = kind.quant is None and kind.dtype.is_float
    if kind.quant is not None and kernel.rule.bias.domain == "real_after":
        bias = dequantize(bias, kernel.map(spec(kernel.op).traits.bias or ""), kernel.rule)
        is_float = True
    shape = [1] * total.acc.ndim
    # A list of biases lies along the channels, wherever these are in the result.
    shape[total.axis] = -1
    adds_on_floats = kernel.rule.requant.input == "acc_then_bias"
    # A float result takes a float bias as it is.
    if is_float and kernel.result.quant is None and kernel.rule.weights.given != "float":
        float_bias = bias.astype(np.float32) * np.float32(_beta(kernel))
        return replace(
            total, bias=float_bias.reshape(shape) if float_bias.ndim == 1 else float_bias
        )
    if is_float and kernel.rule.bias.domain == "real_after":
        float_bias = bias.astype(total.kind) * total.kind.type(_beta(kernel))
        float_bias = float_bias.reshape(shape) if float_bias.ndim == 1 else float_bias
        return (
            _bias_in_accumulator_units(total, float_bias)
            if adds_on_floats
            else replace(total, bias=float_bias)
        )
    # Neither float case applies: the bias is an integer in the unit of the sums, or is rounded to
    # one.
    integer_bias = _integer_bias(kernel, bias, sums)
    integer_bias = integer_bias.reshape(shape) if integer_bias.ndim == 1 else integer_bias
    if adds_on_floats:
        return replace(total, steps=integer_bias)
    return replace(total, acc=accumulate.add_bias(total.acc, integer_bias, kernel.rule.acc))


def _bias_in_accumulator_units(total: Sum, bias: NDArray[np.floating]) -> Sum:
    """Returns a float bias to be added to the sums as floats."""
    bias_rule, one = total.rule.bias, total.kind.type(1)
    with np.errstate(all="ignore"):
        if bias_rule.by == "fma" and bias_rule.unit == "reciprocal":
            return replace(total, steps=bias, share=np.asarray(one / accumulator_unit(total)))
        if bias_rule.unit == "reciprocal":
            return replace(total, steps=bias * (one / accumulator_unit(total)))
        return replace(total, steps=bias / accumulator_unit(total))


@record(eq=False)
class _Sums:
    """Integer sums, and the maps whose scales go with them."""

    acc: NDArray[np.generic]
    x: Affine
    w: Affine
    spread: bool
    """Whether scales are shaped to go with the sums, and not one or one a channel."""


def _alpha(kernel: ProductKernel) -> float:
    gain = kernel.attrs.get("alpha", 1.0)
    assert isinstance(gain, float)
    return gain


def _has_channels_last(kernel: ProductKernel) -> bool:
    return kernel.attrs["layout"] == "NHWC"


def _is_per_tensor_or_channel(kernel: ProductKernel, slot: str) -> bool:
    """Returns whether an operand has one scale, or a weight one an output channel."""
    traits, quant = spec(kernel.op).traits, kernel.types[slot].quant
    assert quant is not None
    if quant.granularity is None:
        return True
    if slot != traits.weight or quant.axis is None or traits.weight_axis is None:
        return False
    return quant.axis == traits.weight_axis(Call(kernel.op, kernel.types, kernel.attrs))


def _sum_per_channel(kernel: ProductKernel, arrays: Operands) -> _Sums:
    traits = spec(kernel.op).traits
    x, w = (
        kernel.affine(traits.data),
        _packed_weight_params(kernel, kernel.affine(traits.weight or "")),
    )
    if kernel.op == "conv2d":
        acc = accumulate.conv2d(
            arrays["x"],
            arrays["w"],
            x.zero,
            w.zero,
            **{k: kernel.attrs[k] for k in kernel.attrs},  # type: ignore[arg-type]
            how=kernel.rule.acc,
        )
        return _Sums(acc, x, w, False)
    left, right = (
        _as_matmul_side(kernel, s, arrays[s]) for s in (traits.data, traits.weight or "")
    )
    acc = accumulate.matmul(left, right, x.zero, w.zero, how=kernel.rule.acc)
    return _Sums(acc, x, w, False)


def _packed_weight_params(kernel: ProductKernel, w: Affine) -> Affine:
    """Returns the weights' quantized type as packing leaves it."""
    if kernel.rule.params.round == "none":
        return w
    with np.errstate(over="ignore", under="ignore"):
        return replace(w, scale=w.scale.astype(np.float16).astype(w.scale.dtype), ends=None)


def _as_matmul_side(kernel: ProductKernel, slot: str, data: Integers) -> Integers:
    """Returns an operand as the left or right side of `@`."""
    is_transposed = slot == "w" or kernel.attrs.get(f"trans_{slot}") is True
    return np.swapaxes(data, -1, -2) if is_transposed and data.ndim > 1 else data


def _sum_per_row(kernel: ProductKernel, arrays: Operands) -> _Sums:
    """Sums with scales along rows, columns or batches, such as per token and per channel."""
    traits = spec(kernel.op).traits
    parts = [_centered_operand(kernel, arrays, s) for s in (traits.data, traits.weight or "")]
    (left, x), (right, w) = parts
    w = _packed_weight_params(kernel, w)
    raw = tuple(_as_matmul_side(kernel, s, arrays[s]) for s in (traits.data, traits.weight or ""))
    acc = accumulate.matmul(left, right, how=kernel.rule.acc, raw=(raw[0], raw[1]))
    return _Sums(acc, x, w, True)


def _centered_operand(
    kernel: ProductKernel, arrays: Operands, slot: str
) -> tuple[Integers, Affine]:
    """Quantized values less their zeros, and the quantized type with its scales shaped to go with
    the sums."""
    data, quant = arrays[slot], kernel.quant(slot)
    numbers = mapping_of(quant).over(data.shape)
    centered = _as_matmul_side(kernel, slot, data.astype(np.int64) - numbers.zero.astype(np.int64))
    scale = np.asarray(numbers.scale)
    if scale.ndim:
        scale = _as_matmul_side(kernel, slot, scale)
    mapping = Affine(quant.storage, scale, np.zeros((), np.int64), quant.low, quant.high)
    return centered, replace(mapping, express=quant.express)


def _beta(kernel: ProductKernel) -> float:
    beta = kernel.attrs.get("beta", 1.0)
    assert isinstance(beta, float)
    return beta


def _integer_bias(kernel: ProductKernel, bias: Integers, sums: _Sums) -> Integers:
    """Returns the bias in units of the accumulator; a float one is rounded to them, as a profile
    says."""
    traits = spec(kernel.op).traits
    kind = kernel.types[traits.bias or ""]
    if _beta(kernel) != 1.0:
        raise OpError(f"{kernel.op}: beta = {kernel.attrs['beta']!r} has no integer arithmetic")
    if kind.quant is not None and kernel.rule.bias.domain == "rescaled_acc":
        bias_map = kernel.affine(traits.bias or "")
        return requantize_bias(bias, bias_map, sums.x, sums.w, kernel.rule)
    if kind.dtype.is_integer:
        return bias
    if not kind.dtype.is_float or kind.quant or sums.spread or _alpha(kernel) != 1.0:
        raise OpError(f"{kernel.op}: a bias of {kind} is not in units of the accumulator")
    return quantize_bias(bias, sums.x, sums.w, kernel.rule)


def _broadcast_result_params(out: Affine | None, acc: Integers, sums: _Sums) -> Affine | None:
    """Returns the result's quantized type with its scales shaped as those of the operands are."""
    if out is None or not sums.spread:
        return out
    scale, _ = out.along(acc.ndim)
    return replace(out, scale=scale, axis=None)


def _requantize_elementwise(
    acc: NDArray[np.generic], factor: NDArray[np.floating], out: Affine, rule: Rule, axis: int
) -> Integers:
    """Sums with a factor each: one channel an element."""
    scale, zero = out.along(acc.ndim)
    size = acc.size
    per_element = replace(
        out,
        scale=np.broadcast_to(scale, acc.shape).reshape(size),
        zero=np.broadcast_to(zero, acc.shape).reshape(size),
        axis=0,
    )
    factors = np.ascontiguousarray(np.broadcast_to(factor, acc.shape).reshape(size))
    flat = requantize(acc.reshape(size), factors, per_element, rule, axis=0)
    return flat.reshape(acc.shape)
