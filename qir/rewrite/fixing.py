"""Constants that the caller could give instead, once something counts on what they hold."""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ledger import Change, Ledger

STEP = "passes"


def fix_defaults(graph: Graph, ledger: Ledger) -> int:
    """Makes defaults of a graph constants like others, one line of the ledger each."""
    held = graph.defaults
    said = "a default is a constant from here on: nobody gives it"
    for value in held:
        graph.set_attrs(value.node, default=False)
        ledger.add(Change.DROPPED, STEP, value.name, said)
    return len(held)


def give_back(work: Graph, given: Graph, ledger: Ledger) -> None:
    """Lets what were defaults be such again, in a copy that nothing changed since."""
    for value in given.defaults:
        work.set_attrs(work[value.name].node, default=True)
    ledger.withdraw(STEP)
