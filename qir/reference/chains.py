"""Runs fused chains: an anchor op and the epilogue ops that one kernel computes with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import DType, dtype_of
from qir.ir.node import Node, Stage
from qir.ir.ops import Call, spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.ir.types import Element, QuantType, TensorType
from qir.numerics import Rule, affine_of, dequantize, map_of, quantize
from qir.numerics.stages import CurvesStage, ReluStage, SumBufferStage, SumStage, stage_function
from qir.numerics.sums import AddedTensor, quantize_by_range, quantize_floats
from qir.profiles import RuleSource, dequantize_query, quantize_query, query_for_op
from qir.records import record
from qir.reference.companions import resolve_companions
from qir.reference.methods import applies_relu
from qir.reference.operands import wrap_to_width
from qir.reference.products import (
    ProductKernel,
    integer_product,
    is_affine,
    is_integer_product,
    is_quantized_by_range,
    mapping_of,
)
from qir.reference.quantized import activation_bounds, run_on_floats, run_op
from qir.reference.table import Operands, compute
from qir.reference.weights import quantize_weights

Integers = NDArray[np.generic]
_BOUNDING_OPS = frozenset({"relu", "clip"})


@record
class _Link:
    """One stage of a chain with its operand types, arrays and result type."""

    stage: Stage
    types: Mapping[str, TensorType]
    arrays: Operands
    result: TensorType


def run_chain(node: Node, operands: Operands, rules: RuleSource) -> Integers:
    """Runs a fused chain; on integers where the epilogue allows it, else stage by stage in float.

    The epilogue may clamp (relu, clip) or add one quantized summand. Rounding is monotone and zero
    is a quantized value, so clamping the integers equals clamping the floats first.
    """
    stages = node.stages
    quant = node.result.type.quant
    # A type inside the chain is a rounding of its own.
    if quant is None or any(s.type is not None for s in stages):
        return _run_stage_by_stage(node, operands, rules)
    anchor = _link(node, 0, operands, node.result.type, rules)
    out = anchor.result.quant
    assert out is not None
    if not is_affine(out):
        return _run_stage_by_stage(node, operands, rules)
    quantized, stages_done, written_type = None, 1, anchor.result
    if len(stages) > 1 and stages[1].op == "add":
        # oneDNN's sum writes over the summand's buffer, so its storage decides, not the result's.
        written_type = _sum_buffer_type(node, anchor, operands, rules)
        quantized, stages_done = _product_with_summand(node, anchor, operands, rules), 2
    others = any(s.op not in _BOUNDING_OPS for s in stages[stages_done:])
    is_relu_separate = (
        len(stages) > stages_done and _separate_rule(_rule(anchor, rules)) is not None
    )
    # Anything but bounds and one summand, or a relu that the kernel runs on its own, needs floats.
    if others or (quantized is None and (stages_done == 2 or is_relu_separate)):
        return _run_stage_by_stage(node, operands, rules)
    if quantized is None:
        first_stage, anchor_call = stages[0], (anchor.types, anchor.arrays, anchor.result)
        fused_relus = [
            s.op for s in stages[1:2] if s.op == "relu" and applies_relu(_rule(anchor, rules))
        ]
        quantized = run_op(
            first_stage.op, first_stage.attrs, *anchor_call, rules, tuple(fused_relus)
        )
        stages_done += len(fused_relus)
    quantized = _apply_bounds(
        quantized, stages[stages_done:], replace(anchor, result=written_type), rules
    )
    return _reinterpret_as_result(quantized, out)


def _apply_bounds(
    quantized: Integers, epilogue: tuple[Stage, ...], anchor: _Link, rules: RuleSource
) -> Integers:
    quant, ends = anchor.result.quant, _rule(anchor, rules).stage.ends
    assert quant is not None
    for stage in epilogue:
        rule = rules.resolve(quantize_query(quant))
        low, high = activation_bounds(stage.op, stage.attrs, affine_of(quant), rule, ends)
        quantized = np.clip(quantized, low, high).astype(quantized.dtype)
    return quantized


def _link(node: Node, index: int, operands: Operands, kind: TensorType, rules: RuleSource) -> _Link:
    """Returns a stage with the operands that it has of its own."""
    stage = node.stages[index]
    values = node.stage_operands(index)
    groups = dict(zip(stage.slots, node.stages[index].group_slots(index), strict=True))
    arrays = {slot: operands[groups[slot]] for slot in values}
    resolved = resolve_companions(stage.op, values, arrays, (kind,), rules)
    return _Link(stage, resolved.types, resolved.arrays, resolved.results[0])


def _rule(link: _Link, rules: RuleSource) -> Rule:
    query = query_for_op(link.stage.op, link.stage.attrs, link.types, link.result)
    return rules.resolve(query)


# -- sums -----------------------------------------------------------------------------------------


def _product_with_summand(
    node: Node, anchor: _Link, operands: Operands, rules: RuleSource
) -> Integers | None:
    """Returns a product and a summand of integers in units of the result; None where they are not
    that."""
    rule = _rule(anchor, rules)
    if (
        not stage_function(SumStage, rule.stage.sum).in_result_units
        or anchor.stage.op not in INTEGER_SUM_LAYERS
        or rule.method is not None
    ):
        return None
    kernel, arrays = quantize_weights(
        ProductKernel(anchor.stage.op, anchor.stage.attrs, anchor.types, anchor.result, rule),
        anchor.arrays,
    )
    summand_link = _link(node, 1, operands, anchor.result, rules)
    ((slot, kind),) = summand_link.types.items()
    if not is_integer_product(kernel) or kind.quant is None or not is_affine(kind.quant):
        return None
    assert anchor.result.quant is not None
    summand = _read_summand(summand_link.arrays[slot], kind.quant, anchor.result.quant, rule)
    kernel = replace(kernel, result=_sum_storage_type(kind.quant, anchor.result, rule))
    total = integer_product(kernel, arrays, AddedTensor(summand, affine_of(kind.quant)))
    return _write_sum(total, kind.quant, anchor.result.quant, rule)


def _sum_buffer_type(
    node: Node, anchor: _Link, operands: Operands, rules: RuleSource
) -> TensorType:
    """Returns the type in which a product and a summand are written."""
    rule, summand = _rule(anchor, rules), None
    if _sum_buffer(rule).storage is not None:
        summand = _summand_type(_link(node, 1, operands, anchor.result, rules))
    return anchor.result if summand is None else _sum_storage_type(summand, anchor.result, rule)


def _sum_buffer(rule: Rule) -> SumBufferStage:
    return stage_function(SumBufferStage, rule.stage.sum_reads)


def _sum_storage_type(summand: QuantType, result: TensorType, rule: Rule) -> TensorType:
    """Returns the type in which a sum is written: the result's, or with the storage of the
    summand."""
    out = result.quant
    if out is None:
        return result
    storage = _sum_buffer(rule).written_as(summand.storage, out.storage)
    if storage == out.storage:
        return result
    return result.with_element(replace(out, storage=storage, bounds=None))


def _reinterpret_as_result(quantized: Integers, result: QuantType) -> Integers:
    """Returns the bytes of a sum, read as the result's quantized values."""
    carrier = np.dtype(result.storage.carrier)
    return (
        quantized
        if quantized.dtype == carrier or quantized.itemsize != 1
        else quantized.view(carrier)
    )


