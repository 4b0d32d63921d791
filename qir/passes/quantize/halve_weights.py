"""Stores weights in float16, which needs no calibration; they are computed with in float32.

    graph main as native {
      %x = input() : 2x2xf32
      %w = constant([0.1, 1.0, 2.0, -0.3]) : 2x2xf32
      %y = matmul(%x, %w) : 2x2xf32
      output(y=%y)
    }

By `halve-weights` it becomes:

    graph main as native {
      %x = input() : 2x2xf32
      %w = constant([0.1, 1.0, 2.0, -0.3]) : 2x2xf32
      %w.f16 = constant(@w.f16) : 2x2xf16
      %w.f32 = cast(%w.f16) {to = f32} : 2x2xf32
      %y = matmul(%x, %w.f32) : 2x2xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from qir.analysis.bodies import graphs_with_bodies
from qir.analysis.decisions import GraphFacts, Plan
from qir.analysis.user_rules import UserRule
from qir.ir.dtype import F16, F32
from qir.ir.graph import Graph
from qir.ir.lazy_arrays import iter_pieces
from qir.ir.node import Node, Value
from qir.ir.types import Array
from qir.ledger import REQUEST, Change, Ledger
from qir.passes.quantize.quantize_dynamic import (
    computing_nodes,
    is_float_by_rule,
    require_matching_rules,
)
from qir.rewrite import ANOTHER, Pass
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.options import option

HALVES = "f16"
"""How these weights are asked for."""


def plan_halves(graph: Graph, name: str, user_rules: Iterable[UserRule] = ()) -> Plan:
    """Returns which ops would read weights of float16, and why not the others."""
    rules = tuple(user_rules)
    reasons = {node: _float_reason(node, rules) for node in computing_nodes(graph)}
    require_matching_rules(graph, rules)
    facts = GraphFacts(graph, graphs_with_bodies(graph))
    decisions = tuple(
        facts.decision(node, reason)
        if reason
        else replace(
            facts.decision(node, ""),
            becomes="weights",
            macs_on_codes=0,
            schemes=dict.fromkeys(_weights(node), f"{HALVES} weights alone"),
        )
        for node, reason in reasons.items()
    )
    return Plan(name, decisions, ())


def _weights(node: Node) -> dict[str, Value]:
    """Returns the float32 constants of an op, by slot; single numbers are none of them."""
    return {
        slot: value
        for slot, value in node.operands.items()
        if value.constant is not None
        and value.type.quant is None
        and value.type.dtype == F32
        and value.type.rank
    }


def _float_reason(node: Node, user_rules: tuple[UserRule, ...]) -> str:
    weights = _weights(node)
    if not weights:
        return "it reads no float32 weights"
    if is_float_by_rule(node, user_rules):
        return "a rule keeps it float"
    beyond = next((value for value in weights.values() if not _fits(value)), None)
    return "" if beyond is None else f"%{beyond.name} has numbers beyond float16"


def _fits(value: Value) -> bool:
    """Returns whether float16 has a finite number for each element, and not all are lost."""
    assert value.constant is not None
    largest = 0.0
    for piece in iter_pieces(value.constant.contents):
        if not np.isfinite(piece).all():
            return False
        largest = max(largest, float(np.abs(piece).max(initial=0)))
    limits = np.finfo(np.float16)
    return largest == 0 or float(limits.smallest_normal) <= largest <= float(limits.max)


@dataclass(frozen=True)
class HalveWeights(Pass):
    """Stores weights and biases in float16; what is computed with them stays float32.

    All float32 constants but single numbers are, those of branches and loops too. What float16 does
    not hold stays, and so does what ops read that a rule keeps in float.
    """

    name = "halve-weights"
    nested = False
    tolerance = ANOTHER
    user_rules: tuple[UserRule, ...] = field(default=(), metadata=option(name="wishes"))

    def run(self, graph: Graph, ledger: Ledger) -> int:
        return sum(self._halve(part, ledger) for part in graphs_with_bodies(graph))

    def _halve(self, graph: Graph, ledger: Ledger) -> int:
        known: dict[Value, Value] = {}
        count = 0
        for node in list(graph):
            if not _weights(node) or _float_reason(node, self.user_rules):
                continue
            if not may(self.name, f"halve weights of {node.op}", node):
                continue
            for slot, value in _weights(node).items():
                if value not in known:
                    known[value] = _halved(graph, value)
                    reason = "stored in float16, as asked for: rounded to 11 bits"
                    ledger.add(Change.APPROXIMATED, self.name, value.name, reason, basis=REQUEST)
                graph.set_operand(node, slot, known[value])
            count += 1
        return count


def _halved(graph: Graph, value: Value) -> Value:
    """Returns what casts a constant that is stored in float16 to float32."""
    assert value.constant is not None
    data = value.constant.data.astype(np.float16)
    first_reader = min((use.node for use in value.uses), key=lambda node: node._rank)
    held = Array(data, value.type.with_element(F16), value.name)
    stored = graph.constant(held, name=graph.fresh(f"{value.name}.f16"), before=first_reader)
    graph.set_origins(stored.node, value.node.origins)
    name = graph.fresh(f"{value.name}.f32")
    cast = graph.add("cast", {"x": stored}, {"to": F32}, name=name, before=first_reader)
    graph.set_lineage(cast.result, value.lineage)
    return cast.result
