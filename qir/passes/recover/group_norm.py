"""Group norm: channels put together, normalized and apart again, a factor and a shift a channel.

What normalizes is an instance norm, or a layer norm over all that a group has.
"""

from __future__ import annotations

import numpy as np

from qir.ir.dims import Shape
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.passes.recover.making import fits, real, stored
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Either, Ops, Term, Var, maybe, pattern
from qir.rewrite.patterns.rewriting import Rewrite


def _by_channels(op: Ops, whole: Term) -> Either:
    """Returns what was normalized, times gamma and plus beta where they are."""
    gamma, beta = Var("gamma").where("constant"), Var("beta").where("constant")
    factor = op.mul(whole, gamma)
    return op.add(factor, beta) | factor | op.add(whole, beta) | whole


@pattern
def group_norm(op: Ops, x: Var) -> Term:
    """x in groups of channels, each normalized, in its own shape again; times gamma, plus beta."""
    groups = op.reshape(x, Var("grouped"), ...).named("split")
    made = op.instance_norm(groups, 1.0, 0.0)
    back = op.shape(x, start=0, end=None) | Var("sizes").where("constant")
    whole = op.reshape(made, back).named("joined")
    return _by_channels(op, whole)


@pattern
def group_norm_of_layers(op: Ops, x: Var) -> Term:
    """The same by a layer norm over all axes of a group, without numbers of its own."""
    groups = op.reshape(x, Var("grouped"), ...).named("split")
    ones = Var("ones").check("is 1 throughout", lambda value: real(value) == 1)
    zeros = Var("zeros").check("is 0 throughout", lambda value: real(value) == 0)
    made = op.layer_norm(groups, ones, maybe(zeros))
    whole = op.reshape(made, Var("sizes"), ...).named("joined")
    return _by_channels(op, whole)


def _groups(match: Match) -> int | None:
    """Returns how many groups there are; None where the reshapes do something else."""
    x, split = match["x"].type.shape, match.node("split").result.type.shape
    if len(x) < 2 or len(split) < 3 or split[0] != x[0] or x[0] is None:
        return None
    channels, groups = x[1], split[1]
    if not isinstance(channels, int) or not isinstance(groups, int) or channels % groups:
        return None
    joined = match.node("joined")
    shape = joined.operands["shape"].node
    by_shape = shape.op == "shape" and shape.operands["x"] is match["x"]
    made = joined.result.type.shape
    known = None not in x and len(made) == len(x) and made.count(None) < 2
    same = known and all(a in (None, b) for a, b in zip(made, x, strict=True))
    if not (by_shape or same):
        return None
    return groups if _whole(_norm(match)) else None


def _norm(match: Match) -> Node:
    """Returns what normalizes the groups."""
    return next(node for node in match.nodes if node.op in ("instance_norm", "layer_norm"))


def _whole(norm: Node) -> bool:
    """Returns whether a norm goes over all axes after those of batch and groups."""
    if norm.op == "instance_norm":
        return True
    axis, rank = norm.attrs["axis"], norm.result.type.rank
    return isinstance(axis, int) and axis % rank == 2


def _in_groups(match: Match) -> bool:
    return _groups(match) is not None and fits(match["x"].type, match.results[0].type)


def _by_channel(match: Match) -> bool:
    """Returns whether gamma and beta are one number a channel, or one for all."""
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
    eps = _norm(match).attrs["eps"]
    return graph.add("group_norm", operands, {"groups": _groups(match), "eps": eps}).result


REWRITES = tuple(
    Rewrite(
        wanted.check("channels are put in groups, and apart again", _in_groups).check(
            "gamma and beta are one number a channel", _by_channel
        ),
        _replace,
        says="{nodes} is group_norm",
    )
    for wanted in (group_norm, group_norm_of_layers)
)
