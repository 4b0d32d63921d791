"""Layer norm and RMS norm from means, squares and roots, with a factor and a shift or without."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dims import Shape
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.passes.recover.making import (
    CLOSE,
    alike,
    last_axes,
    number,
    one_over,
    positive,
    real,
    squared,
    suits,
    the_number,
)
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Either, Ops, Term, Var, pattern
from qir.rewrite.patterns.rewriting import Replacement, Rewrite


def _means(op: Ops, x: Term, name: str, keep: bool) -> Either:
    """Returns the mean, or a sum over the number of its elements."""
    total: Term = op.reduce_sum(x, keep=keep)
    if keep:
        total |= _back(op, op.reduce_sum(x, keep=False), f"{name}.sum")
    divided = op.div(total, number(f"{name}.count")) | op.mul(total, number(f"{name}.share"))
    return op.reduce_mean(x, keep=keep) | divided


def _back(op: Ops, gone: Term, name: str) -> Either:
    """Averaged axes that were taken out are put in again."""
    return op.reshape(gone, Var(f"{name}.sizes"), ...) | op.unsqueeze(gone)


def _mean_square(op: Ops, x: Term) -> Term:
    """Returns the mean of squares, and eps on it or none; the axes kept, or taken out and put in
    again."""
    kept = _means(op, squared(op, x), "square", True)
    back = _back(op, _means(op, squared(op, x), "square", False), "square")
    return op.add(kept | back, positive("eps")) | kept | back


def _less_square(op: Ops, x: Term, mean: Term, keep: bool) -> Either:
    """Returns the mean of squares less the square of the mean, not below 0, as JAX computes it."""
    less = op.sub(_means(op, squared(op, x), "square", keep), squared(op, mean))
    return op.max(less, 0.0) | op.relu(less) | less


def _inverse(op: Ops, room: Term) -> Either:
    """1 / sqrt(room)."""
    return op.rsqrt(room) | one_over(op, op.sqrt(room)) | op.pow(room, -0.5)


def _over_root(op: Ops, x: Term, room: Term) -> Either:
    """x / sqrt(room)."""
    return op.div(x, op.sqrt(room) | op.pow(room, 0.5)) | op.mul(x, _inverse(op, room))


def _with_gain(op: Ops, x: Term, room: Term, gamma: Var) -> Either:
    """x / sqrt(room) times gamma, whatever is multiplied first."""
    return op.mul(_over_root(op, x, room), gamma) | op.mul(x, op.mul(_inverse(op, room), gamma))


@pattern
def layer_norm(op: Ops, x: Var, gamma: Var, beta: Var) -> Term:
    """(x - mean) / sqrt(mean of its squares + eps), times gamma, plus beta, over the last axes.

    One without eps has an eps of 0.
    """
    mean = _means(op, x, "mean", True)
    less = op.sub(x, mean)
    again = op.sub(x, op.reduce_mean(x, keep=True))
    room = _mean_square(op, less | op.sub(x, mean) | again)
    made, factor = _over_root(op, less, room), _with_gain(op, less, room, gamma)
    return op.add(factor, beta) | factor | op.add(made, beta) | made


@pattern
def layer_norm_of_squares(op: Ops, x: Var, gamma: Var, beta: Var) -> Term:
    """The same where the variance is the mean of squares less the square of the mean."""
    mean = _means(op, x, "mean", True)
    room = _less_square(op, x, mean, keep=True)
    eased = op.add(room, positive("eps")) | room
    factor = _with_gain(op, op.sub(x, mean), eased, gamma)
    return op.add(factor, beta) | factor | _over_root(op, op.sub(x, mean), eased)


@pattern
def layer_norm_of_flat_squares(op: Ops, x: Var, gamma: Var, beta: Var) -> Term:
    """The same where means and variance are put back along the averaged axes."""
    mean = _means(op, x, "mean", False)
    room = _back(op, _less_square(op, x, mean, keep=False), "square")
    eased, less = op.add(room, positive("eps")) | room, op.sub(x, _back(op, mean, "mean"))
    factor = _with_gain(op, less, eased, gamma)
    return op.add(factor, beta) | factor | _over_root(op, less, eased)


@pattern
def layer_norm_by_gain(op: Ops, x: Var, gamma: Var, beta: Var) -> Term:
    """x * gain + (beta - mean * gain), where gain is gamma / sqrt(variance + eps)."""
    mean = _means(op, x, "mean", True)
    squares = _less_square(op, x, mean, keep=True)
    room = _mean_square(op, op.sub(x, mean)) | op.add(squares, positive("eps")) | squares
    gain = op.mul(_inverse(op, room), gamma)
    return op.add(op.mul(x, gain), op.sub(beta, op.mul(mean, gain)))


@pattern
def rms_norm(op: Ops, x: Var, gamma: Var) -> Term:
    """x / sqrt(mean of its squares + eps), times gamma, over the last axes."""
    room = _mean_square(op, x)
    return _with_gain(op, x, room, gamma) | _over_root(op, x, room)


def _axis(match: Match) -> int | None:
    """Returns the axis from which on all are averaged, each time."""
    x = match["x"].type
    nodes = [node for node in match.nodes if node.op in ("reduce_mean", "reduce_sum")]
    found = {last_axes(node.attrs["axes"], x.rank) for node in nodes}
    axis = found.pop()
    if found or axis is None or not _counted(match, x.shape[axis:]):
        return None
    ones = x.shape[:axis] + (1,) * (x.rank - axis)
    back = [n.result.type.shape for n in match.nodes if n.op in ("reshape", "unsqueeze")]
    return axis if all(shape == ones for shape in back) else None


def _counted(match: Match, averaged: Shape) -> bool:
    """Returns whether each sum is divided by the number of elements that are averaged."""
    count = dims.known_shape((dims.product(averaged),))
    sums = [node for node in match.nodes if node.op == "reduce_sum"]
    return all(count is not None and _divided(total, count[0]) for total in sums)


def _divided(total: Node, count: int) -> bool:
    use = total.result.only_use
    while use is not None and use.node.op in ("reshape", "unsqueeze"):
        use = use.node.result.only_use
    if use is None:
        return False
    by = next((n for v in use.node.operands.values() if (n := real(v)) is not None), 0.0)
    return abs((by if use.node.op == "div" else 1 / by if by else 0.0) / count - 1) <= CLOSE


def _averages(match: Match) -> bool:
    return _axis(match) is not None


def _lies_along(match: Match) -> bool:
    """Returns whether gamma and beta have the averaged axes alone."""
    axis, rank = _axis(match), match["x"].type.rank
    names = ("gamma", "beta") if "layer" in match.name else ("gamma",)
    given = [value for name in names if (value := match.get(name)) is not None]
    return axis is not None and all(_along(value, rank - axis) for value in given)


def _along(value: Value, axes: int) -> bool:
    return all(size == 1 for size in value.type.shape[: max(0, value.type.rank - axes)])


def _norm(op: str) -> Replacement:
    def replace(graph: Graph, match: Match) -> Value | None:
        x, axis = match["x"], _axis(match)
        assert axis is not None
        eps = 0.0 if match.get("eps") is None else the_number(match, "eps")
        attrs: dict[str, Attr] = {"axis": axis, "eps": eps}
        beta = match.get("beta") if op == "layer_norm" else None
        given = {"gamma": match.get("gamma"), "beta": beta}
        operands = {"x": x, **{slot: value for slot, value in given.items() if value is not None}}
        if not suits(op, {"gamma": x, **operands}, attrs, match.results[0]):
            return None
        if "gamma" not in operands:
            name = f"{match.root.name}.gamma"
            operands["gamma"] = alike(x, 1.0, x.type.shape[axis:], graph, name)
        return graph.add(op, operands, attrs).result

    return replace


_SAME = "the means go over the same axes, and these are the last"
_PARTS = "gamma and beta are along the axes that are averaged"

REWRITES = tuple(
    Rewrite(
        wanted.check(_SAME, _averages).check(_PARTS, _lies_along),
        _norm(op),
        says=f"{{nodes}} is {op}",
    )
    for wanted, op in (
        (layer_norm, "layer_norm"),
        (layer_norm_of_squares, "layer_norm"),
        (layer_norm_of_flat_squares, "layer_norm"),
        (layer_norm_by_gain, "layer_norm"),
        (rms_norm, "rms_norm"),
    )
)
