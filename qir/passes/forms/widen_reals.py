"""Computes in float32 what a model computes in float16 or bfloat16.

    graph main as native {
      %x = input() : 2xf16
      %a = relu(%x) : 2xf16
      %y = neg(%a) : 2xf16
      output(y=%y)
    }

By `widen-reals` it becomes:

    graph main as native {
      %x = input() : 2xf16
      %x.f32 = cast(%x) {to = f32} : 2xf32
      %a = relu(%x.f32) : 2xf32
      %y = neg(%a) : 2xf32
      %y.f16 = cast(%y) {to = f16} : 2xf16
      output(y=%y.f16)
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from qir.analysis.bodies import graphs_with_bodies
from qir.ir.dtype import BF16, F16, F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.rewrite import Pass, Tolerance
from qir.rewrite.retyping import Retyping, not_plain
from qir.rewrite.runner.filter import may

NARROW = (F16, BF16)
"""The types that become float32."""


def has_narrow_floats(graph: Graph) -> bool:
    """Returns whether an op of a graph, its branches or loops computes with floats of 16 bits."""
    return any(map(_computes_in_graph, graphs_with_bodies(graph)))


def _computes_in_graph(graph: Graph) -> bool:
    return any(map(_computes, graph))


def _computes(node: Node) -> bool:
    """Returns whether a plain op of floats takes or gives some of 16 bits; casts alone compute
    nothing."""
    values = (*node.operands.values(), *node.results)
    return node.op != "cast" and not not_plain(node) and any(map(_is_narrow, values))


@dataclass(frozen=True)
class WidenReals(Pass):
    """Computes in float32 what a model computes in float16 or bfloat16, in branches and loops too.

    Constants are what they were. Inputs and results, those of bodies too, and what is no plain op
    of floats keep their types: casts are between. Numbers are no longer rounded to 16 bits after
    each op.
    """

    name = "widen-reals"
    nested = False
    tolerance = Tolerance(inf, inf, "floats are no longer rounded to 16 bits")

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a product of halves."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf16\n"
            "  %y = mul(%x, %x) : 2x3xf16\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        # Graphs that only cast stay as they are, so that a second run changes nothing.
        parts = [part for part in graphs_with_bodies(graph) if _computes_in_graph(part)]
        first = next((node for part in parts for node in part if _computes(node)), None)
        if first is None or not may(self.name, "widen", first):
            return 0
        # Each body is retyped by itself: its inputs and results keep their types, so that the node
        # that holds it needs no change.
        count = sum(Retyping(part, NARROW, F32, not_plain).run() for part in parts)
        message = f"16-bit floats are float32: {count} values, rounded less often"
        ledger.add(Change.REGROUPED, self.name, graph.name, message)
        return 1


def _is_narrow(value: Value) -> bool:
    return value.type.element in NARROW
