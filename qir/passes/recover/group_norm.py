"""Group norm: channels put together, normalized and apart again, a factor and a shift a channel.

What normalizes is an instance norm, or a layer norm over all that a group has.
"""

from __future__ import annotations

import numpy as np

from qir.ir.dims import Shape
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.passes.recover.builders import is_compatible, typed_constant, uniform_number
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Either, Ops, Term, Var, maybe, pattern
from qir.rewrite.patterns.rewriting import Rewrite


def _with_channel_parameters(op: Ops, normalized: Term) -> Either:
    """Returns what was normalized, times gamma and plus beta where they are."""
    gamma, beta = Var("gamma").where("constant"), Var("beta").where("constant")
    factor = op.mul(normalized, gamma)
    return op.add(factor, beta) | factor | op.add(normalized, beta) | normalized


@pattern
def group_norm(op: Ops, x: Var) -> Term:
    """x in groups of channels, each normalized, in its own shape again; times gamma, plus beta."""
    groups = op.reshape(x, Var("grouped"), ...).named("split")
    normalized = op.instance_norm(groups, 1.0, 0.0)
    # A model of open sizes reshapes by the shape of x, one of known sizes by a constant.
    back = op.shape(x, start=0, end=None) | Var("sizes").where("constant")
    joined = op.reshape(normalized, back).named("joined")
    return _with_channel_parameters(op, joined)


@pattern
def group_norm_of_layers(op: Ops, x: Var) -> Term:
    """The same by a layer norm over all axes of a group, without numbers of its own."""
    groups = op.reshape(x, Var("grouped"), ...).named("split")
    # The layer norm runs over a whole group, so a gain of its own would be one for each element,
    # which group_norm does not have.
    ones = Var("ones").check("is 1 throughout", lambda value: uniform_number(value) == 1)
    zeros = Var("zeros").check("is 0 throughout", lambda value: uniform_number(value) == 0)
    normalized = op.layer_norm(groups, ones, maybe(zeros))
    joined = op.reshape(normalized, Var("sizes"), ...).named("joined")
    return _with_channel_parameters(op, joined)


def _groups(match: Match) -> int | None:
    """Returns how many groups there are; None where the reshapes do something else."""
    x, split = match["x"].type.shape, match.node("split").result.type.shape
    # x: [N, C, ...], split: [N, groups, ...], with C divisible by the number of groups.
    if len(x) < 2 or len(split) < 3 or split[0] != x[0] or x[0] is None:
        return None
    channels, groups = x[1], split[1]
    if not isinstance(channels, int) or not isinstance(groups, int) or channels % groups:
        return None
    joined = match.node("joined")
    shape = joined.operands["shape"].node
    is_shape_of_x = shape.op == "shape" and shape.operands["x"] is match["x"]
    # By a constant the shape must be that of x in every known size, and one open size may follow
    # from the others.
    joined_shape = joined.result.type.shape
    known = None not in x and len(joined_shape) == len(x) and joined_shape.count(None) < 2
    is_same_shape = known and all(a in (None, b) for a, b in zip(joined_shape, x, strict=True))
    if not (is_shape_of_x or is_same_shape):
        return None
    return groups if _is_over_whole_groups(_norm(match)) else None


def _norm(match: Match) -> Node:
    """Returns what normalizes the groups."""
    return next(node for node in match.nodes if node.op in ("instance_norm", "layer_norm"))


def _is_over_whole_groups(norm: Node) -> bool:
    """Returns whether a norm goes over all axes after those of batch and groups."""
    if norm.op == "instance_norm":
        return True
    # [N, groups, ...]: a layer norm from axis 2 on covers one group, as an instance norm does.
    axis, rank = norm.attrs["axis"], norm.result.type.rank
    return isinstance(axis, int) and axis % rank == 2


def _is_grouped_and_joined(match: Match) -> bool:
    return _groups(match) is not None and is_compatible(match["x"].type, match.results[0].type)


def _has_channel_parameters(match: Match) -> bool:
    """Returns whether gamma and beta are one number a channel, or one for all."""
    x = match["x"].type
    parameters = [value for name in ("gamma", "beta") if (value := match.get(name)) is not None]
    return all(_is_per_channel(value, x.rank, x.shape[1]) for value in parameters)


def _is_per_channel(value: Value, rank: int, channels: object) -> bool:
    # Broadcasting aligns shapes at their last axes.
    shape: Shape = (1,) * (rank - value.type.rank) + tuple(value.type.shape)
    other_sizes = [size for i, size in enumerate(shape) if i != 1]
    return len(shape) == rank and set(other_sizes) <= {1} and shape[1] in (1, channels)


def _replace(graph: Graph, match: Match) -> Value:
    x, channels = match["x"], match["x"].type.shape[1]
    assert isinstance(channels, int)
    operands = {"x": x}
    for slot, default in (("gamma", 1.0), ("beta", 0.0)):
        parameter = match.get(slot)
        elements = (
            np.full(1, default)
            if parameter is None or not parameter.constant
            else parameter.constant.data
        )
        per_channel = np.broadcast_to(elements.reshape(-1), (channels,))
        operands[slot] = typed_constant(per_channel, x, graph, f"{match.root.name}.{slot}")
    eps = _norm(match).attrs["eps"]
    return graph.add("group_norm", operands, {"groups": _groups(match), "eps": eps}).result


REWRITES = tuple(
    Rewrite(
        wanted.check("channels are put in groups, and apart again", _is_grouped_and_joined).check(
            "gamma and beta are one number a channel", _has_channel_parameters
        ),
        _replace,
        says="{nodes} is group_norm",
    )
    for wanted in (group_norm, group_norm_of_layers)
)
