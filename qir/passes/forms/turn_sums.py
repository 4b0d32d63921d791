"""Exchanges the operands of a sum whose first one is broadcast.

    graph main as native {
      %a = input() : 2x1xf32
      %b = input() : 2x3xf32
      %y = add(%a, %b) : 2x3xf32
      output(y=%y)
    }

By `turn-sums` it becomes:

    graph main as native {
      %a = input() : 2x1xf32
      %b = input() : 2x3xf32
      %y = add(%b, %a) : 2x3xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.runner.filter import may


@dataclass(frozen=True)
class TurnSums(Pass):
    """Rewrites a + b as b + a where `a` alone is broadcast: the same floats, to the last bit.

    onnxruntime may move a sum between convolutions to channels last. Its kernel takes operands in
    turn by how they repeat along the innermost axis, which is another one then; with the
    repeated operand second it does the same in both layouts.
    """

    name = "turn-sums"

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a constant row before what it is added to."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n"
            "  %c = constant([1.0, 2.0, 3.0]) : 3xf32\n  %s = add(%c, %x) : 2x3xf32\n"
            "  output(y=%s)\n}\n"
        )
        yield cls(), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in graph:
            if node.op != "add":
                continue
            a, b = node.operands["a"], node.operands["b"]
            shape = node.result.type.shape
            if a.type.shape == shape or b.type.shape != shape or a.type.quant or b.type.quant:
                continue
            if not may(self.name, "turn", node):
                continue
            graph.set_operand(node, "a", b)
            graph.set_operand(node, "b", a)
            ledger.add(Change.EXACT, self.name, node.name, "a + b is b + a")
            count += 1
        return count