def _read_summand(
    quantized: Integers, summand_type: QuantType, result: QuantType, rule: Rule
) -> Integers:
    """Returns a summand as it is read: unsigned integers next to an i8 result may end at 127."""
    limit = _sum_buffer(rule).read_limit(summand_type.storage, result.storage)
    return quantized if limit is None else np.minimum(quantized, quantized.dtype.type(limit))


def _write_sum(
    quantized: Integers, summand_type: QuantType, result: QuantType, rule: Rule
) -> Integers:
    """Returns a result where an i8 summand lay: unsigned integers may end at 127."""
    limit = _sum_buffer(rule).write_limit(summand_type.storage, result.storage)
    return quantized if limit is None else np.minimum(quantized, quantized.dtype.type(limit))


# -- stage by stage -------------------------------------------------------------------------------


def _run_stage_by_stage(node: Node, operands: Operands, rules: RuleSource) -> Integers:
    """Returns every stage in float, rounded where a type is after it and at the end."""
    flow: Integers | None = None
    kind: DType | None = None
    rule: Rule | None = None
    summand: QuantType | None = None
    for i, stage in enumerate(node.stages):
        is_last = i == len(node.stages) - 1
        stored = node.result.type if is_last else stage.type or node.result.type
        link = _link(node, i, operands, stored, rules)
        out = link.result.quant
        quantized: Integers | None = None
        if i == 0:
            rule = _anchor_rule(link, rules)
        # The anchor, or a stage that does not read the stage before it.
        if flow is None or stage.flow is None:
            flow, kind = _unquantized_stage(link, rules)
        elif rule is not None and out is not None and _runs_on_integers(link, rule):
            quantized = _quantized_stage(link, flow, node.result.type, rule, rules)
        elif rule is not None and (summand_quant := _summand_type(link)) is not None:
            flow, summand = _add_summand(flow, link, node.result.type, rule), summand_quant
        elif rule is not None and (curve := _curves(rule).get(stage.op)) is not None:
            flow, kind = curve(flow.astype(np.float32), stage.attrs), None
        else:
            flow, kind = _unquantized_stage(_with_flow(link, flow, kind), rules)
        if out is None or not (is_last or stage.type is not None or quantized is not None):
            continue
        if quantized is None:
            stored_type = link.result
            if summand is not None and rule is not None:
                stored_type = _sum_storage_type(summand, stored_type, rule)
            assert stored_type.quant is not None
            quantized = _reinterpret_as_result(
                _quantize_flow(flow, stored_type.quant, rule, rules), out
            )
            if summand is not None and rule is not None:
                quantized = _write_sum(quantized, summand, out, rule)
        # After a stored stage the chain goes on from integers: the anchor's rule no longer applies.
        rule = rule if stage.type is None else None
        if is_last:
            return quantized
        dequantize_rule = rules.resolve(dequantize_query(out))
        flow, kind = dequantize(quantized, mapping_of(out), dequantize_rule), None
    assert flow is not None
    return flow


