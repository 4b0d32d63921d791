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
from qir.ir.ops.layers import PRODUCTS
from qir.ir.types import TensorType
from qir.numerics import Affine, AnyMap, Rule, convert, dequantize, quantize
from qir.numerics.definition import in_codes
from qir.numerics.maps import same_map
from qir.numerics.rounding import ROUNDINGS, narrowed
from qir.profiles import profile, query_on
from qir.reference import methods
from qir.reference.companions import Resolved, resolved
from qir.reference.products import ProductKernel, any_map, integral, plain, product
from qir.reference.table import Operands, compute, compute_all
from qir.reference.weights import coded

Codes = NDArray[np.generic]
_PADS = frozenset({"pad", "unfold"})
"""Ops that move elements and put others, zeros, next to them."""


def run_quantized(node: Node, operands: Operands, profile_name: str) -> tuple[Codes, ...]:
    """Returns one quantized op."""
    results = tuple(value.type for value in node.results)
    given = resolved(node.op, node.operands, operands, results, profile_name)
    if _moves(node.op, given.types, given.results) and (_open(given) or len(results) > 1):
        return compute_all(node.op, given.arrays, node.attrs)
    if len(results) > 1:
        raise OpError(f"{node.op} on values of several quantized types; requantize them first")
    return (run_op(node.op, node.attrs, given.types, given.arrays, given.results[0], profile_name),)


def _open(given: Resolved) -> bool:
    """Returns whether a type still asks for a number."""
    quants = [kind.quant for kind in (*given.types.values(), *given.results)]
    return any(quant is not None and quant.dynamic for quant in quants)


def _moves(op: str, types: Mapping[str, TensorType], results: tuple[TensorType, ...]) -> bool:
    """Returns whether the op hands on quantized values of one quantized type, whatever numbers it
    has."""
    traits = spec(op).traits
    if not traits.value_preserving or op in _PADS:
        return False
    moved = [t.quant for s, t in types.items() if s.partition(".")[0] in traits.same_params]
    quants = [*moved, *(kind.quant for kind in results)]
    known = [quant for quant in quants if quant is not None]
    if not moved or len(known) < len(quants):
        return False
    if any(quant.dynamic for quant in known):
        return len(moved) == 1 and all(quant.dynamic for quant in known)
    return known[0].grain is None and all(map(known[0].same_map, known))


def bounds(
    op: str, attrs: Mapping[str, Attr], out: Affine, rule: Rule, how: str = "quantize"
) -> tuple[int, int]:
    """Returns the least and greatest quantized value after an activation.

    `how` is `stage.ends` of the rule of the op before it; `rule` quantizes floats.
    """
    least = 0.0 if op == "relu" else attrs.get("min")
    most = None if op == "relu" else attrs.get("max")
    ends = [
        end if value is None else _end(np.array([value], np.float32), out, rule, how)
        for value, end in ((least, out.low), (most, out.high))
    ]
    return min(ends), ends[1]


def _end(value: NDArray[np.float32], out: Affine, rule: Rule, how: str) -> int:
    if how == "quantize":
        return int(quantize(value, out, rule)[0])
    with np.errstate(all="ignore"):
        steps, zero = value / out.scale.astype(np.float32), out.zero.astype(np.float32)
        far = ROUNDINGS["away"](steps.astype(np.float64))
        codes = far + zero if how == "away" else np.rint(steps + zero)
    return int(np.clip(codes, out.low, out.high)[0])


def run_op(
    op: str,
    attrs: Mapping[str, Attr],
    types: Mapping[str, TensorType],
    arrays: Operands,
    result: TensorType,
    profile_name: str,
    tails: tuple[str, ...] = (),
) -> Codes:
    """Returns one quantized op: a conversion, a product, or the method that the profile names,
    which sees to a relu that follows where `tails` names it."""
    rule = profile(profile_name).resolve(query_on(op, attrs, types, result))
    kernel = ProductKernel(op, attrs, types, result, rule, tails=tails)
    if op == "quantize":
        return _quantized(kernel, arrays["x"])
    if op == "dequantize":
        return dequantize(arrays["x"], kernel.map("x"), rule)
    if op == "requantize" and rule.method is not None and rule.method.name == "reals":
        return _through_reals(kernel, arrays["x"], profile_name)
    if op == "requantize":
        return _converted(kernel, arrays["x"])
    if op in PRODUCTS and rule.method is not None and rule.method.name == "reals":
        return in_reals(kernel, arrays)
    if op in PRODUCTS and rule.method is not None:
        return methods.run(kernel, arrays)
    if op in PRODUCTS:
        kernel, arrays = coded(kernel, arrays)
        return product(kernel, arrays) if integral(kernel) else in_reals(kernel, arrays)
    if methods.for_reals(rule):
        return methods.run(kernel, arrays) if result.quant is None else in_reals(kernel, arrays)
    if not all(t.quant is None or plain(t.quant) for t in (*types.values(), result)):
        return in_reals(kernel, arrays)
    if rule.method is not None:
        return methods.run(kernel, arrays)
    if _moves(op, types, (result,)):
        return compute(op, arrays, attrs)
    return in_reals(kernel, arrays)


