"""Which nodes are worth laying patterns on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.rewrite.pattern import Chain, Either, Op, Out, Pattern, Repeat, Term

GROUP = ""
"""Stands for a group of stages where ops are named."""


def roots(pattern: Pattern) -> frozenset[str]:
    """The ops that may make a pattern's first result; UsageError where that may be any."""
    return frozenset(_roots(pattern, pattern.results[0]))


def _roots(pattern: Pattern, term: Term) -> Iterable[str]:
    match term:
        case Op():
            return term.ops
        case Out():
            return term.op.ops
        case Chain():
            return (GROUP,)
        case Either():
            return [op for one in term.terms for op in _roots(pattern, one)]
        case Repeat():
            first = _roots(pattern, term.body)
            return [*first, *(_roots(pattern, term.start) if term.least == 0 else ())]
    raise UsageError(f"pattern {pattern.name}: its first result may be anything; name an op")


def candidates(graph: Graph, patterns: Sequence[Pattern]) -> list[Node]:
    """Nodes at which one of the patterns may fit, producers first."""
    ops = frozenset(op for pattern in patterns for op in roots(pattern))
    return [n for n in graph if (GROUP if n.stages else n.op) in ops]
