"""Group norm: an instance norm on channels put together, a factor and a shift a channel."""

from __future__ import annotations

import numpy as np

from qir.ir.dims import Shape
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.passes.recover.making import fits, stored
from qir.rewrite.match import Match
from qir.rewrite.pattern import Ops, Term, Var, pattern
from qir.rewrite.rewriting import Rewrite


@pattern
def group_norm(op: Ops, x: Var) -> Term:
    """x in groups of channels, each normalized, in its own shape again; times gamma, plus beta."""
    groups = op.reshape(x, Var("grouped"), ...).named("split")
    made = op.instance_norm(groups, 1.0, 0.0)
    back = op.shape(x, start=0, end=None) | Var("sizes").where("constant")
    whole = op.reshape(made, back).named("joined")
    gamma, beta = Var("gamma").where("constant"), Var("beta").where("constant")
    factor = op.mul(whole, gamma)
    return op.add(factor, beta) | factor | op.add(whole, beta) | whole


def _groups(match: Match) -> int | None:
    """How many groups there are; None where the reshapes do something else."""
    x, split = match["x"].type.shape, match.node("split").result.type.shape
    if len(x) < 2 or len(split) < 3 or split[0] != x[0] or x[0] is None:
        return None
    channels, groups = x[1], split[1]
    if not isinstance(channels, int) or not isinstance(groups, int) or channels % groups:
        return None
    joined = match.node("joined")
    by_shape = joined.operands["shape"].node.op == "shape"
    return groups if by_shape or joined.result.type.shape == x else None


def _in_groups(match: Match) -> bool:
    return _groups(match) is not None and fits(match["x"].type, match.results[0].type)


def _by_channel(match: Match) -> bool:
    """Whether gamma and beta are one number a channel, or one for all."""
    x = match["x"].type
    given = [value for name in ("gamma", "beta") if (value := match.get(name)) is not None]
    return all(_row(value, x.rank, x.shape[1]) for value in given)


def _row(value: Value, rank: int, channels: object) -> bool:
    shape: Shape = (1,) * (rank - value.type.rank) + tuple(value.type.shape)
    rest = [size for i, size in enumerate(shape) if i != 1]
    return len(shape) == rank and set(rest) <= {1} and shape[1] in (1, channels)


def _replace(graph: Graph, match: Match) -> Value:
    x, channels = match["x"], match["x"].type.shape[1]
    assert isinstance(channels, int)
    operands = {"x": x}
    for slot, usual in (("gamma", 1.0), ("beta", 0.0)):
        given = match.get(slot)
        held = np.full(1, usual) if given is None or not given.constant else given.constant.data
        row = np.broadcast_to(held.reshape(-1), (channels,))
        operands[slot] = stored(row, x, graph, f"{match.root.name}.{slot}")
    eps = match.node("instance_norm").attrs["eps"]
    return graph.add("group_norm", operands, {"groups": _groups(match), "eps": eps}).result


REWRITES = (
    Rewrite(
        group_norm.check("channels are put in groups, and apart again", _in_groups).check(
            "gamma and beta are one number a channel", _by_channel
        ),
        _replace,
        says="{nodes} is group_norm",
    ),
)