def _anchor_rule(link: _Link, rules: RuleSource) -> Rule | None:
    """Returns the rule of an integer product, which says what its kernel's later stages work on."""
    rule = _rule(link, rules)
    kernel = ProductKernel(link.stage.op, link.stage.attrs, link.types, link.result, rule)
    if link.stage.op not in INTEGER_SUM_LAYERS or rule.method is not None:
        return None
    # Such a kernel divides by the result's scale in a step of its own, after the separate relu.
    rule = _separate_rule(rule) or rule
    return rule if is_integer_product(quantize_weights(kernel, link.arrays)[0]) else None


def _separate_rule(rule: Rule) -> Rule | None:
    """Returns the rule of a layer whose activations are computed apart; None where they are not."""
    apart = stage_function(ReluStage, rule.stage.relu).apart
    return None if apart is None else apart(rule)


def _curves(rule: Rule) -> Mapping[str, Callable[..., Integers]]:
    return stage_function(CurvesStage, rule.stage.curves).functions


def _with_flow(link: _Link, flow: Integers, element: Element | None) -> _Link:
    """Returns a stage with what flows in: float values, or quantized values."""
    assert link.stage.flow is not None
    kind = TensorType(flow.shape, element or dtype_of(flow))
    types = {**link.types, link.stage.flow: kind}
    return _Link(link.stage, types, {**link.arrays, link.stage.flow: flow}, link.result)


def _unquantized_stage(link: _Link, rules: RuleSource) -> tuple[Integers, DType | None]:
    """Returns what one stage gives without a quantized type, and its element type where that is an
    integer of a width that no NumPy type has."""
    result = _float_stage(link, rules)
    kinds = [t.dtype for t in link.types.values() if t.quant is None]
    kinds += [to for to in link.stage.attrs.values() if isinstance(to, DType)]
    # Only an i4 and its like can leave its width without leaving its NumPy type.
    if not any(k.is_integer and k.bits < 8 * k.carrier.itemsize for k in kinds):
        return result, None
    (inferred,) = spec(link.stage.op).rule(Call(link.stage.op, link.types, link.stage.attrs))
    return wrap_to_width(result, inferred.dtype), inferred.dtype


