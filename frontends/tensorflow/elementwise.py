"""Elementwise arithmetic, comparisons, functions and activations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import NodeCall
from .products import add_bias
from .reader import KeepNode

Handler = Callable[[NodeCall], Value]


def _unary(op: str, **attrs: Attr) -> Handler:
    """Returns the converter of a unary function."""
    return lambda call: call.add(op, {"x": call.all_operands(1)[0]}, attrs)


def _binary(op: str) -> Handler:
    """Returns the converter of a binary op."""
    return lambda call: call.add(op, dict(zip("ab", call.all_operands(2), strict=True)))


def _extreme(op: str) -> Handler:
    """Returns the converter of a minimum or maximum of two operands."""
    return lambda call: call.add(op, dict(zip(("xs.0", "xs.1"), call.all_operands(2), strict=True)))


def _variadic(op: str) -> Handler:
    """Returns the converter of a sum of any number of operands."""

    def read(call: NodeCall) -> Value:
        if call.count == 1:
            return call[0]
        return call.add(op, {f"xs.{i}": value for i, value in enumerate(call.operands)})

    return read


def _identity(call: NodeCall) -> Value:
    return call[0]


def _truncating_div(call: NodeCall) -> Value:
    """Reads Div and TruncateDiv, which divide integers toward zero."""
    a, b = call[0], call[1]
    if a.type.dtype.is_float:
        quotient = call.add("div", {"a": a, "b": b})
        return call.add("trunc", {"x": quotient}) if call.node.op == "TruncateDiv" else quotient
    magnitude = call.add(
        "floor_div", {"a": call.add("abs", {"x": a}), "b": call.add("abs", {"x": b})}
    )
    signs = call.add("mul", {"a": call.add("sign", {"x": a}), "b": call.add("sign", {"x": b})})
    return call.add("mul", {"a": magnitude, "b": signs})


def _remainder(call: NodeCall) -> Value:
    """Reads Mod and TruncateMod, whose results have the sign of the first operand."""
    return call.add("mod", {"a": call[0], "b": call[1]}, {"fmod": True})


def _zero_where_zero(call: NodeCall, divisor: Value, result: Value) -> Value:
    """Returns zero where `divisor` is zero, else `result`."""
    # NaN is not equal to 0, so it keeps its result.
    zero = call.scalar_like(0, divisor)
    condition = call.add("equal", {"a": divisor, "b": zero})
    return call.add("where", {"condition": condition, "a": zero, "b": result})


def _div_no_nan(call: NodeCall) -> Value:
    return _zero_where_zero(call, call[1], call.add("div", {"a": call[0], "b": call[1]}))


def _mul_no_nan(call: NodeCall) -> Value:
    return _zero_where_zero(call, call[1], call.add("mul", {"a": call[0], "b": call[1]}))


def _zero_if_x_is_zero(function: str, op: str) -> Handler:
    """Returns the converter of Xdivy, Xlogy and Xlog1py, which are 0 where x is 0."""

    def read(call: NodeCall) -> Value:
        y = call.add(function, {"x": call[1]}) if function else call[1]
        return _zero_where_zero(call, call[0], call.add(op, {"a": call[0], "b": y}))

    return read


def _relu6(call: NodeCall) -> Value:
    return call.add("clip", {"x": call[0]}, {"min": 0.0, "max": 6.0})


def _leaky_relu(call: NodeCall) -> Value:
    return call.add("leaky_relu", {"x": call[0]}, {"alpha": call.number("alpha", 0.2)})


def _elu(call: NodeCall) -> Value:
    return call.add("elu", {"x": call[0]}, {"alpha": 1.0})


def _clip(call: NodeCall) -> Value:
    x = call[0]
    has_constant_bounds = x.type.dtype.is_float and all(
        v.constant is not None and v.type.rank == 0 for v in (call[1], call[2])
    )
    if has_constant_bounds:
        attrs: dict[str, Attr] = {
            "min": float(call.constant_elements(1).item()),
            "max": float(call.constant_elements(2).item()),
        }
        return call.add("clip", {"x": x}, attrs)
    # `clip` has float attributes, so integers and computed bounds are compared.
    below = call.add("min", {"xs.0": x, "xs.1": call[2]})
    return call.add("max", {"xs.0": below, "xs.1": call[1]})


def _cast(call: NodeCall) -> Value:
    to = call.dtype("DstT")
    if to == call[0].type.dtype:
        return call[0]
    return call.add("cast", {"x": call[0]}, {"to": to})


def _is_finite(call: NodeCall) -> Value:
    nan = call.add("is_nan", {"x": call[0]})
    infinite = call.add("is_inf", {"x": call[0]}, {"negative": True, "positive": True})
    return call.add("logical_not", {"x": call.add("logical_or", {"a": nan, "b": infinite})})


def _select(call: NodeCall) -> Value:
    """Reads Select, whose condition may be a vector that selects entries of the first axis."""
    condition, a, b = call[0], call[1], call[2]
    missing_axes = a.type.rank - condition.type.rank
    if call.node.op == "Select" and condition.type.rank == 1 and missing_axes > 0:
        axes = tuple(range(1, missing_axes + 1))
        condition = call.add("unsqueeze", {"x": condition}, {"axes": axes})
    return call.add("where", {"condition": condition, "a": a, "b": b})


def _bitwise(op: str, direction: str = "") -> Handler:
    def read(call: NodeCall) -> Value:
        attrs: dict[str, Attr] = {"direction": direction} if direction else {}
        if direction == "right" and not call[0].type.dtype.name.startswith("u"):
            # `bit_shift` of the language shifts zeros in from the left.
            raise KeepNode("signed integers are shifted with their sign")
        return call.add(op, {"a": call[0], "b": call[1]}, attrs)

    return read


def _placeholder_with_default(call: NodeCall) -> Value:
    """Reads PlaceholderWithDefault as its default."""
    if call[0].constant is None:
        raise KeepNode("its default is no constant")
    # Its default is what TensorFlow computes with where no caller feeds it.
    return call[0]


def _add(call: NodeCall) -> Value:
    return add_bias(call, call[0], call[1])


def _pow(call: NodeCall) -> Value:
    power = call.reader.known.elements(call[1])
    if power is not None and power.ndim == 0 and call[0].type.dtype.is_float:
        # As TensorFlow's graph optimizer does.
        if power == 2:
            return call.add("square", {"x": call[0]})
        if power == np.asarray(0.5):
            return call.add("sqrt", {"x": call[0]})
    return call.add("pow", {"a": call[0], "b": call[1]})


_FUNCTIONS = {
    **{
        name: name.lower()
        for name in (
            "Relu Sigmoid Tanh Softplus Softsign Selu Exp Log Sqrt Rsqrt Reciprocal Neg Abs Sign"
            " Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Erf Erfc Expm1 Log1p Square"
        ).split()
    },
    "Inv": "reciprocal",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Rint": "round",
    "IsNan": "is_nan",
    "LogicalNot": "logical_not",
    "Invert": "bit_not",
}
_PAIRS = {
    "Sub": "sub",
    "Mul": "mul",
    "RealDiv": "div",
    "FloorDiv": "floor_div",
    "FloorMod": "mod",
    "SquaredDifference": "squared_difference",
    "Atan2": "atan2",
    "Equal": "equal",
    "NotEqual": "not_equal",
    "Less": "less",
    "LessEqual": "less_equal",
    "Greater": "greater",
    "GreaterEqual": "greater_equal",
    "LogicalAnd": "logical_and",
    "LogicalOr": "logical_or",
}
OPS: dict[str, Handler] = {
    **{name: _unary(op) for name, op in _FUNCTIONS.items()},
    **{name: _binary(op) for name, op in _PAIRS.items()},
    "IsInf": _unary("is_inf", negative=True, positive=True),
    "IsFinite": _is_finite,
    "Add": _add,
    "AddV2": _add,
    "Pow": _pow,
    "Div": _truncating_div,
    "TruncateDiv": _truncating_div,
    "Mod": _remainder,
    "TruncateMod": _remainder,
    "DivNoNan": _div_no_nan,
    "MulNoNan": _mul_no_nan,
    "Xdivy": _zero_if_x_is_zero("", "div"),
    "Xlogy": _zero_if_x_is_zero("log", "mul"),
    "Xlog1py": _zero_if_x_is_zero("log1p", "mul"),
    "Maximum": _extreme("max"),
    "Minimum": _extreme("min"),
    "AddN": _variadic("sum"),
    "AccumulateNV2": _variadic("sum"),
    "Relu6": _relu6,
    "LeakyRelu": _leaky_relu,
    "Elu": _elu,
    "ClipByValue": _clip,
    "Cast": _cast,
    "Select": _select,
    "SelectV2": _select,
    "BitwiseAnd": _bitwise("bit_and"),
    "BitwiseOr": _bitwise("bit_or"),
    "BitwiseXor": _bitwise("bit_xor"),
    "LeftShift": _bitwise("bit_shift", "left"),
    "RightShift": _bitwise("bit_shift", "right"),
    "PlaceholderWithDefault": _placeholder_with_default,
    **dict.fromkeys(
        "Identity StopGradient PreventGradient CheckNumerics Snapshot EnsureShape".split(),
        _identity,
    ),
}
