"""Writes elementwise ops as operators of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

from torch import fx

from qir.ir.node import Node

from .program import FxProgram, Handler

_UNARY = (
    "relu sigmoid tanh exp log sqrt reciprocal erf floor ceil round sin cos tan asin acos atan "
    "sinh cosh asinh acosh atanh exp2 expm1 log1p log2 log10 rsqrt square erfc trunc abs neg sign "
    "mish log_sigmoid logical_not softplus"
).split()
_RENAMED = {"hard_swish": "hardswish", "is_nan": "isnan", "bit_not": "bitwise_not"}
_BINARY = {
    **{op: op for op in "add sub mul pow atan2 logical_and logical_or logical_xor".split()},
    **{"equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le"},
    **{"greater": "gt", "greater_equal": "ge"},
    **{"bit_and": "bitwise_and", "bit_or": "bitwise_or", "bit_xor": "bitwise_xor"},
}
_SIXTH = 1 / 6


def call(handler: Handler, program: FxProgram, node: Node) -> fx.Node:
    """Returns the one result that a handler writes."""
    result: fx.Node = handler(program, node)
    return result


def _unary(name: str) -> Handler:
    return lambda program, node: program.call(f"aten.{name}", program.operand(node, "x"))


def _binary(name: str) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        return program.call(f"aten.{name}", program.operand(node, "a"), program.operand(node, "b"))

    return write


def _with_attributes(name: str, *attrs: str) -> Handler:
    """Returns an operator that takes x and numbers."""

    def write(program: FxProgram, node: Node) -> fx.Node:
        arguments = [node.attrs[attr] for attr in attrs]
        return program.call(f"aten.{name}", program.operand(node, "x"), *arguments)

    return write


def _folded(name: str) -> Handler:
    """Returns an operator of two, one operand after the other."""

    def write(program: FxProgram, node: Node) -> fx.Node:
        return reduce(lambda a, b: program.call(f"aten.{name}", a, b), program.variadic_nodes(node))

    return write


def _mean(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.div", _folded("add")(program, node), len(node.operands))


def _div(program: FxProgram, node: Node) -> fx.Node:
    a, b = program.operand(node, "a"), program.operand(node, "b")
    if node.result.type.dtype.is_float:
        return program.call("aten.div", a, b)
    # PyTorch's integer division by `/` gives floats; ONNX and QIR round toward zero.
    return program.call("aten.div", a, b, rounding_mode="trunc")


def _floor_div(program: FxProgram, node: Node) -> fx.Node:
    a, b = program.operand(node, "a"), program.operand(node, "b")
    return program.call("aten.div", a, b, rounding_mode="floor")


def _mod(program: FxProgram, node: Node) -> fx.Node:
    return call(_binary("fmod" if node.attrs["fmod"] else "remainder"), program, node)


def _squared_difference(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.square", _binary("sub")(program, node))


def _finite_bound(value: Any) -> float | None:
    """Returns a bound as PyTorch has it: none where it does not bind."""
    return None if value is None or math.isinf(value) else value


def clip(program: FxProgram, node: Node, x: fx.Node) -> fx.Node:
    """Adds a clamp of x by the bounds of a node."""
    low, high = _finite_bound(node.attrs.get("min")), _finite_bound(node.attrs.get("max"))
    return x if low is None and high is None else program.call("aten.clamp", x, low, high)


def _clip(program: FxProgram, node: Node) -> fx.Node:
    return clip(program, node, program.operand(node, "x"))


def _hard_sigmoid(program: FxProgram, node: Node) -> fx.Node:
    x = program.operand(node, "x")
    if is_hard_sigmoid(node):
        return program.call("aten.hardsigmoid", x)
    linear = program.call("aten.mul", x, node.attrs["alpha"])
    return program.call(
        "aten.clamp", program.call("aten.add", linear, node.attrs["beta"]), 0.0, 1.0
    )


def is_hard_sigmoid(node: Node) -> bool:
    """Returns whether a node is PyTorch's own: x / 6 + 0.5, kept in 0..1."""
    alpha = float(node.attrs["alpha"])  # type: ignore[arg-type]
    return math.isclose(alpha, _SIXTH, rel_tol=1e-7) and node.attrs["beta"] == 0.5


