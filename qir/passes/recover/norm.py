"""Layer norm and RMS norm from means, squares and roots, with a factor and a shift or without."""

from __future__ import annotations

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.passes.recover.making import (
    alike,
    last_axes,
    one_over,
    positive,
    squared,
    suits,
    the_number,
)
from qir.rewrite.match import Match
from qir.rewrite.pattern import Either, Ops, Term, Var, pattern
from qir.rewrite.rewriting import Replacement, Rewrite


def _mean_square(op: Ops, x: Term) -> Term:
    """The mean of squares, and eps on it or none; the axes kept, or taken out and put in again."""
    kept = op.reduce_mean(squared(op, x), keep=True)
    gone = op.reduce_mean(squared(op, x), keep=False)
    back = op.reshape(gone, Var("sizes"), ...) | op.unsqueeze(gone)
    return op.add(kept | back, positive("eps")) | kept | back


def _inverse(op: Ops, room: Term) -> Either:
    """1 / sqrt(room)."""
    return op.rsqrt(room) | one_over(op, op.sqrt(room)) | op.pow(room, -0.5)


def _over_root(op: Ops, x: Term, room: Term) -> Either:
    """x / sqrt(room)."""
    return op.div(x, op.sqrt(room) | op.pow(room, 0.5)) | op.mul(x, _inverse(op, room))


@pattern
def layer_norm(op: Ops, x: Var, gamma: Var, beta: Var) -> Term:
    """(x - mean) / sqrt(mean of its squares + eps), times gamma, plus beta, over the last axes.

    One without eps has an eps of 0.
    """
    mean = op.reduce_mean(x, keep=True)
    less = op.sub(x, mean)
    again = op.sub(x, op.reduce_mean(x, keep=True))
    made = _over_root(op, less, _mean_square(op, less | op.sub(x, mean) | again))
    factor = op.mul(made, gamma)
    return op.add(factor, beta) | factor | op.add(made, beta) | made


@pattern
def layer_norm_by_gain(op: Ops, x: Var, gamma: Var, beta: Var) -> Term:
    """x * gain + (beta - mean * gain), where gain is gamma / sqrt(mean of squares + eps)."""
    mean = op.reduce_mean(x, keep=True)
    gain = op.mul(_inverse(op, _mean_square(op, op.sub(x, mean))), gamma)
    return op.add(op.mul(x, gain), op.sub(beta, op.mul(mean, gain)))


@pattern
def rms_norm(op: Ops, x: Var, gamma: Var) -> Term:
    """x / sqrt(mean of its squares + eps), times gamma, over the last axes."""
    made = _over_root(op, x, _mean_square(op, x))
    return op.mul(made, gamma) | made


def _axis(match: Match) -> int | None:
    """The axis from which on all are averaged, each time."""
    rank = match["x"].type.rank
    nodes = [node for node in match.nodes if node.op == "reduce_mean"]
    found = {last_axes(node.attrs["axes"], rank) for node in nodes}
    back = next((n for n in match.nodes if n.op in ("reshape", "unsqueeze")), None)
    axis = found.pop()
    if found or axis is None or back is None:
        return None if found else axis
    ones = match["x"].type.shape[:axis] + (1,) * (rank - axis)
    return axis if back.result.type.shape == ones else None


def _averages(match: Match) -> bool:
    return _axis(match) is not None


def _lies_along(match: Match) -> bool:
    """Whether gamma and beta have the averaged axes alone."""
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
_PARTS = "gamma and beta lie along the axes that are averaged"

REWRITES = tuple(
    Rewrite(
        wanted.check(_SAME, _averages).check(_PARTS, _lies_along),
        _norm(op),
        says=f"{{nodes}} is {op}",
    )
    for wanted, op in (
        (layer_norm, "layer_norm"),
        (layer_norm_by_gain, "layer_norm"),
        (rms_norm, "rms_norm"),
    )
)
