"""Decides what becomes of each op, and describes the graph before planning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from qir.analysis.multiply_adds import coded_work, counted, work
from qir.analysis.quantized_regions import behind_sums, coded, decoded
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
"""Integer now, or since the file was made; weights of few bits with float data; real; neither."""


ALREADY = "quantized already"
"""The reason of an op that works on quantized values before anything is planned."""
PARTLY = "part of its bodies is quantized already"
"""The reason of an op that holds graphs, some of whose work is quantized."""
WITHIN = "data quantize nothing that branches and loops hold; without data their products are"
"""The reason of an op that holds graphs."""

_NUMBERS = RETYPING_OPS | QPARAMS_OPS


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
        counts = Counter(made.becomes for made in self.decisions)
        found = ", ".join(f"{count} {becomes}" for becomes, count in counts.items()) or "no ops"
        share = f"{self.integer_macs:.0%} of multiply-adds integer"
        return f"<Plan for {self.target}: {found}; {share}>"

    @property
    def integer_macs(self) -> float:
        """Share of the counted multiply-adds that will be done in integers, or are already."""
        total = sum(d.macs for d in self.decisions)
        return sum(d.macs_on_codes for d in self.decisions) / total if total else 0.0


def as_taken(plan: Plan, found: Iterable[Verdict], path: str) -> Plan:
    """Corrects the plan of the graph at a path by what a target does with existing integer work.

    Integer ops that the target computes in float become float; ops next to a float value that it
    quantizes become integer.
    """
    here = [v for v in found if v.path == path]
    reals = {v.node: v.reason for v in here if v.taken != "integer"}
    codes = {v.node for v in here if v.taken == "integer"}

    def told(made: Decision) -> Decision:
        reason = reals.get(made.node)
        if made.becomes == "float" and made.node in codes:
            return replace(made, becomes="already", reason=ALREADY, macs_on_codes=made.macs)
        if made.becomes != "already" or reason is None:
            return made
        said = f"{ALREADY}, but {reason}"
        return replace(made, becomes="float", reason=said, macs_on_codes=0)

    return replace(plan, decisions=tuple(map(told, plan.decisions)))


def as_written(plan: Plan, found: Iterable[Verdict]) -> Plan:
    """Corrects a plan without data: products that the target computes in float become float."""
    left = {id(verdict): verdict for verdict in found}
    named: dict[str, list[Verdict]] = {}
    for verdict in left.values():
        named.setdefault(verdict.node, []).append(verdict)
    known = {made.node for made in plan.decisions}
    exact = {(made.node, made.op) for made in plan.decisions}

    def meant(made: Decision) -> Verdict | None:
        names = (made.node, f"{made.node}.product")  # the latter where what it adds stands apart
        of = [v for name in names for v in named.get(name, ()) if v.op != "sum"]
        alike = [v for v in of if v.op == made.op]
        of = [v for v in of if (v.node, v.op) not in exact]  # branches may call their ops alike
        other = (
            v for v in left.values() if v.op == made.op and v.node not in known
        )  # called as a result
        return next(iter(alike or of), None) or next(other, None)

    def told(made: Decision) -> Decision:
        verdict = meant(made) if made.becomes == "integer" else None
        if verdict is None:
            return made
        named[verdict.node].remove(verdict)  # branches may call theirs alike
        del left[id(verdict)]
        if verdict.taken == "integer":
            return made
        return replace(made, becomes="float", reason=verdict.reason, macs_on_codes=0)

    return replace(plan, decisions=tuple(map(told, plan.decisions)))


def as_moved(plan: Plan, found: Iterable[Verdict]) -> Plan:
    """Corrects a plan with data: ops that only move quantized values become integer.

    A written form may quantize them because all ops next to them are quantized.
    """
    done = {(v.node, v.op) for v in found if v.taken == "integer"}

    def told(made: Decision) -> Decision:
        names = (made.node, f"{made.node}.q")  # the latter of its quantized values
        moved = made.becomes == "float" and any((name, made.op) in done for name in names)
        return replace(made, becomes="integer", reason="") if moved else made

    return replace(plan, decisions=tuple(map(told, plan.decisions)))


def as_carried(plan: Plan, why: Mapping[str, str]) -> Plan:
    """Corrects a plan by why a written form has ops in float: they, and those in their kernels."""

    def told(made: Decision) -> Decision:
        reason = why.get(made.node) or why.get(made.group)
        if made.becomes != "integer" or not reason:
            return made
        return replace(made, becomes="float", reason=reason, macs_on_codes=0)

    return replace(plan, decisions=tuple(map(told, plan.decisions)))


def counted_at(plan: Plan, graph: Graph, sizes: Mapping[str, int]) -> Plan:
    """Counts the work of ops of open size in the graph that was planned, by sizes of their names.

    Ops that hold graphs stay as they are.
    """
    bound = {**sizes, **one_sample(graph)}

    def told(made: Decision) -> Decision:
        node = graph[made.node].node if made.node in graph.values else None
        if made.counted or node is None or node.bodies or not counted(node, bound):
            return made
        macs = work(node, bound)
        done = macs if made.becomes in ("integer", "already") else 0
        return replace(made, macs=macs, macs_on_codes=done, counted=True)

    return replace(plan, decisions=tuple(map(told, plan.decisions)))


class GraphFacts:
    """What is known of the ops of a graph before anything is planned."""

    def __init__(self, graph: Graph, bodies: Iterable[Graph] = ()) -> None:
        self.apart = tuple(bodies)
        """Bodies whose ops have decisions of their own."""
        self.codes = {
            n: done for each in self.apart or (graph,) for n, done in quantized_nodes(each).items()
        }
        self.sizes = one_sample(graph)

    def decision(
        self, node: Node, reason: str, schemes: Mapping[str, str] | None = None
    ) -> Decision:
        """Returns the decision for an op: integer without a reason, else float."""
        alone = not (self.apart and node.op in CONTROL_FLOW_OPS)
        macs = work(node, self.sizes) if alone else 0
        done = coded_work(node, self.codes, self.sizes) if alone else 0
        known = not alone or counted(node, self.sizes)
        becomes: Becomes = "float" if reason else "integer"
        if said := beside(node):
            becomes, reason = "as it is", said
        elif reason and (self.codes.get(node, False) or (node.bodies and 0 < macs == done)):
            becomes, reason = "already", ALREADY
        elif node.bodies and done:
            reason = PARTLY
        elif reason == ALREADY:
            reason = why_real(node)
        elif reason and not node.bodies and _of_whole(node):
            reason = "it converts integers to floats"
        done = macs if becomes in ("integer", "already") else done
        origin = str(node.origins[0]) if node.origins else ""
        given = schemes or {}
        name = op_name(node)
        return Decision(node.name, name, becomes, reason, "", given, macs, origin, done, known)


def _of_whole(node: Node) -> bool:
    """Returns whether an op that QIR knows reads nothing real."""
    reals = any(v.type.express.is_float for v in node.operands.values())
    return node.op != "foreign" and not reals


def beside(node: Node) -> str:
    """Returns what an op does that computes neither with integers nor with floats; empty for
    others."""
    if node.op in _NUMBERS:
        return "between float and quantized values"
    if is_float_width_cast(node):
        return "between floats of 16 bits and others"
    return "no floats: sizes and other integers" if is_integral(node) else ""


def why_real(node: Node) -> str:
    """Returns why an op that has quantized values next to it computes with floats."""
    if behind_sums(node):
        return "after integer sums, in float"
    row = spec(node.op)
    weight = node.operands.get(row.traits.weight or "")
    if weight is not None and (decoded(weight) or weight.type.quant):
        return "its weights are quantized, its data float"
    held = [v for v in node.operands.values() if decoded(v) or v.type.quant]
    if node.bodies and held and all(v.constant for v in held):
        return "its weights are quantized, its data float"
    if held:
        again = any(map(coded, node.results))
        return "float between quantized values" if again else "it dequantizes"
    if any(coded(v) or v.type.quant for v in node.results):
        return "it computes in float, and its result is quantized"
    return "it computes scales and zero points"