def _gelu(program: FxProgram, node: Node) -> fx.Node:
    x = program.operand(node, "x")
    return program.call("aten.gelu", x, approximate=node.attrs["approximate"])


def _silu(program: FxProgram, node: Node) -> fx.Node:
    x = program.operand(node, "x")
    if node.attrs["alpha"] == 1.0:
        return program.call("aten.silu", x)
    gate = program.call("aten.sigmoid", program.call("aten.mul", x, node.attrs["alpha"]))
    return program.call("aten.mul", x, gate)


def _selu(program: FxProgram, node: Node) -> fx.Node:
    alpha, gamma = node.attrs["alpha"], node.attrs["gamma"]
    return program.call("aten.elu", program.operand(node, "x"), alpha, gamma, 1.0)


def _softsign(program: FxProgram, node: Node) -> fx.Node:
    x = program.operand(node, "x")
    denominator = program.call("aten.add", program.call("aten.abs", x), 1.0)
    return program.call("aten.div", x, denominator)


def _tanh_shrink(program: FxProgram, node: Node) -> fx.Node:
    x = program.operand(node, "x")
    return program.call("aten.sub", x, program.call("aten.tanh", x))


def _prelu(program: FxProgram, node: Node) -> fx.Node:
    x, slope = program.operand(node, "x"), program.operand(node, "slope")
    is_positive = program.call("aten.gt", x, 0)
    return program.call("aten.where", is_positive, x, program.call("aten.mul", x, slope))


def _threshold(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.threshold", program.operand(node, "x"), node.attrs["alpha"], 0.0)


def _logit(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.logit", program.operand(node, "x"), node.attrs.get("eps"))


def _is_inf(program: FxProgram, node: Node) -> fx.Node:
    x = program.operand(node, "x")
    sides = bool(node.attrs["negative"]), bool(node.attrs["positive"])
    name = {(True, True): "isinf", (True, False): "isneginf", (False, True): "isposinf"}.get(sides)
    if name is None:
        return program.call("aten.zeros_like", program.call("aten.isinf", x))
    return program.call(f"aten.{name}", x)


def _bit_shift(program: FxProgram, node: Node) -> fx.Node:
    direction = str(node.attrs["direction"])
    return call(_binary(f"bitwise_{direction}_shift"), program, node)


def _where(program: FxProgram, node: Node) -> fx.Node:
    operands = (program.operand(node, slot) for slot in ("condition", "a", "b"))
    return program.call("aten.where", *operands)


_identity: Callable[[FxProgram, Node], fx.Node] = lambda program, node: program.operand(node, "x")  # noqa: E731

OPS: dict[str, Handler] = {
    **{op: _unary(op) for op in _UNARY},
    **{op: _unary(name) for op, name in _RENAMED.items()},
    **{op: _binary(name) for op, name in _BINARY.items()},
    **{"identity": _identity, "dropout": _identity},
    **{"min": _folded("minimum"), "max": _folded("maximum"), "sum": _folded("add"), "mean": _mean},
    "div": _div,
    "floor_div": _floor_div,
    "mod": _mod,
    "squared_difference": _squared_difference,
    "clip": _clip,
    "leaky_relu": _with_attributes("leaky_relu", "alpha"),
    "elu": _with_attributes("elu", "alpha"),
    "celu": _with_attributes("celu", "alpha"),
    "selu": _selu,
    "hard_sigmoid": _hard_sigmoid,
    "gelu": _gelu,
    "silu": _silu,
    "softsign": _softsign,
    "tanh_shrink": _tanh_shrink,
    "prelu": _prelu,
    "thresholded_relu": _threshold,
    "logit": _logit,
    "is_inf": _is_inf,
    "bit_shift": _bit_shift,
    "where": _where,
}
