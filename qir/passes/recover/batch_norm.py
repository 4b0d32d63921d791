"""Batch norm from a factor and a shift for each channel that are constants."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.layers import LAYERS
from qir.passes.recover.builders import is_compatible, typed_constant
from qir.rewrite.layer_weights import operands
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Ops, Term, Var, pattern
from qir.rewrite.patterns.rewriting import Rewrite

_PARAMETERS = ("mean", "spread", "gain", "beta")


@pattern
def batch_norm(op: Ops, x: Var) -> Term:
    """(x - mean) / spread * gain + beta, all of them constants that are along the channels.

    What it becomes has eps 0 and the variance 1, so that nothing is approximated. Channels are the
    second axis of an image, and the last one after a product with weights.
    """
    mean, spread, gain, beta = (Var(name).where("constant") for name in _PARAMETERS)
    less = op.sub(x, mean)
    slope = op.mul(op.div(less, spread), gain) | op.mul(less, gain) | op.div(less, spread)
    # Exporters that fold constants leave out a mean of 0 or a gain of 1.
    plain = op.mul(x, gain) | op.div(x, spread)
    return op.add(slope | plain, beta)


def _axis(match: Match) -> int | None:
    """Returns the one axis along which all constants are; None where there is none, or another."""
    x = match["x"].type
    axes: set[int] = set()
    for value in _matched_parameters(match).values():
        shape = (1,) * (x.rank - value.type.rank) + tuple(value.type.shape)
        # A constant of more axes would widen x, and one of another type make the result that type.
        if len(shape) > x.rank or value.type.element != x.element:
            return None
        axes |= {i for i, size in enumerate(shape) if size != 1}
    if len(axes) != 1 or x.rank < 2:
        return None
    axis = axes.pop()
    is_after_layer = _is_layer_with_weights(match["x"].node)
    # A constant along the last axis of anything else may be a learned factor of features, which is
    # no channel to a convolution that folds it.
    is_image = x.rank > 2 and axis == 1
    return axis if is_image or (is_after_layer and axis == x.rank - 1) else None


def _is_layer_with_weights(node: Node) -> bool:
    """Returns whether a node is a layer with weights: a product of two computed values has no
    channels."""
    if node.op not in LAYERS:
        return False
    weight = operands(node)[1]
    return weight.constant is not None or weight.node.op == "dequantize"


def _is_along_channels(match: Match) -> bool:
    axis, x = _axis(match), match["x"].type
    return (
        axis is not None
        and isinstance(x.shape[axis], int)
        and is_compatible(x, match.results[0].type)
    )


def _matched_parameters(match: Match) -> dict[str, Value]:
    return {name: value for name in _PARAMETERS if (value := match.get(name)) is not None}


def _replace(graph: Graph, match: Match) -> Value:
    x, axis = match["x"], _axis(match)
    assert axis is not None
    count = x.type.shape[axis]
    assert isinstance(count, int)
    rows = {name: _per_channel(value, count) for name, value in _matched_parameters(match).items()}
    # (x - mean) / spread * gain + beta is a batch norm of gamma = gain / spread, var = 1, eps = 0.
    slots = {
        "gamma": rows.get("gain", np.ones(count)) / rows.get("spread", np.ones(count)),
        "beta": rows.get("beta", np.zeros(count)),
        "mean": rows.get("mean", np.zeros(count)),
        "var": np.ones(count),
    }
    stem = match.root.name
    parameters = {
        slot: typed_constant(row, x, graph, f"{stem}.{slot}") for slot, row in slots.items()
    }
    return graph.add("batch_norm", {"x": x, **parameters}, {"eps": 0.0, "axis": axis}).result


def _per_channel(value: Value, count: int) -> NDArray[np.float64]:
    assert value.constant is not None
    elements = np.asarray(value.constant.data, np.float64).reshape(-1)
    # One number for all channels is as good as a row of it; a batch norm wants the row.
    return np.asarray(np.broadcast_to(elements, (count,)))


REWRITES = (
    Rewrite(
        batch_norm.check("its constants are along the channels", _is_along_channels),
        _replace,
        says="{nodes} is batch_norm",
    ),
)
