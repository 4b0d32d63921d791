"""Layer norm and RMS norm from means, squares and roots, with a factor and a shift or without."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dims import Shape
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.passes.recover.builders import (
    RELATIVE_TOLERANCE,
    filled_constant,
    last_axes,
    makes_type_of,
    matched_number,
    number,
    one_over,
    positive,
    squared,
    uniform_number,
)
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Either, Ops, Term, Var, pattern
from qir.rewrite.patterns.rewriting import Replacement, Rewrite


def _means(op: Ops, x: Term, name: str, keep: bool) -> Either:
    """Returns the mean, or a sum over the number of its elements."""
    sums: Term = op.reduce_sum(x, keep=keep)
    if keep:
        sums |= _with_axes_restored(op, op.reduce_sum(x, keep=False), f"{name}.sum")
    by_count = op.div(sums, number(f"{name}.count")) | op.mul(sums, number(f"{name}.share"))
    return op.reduce_mean(x, keep=keep) | by_count


def _with_axes_restored(op: Ops, reduced: Term, name: str) -> Either:
    """Averaged axes that were taken out are put in again."""
    return op.reshape(reduced, Var(f"{name}.sizes"), ...) | op.unsqueeze(reduced)


def _mean_square(op: Ops, x: Term) -> Term:
    """Returns the mean of squares, and eps on it or none; the axes kept, or taken out and put in
    again."""
    with_axes = _means(op, squared(op, x), "square", True)
    restored = _with_axes_restored(op, _means(op, squared(op, x), "square", False), "square")
    return op.add(with_axes | restored, positive("eps")) | with_axes | restored


def _variance_of_squares(op: Ops, x: Term, mean: Term, keep: bool) -> Either:
    """Returns the mean of squares less the square of the mean, not below 0, as JAX computes it."""
    variance = op.sub(_means(op, squared(op, x), "square", keep), squared(op, mean))
    # JAX clips at 0, since the difference of two rounded means may be negative.
    return op.max(variance, 0.0) | op.relu(variance) | variance


def _inverse_root(op: Ops, variance: Term) -> Either:
    """1 / sqrt(room)."""
    return op.rsqrt(variance) | one_over(op, op.sqrt(variance)) | op.pow(variance, -0.5)


def _over_root(op: Ops, x: Term, variance: Term) -> Either:
    """x / sqrt(room)."""
    return op.div(x, op.sqrt(variance) | op.pow(variance, 0.5)) | op.mul(
        x, _inverse_root(op, variance)
    )


def _with_gain(op: Ops, x: Term, variance: Term, gamma: Var) -> Either:
    """x / sqrt(room) times gamma, whatever is multiplied first."""
    return op.mul(_over_root(op, x, variance), gamma) | op.mul(
        x, op.mul(_inverse_root(op, variance), gamma)
    )


@pattern
def layer_norm(op: Ops, x: Var, gamma: Var, beta: Var) -> Term:
    """(x - mean) / sqrt(mean of its squares + eps), times gamma, plus beta, over the last axes.

    One without eps has an eps of 0.
    """
    mean = _means(op, x, "mean", True)
    centered = op.sub(x, mean)
    recentered = op.sub(x, op.reduce_mean(x, keep=True))
    # A source may compute the mean once for both uses, or a second time for the variance.
    variance = _mean_square(op, centered | op.sub(x, mean) | recentered)
    normalized, scaled = (
        _over_root(op, centered, variance),
        _with_gain(op, centered, variance, gamma),
    )
    return op.add(scaled, beta) | scaled | op.add(normalized, beta) | normalized


@pattern
def layer_norm_of_squares(op: Ops, x: Var, gamma: Var, beta: Var) -> Term:
    """The same where the variance is the mean of squares less the square of the mean."""
    mean = _means(op, x, "mean", True)
    variance = _variance_of_squares(op, x, mean, keep=True)
    with_eps = op.add(variance, positive("eps")) | variance
    scaled = _with_gain(op, op.sub(x, mean), with_eps, gamma)
    return op.add(scaled, beta) | scaled | _over_root(op, op.sub(x, mean), with_eps)


@pattern
def layer_norm_of_flat_squares(op: Ops, x: Var, gamma: Var, beta: Var) -> Term:
    """The same where means and variance are put back along the averaged axes."""
    mean = _means(op, x, "mean", False)
    variance = _with_axes_restored(op, _variance_of_squares(op, x, mean, keep=False), "square")
    with_eps, centered = (
        op.add(variance, positive("eps")) | variance,
        op.sub(x, _with_axes_restored(op, mean, "mean")),
    )
    scaled = _with_gain(op, centered, with_eps, gamma)
    return op.add(scaled, beta) | scaled | _over_root(op, centered, with_eps)


@pattern
def layer_norm_by_gain(op: Ops, x: Var, gamma: Var, beta: Var) -> Term:
    """x * gain + (beta - mean * gain), where gain is gamma / sqrt(variance + eps)."""
    mean = _means(op, x, "mean", True)
    plain_variance = _variance_of_squares(op, x, mean, keep=True)
    variance = (
        _mean_square(op, op.sub(x, mean)) | op.add(plain_variance, positive("eps")) | plain_variance
    )
    gain = op.mul(_inverse_root(op, variance), gamma)
    return op.add(op.mul(x, gain), op.sub(beta, op.mul(mean, gain)))


@pattern
def rms_norm(op: Ops, x: Var, gamma: Var) -> Term:
    """x / sqrt(mean of its squares + eps), times gamma, over the last axes."""
    variance = _mean_square(op, x)
    return _with_gain(op, x, variance, gamma) | _over_root(op, x, variance)


def _axis(match: Match) -> int | None:
    """Returns the axis from which on all are averaged, each time."""
    x = match["x"].type
    # Mean and variance may be written with different ops, but over the same axes.
    nodes = [node for node in match.nodes if node.op in ("reduce_mean", "reduce_sum")]
    axes = {last_axes(node.attrs["axes"], x.rank) for node in nodes}
    axis = axes.pop()
    if axes or axis is None or not _divides_by_count(match, x.shape[axis:]):
        return None
    # Axes that were averaged out must come back as 1, so that the result broadcasts over x.
    ones = x.shape[:axis] + (1,) * (x.rank - axis)
    restored = [n.result.type.shape for n in match.nodes if n.op in ("reshape", "unsqueeze")]
    return axis if all(shape == ones for shape in restored) else None


def _divides_by_count(match: Match, averaged: Shape) -> bool:
    """Returns whether each sum is divided by the number of elements that are averaged."""
    count = dims.known_shape((dims.product(averaged),))
    sums = [node for node in match.nodes if node.op == "reduce_sum"]
    return all(count is not None and _is_divided_by(reduction, count[0]) for reduction in sums)


def _is_divided_by(reduction: Node, count: int) -> bool:
    use = reduction.result.only_use
    # Axes that were averaged out may come back before the division.
    while use is not None and use.node.op in ("reshape", "unsqueeze"):
        use = use.node.result.only_use
    if use is None:
        return False
    divisor = next(
        (n for v in use.node.operands.values() if (n := uniform_number(v)) is not None), 0.0
    )
    return (
        # A factor of 1 / count is a rounded number, so it is compared with a tolerance.
        abs((divisor if use.node.op == "div" else 1 / divisor if divisor else 0.0) / count - 1)
        <= RELATIVE_TOLERANCE
    )


def _has_average_axis(match: Match) -> bool:
    return _axis(match) is not None


def _has_aligned_parameters(match: Match) -> bool:
    """Returns whether gamma and beta have the averaged axes alone."""
    axis, rank = _axis(match), match["x"].type.rank
    names = ("gamma", "beta") if "layer" in match.name else ("gamma",)
    parameters = [value for name in names if (value := match.get(name)) is not None]
    return axis is not None and all(_has_last_axes(value, rank - axis) for value in parameters)


def _has_last_axes(value: Value, axes: int) -> bool:
    return all(size == 1 for size in value.type.shape[: max(0, value.type.rank - axes)])


def _norm(op: str) -> Replacement:
    def replace(graph: Graph, match: Match) -> Value | None:
        x, axis = match["x"], _axis(match)
        assert axis is not None
        eps = 0.0 if match.get("eps") is None else matched_number(match, "eps")
        attrs: dict[str, Attr] = {"axis": axis, "eps": eps}
        beta = match.get("beta") if op == "layer_norm" else None
        parameters = {"gamma": match.get("gamma"), "beta": beta}
        operands = {
            "x": x,
            **{slot: value for slot, value in parameters.items() if value is not None},
        }
        # x stands for a gamma that is missing: it has the type of one of ones.
        if not makes_type_of(op, {"gamma": x, **operands}, attrs, match.results[0]):
            return None
        if "gamma" not in operands:
            name = f"{match.root.name}.gamma"
            operands["gamma"] = filled_constant(x, 1.0, x.type.shape[axis:], graph, name)
        return graph.add(op, operands, attrs).result

    return replace


_SAME = "the means go over the same axes, and these are the last"
_PARTS = "gamma and beta are along the axes that are averaged"

REWRITES = tuple(
    Rewrite(
        wanted.check(_SAME, _has_average_axis).check(_PARTS, _has_aligned_parameters),
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
