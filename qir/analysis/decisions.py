"""Decides what becomes of each op, and describes the graph before planning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from qir.analysis.multiply_adds import has_known_macs, integer_macs, total_macs
from qir.analysis.quantized_regions import continues_raw_sum, is_dequantized, quantized_types
from qir.capability import Verdict
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.ops.layers import CONTROL_FLOW_OPS
from qir.ir.quantized_ops import (
    QPARAMS_OPS,
    RETYPING_OPS,
    is_float_width_cast,
    is_integral,
    quantized_nodes,
)
from qir.query.cost import one_sample
from qir.query.display import op_name

Becomes: TypeAlias = Literal["integer", "already", "weights", "float", "as it is"]
"""What becomes of an op.

- `integer`: quantizing makes it compute on integers.
- `already`: it computes on integers before quantizing.
- `weights`: its weights get few bits, its data stay float.
- `float`: it stays float.
- `as it is`: it computes neither, such as a conversion or shape arithmetic.
"""

ALREADY_QUANTIZED = "quantized already"
"""The reason of an op that works on quantized values before anything is planned."""
BODIES_PARTLY_QUANTIZED = "part of its bodies is quantized already"
"""The reason of an op that holds graphs, some of whose work is quantized."""
BODIES_STAY_FLOAT = (
    "data quantize nothing that branches and loops hold; without data their products are"
)
"""The reason of an op that holds graphs."""

_CONVERSIONS = RETYPING_OPS | QPARAMS_OPS


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one op, and why."""

    node: str
    op: str
    becomes: Becomes
    reason: str
    group: str = ""
    """The op in whose kernel this one is computed, where it is another."""
    schemes: Mapping[str, str] = field(default_factory=dict)
    macs: int = 0
    origin: str = ""
    macs_on_codes: int = 0
    """Those of the multiply-adds that are integer; of an op that holds graphs they may be some."""
    counted: bool = True
    """Whether `macs` is all its work: not so where a size is open, or an op is foreign."""

    @property
    def integer(self) -> bool:
        """Whether it is quantized, then or already."""
        return self.becomes in ("integer", "already")

    @property
    def new(self) -> bool:
        """Whether quantizing changes it."""
        return self.becomes in ("integer", "weights")


@dataclass(frozen=True, slots=True)
class Plan:
    """What quantizing would do: what becomes integer, stays float, or shares one scale."""

    target: str
    decisions: tuple[Decision, ...]
    shared: tuple[tuple[str, ...], ...]
    """Names of values that must hold one quantized type, where there are several."""
    maybe_masks: tuple[str, ...] = ()
    """Inputs that reach a softmax planned integer: a mask in their data leaves it float."""
    refused: str = ""
    """Why the form that was asked about cannot hold the graph; empty where it can."""

    def __repr__(self) -> str:
        counts = Counter(decision.becomes for decision in self.decisions)
        counts_text = (
            ", ".join(f"{count} {becomes}" for becomes, count in counts.items()) or "no ops"
        )
        share = f"{self.integer_macs:.0%} of multiply-adds integer"
        return f"<Plan for {self.target}: {counts_text}; {share}>"

    @property
    def integer_macs(self) -> float:
        """Share of the counted multiply-adds that will be done in integers, or are already."""
        total = sum(d.macs for d in self.decisions)
        return sum(d.macs_on_codes for d in self.decisions) / total if total else 0.0


def with_target_verdicts(plan: Plan, verdicts: Iterable[Verdict], path: str) -> Plan:
    """Corrects the plan of the graph at a path by what a target does with existing integer work.

    Integer ops that the target computes in float become float; ops next to a float value that it
    quantizes become integer.
    """
    here = [v for v in verdicts if v.path == path]
    float_reasons = {v.node: v.reason for v in here if v.taken != "integer"}
    integer_nodes = {v.node for v in here if v.taken == "integer"}

    def corrected(decision: Decision) -> Decision:
        reason = float_reasons.get(decision.node)
        if decision.becomes == "float" and decision.node in integer_nodes:
            return replace(
                decision, becomes="already", reason=ALREADY_QUANTIZED, macs_on_codes=decision.macs
            )
        if decision.becomes != "already" or reason is None:
            return decision
        reason_text = f"{ALREADY_QUANTIZED}, but {reason}"
        return replace(decision, becomes="float", reason=reason_text, macs_on_codes=0)

    return replace(plan, decisions=tuple(map(corrected, plan.decisions)))


