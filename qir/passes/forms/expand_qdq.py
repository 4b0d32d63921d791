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


Known = dict[tuple[Value, ...], Value]
"""The float values of quantized values that are read by certain numbers."""


@dataclass(frozen=True)
class ExpandQdq(Pass):
    """Adds a dequantize to each quantized value, and a quantize after each op on such values.

    Sums of floats do not wrap: where a kernel's sums do, other numbers come out, which the ledger
    says, as it does where quantized values mean numbers that float32 does not hold. What the
    rounding of a scale alone makes infinite is held at float32's end.
    """

    name = "expand-qdq"
    tolerance = REGROUPED
    sums: bool = False
    """Whether only kernels that add another tensor are expanded."""

    def run(self, graph: Graph, ledger: Ledger) -> int:
        reals: Known = {}
        count = 0
        for node in list(graph):
            if node.op in ABOUT_INTEGERS or node.bodies or not _on_codes(node) or _hands_on(node):
                continue  # bodies are given integers, and are unwrapped on their own
            if self.sums and not any(stage.slots for stage in node.stages[1:]):
                continue
            if not may(self.name, f"expand {node.op}", node):
                continue
            apart = (
                wrap_note(graph, node)
                or float32_overflow.overflow_note(graph, node)
                or saturation_note(graph, node)
                or prelu_error_note(graph, node)
            )
            try:
                _expand(graph, node, reals)
            except TypeRuleError as error:
                where = f" ({node.origins[0]})" if node.origins else ""
                said = f"{node.name}{where}: float ops cannot replace it: {error}"
                raise Refused(said) from error
            change = Change.APPROXIMATED if apart else Change.REGROUPED
            said = f"written as float ops between quantized values{apart or _float_sum(node)}"
            ledger.add(change, self.name, node.name, said)
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


def _on_codes(node: Node) -> bool:
    return any(v.type.quant for v in (*node.operands.values(), *node.results))


def _hands_on(node: Node) -> bool:
    """Returns whether a node moves integers without parameters: these have no float values here."""
    quants = [v.type.quant for v in (*node.operands.values(), *node.results)]
    moves = not node.stages and spec(node.op).traits.value_preserving
    return (
        moves and not _companions(node.op, node.operands) and any(q and q.dynamic for q in quants)
    )


def _companions(op: str, operands: Mapping[str, Value]) -> dict[str, Value]:
    row = spec(op)
    return {s: v for s, v in operands.items() if row.slot(s) is None and row.is_companion(s)}


def _expand(graph: Graph, node: Node, reals: Known) -> None:
    stages = node.stages or (
        Stage(node.op, node.attrs, tuple(node.operands), None, None, "", node.origins),
    )
    flow: Value | None = None
    beside: dict[str, Value] = {}
    for i, stage in enumerate(stages):
        codes = node.stage_operands(i) if node.stages else dict(node.operands)
        beside = _companions(stage.op, codes)
        codes = {slot: value for slot, value in codes.items() if slot not in beside}
        operands = {slot: _reals(graph, node, stage, slot, codes, beside, reals) for slot in codes}
        for slot, on_group in zip(stage.slots, stage.group_slots(i), strict=True):
            if slot in operands and operands[slot].node.op == "dequantize":
                known = operands[slot].node
                origins = node.slot_origins.get(on_group, ())
                graph.set_origins(known, (*known.origins, *origins))
        if stage.flow is not None and flow is not None:
            operands[stage.flow] = flow
        within = spec(stage.op).inner
        operands |= {s: v for s, v in beside.items() if s.rpartition(".")[0] in within}
        name = graph.fresh(stage.name or f"{node.name}.{stage.op}")
        made = graph.add(
            stage.op,
            operands,
            stage.attrs,
            name=name if len(node.results) == 1 else [f"{v.name}.{name}" for v in node.results],
            before=node,
            origins=stage.origins,
            profile=node.profile,
            inner=node.inner,
        )
        flow = made.results[0]
        if stage.type is not None:
            flow = _through(graph, node, flow, stage.type)
    assert flow is not None
    numbers = {s: v for s, v in beside.items() if "." not in s}
    _finish(graph, node, (flow, *made.results[1:]), numbers)


def _reals(
    graph: Graph,
    node: Node,
    stage: Stage,
    slot: str,
    codes: Mapping[str, Value],
    beside: Mapping[str, Value],
    known: Known,
) -> Value:
    value = codes[slot]
    if value.type.quant is None:
        if slot != spec(stage.op).traits.bias or not value.type.dtype.is_integer:
            return value
        if not _coded(stage, codes):
            return value
        scale = None if _computed(stage, codes) else accumulator_scale(stage, codes)
        if scale is None or not _along(value, scale):
            return _counted(graph, node, stage, codes, beside, value)
        value = _bias(graph, node, stage, scale, value)
    dot = f"{slot}."
    numbers = {f"x.{s.removeprefix(dot)}": v for s, v in beside.items() if s.startswith(dot)}
    key = (value, *(v for _, v in sorted(numbers.items())))
    if key not in known:
        known[key] = _dequantized(graph, node, value, numbers)
    found = known[key]
    if not float32_overflow.is_infinite_by_rounding(graph, node, value):
        return found
    key = (*key, found)
    if key not in known:
        known[key] = float32_overflow.clipped_to_float32(graph, node, value, found)
    return known[key]


