"""Arithmetic, comparisons and activations as TensorFlow's ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from qir.ir.node import Node, Value

from .nodes import GraphNodes, refusal, type_attr, type_name

Write = Callable[[GraphNodes, Node], str]
F32 = np.float32


def unary(w: GraphNodes, op: str, x: str, value: Value, like: str = "") -> str:
    """Adds an op of one operand."""
    return w.add(op, (x,), like, T=type_attr(value))


def binary(w: GraphNodes, op: str, a: str, b: str, value: Value, like: str = "") -> str:
    """Adds an op of two operands of the type of `value`."""
    return w.add(op, (a, b), like, T=type_attr(value))


def scalar(w: GraphNodes, number: float, value: Value) -> str:
    """Returns a constant number of the type of a value."""
    carrier = value.type.dtype.carrier
    return w.constant(np.asarray(number, carrier), type_name(value.type.element, value))


def _unary_op(op: str) -> Write:
    return lambda w, n: unary(w, op, w.tensor(n.operands["x"]), n.operands["x"], n.name)


def _binary_op(op: str) -> Write:
    def write(w: GraphNodes, n: Node) -> str:
        a, b = n.operands["a"], n.operands["b"]
        return binary(w, op, w.tensor(a), w.tensor(b), a, n.name)

    return write


def _untyped_op(op: str) -> Write:
    """Returns an op without a type attribute."""
    return lambda w, n: w.add(op, tuple(map(w.tensor, n.operands.values())), n.name)


def _left_fold(op: str) -> Write:
    def write(w: GraphNodes, n: Node) -> str:
        first, *rest = n.operands.values()
        accumulated = w.tensor(first)
        for value in rest:
            accumulated = binary(w, op, accumulated, w.tensor(value), n.result, n.name)
        return accumulated if rest else unary(w, "Identity", accumulated, first, n.name)

    return write


def _mean(w: GraphNodes, n: Node) -> str:
    total = _left_fold("AddV2")(w, n)
    return binary(w, "RealDiv", total, scalar(w, len(n.operands), n.result), n.result, n.name)


def _div(w: GraphNodes, n: Node) -> str:
    return _binary_op("RealDiv" if n.result.type.dtype.is_float else "TruncateDiv")(w, n)


def _mod(w: GraphNodes, n: Node) -> str:
    return _binary_op("TruncateMod" if n.attrs["fmod"] else "FloorMod")(w, n)


def _clip(w: GraphNodes, n: Node) -> str:
    x, low, high = n.operands["x"], n.attrs["min"], n.attrs["max"]
    clamped = w.tensor(x)
    if (low, high) == (0.0, 6.0) and x.type.dtype.is_float:
        return unary(w, "Relu6", clamped, x, n.name)
    if isinstance(low, int | float):
        clamped = binary(w, "Maximum", clamped, scalar(w, low, x), x, n.name)
    if isinstance(high, int | float):
        clamped = binary(w, "Minimum", clamped, scalar(w, high, x), x, n.name)
    return clamped


def _leaky_relu(w: GraphNodes, n: Node) -> str:
    x = n.operands["x"]
    return w.add("LeakyRelu", (w.tensor(x),), n.name, T=type_attr(x), alpha=number(n, "alpha"))


def number(n: Node, name: str) -> float:
    """Returns an attribute that is a number."""
    value = n.attrs[name]
    assert isinstance(value, int | float)
    return float(value)


def _elu(w: GraphNodes, n: Node) -> str:
    if number(n, "alpha") != 1:
        raise refusal(n, "TensorFlow's Elu has alpha = 1")
    return _unary_op("Elu")(w, n)


class ElementwiseWriter:
    """Element by element arithmetic on values of one type."""

    def __init__(self, w: GraphNodes, n: Node, slot: str = "x") -> None:
        self.w, self.value, self.like = w, n.operands[slot], n.name
        self.x = w.tensor(self.value)

    def number(self, number: float) -> str:
        return scalar(self.w, number, self.value)

    def f(self, op: str, *operands: str) -> str:
        """Adds an op of one or two operands."""
        return self.w.add(op, operands, self.like, T=type_attr(self.value))


def _gelu(w: GraphNodes, n: Node) -> str:
    s = ElementwiseWriter(w, n)
    half = s.f("Mul", s.number(0.5), s.x)
    if n.attrs["approximate"] == "tanh":
        cube = s.f("Mul", s.f("Mul", s.x, s.f("Square", s.x)), s.number(0.044715))
        inner = s.f("Mul", s.f("AddV2", s.x, cube), s.number(math.sqrt(2 / math.pi)))
        gate = s.f("Tanh", inner)
    else:
        gate = s.f("Erf", s.f("Mul", s.x, s.number(math.sqrt(0.5))))
    return s.f("Mul", half, s.f("AddV2", s.number(1), gate))


def _hard_sigmoid(w: GraphNodes, n: Node) -> str:
    s = ElementwiseWriter(w, n)
    linear = s.f("Mul", s.x, s.number(number(n, "alpha")))
    linear = s.f("AddV2", linear, s.number(number(n, "beta")))
    return s.f("Minimum", s.f("Maximum", linear, s.number(0)), s.number(1))


def _hard_swish(w: GraphNodes, n: Node) -> str:
    s = ElementwiseWriter(w, n)
    # x * relu6(x + 3) / 6
    gate = s.f("Relu6", s.f("AddV2", s.x, s.number(3)))
    return s.f("Mul", s.f("Mul", s.x, gate), s.number(1 / 6))


def _silu(w: GraphNodes, n: Node) -> str:
    s, alpha = ElementwiseWriter(w, n), number(n, "alpha")
    return s.f("Mul", s.x, s.f("Sigmoid", s.x if alpha == 1 else s.f("Mul", s.x, s.number(alpha))))


def _mish(w: GraphNodes, n: Node) -> str:
    s = ElementwiseWriter(w, n)
    return s.f("Mul", s.x, s.f("Tanh", s.f("Softplus", s.x)))


def _log_sigmoid(w: GraphNodes, n: Node) -> str:
    s = ElementwiseWriter(w, n)
    return s.f("Neg", s.f("Softplus", s.f("Neg", s.x)))


def _prelu(w: GraphNodes, n: Node) -> str:
    s = ElementwiseWriter(w, n)
    negative_part = s.f("Mul", w.tensor(n.operands["slope"]), s.f("Minimum", s.x, s.number(0)))
    return s.f("AddV2", s.f("Relu", s.x), negative_part)


def _selu(w: GraphNodes, n: Node) -> str:
    s = ElementwiseWriter(w, n)
    alpha, gamma = number(n, "alpha"), number(n, "gamma")
    negative_part = s.f("Mul", s.number(alpha), s.f("Expm1", s.f("Minimum", s.x, s.number(0))))
    return s.f("Mul", s.number(gamma), s.f("AddV2", s.f("Relu", s.x), negative_part))


def _by_factor(op: str, factor: float) -> Write:
    """Returns a function of a product, or a product of a function, with a constant."""

    def write(w: GraphNodes, n: Node) -> str:
        s = ElementwiseWriter(w, n)
        return s.f("Mul", s.f(op, s.x), s.number(factor))

    return write


def _exp2(w: GraphNodes, n: Node) -> str:
    s = ElementwiseWriter(w, n)
    return s.f("Exp", s.f("Mul", s.x, s.number(math.log(2))))


def _trunc(w: GraphNodes, n: Node) -> str:
    s = ElementwiseWriter(w, n)
    return s.f("Mul", s.f("Sign", s.x), s.f("Floor", s.f("Abs", s.x)))


def _where(w: GraphNodes, n: Node) -> str:
    a = n.operands["a"]
    inputs = tuple(w.tensor(n.operands[slot]) for slot in ("condition", "a", "b"))
    return w.add("SelectV2", inputs, n.name, T=type_attr(a))


def _cast(w: GraphNodes, n: Node) -> str:
    x = n.operands["x"]
    return w.add("Cast", (w.tensor(x),), n.name, SrcT=type_attr(x), DstT=type_attr(n.result))


_UNARY_OPS = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "rsqrt": "Rsqrt",
    "reciprocal": "Reciprocal",
    "erf": "Erf",
    "erfc": "Erfc",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "expm1": "Expm1",
    "log1p": "Log1p",
    "square": "Square",
    "abs": "Abs",
    "neg": "Neg",
    "sign": "Sign",
    "is_nan": "IsNan",
    "bit_not": "Invert",
    "identity": "Identity",
    "dropout": "Identity",
}
_BINARY_OPS = {
    "add": "AddV2",
    "sub": "Sub",
    "mul": "Mul",
    "pow": "Pow",
    "floor_div": "FloorDiv",
    "squared_difference": "SquaredDifference",
    "atan2": "Atan2",
    "equal": "Equal",
    "not_equal": "NotEqual",
    "less": "Less",
    "less_equal": "LessEqual",
    "greater": "Greater",
    "greater_equal": "GreaterEqual",
    "bit_and": "BitwiseAnd",
    "bit_or": "BitwiseOr",
    "bit_xor": "BitwiseXor",
}
OPS: Mapping[str, Write] = {
    **{op: _unary_op(name) for op, name in _UNARY_OPS.items()},
    **{op: _binary_op(name) for op, name in _BINARY_OPS.items()},
    "div": _div,
    "mod": _mod,
    "min": _left_fold("Minimum"),
    "max": _left_fold("Maximum"),
    "sum": _left_fold("AddV2"),
    "mean": _mean,
    "logical_and": _untyped_op("LogicalAnd"),
    "logical_or": _untyped_op("LogicalOr"),
    "logical_xor": _binary_op("NotEqual"),
    "logical_not": _untyped_op("LogicalNot"),
    "clip": _clip,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "selu": _selu,
    "gelu": _gelu,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "silu": _silu,
    "mish": _mish,
    "log_sigmoid": _log_sigmoid,
    "prelu": _prelu,
    "log2": _by_factor("Log", 1 / math.log(2)),
    "log10": _by_factor("Log", 1 / math.log(10)),
    "exp2": _exp2,
    "trunc": _trunc,
    "where": _where,
    "cast": _cast,
}