def with_file_verdicts(plan: Plan, verdicts: Iterable[Verdict]) -> Plan:
    """Corrects a plan without data: products that the target computes in float become float."""
    unmatched = {id(verdict): verdict for verdict in verdicts}
    by_node: dict[str, list[Verdict]] = {}
    for verdict in unmatched.values():
        by_node.setdefault(verdict.node, []).append(verdict)
    planned_nodes = {made.node for made in plan.decisions}
    planned_ops = {(made.node, made.op) for made in plan.decisions}

    def verdict_of(decision: Decision) -> Verdict | None:
        # A writer that adds the bias in a separate node names the product `NODE.product`.
        names = (decision.node, f"{decision.node}.product")
        candidates = [v for name in names for v in by_node.get(name, ()) if v.op != "sum"]
        same_op = [v for v in candidates if v.op == decision.op]
        # Ops of two branches may have one name: another planned op keeps the verdict of its own op.
        candidates = [v for v in candidates if (v.node, v.op) not in planned_ops]
        # A node that makes a graph output is written under the output's name.
        renamed = (
            v for v in unmatched.values() if v.op == decision.op and v.node not in planned_nodes
        )
        return next(iter(same_op or candidates), None) or next(renamed, None)

    def corrected(decision: Decision) -> Decision:
        verdict = verdict_of(decision) if decision.becomes == "integer" else None
        if verdict is None:
            return decision
        # Each verdict is used once, since ops of two branches may have one name.
        by_node[verdict.node].remove(verdict)
        del unmatched[id(verdict)]
        if verdict.taken == "integer":
            return decision
        return replace(decision, becomes="float", reason=verdict.reason, macs_on_codes=0)

    return replace(plan, decisions=tuple(map(corrected, plan.decisions)))


def with_quantized_moves(plan: Plan, verdicts: Iterable[Verdict]) -> Plan:
    """Corrects a plan with data: ops that only move quantized values become integer.

    A written form may quantize them because all ops next to them are quantized.
    """
    integer_ops = {(v.node, v.op) for v in verdicts if v.taken == "integer"}

    def corrected(decision: Decision) -> Decision:
        # Writers name a move of quantized values `NODE.q`.
        names = (decision.node, f"{decision.node}.q")
        is_integer = decision.becomes == "float" and any(
            (name, decision.op) in integer_ops for name in names
        )
        return replace(decision, becomes="integer", reason="") if is_integer else decision

    return replace(plan, decisions=tuple(map(corrected, plan.decisions)))


def with_float_reasons(plan: Plan, reasons: Mapping[str, str]) -> Plan:
    """Corrects a plan by the reasons why a written form has ops in float.

    Ops that are computed in the kernel of such an op become float with it.
    """

    def corrected(decision: Decision) -> Decision:
        reason = reasons.get(decision.node) or reasons.get(decision.group)
        if decision.becomes != "integer" or not reason:
            return decision
        return replace(decision, becomes="float", reason=reason, macs_on_codes=0)

    return replace(plan, decisions=tuple(map(corrected, plan.decisions)))


def with_macs_at(plan: Plan, graph: Graph, sizes: Mapping[str, int]) -> Plan:
    """Counts the multiply-adds of ops with symbolic sizes, which `sizes` gives by name.

    `graph` is the one that was planned. Ops with bodies stay as they are.
    """
    all_sizes = {**sizes, **one_sample(graph)}

    def corrected(decision: Decision) -> Decision:
        node = graph[decision.node].node if decision.node in graph.values else None
        if decision.counted or node is None or node.bodies or not has_known_macs(node, all_sizes):
            return decision
        macs = total_macs(node, all_sizes)
        done = macs if decision.becomes in ("integer", "already") else 0
        return replace(decision, macs=macs, macs_on_codes=done, counted=True)

    return replace(plan, decisions=tuple(map(corrected, plan.decisions)))


