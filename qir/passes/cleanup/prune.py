"""Removes nodes whose values nobody uses.

    graph main as native {
      %x = input() : 2xf32
      %c = constant([1.0, 2.0]) : 2xf32
      %unused = add(%x, %c) : 2xf32
      %y = relu(%x) : 2xf32
      output(y=%y)
    }

By `prune` it becomes:

    graph main as native {
      %x = input() : 2xf32
      %y = relu(%x) : 2xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from dataclasses import dataclass

from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.rewrite import Pass


@dataclass(frozen=True)
class Prune(Pass):
    """Removes nodes whose values reach no output; inputs stay, since callers name them."""

    name = "prune"
    ensures = ("pruned",)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        return graph.prune()
