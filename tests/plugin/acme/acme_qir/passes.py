"""A pass: a sum of a value and itself is the value doubled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.text import parse
from qir.ir.types import Array
from qir.ledger import Change
from qir.rewrite import EXACT, Pass
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Ops, Term, Var, pattern
from qir.rewrite.patterns.rewriting import PatternPass, Rewrite


@pattern
def sum_of_one(op: Ops, x: Var) -> Term:
    """A value and itself."""
    return op.add(x, x)


def doubled(graph: Graph, match: Match) -> Value | None:
    """Twice the value, which is the same to the bit."""
    x = match["x"]
    if x.type.quant is not None or not x.type.dtype.is_float:
        return None
    two = graph.constant(Array.of(np.array(2, x.type.dtype.carrier)), name=graph.fresh("two"))
    return graph.add("mul", {"a": x, "b": two}).result


@dataclass(frozen=True)
class Double(PatternPass):
    """x + x becomes 2 * x."""

    name = "acme-double"
    tolerance = EXACT
    rewrites = (Rewrite(sum_of_one, doubled, Change.EXACT, "x + x is 2 x"),)

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n"
            "  %y = add(%x, %x) : 2x3xf32\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)
