"""Recovers global average pools from means over all axes but batch and channels.

    %y = reduce_mean(%x) {axes = (2, 3)} : 1x8x1x1xf32

becomes

    %y = global_avg_pool(%x) : 1x8x1x1xf32

Keras and ShuffleNet exports write the mean. One without the averaged axes gets a squeeze after it.
"""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.passes.recover.builders import last_axes, makes_type_of
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Ops, Term, Var, pattern
from qir.rewrite.patterns.rewriting import Rewrite


@pattern
def global_avg_pool(op: Ops, x: Var) -> Term:
    """The mean over all axes but the first two."""
    return op.reduce_mean(x).named("mean")


def _spatial(match: Match) -> bool:
    axes, rank = match.node("mean").attrs["axes"], match["x"].type.rank
    return rank >= 3 and bool(axes) and last_axes(axes, rank) == 2


def _replace(graph: Graph, match: Match) -> Value | None:
    x, mean = match["x"], match.node("mean")
    axes = tuple(range(2, x.type.rank))
    if mean.attrs["keep"]:
        if not makes_type_of("global_avg_pool", {"x": x}, {}, mean.result):
            return None
        return graph.add("global_avg_pool", {"x": x}).result
    pooled = graph.add("global_avg_pool", {"x": x}).result
    return graph.add("squeeze", {"x": pooled}, {"axes": axes}).result


REWRITES = (
    Rewrite(
        global_avg_pool.check("the mean goes over all axes but batch and channels", _spatial),
        _replace,
        says="{nodes} is global_avg_pool",
    ),
)