def in_reals(kernel: ProductKernel, arrays: Operands) -> Codes:
    """Returns the op on the float values that quantized values mean, rounded once to the result.

    What no kernel computes in integers: blocks of scales, tables, float zeros, floats for quantized
    values, float values next to quantized values. Raises OpError for operands that count in a unit
    of the accumulator.
    """
    reals: dict[str, Codes] = {}
    for slot, data in arrays.items():
        if kernel.types[slot].quant is not None:
            reals[slot] = dequantize(data, kernel.map(slot), kernel.rule)
        elif slot == spec(kernel.op).traits.bias and not kernel.types[slot].dtype.is_float:
            raise OpError(f"{kernel.op}: {slot} has a unit that these quantized values do not have")
        else:
            reals[slot] = data
    made = compute(kernel.op, reals, kernel.attrs)
    out = kernel.out_map
    return made if out is None else quantize(made, out, kernel.rule)


# -- quantize -------------------------------------------------------------------------------------


def with_stated_rounding(rule: Rule, attrs: Mapping[str, Attr]) -> Rule:
    """Returns the rule of a quantize or requantize, with the rounding that the node states."""
    if not attrs["round"]:
        return rule
    stated = replace(rule.quantize, round=attrs["round"])  # type: ignore[arg-type]
    return replace(rule, quantize=stated)


def _quantized(kernel: ProductKernel, x: Codes) -> Codes:
    """Float values to quantized values, by the profile but for what the node states."""
    out = kernel.out_map
    assert out is not None
    rule = with_stated_rounding(kernel.rule, kernel.attrs)
    quant = kernel.result.quant
    if rule.method is not None and rule == kernel.rule and quant is not None and plain(quant):
        return methods.run(kernel, {"x": x})
    if kernel.attrs["saturate"] is True:
        return quantize(x, out, rule)
    if not out.storage.is_float:
        raise OpError(f"quantize: quantized values of {out.storage} saturate; only floats overflow")
    return _overflowing(x, out, rule)


def _overflowing(x: Codes, out: AnyMap, rule: Rule) -> Codes:
    """Float integers, where what is too large becomes infinite, or NaN if there is no infinity."""
    numbers = out.over(x.shape)
    with np.errstate(all="ignore"):
        return narrowed(in_codes(x, numbers, out, rule), out.carrier)


def _converted(kernel: ProductKernel, codes: Codes) -> Codes:
    """Quantized values to quantized values by value, or by the method that the profile names."""
    result = kernel.result.quant
    assert result is not None
    rule = with_stated_rounding(kernel.rule, kernel.attrs)
    named = rule.method is not None and rule.method.name != "recode"
    if named and plain(kernel.quant("x")) and plain(result):
        return methods.run(replace(kernel, rule=rule), {"x": codes})
    out = kernel.out_map
    assert out is not None
    return convert(codes, kernel.map("x"), out, rule)


def _through_reals(kernel: ProductKernel, codes: Codes, profile_name: str) -> Codes:
    """Quantized values to integers by the rules of dequantize and of quantize, where no kernel goes
    there."""
    x, out = kernel.types["x"], kernel.out_map
    assert x.quant is not None
    assert out is not None
    if same_map(kernel.map("x"), out):
        return codes
    real = x.with_element(x.quant.express)
    found = run_op("dequantize", {}, kernel.types, {"x": codes}, real, profile_name)
    attrs = spec("quantize").complete({"round": kernel.attrs["round"]})
    return run_op("quantize", attrs, {"x": real}, {"x": found}, kernel.result, profile_name)


def fake_quantized(
    x: Codes, code: TensorType, attrs: Mapping[str, Attr], profile_name: str
) -> Codes:
    """Float values through the integers of a type and back, as a profile's `fake_quantize` does."""
    quant = code.quant
    assert quant is not None
    rule = profile(profile_name).resolve(query_on("fake_quantize", attrs, {"x": code}, code))
    through = any_map(quant)
    return narrowed(dequantize(quantize(x, through, rule), through, rule), x.dtype)
