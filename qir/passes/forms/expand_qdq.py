"""Rewrites integer form as QDQ form: ops on quantized values become float ops.

    graph main as native {
      %x = input() : 2x!quant.uniform<u8:f32, 0.5:3>
      %y = relu(%x) : 2x!quant.uniform<u8:f32, 0.25>
      output(y=%y)
    }

By `expand-qdq` it becomes:

    graph main as native {
      %x = input() : 2x!quant.uniform<u8:f32, 0.5:3>
      %x.real = dequantize(%x) : 2xf32
      %y.relu = relu(%x.real) : 2xf32
      %y = quantize(%y.relu) : 2x!quant.uniform<u8:f32, 0.25>
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.analysis import float32_overflow
from qir.analysis.int32_overflow import wrap_note
from qir.analysis.misread_weights import misread_note
from qir.analysis.prelu_slopes import prelu_error_note
from qir.analysis.summand_storage import saturation_note
from qir.errors import Refused, TypeRuleError
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.ops import spec
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.ledger import Change, Ledger
from qir.rewrite import REGROUPED, Pass
from qir.rewrite.fusing import accumulator_scale
from qir.rewrite.runner.filter import may

ABOUT_INTEGERS = frozenset(
    "input constant output foreign quantize dequantize requantize recode choose_qparams "
    "qparams".split()
)
"""Ops for which integers are more than their float values, or that make these."""


FloatValues = dict[tuple[Value, ...], Value]
"""The float values of quantized values that are read by certain numbers."""


@dataclass(frozen=True)
class ExpandQdq(Pass):
    """Adds a dequantize to each quantized value, and a quantize after each op on such values.

    Sums of floats do not wrap: where a kernel's sums do, other numbers come out, which the ledger
    says, as it does where a kernel misreads its weights, and where quantized values mean numbers
    that float32 does not hold. What the rounding of a scale alone makes infinite is held at
    float32's end.
    """

    name = "expand-qdq"
    tolerance = REGROUPED
    sums: bool = False
    """Whether only kernels that add another tensor are expanded."""

    def run(self, graph: Graph, ledger: Ledger) -> int:
        floats: FloatValues = {}
        count = 0
        for node in list(graph):
            if (
                node.op in ABOUT_INTEGERS
                or node.bodies
                or not _is_on_quantized(node)
                or _moves_without_parameters(node)
            ):
                continue  # bodies are given integers, and are unwrapped on their own
            if self.sums and not any(stage.slots for stage in node.stages[1:]):
                continue
            if not may(self.name, f"expand {node.op}", node):
                continue
            # Each of these notes says how the float ops differ from the kernel; one is enough for
            # the ledger, so the first that applies is taken.
            difference = (
                wrap_note(graph, node)
                or float32_overflow.overflow_note(graph, node)
                or saturation_note(graph, node)
                or prelu_error_note(graph, node)
                or misread_note(graph, node)
            )
            try:
                _expand(graph, node, floats)
            except TypeRuleError as error:
                place = f" ({node.origins[0]})" if node.origins else ""
                message = f"{node.name}{place}: float ops cannot replace it: {error}"
                raise Refused(message) from error
            change = Change.APPROXIMATED if difference else Change.REGROUPED
            message = (
                f"written as float ops between quantized values{difference or _float_sum(node)}"
            )
            ledger.add(change, self.name, node.name, message)
            count += 1
        return count + (graph.prune() if count else 0)


def _float_sum(node: Node) -> str:
    """Returns a note on a layer that adds another tensor to its sums before it rounds."""
    if not node.stages or not any(stage.slots for stage in node.stages[1:]):
        return ""
    return f"; its {node.stages[0].op} is float where a runtime has no such kernel"


def expand(graph: Graph, node: Node) -> None:
    """Unwraps one quantized op; Refused where float values cannot are between its integers."""
    _expand(graph, node, {})


def _is_on_quantized(node: Node) -> bool:
    return any(v.type.quant for v in (*node.operands.values(), *node.results))


def _moves_without_parameters(node: Node) -> bool:
    """Returns whether a node moves integers without parameters: these have no float values here."""
    quants = [value.type.quant for value in (*node.operands.values(), *node.results)]
    only_moves = not node.stages and spec(node.op).traits.value_preserving
    return (
        only_moves
        and not _companion_operands(node.op, node.operands)
        and any(quant and quant.dynamic for quant in quants)
    )


def _companion_operands(op: str, operands: Mapping[str, Value]) -> dict[str, Value]:
    op_spec = spec(op)
    return {
        slot: value
        for slot, value in operands.items()
        if op_spec.slot(slot) is None and op_spec.is_companion(slot)
    }


def _expand(graph: Graph, node: Node, floats: FloatValues) -> None:
    stages = node.stages or (
        Stage(node.op, node.attrs, tuple(node.operands), None, None, "", node.origins),
    )
    flow: Value | None = None
    companions: dict[str, Value] = {}
    for i, stage in enumerate(stages):
        inputs = node.stage_operands(i) if node.stages else dict(node.operands)
        companions = _companion_operands(stage.op, inputs)
        inputs = {slot: value for slot, value in inputs.items() if slot not in companions}
        operands = {
            slot: _float_operand(graph, node, stage, slot, inputs, companions, floats)
            for slot in inputs
        }
        for slot, group_slot in zip(stage.slots, stage.group_slots(i), strict=True):
            if slot in operands and operands[slot].node.op == "dequantize":
                dequantize = operands[slot].node
                origins = node.slot_origins.get(group_slot, ())
                graph.set_origins(dequantize, (*dequantize.origins, *origins))
        if stage.flow is not None and flow is not None:
            operands[stage.flow] = flow
        inner_slots = spec(stage.op).inner
        operands |= {s: v for s, v in companions.items() if s.rpartition(".")[0] in inner_slots}
        # The name that the op had before it was grouped, where the stage kept it.
        name = graph.fresh(stage.name or f"{node.name}.{stage.op}")
        result = graph.add(
            stage.op,
            operands,
            stage.attrs,
            name=name if len(node.results) == 1 else [f"{v.name}.{name}" for v in node.results],
            before=node,
            origins=stage.origins,
            profile=node.profile,
            inner=node.inner,
        )
        flow = result.results[0]
        # The kernel rounds to integers between two stages; floats repeat that by a quantize.
        if stage.type is not None:
            flow = _requantized(graph, node, flow, stage.type)
    assert flow is not None
    parameters = {s: v for s, v in companions.items() if "." not in s}
    _replace_node(graph, node, (flow, *result.results[1:]), parameters)


def _float_operand(
    graph: Graph,
    node: Node,
    stage: Stage,
    slot: str,
    inputs: Mapping[str, Value],
    companions: Mapping[str, Value],
    floats: FloatValues,
) -> Value:
    value = inputs[slot]
    if value.type.quant is None:
        if slot != spec(stage.op).traits.bias or not value.type.dtype.is_integer:
            return value
        if not _has_quantized_factors(stage, inputs):
            return value
        scale = None if _has_computed_scale(stage, inputs) else accumulator_scale(stage, inputs)
        # No type can state this scale, so the bias is multiplied by it instead.
        if scale is None or not _fits_bias_shape(value, scale):
            return _scaled_bias(graph, node, stage, inputs, companions, value)
        value = _typed_bias(graph, node, stage, scale, value)
    prefix = f"{slot}."
    parameters = {
        f"x.{name.removeprefix(prefix)}": v
        for name, v in companions.items()
        if name.startswith(prefix)
    }
    # One dequantize serves all readers that interpret the integers by the same parameters.
    key = (value, *(v for _, v in sorted(parameters.items())))
    if key not in floats:
        floats[key] = _dequantized(graph, node, value, parameters)
    dequantized = floats[key]
    if not float32_overflow.is_infinite_by_rounding(graph, node, value):
        return dequantized
    key = (*key, dequantized)
    if key not in floats:
        floats[key] = float32_overflow.clipped_to_float32(graph, node, value, dequantized)
    return floats[key]


def _dequantized(graph: Graph, node: Node, value: Value, parameters: Mapping[str, Value]) -> Value:
    """Returns the floats of a value's integers, made before a node; one that stands later moves
    there."""
    operands = {"x": value, **parameters}
    dequantizes = (user for user in value.users if user.op == "dequantize")
    existing = next((user for user in dequantizes if dict(user.operands) == operands), None)
    if existing is not None and existing.precedes(node):
        return existing.result
    replacement = graph.add("dequantize", operands, name=f"{value.name}.real", before=node)
    graph.set_lineage(replacement.result, value.lineage)
    # The existing dequantize stands after the node; the new one takes over its readers.
    if existing is not None:
        graph.substitute(existing, replacement.result)
        graph.set_origins(replacement, existing.origins)
    return replacement.result


def _factor_types(stage: Stage, inputs: Mapping[str, Value]) -> list[QuantType | None]:
    traits = spec(stage.op).traits
    return [
        inputs[slot].type.quant for slot in (traits.data, traits.weight or "") if slot in inputs
    ]


def _has_quantized_factors(stage: Stage, inputs: Mapping[str, Value]) -> bool:
    """Returns whether an accumulator counts in the product of two scales, which a raw bias does
    too."""
    factors = _factor_types(stage, inputs)
    return len(factors) == 2 and None not in factors


def _has_computed_scale(stage: Stage, inputs: Mapping[str, Value]) -> bool:
    """Returns whether a number of what an accumulator counts in is computed."""
    return any(quant is not None and quant.scale is None for quant in _factor_types(stage, inputs))


def _scaled_bias(
    graph: Graph,
    node: Node,
    stage: Stage,
    inputs: Mapping[str, Value],
    companions: Mapping[str, Value],
    value: Value,
) -> Value:
    """Returns a bias in a unit that is computed: its quantized values times the product of both
    scales."""
    traits = spec(stage.op).traits
    scales = []
    for slot in (traits.data, traits.weight or ""):
        scale_value, quant = companions.get(f"{slot}.scale"), inputs[slot].type.quant
        if scale_value is None and quant is not None:
            scale = Array.of(np.asarray(quant.scales(), np.float32))
            scale_value = graph.constant(scale, name=f"{value.name}.{slot}", before=node)
        assert scale_value is not None
        scales.append(scale_value)
    factors = {"a": scales[0], "b": scales[1]}
    unit = graph.add("mul", factors, name=f"{value.name}.unit", before=node).result
    if (gain := _sum_factor(stage)) != 1.0:
        factor = graph.constant(Array.of(np.asarray(gain)), name=f"{value.name}.gain", before=node)
        unit = graph.add("mul", {"a": unit, "b": factor}, before=node).result
    floats = graph.add("cast", {"x": value}, {"to": F32}, before=node).result
    scaled = graph.add("mul", {"a": floats, "b": unit}, name=f"{value.name}.real", before=node)
    return scaled.result


def _sum_factor(stage: Stage) -> np.float32:
    """Returns what an op multiplies its sums by, which a bias in their unit is multiplied by
    too."""
    alpha = stage.attrs.get("alpha", 1.0)
    return np.float32(alpha if isinstance(alpha, float) and spec(stage.op).traits.weight else 1.0)


def _fits_bias_shape(value: Value, scale: NDArray[np.float32]) -> bool:
    """Returns whether a type can say a bias's scales: one for all, or one for each of the last
    axis."""
    shape = value.type.shape
    return not scale.ndim or bool(shape and shape[-1] == scale.size)


def _typed_bias(
    graph: Graph, node: Node, stage: Stage, scale: NDArray[np.float32], value: Value
) -> Value:
    """Returns a bias in accumulator units, with the scale that its slot gives it."""
    scale = np.asarray(scale * _sum_factor(stage), np.float32)
    axis = value.type.rank - 1 if scale.ndim else None
    quant_type = uniform(value.type.dtype, scale.astype(np.float32), axis=axis, name=value.name)
    name = value.name.removesuffix(".raw")
    if value.constant is None:
        name = graph.fresh(f"{name}.codes")
        tensor_type = value.type.with_element(quant_type)
        return graph.add("recode", {"x": value}, types=[tensor_type], name=name, before=node).result
    data = Array(value.constant.contents, TensorType(value.type.shape, quant_type), name)
    constant = graph.constant(data, name=graph.fresh(name), before=node)
    graph.set_origins(constant.node, value.node.origins)
    graph.set_lineage(constant, value.lineage)
    return constant


def _requantized(graph: Graph, node: Node, value: Value, tensor_type: TensorType) -> Value:
    """Returns a rounding inside a chain: quantize and dequantize again."""
    quantized = graph.add("quantize", {"x": value}, types=[tensor_type], before=node).result
    floats = graph.add("dequantize", {"x": quantized}, before=node).result
    return (
        float32_overflow.clipped_to_float32(graph, node, quantized, floats)
        if float32_overflow.is_infinite_by_rounding(graph, node, quantized)
        else floats
    )


def _replace_node(
    graph: Graph, node: Node, flows: Sequence[Value], parameters: Mapping[str, Value]
) -> None:
    """Puts what was made in the node's place, quantized where its results are quantized."""
    replacements: list[Value] = []
    for old, flow in zip(node.results, flows, strict=True):
        result = flow
        if old.type.quant is not None:
            result = graph.add(
                "quantize",
                {"x": flow, **parameters},
                types=[old.type],
                before=node,
                origins=node.slot_origins.get("result", ()),
            ).result
        replacements.append(result)
    graph.substitute(node, *replacements)