def _dequantized(graph: Graph, node: Node, value: Value, numbers: Mapping[str, Value]) -> Value:
    """Returns the floats of a value's integers, made before a node; one that stands later moves
    there."""
    wanted = {"x": value, **numbers}
    readers = (n for n in value.users if n.op == "dequantize")
    old = next((n for n in readers if dict(n.operands) == wanted), None)
    if old is not None and old.precedes(node):
        return old.result
    made = graph.add("dequantize", wanted, name=f"{value.name}.real", before=node)
    graph.set_lineage(made.result, value.lineage)
    if old is not None:
        graph.substitute(old, made.result)
        graph.set_origins(made, old.origins)
    return made.result


def _sides(stage: Stage, codes: Mapping[str, Value]) -> list[QuantType | None]:
    traits = spec(stage.op).traits
    return [codes[s].type.quant for s in (traits.data, traits.weight or "") if s in codes]


def _coded(stage: Stage, codes: Mapping[str, Value]) -> bool:
    """Returns whether an accumulator counts in the product of two scales, which a raw bias does
    too."""
    sides = _sides(stage, codes)
    return len(sides) == 2 and None not in sides


def _computed(stage: Stage, codes: Mapping[str, Value]) -> bool:
    """Returns whether a number of what an accumulator counts in is computed."""
    return any(quant is not None and quant.scale is None for quant in _sides(stage, codes))


def _counted(
    graph: Graph,
    node: Node,
    stage: Stage,
    codes: Mapping[str, Value],
    beside: Mapping[str, Value],
    value: Value,
) -> Value:
    """Returns a bias in a unit that is computed: its quantized values times the product of both
    scales."""
    traits = spec(stage.op).traits
    scales = []
    for slot in (traits.data, traits.weight or ""):
        found, quant = beside.get(f"{slot}.scale"), codes[slot].type.quant
        if found is None and quant is not None:
            scale = Array.of(np.asarray(quant.scales(), np.float32))
            found = graph.constant(scale, name=f"{value.name}.{slot}", before=node)
        assert found is not None
        scales.append(found)
    pair = {"a": scales[0], "b": scales[1]}
    unit = graph.add("mul", pair, name=f"{value.name}.unit", before=node).result
    if (gain := _gain(stage)) != 1.0:
        held = graph.constant(Array.of(np.asarray(gain)), name=f"{value.name}.gain", before=node)
        unit = graph.add("mul", {"a": unit, "b": held}, before=node).result
    reals = graph.add("cast", {"x": value}, {"to": F32}, before=node).result
    made = graph.add("mul", {"a": reals, "b": unit}, name=f"{value.name}.real", before=node)
    return made.result


def _gain(stage: Stage) -> np.float32:
    """Returns what an op multiplies its sums by, which a bias in their unit is multiplied by
    too."""
    alpha = stage.attrs.get("alpha", 1.0)
    return np.float32(alpha if isinstance(alpha, float) and spec(stage.op).traits.weight else 1.0)


def _along(value: Value, scale: NDArray[np.float32]) -> bool:
    """Returns whether a type can say a bias's scales: one for all, or one for each of the last
    axis."""
    shape = value.type.shape
    return not scale.ndim or bool(shape and shape[-1] == scale.size)


def _bias(
    graph: Graph, node: Node, stage: Stage, scale: NDArray[np.float32], value: Value
) -> Value:
    """Returns a bias in accumulator units, with the scale that its slot gives it."""
    scale = np.asarray(scale * _gain(stage), np.float32)
    axis = value.type.rank - 1 if scale.ndim else None
    kind = uniform(value.type.dtype, scale.astype(np.float32), axis=axis, name=value.name)
    name = value.name.removesuffix(".raw")
    if value.constant is None:
        name = graph.fresh(f"{name}.codes")
        meant = value.type.with_element(kind)
        return graph.add("recode", {"x": value}, types=[meant], name=name, before=node).result
    data = Array(value.constant.contents, TensorType(value.type.shape, kind), name)
    made = graph.constant(data, name=graph.fresh(name), before=node)
    graph.set_origins(made.node, value.node.origins)
    graph.set_lineage(made, value.lineage)
    return made


def _through(graph: Graph, node: Node, value: Value, kind: TensorType) -> Value:
    """Returns a rounding inside a chain: quantize and dequantize again."""
    codes = graph.add("quantize", {"x": value}, types=[kind], before=node).result
    reals = graph.add("dequantize", {"x": codes}, before=node).result
    return (
        float32_overflow.clipped_to_float32(graph, node, codes, reals)
        if float32_overflow.is_infinite_by_rounding(graph, node, codes)
        else reals
    )


def _finish(graph: Graph, node: Node, flows: Sequence[Value], numbers: Mapping[str, Value]) -> None:
    """Puts what was made in the node's place, quantized where its results are quantized."""
    placed: list[Value] = []
    for old, flow in zip(node.results, flows, strict=True):
        end = flow
        if old.type.quant is not None:
            end = graph.add(
                "quantize",
                {"x": flow, **numbers},
                types=[old.type],
                before=node,
                origins=node.slot_origins.get("result", ()),
            ).result
        placed.append(end)
    graph.substitute(node, *placed)
