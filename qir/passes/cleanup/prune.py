"""Takes out what nobody uses."""

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
