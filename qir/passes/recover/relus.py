"""Leaky relu and PReLU from relu, abs, minima and choices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.passes.recover.builders import makes_type_of, times, typed_constant, uniform_number
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Either, Ops, Term, Var, pattern
from qir.rewrite.patterns.rewriting import Rewrite


def _high(op: Ops, x: Var) -> Either:
    return op.relu(x) | op.max(x, 0.0) | op.clip(x, min=0.0, max=None)


def _is_between_0_and_1(value: Value) -> bool:
    found = uniform_number(value)
    return found is not None and 0 <= found <= 1


@pattern
def prelu(op: Ops, x: Var, slope: Var) -> Term:
    """relu(x) + slope * min(x, 0), where min(x, 0) may be (x - |x|) / 2 or -relu(-x)."""
    low = op.min(x, 0.0) | op.clip(x, min=None, max=0.0) | op.neg(op.relu(op.neg(x)))
    low = low | op.sub(x, _high(op, x))
    twice = op.sub(x, op.abs(x))
    part = op.mul(slope, low | times(op, twice, 0.5)) | times(op, op.mul(slope, twice), 0.5)
    part = part | op.mul(times(op, slope, 0.5), twice)
    return op.add(_high(op, x), part) | op.sub(_high(op, x), op.mul(slope, op.relu(op.neg(x))))


@pattern
def prelu_of_two(op: Ops, x: Var) -> Term:
    """relu(x) + halves * (x - |x|), where the slope is twice a constant."""
    halves = Var("halves").where("constant")
    return op.add(_high(op, x), op.mul(halves, op.sub(x, op.abs(x))))


@pattern
def prelu_negated(op: Ops, x: Var) -> Term:
    """relu(x) + turned * relu(-x), where the slope is a constant of the other sign."""
    turned = Var("turned").where("constant")
    return op.add(_high(op, x), op.mul(turned, op.relu(op.neg(x))))


@pattern
def prelu_of_halves(op: Ops, x: Var) -> Term:
    """up * x + down * |x| by constants that make one together; the slope is up - down."""
    up, down = Var("up").where("constant"), Var("down").where("constant")
    return op.add(op.mul(up, x), op.mul(down, op.abs(x)))


def _adds_up_to_one(match: Match) -> bool:
    """Returns whether what is above 0 stays as it is."""
    up, down = (_float_elements(match[name]) for name in ("up", "down"))
    try:
        # Above 0 the function is (up + down) * x, which must be x.
        total = up + down
    # The constants do not broadcast to each other.
    except ValueError:
        return False
    return bool(total.size) and bool(np.all(np.abs(total - 1) <= 1e-6))


def _float_elements(value: Value) -> NDArray[np.float64]:
    assert value.constant is not None
    return value.constant.data.astype(np.float64)


@pattern
def prelu_by_choice(op: Ops, x: Var, slope: Var) -> Term:
    """x where it is above 0, else slope * x; or the other way round."""
    low = op.mul(x, slope)
    above = op.any_of("greater", "greater_equal")(x, 0.0) | op.any_of("less", "less_equal")(0.0, x)
    below = op.any_of("less", "less_equal")(x, 0.0) | op.any_of("greater", "greater_equal")(0.0, x)
    return op.where(above, x, low) | op.where(below, low, x)


@pattern
def leaky_by_max(op: Ops, x: Var) -> Term:
    """max(x, slope * x), where the slope is one number from 0 to 1."""
    slope = Var("slope").check("is one number from 0 to 1", _is_between_0_and_1)
    return op.max(x, op.mul(x, slope))


def _replace(graph: Graph, match: Match) -> Value | None:
    """Returns a leaky_relu where the slope is one number, else a prelu."""
    x = match["x"]
    if match.name == "prelu-of-halves":
        return _replace_halves(graph, match)
    name = {"prelu-of-two": "halves", "prelu-negated": "turned"}.get(match.name, "slope")
    factor = {"halves": 2.0, "turned": -1.0, "slope": 1.0}[name]
    slope = match[name]
    alpha = uniform_number(slope)
    # One number for all channels: leaky_relu has it as an attribute, and more kernels.
    if alpha is not None:
        attrs = {"alpha": alpha * factor}
        is_suitable = makes_type_of("leaky_relu", {"x": x}, attrs, match.results[0])
        return graph.add("leaky_relu", {"x": x}, attrs).result if is_suitable else None
    if not makes_type_of("prelu", {"x": x, "slope": slope}, {}, match.results[0]):
        return None
    # The pattern's constant is half of the slope, or its negative.
    if factor != 1.0:
        slope = typed_constant(_float_elements(slope) * factor, slope, graph, f"{slope.name}.slope")
    return graph.add("prelu", {"x": x, "slope": slope}).result


def _replace_halves(graph: Graph, match: Match) -> Value | None:
    x, parts = match["x"], [match["up"], match["down"]]
    if not all(
        makes_type_of("prelu", {"x": x, "slope": part}, {}, match.results[0]) for part in parts
    ):
        return None
    slope = _float_elements(parts[0]) - _float_elements(parts[1])
    if np.all(slope == slope.reshape(-1)[0]):
        return graph.add("leaky_relu", {"x": x}, {"alpha": float(slope.reshape(-1)[0])}).result
    slope_value = typed_constant(slope, x, graph, f"{match.root.name}.slope")
    return graph.add("prelu", {"x": x, "slope": slope_value}).result


_HALVES = prelu_of_halves.check("both factors together are 1", _adds_up_to_one)
REWRITES = tuple(
    Rewrite(wanted, _replace, says="{nodes} is prelu, or leaky_relu of one number")
    for wanted in (prelu, prelu_of_two, prelu_negated, _HALVES, prelu_by_choice, leaky_by_max)
)