class GraphFacts:
    """Facts of a graph before planning: which ops are on integers, and their multiply-adds."""

    def __init__(self, graph: Graph, bodies: Iterable[Graph] = ()) -> None:
        self.planned_bodies = tuple(bodies)
        """Bodies whose ops have decisions of their own."""
        # In a static plan a loop is one op with the work of its bodies; without data the ops inside
        # have decisions of their own, and the loop itself must not count them again.
        self.on_integers = {
            n: done
            for each in self.planned_bodies or (graph,)
            for n, done in quantized_nodes(each).items()
        }
        self.sizes = one_sample(graph)

    def decision(
        self, node: Node, reason: str, schemes: Mapping[str, str] | None = None
    ) -> Decision:
        """Returns the decision for an op: integer without a reason, else float."""
        counts_itself = not (self.planned_bodies and node.op in CONTROL_FLOW_OPS)
        macs = total_macs(node, self.sizes) if counts_itself else 0
        on_integers = integer_macs(node, self.on_integers, self.sizes) if counts_itself else 0
        known = not counts_itself or has_known_macs(node, self.sizes)
        becomes: Becomes = "float" if reason else "integer"
        # The first case that applies names the reason. Conversions come first: a quantize touches
        # integers, but it is no computation that quantizing could change.
        if data_kind := data_kind_reason(node):
            becomes, reason = "as it is", data_kind
        elif reason and (
            self.on_integers.get(node, False) or (node.bodies and 0 < macs == on_integers)
        ):
            becomes, reason = "already", ALREADY_QUANTIZED
        elif node.bodies and on_integers:
            reason = BODIES_PARTLY_QUANTIZED
        elif reason == ALREADY_QUANTIZED:
            reason = float_reason(node)
        elif reason and not node.bodies and _reads_no_floats(node):
            reason = "it converts integers to floats"
        on_integers = macs if becomes in ("integer", "already") else on_integers
        origin = str(node.origins[0]) if node.origins else ""
        written_schemes = schemes or {}
        name = op_name(node)
        return Decision(
            node.name, name, becomes, reason, "", written_schemes, macs, origin, on_integers, known
        )


def _reads_no_floats(node: Node) -> bool:
    """Returns whether an op that QIR knows has no float operand."""
    has_floats = any(v.type.express.is_float for v in node.operands.values())
    return node.op != "foreign" and not has_floats


def data_kind_reason(node: Node) -> str:
    """Returns why an op is neither integer nor float work: a conversion, or no floats at all.

    Empty for ops that compute.
    """
    if node.op in _CONVERSIONS:
        return "between float and quantized values"
    if is_float_width_cast(node):
        return "between floats of 16 bits and others"
    return "no floats: sizes and other integers" if is_integral(node) else ""


def float_reason(node: Node) -> str:
    """Returns why an op with adjacent quantized values still computes in float."""
    if continues_raw_sum(node):
        return "after integer sums, in float"
    weight = node.operands.get(spec(node.op).traits.weight or "")
    if weight is not None and (is_dequantized(weight) or weight.type.quant):
        return "its weights are quantized, its data float"
    quantized = [v for v in node.operands.values() if is_dequantized(v) or v.type.quant]
    if node.bodies and quantized and all(v.constant for v in quantized):
        return "its weights are quantized, its data float"
    if quantized:
        requantized = any(map(quantized_types, node.results))
        return "float between quantized values" if requantized else "it dequantizes"
    if any(quantized_types(v) or v.type.quant for v in node.results):
        return "it computes in float, and its result is quantized"
    return "it computes scales and zero points"
