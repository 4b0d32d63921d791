"""Ops on integers, by the rules of a profile: accumulate and round once, or the method it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.ir.types import TensorType
from qir.numerics import Affine, AnyMap, Rule, convert, dequantize, quantize
from qir.numerics.definition import in_scale_units
from qir.numerics.maps import same_map
from qir.numerics.rounding import round_to_float_type
from qir.numerics.stages import BoundsStage, stage_function
from qir.profiles import RuleSource, query_for_op
from qir.reference import methods
from qir.reference.companions import Resolved, resolve_companions
from qir.reference.products import (
    ProductKernel,
    integer_product,
    is_affine,
    is_integer_product,
    mapping_of,
)
from qir.reference.table import Operands, compute, compute_all
from qir.reference.weights import quantize_weights

Integers = NDArray[np.generic]
_FILLING_OPS = frozenset({"pad", "unfold"})
"""Ops that move elements and put others, zeros, next to them."""


def run_quantized(node: Node, operands: Operands, rules: RuleSource) -> tuple[Integers, ...]:
    """Returns one quantized op."""
    results = tuple(value.type for value in node.results)
    resolved = resolve_companions(node.op, node.operands, operands, results, rules)
    if _only_moves(node.op, resolved.types, resolved.results) and (
        _has_open_parameters(resolved) or len(results) > 1
    ):
        return compute_all(node.op, resolved.arrays, node.attrs)
    if len(results) > 1:
        raise OpError(f"{node.op} on values of several quantized types; requantize them first")
    return (
        run_op(node.op, node.attrs, resolved.types, resolved.arrays, resolved.results[0], rules),
    )


def _has_open_parameters(resolved: Resolved) -> bool:
    """Returns whether a type still asks for a number."""
    quants = [kind.quant for kind in (*resolved.types.values(), *resolved.results)]
    return any(quant is not None and quant.dynamic for quant in quants)


def _only_moves(op: str, types: Mapping[str, TensorType], results: tuple[TensorType, ...]) -> bool:
    """Returns whether the op hands on quantized values of one quantized type, whatever numbers it
    has."""
    traits = spec(op).traits
    if not traits.value_preserving or op in _FILLING_OPS:
        return False
    operand_types = [t.quant for s, t in types.items() if s.partition(".")[0] in traits.same_params]
    quants = [*operand_types, *(kind.quant for kind in results)]
    quant_types = [quant for quant in quants if quant is not None]
    if not operand_types or len(quant_types) < len(quants):
        return False
    if any(quant.dynamic for quant in quant_types):
        return len(operand_types) == 1 and all(quant.dynamic for quant in quant_types)
    return quant_types[0].granularity is None and all(
        map(quant_types[0].has_same_mapping, quant_types)
    )


def activation_bounds(
    op: str, attrs: Mapping[str, Attr], out: Affine, rule: Rule, how: str = "quantize"
) -> tuple[int, int]:
    """Returns the least and greatest quantized value after an activation.

    `how` is `stage.ends` of the rule of the op before it; `rule` quantizes floats.
    """
    stage = stage_function(BoundsStage, how)
    least = 0.0 if op == "relu" else attrs.get("min")
    most = None if op == "relu" else attrs.get("max")
    bounds = [value for value in (least, most) if value is not None]
    quantized = stage.quantize(np.array(bounds, np.float32), out, rule).tolist() if bounds else []
    ends = [min(max(int(end), out.low), out.high) for end in quantized]
    low = out.low if least is None else ends[0]
    high = out.high if most is None else ends[-1]
    # Where min is above max, max wins, as in clip.
    return min(low, high), high


def run_op(
    op: str,
    attrs: Mapping[str, Attr],
    types: Mapping[str, TensorType],
    arrays: Operands,
    result: TensorType,
    rules: RuleSource,
    tails: tuple[str, ...] = (),
) -> Integers:
    """Returns one quantized op: a conversion, a product, or the method that the profile names,
    which sees to a relu that follows where `tails` names it."""
    rule = rules.resolve(query_for_op(op, attrs, types, result))
    kernel = ProductKernel(op, attrs, types, result, rule, tails=tails)
    if op == "quantize":
        return _run_quantize(kernel, arrays["x"])
    if op == "dequantize":
        return dequantize(arrays["x"], kernel.map("x"), rule)
    if op == "requantize" and rule.method is not None and rule.method.name == "reals":
        return _requantize_through_floats(kernel, arrays["x"], rules)
    if op == "requantize":
        return _run_requantize(kernel, arrays["x"])
    # From here on: products, then ops of a named method, then ops that only move integers, and
    # floats for all others.
    if op in INTEGER_SUM_LAYERS and rule.method is not None and rule.method.name == "reals":
        return run_on_floats(kernel, arrays)
    if op in INTEGER_SUM_LAYERS and rule.method is not None:
        return methods.run(kernel, arrays)
    if op in INTEGER_SUM_LAYERS:
        kernel, arrays = quantize_weights(kernel, arrays)
        return (
            integer_product(kernel, arrays)
            if is_integer_product(kernel)
            else run_on_floats(kernel, arrays)
        )
    if methods.computes_on_floats(rule):
        return (
            methods.run(kernel, arrays) if result.quant is None else run_on_floats(kernel, arrays)
        )
    # Methods take plain scales and integer zero points; tables, offsets and blocks go through
    # floats.
    if not all(t.quant is None or is_affine(t.quant) for t in (*types.values(), result)):
        return run_on_floats(kernel, arrays)
    if rule.method is not None:
        return methods.run(kernel, arrays)
    if _only_moves(op, types, (result,)):
        return compute(op, arrays, attrs)
    return run_on_floats(kernel, arrays)


def run_on_floats(kernel: ProductKernel, arrays: Operands) -> Integers:
    """Returns the op on the float values that quantized values mean, rounded once to the result.

    What no kernel computes in integers: blocks of scales, tables, float zeros, floats for quantized
    values, float values next to quantized values. Raises OpError for operands that count in a unit
    of the accumulator.
    """
    floats: dict[str, Integers] = {}
    for slot, data in arrays.items():
        if kernel.types[slot].quant is not None:
            floats[slot] = dequantize(data, kernel.map(slot), kernel.rule)
        elif slot == spec(kernel.op).traits.bias and not kernel.types[slot].dtype.is_float:
            raise OpError(f"{kernel.op}: {slot} has a unit that these quantized values do not have")
        else:
            floats[slot] = data
    result = compute(kernel.op, floats, kernel.attrs)
    out = kernel.out_map
    return result if out is None else quantize(result, out, kernel.rule)


# -- quantize -------------------------------------------------------------------------------------


def with_node_rounding(rule: Rule, attrs: Mapping[str, Attr]) -> Rule:
    """Returns the rule with what the file itself states in place of what the profile says."""
    if not attrs["round"]:
        return rule
    stated = replace(rule.quantize, round=attrs["round"])  # type: ignore[arg-type]
    return replace(rule, quantize=stated)


def _run_quantize(kernel: ProductKernel, x: Integers) -> Integers:
    """Float values to quantized values, by the profile but for what the node states."""
    out = kernel.out_map
    assert out is not None
    rule = with_node_rounding(kernel.rule, kernel.attrs)
    quant = kernel.result.quant
    if rule.method is not None and rule == kernel.rule and quant is not None and is_affine(quant):
        return methods.run(kernel, {"x": x})
    # ONNX's `saturate = 0` concerns float8 types alone.
    if kernel.attrs["saturate"] is True:
        return quantize(x, out, rule)
    if not out.storage.is_float:
        raise OpError(f"quantize: quantized values of {out.storage} saturate; only floats overflow")
    return _quantize_without_saturation(x, out, rule)


def _quantize_without_saturation(x: Integers, out: AnyMap, rule: Rule) -> Integers:
    """Returns quantized floats; those too large become infinite, or NaN if the type has no
    infinity."""
    numbers = out.over(x.shape)
    with np.errstate(all="ignore"):
        return round_to_float_type(in_scale_units(x, numbers, out, rule), out.carrier)


def _run_requantize(kernel: ProductKernel, quantized: Integers) -> Integers:
    """Quantized values to quantized values by value, or by the method that the profile names."""
    result = kernel.result.quant
    assert result is not None
    rule = with_node_rounding(kernel.rule, kernel.attrs)
    # `recode` says what `convert` does anyway, for every kind of type.
    has_method = rule.method is not None and rule.method.name != "recode"
    if has_method and is_affine(kernel.quant("x")) and is_affine(result):
        return methods.run(replace(kernel, rule=rule), {"x": quantized})
    out = kernel.out_map
    assert out is not None
    return convert(quantized, kernel.map("x"), out, rule)


def _requantize_through_floats(
    kernel: ProductKernel, quantized: Integers, rules: RuleSource
) -> Integers:
    """Quantized values to integers by the rules of dequantize and of quantize, where no kernel goes
    there."""
    x, out = kernel.types["x"], kernel.out_map
    assert x.quant is not None
    assert out is not None
    if same_map(kernel.map("x"), out):
        return quantized
    # Two nodes in the runtime, so each takes the rule of its own op.
    float_type = x.with_element(x.quant.express)
    floats = run_op("dequantize", {}, kernel.types, {"x": quantized}, float_type, rules)
    attrs = spec("quantize").complete_attrs({"round": kernel.attrs["round"]})
    return run_op("quantize", attrs, {"x": float_type}, {"x": floats}, kernel.result, rules)


def fake_quantize(
    x: Integers, code: TensorType, attrs: Mapping[str, Attr], rules: RuleSource
) -> Integers:
    """Float values through the integers of a type and back, as a profile's `fake_quantize` does."""
    quant = code.quant
    assert quant is not None
    rule = rules.resolve(query_for_op("fake_quantize", attrs, {"x": code}, code))
    mapping = mapping_of(quant)
    return round_to_float_type(dequantize(quantize(x, mapping, rule), mapping, rule), x.dtype)