def _float_stage(link: _Link, rules: RuleSource) -> Integers:
    """Returns the float values that one stage gives: exact integer sums where there are, else in
    float."""
    stage, arrays = link.stage, link.arrays
    if not any(t.quant for t in link.types.values()):
        return compute(stage.op, arrays, stage.attrs)
    float_type = link.result.with_element(link.result.express)
    rule = rules.resolve(query_for_op(stage.op, stage.attrs, link.types, float_type))
    kernel, arrays = quantize_weights(
        ProductKernel(stage.op, stage.attrs, link.types, float_type, rule), arrays
    )
    if stage.op in INTEGER_SUM_LAYERS and is_integer_product(kernel):
        return integer_product(kernel, arrays)
    return run_on_floats(kernel, arrays)


def _quantize_flow(
    flow: Integers, quant: QuantType, rule: Rule | None, rules: RuleSource
) -> Integers:
    """Quantized values of what flows: by the last step of a product that were dequantized, else as
    floats are."""
    if rule is not None and rule.requant.multiplier == "divide" and is_affine(quant):
        return quantize_floats(flow.astype(np.float32), affine_of(quant), rule)
    if rule is not None and is_quantized_by_range(quant, rule):
        return quantize_by_range(flow.astype(np.float32), map_of(quant), rule)
    return quantize(flow, mapping_of(quant), rules.resolve(quantize_query(quant)))


def _runs_on_integers(link: _Link, rule: Rule) -> bool:
    """Returns whether a stage is one that the kernel computes on quantized values."""
    is_other_activation = link.stage.op not in (*_BOUNDING_OPS, "add") and not link.arrays
    return is_other_activation and rule.stage.other != "float"


def _quantized_stage(
    link: _Link, flow: Integers, result: TensorType, rule: Rule, rules: RuleSource
) -> Integers:
    """Another quantized activation of the result's quantized type, by a table or as its own rule
    says."""
    assert result.quant is not None
    quantized = _quantize_flow(flow, result.quant, rule, rules)
    link_on_integers = _with_flow(link, quantized, result.quant)
    if rule.stage.other == "method":
        stage = link.stage
        return run_op(
            stage.op,
            stage.attrs,
            link_on_integers.types,
            link_on_integers.arrays,
            link.result,
            rules,
        )
    own_rule = _rule(link_on_integers, rules)
    return run_on_floats(
        ProductKernel(
            link.stage.op, link.stage.attrs, link_on_integers.types, link.result, own_rule
        ),
        link_on_integers.arrays,
    )


def _summand_type(link: _Link) -> QuantType | None:
    """Returns the quantized type that a stage adds; None for other stages."""
    if link.stage.op != "add" or len(link.types) != 1:
        return None
    quant = next(iter(link.types.values())).quant
    return quant if quant is not None and is_affine(quant) else None


def _add_summand(flow: Integers, link: _Link, result: TensorType, rule: Rule) -> Integers:
    """Float values and what the quantized values of a summand mean."""
    ((slot, kind),) = link.types.items()
    assert kind.quant is not None
    quantized, summand_map = link.arrays[slot], affine_of(kind.quant)
    if result.quant is not None:
        quantized = _read_summand(quantized, kind.quant, result.quant, rule)
    scale, zero = summand_map.along(quantized.ndim)
    steps = (quantized.astype(np.int64) - zero).astype(np.float32)
    factor, floats = scale.astype(np.float32), flow.astype(np.float32)
    with np.errstate(all="ignore"):
        if rule.requant.scales != "given":
            # Such a kernel holds 1 / scale, and multiplies by what 1 divided by that is in float32.
            factor = np.float32(1) / (np.float32(1) / factor)
        stage = stage_function(SumStage, rule.stage.sum)
        if stage.in_result_units:  # no kernel computes that: the sums are floats already
            return np.asarray(floats + steps * factor).astype(flow.dtype)
        return stage.add(floats, steps, factor).astype(flow.dtype)
