"""Elementwise arithmetic, comparisons, functions and activations."""

from __future__ import annotations

import math
from collections.abc import Callable

from qir.ir.dtype import BOOL
from qir.ir.node import Value

from .call import SymbolCall
from .results import Result, Unsupported

Handler = Callable[[SymbolCall], Result | list[Result]]


def _unary(op: str) -> Handler:
    return lambda call: call.add(op, {"x": call.value(0)})


def _add_binary(call: SymbolCall, op: str, a: Value, b: Value) -> Value:
    """Adds a binary op; comparisons return 0 and 1 in the operands' type, as in MXNet."""
    if op in ("min", "max"):
        return call.add(op, {"xs.0": a, "xs.1": b})
    # The language's logical ops take booleans; here every number but 0 is true.
    if op.startswith("logical"):
        result_dtype = a.type.dtype
        booleans = [
            call.add("not_equal", {"a": v, "b": call.number(0, v.type.dtype)}) for v in (a, b)
        ]
        return call.cast(call.add(op, {"a": booleans[0], "b": booleans[1]}), result_dtype)
    result = call.add(op, {"a": a, "b": b})
    return call.cast(result, a.type.dtype) if result.type.dtype == BOOL else result


def _binary(op: str) -> Handler:
    def read(call: SymbolCall) -> Value:
        a, b = call.broadcast_operand(0), call.broadcast_operand(1)
        # MXNet does not promote: operands of different types are refused.
        if a.type.dtype != b.type.dtype:
            raise Unsupported(f"its operands are {a.type.dtype} and {b.type.dtype}")
        return _add_binary(call, op, a, b)

    return read


def _binary_with_scalar(op: str, swapped: bool = False) -> Handler:
    def read(call: SymbolCall) -> Value:
        # `is_int` says how the number was written; the type of the tensor decides.
        call.ignore("is_int")
        x = call.value(0)
        number = call.number(call.attrs.number("scalar", 1.0), x.type.dtype)
        return _add_binary(call, op, number, x) if swapped else _add_binary(call, op, x, number)

    return read


def _sum(call: SymbolCall) -> Value:
    call.ignore("num_args")
    parts = call.values()
    if len(parts) == 1:
        return parts[0]
    return call.add("sum", {f"xs.{i}": part for i, part in enumerate(parts)})


_ACTIVATIONS = {
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "softrelu": "softplus",
    "softsign": "softsign",
    "log_sigmoid": "log_sigmoid",
    "mish": "mish",
}


def activation(call: SymbolCall) -> Value:
    """Adds the activation of attribute `act_type`."""
    act_type = call.choice("act_type", "", *_ACTIVATIONS)
    return call.add(_ACTIVATIONS[act_type], {"x": call.value(0)})


def leaky_relu(call: SymbolCall) -> Result | list[Result]:
    """Adds the variant of LeakyReLU in `act_type`; rrelu uses the mean slope in inference."""
    x = call.value(0)
    act_type = call.choice("act_type", "leaky", "leaky", "prelu", "rrelu", "elu", "selu", "gelu")
    slope = call.attrs.number("slope", 0.25)
    slope_bounds = call.attrs.number("lower_bound", 0.125), call.attrs.number("upper_bound", 0.334)
    if act_type == "prelu":
        slopes = call.value(1)
        # MXNet's slopes are those of axis 1; `prelu` broadcasts them from the last axis.
        if x.type.rank > 2 and slopes.type.rank == 1 and slopes.type.shape != (1,):
            axes = tuple(range(1, x.type.rank - 1))
            slopes = call.add("unsqueeze", {"x": slopes}, {"axes": axes})
        return call.add("prelu", {"x": x, "slope": slopes})
    if act_type == "selu":
        attrs = {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}
        return call.add("selu", {"x": x}, attrs)
    if act_type == "gelu":
        return call.add("gelu", {"x": x})
    if act_type == "elu":
        return call.add("elu", {"x": x}, {"alpha": slope})
    if act_type == "rrelu":
        # MXNet has a second result, the random slopes, which inference does not have.
        return [call.add("leaky_relu", {"x": x}, {"alpha": sum(slope_bounds) / 2}), None]
    return call.add("leaky_relu", {"x": x}, {"alpha": slope})


def clip(call: SymbolCall) -> Value:
    """Adds a clip; a NaN bound is none."""
    low, high = call.attrs.number("a_min"), call.attrs.number("a_max")
    attrs = {k: v for k, v in (("min", low), ("max", high)) if not math.isnan(v)}
    return call.add("clip", {"x": call.value(0)}, attrs)


def _hard_sigmoid(call: SymbolCall) -> Value:
    attrs = {"alpha": call.attrs.number("alpha", 0.2), "beta": call.attrs.number("beta", 0.5)}
    return call.add("hard_sigmoid", {"x": call.value(0)}, attrs)


def _round_with_ties(
    call: SymbolCall, split_at_tie: Callable[[Value], tuple[Value, Value]]
) -> Value:
    """Adds a rounding with other ties than round half to even."""
    x = call.value(0)
    lower, at_tie = split_at_tie(x)
    # Only exact ties differ: elsewhere every rounding gives the nearest integer.
    fraction = call.add("abs", {"x": call.add("sub", {"a": x, "b": lower})})
    is_tie = call.add("equal", {"a": fraction, "b": call.number(0.5, x.type.dtype)})
    nearest = call.add("round", {"x": x})
    return call.add("where", {"condition": is_tie, "a": at_tie, "b": nearest})


def _rint(call: SymbolCall) -> Value:
    """Adds MXNet's rint, which rounds ties down."""

    def tie(x: Value) -> tuple[Value, Value]:
        low = call.add("floor", {"x": x})
        return low, low

    return _round_with_ties(call, tie)


def _round(call: SymbolCall) -> Value:
    """Adds MXNet's round, which rounds ties away from zero."""

    def tie(x: Value) -> tuple[Value, Value]:
        start = call.add("trunc", {"x": x})
        return start, call.add("add", {"a": start, "b": call.add("sign", {"x": x})})

    return _round_with_ties(call, tie)


def _smooth_l1(call: SymbolCall) -> Value:
    x, scalar = call.value(0), call.attrs.number("scalar", 1.0)
    # With s = scalar: 0.5 (s x)^2 where |x| < 1 / s^2, and |x| - 0.5 / s^2 elsewhere.
    square, dtype = scalar * scalar, call.value(0).type.dtype
    magnitude = call.add("abs", {"x": x})
    is_near = call.add("less", {"a": magnitude, "b": call.number(1 / square, dtype)})
    squared = call.add("square", {"x": x})
    inner = call.add("mul", {"a": squared, "b": call.number(0.5 * square, dtype)})
    outer = call.add("sub", {"a": magnitude, "b": call.number(0.5 / square, dtype)})
    return call.add("where", {"condition": is_near, "a": inner, "b": outer})


def _logical_not(call: SymbolCall) -> Value:
    x = call.value(0)
    zero = call.number(0, x.type.dtype)
    return call.cast(call.add("equal", {"a": x, "b": zero}), x.type.dtype)


def _identity(*names: str) -> Handler:
    """Returns the converter of an identity in inference, which ignores these attributes."""

    def read(call: SymbolCall) -> Value:
        call.ignore(*names)
        return call.value(0)

    return read


def _dropout(call: SymbolCall) -> list[Result]:
    call.ignore("p", "axes")
    call.choice("mode", "training")
    # The second result is the mask of training.
    return [call.value(0), None]


def _cast(call: SymbolCall) -> Value:
    return call.cast(call.value(0), call.dtype())


def _where(call: SymbolCall) -> Value:
    condition, a, b = call.values()
    if condition.type.rank < a.type.rank:  # one boolean for each entry of the leading axes
        axes = tuple(range(condition.type.rank, a.type.rank))
        condition = call.add("unsqueeze", {"x": condition}, {"axes": axes})
    if condition.type.dtype != BOOL:
        zero = call.number(0, condition.type.dtype)
        condition = call.add("not_equal", {"a": condition, "b": zero})
    return call.add("where", {"condition": condition, "a": a, "b": b})


_FUNCTIONS = {
    **{
        name: name
        for name in (
            "abs ceil cos cosh erf exp expm1 floor log log10 log1p log2 reciprocal relu rsqrt"
            " sigmoid sign sin sinh softsign sqrt square tan tanh trunc"
        ).split()
    },
    "fix": "trunc",
    "negative": "neg",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctanh": "atanh",
}
_ARITHMETIC = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "mod": "mod",
    "power": "pow",
    "maximum": "max",
    "minimum": "min",
}
_COMPARISONS = {
    "equal": "equal",
    "not_equal": "not_equal",
    "greater": "greater",
    "greater_equal": "greater_equal",
    "lesser": "less",
    "lesser_equal": "less_equal",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
}
OPS: dict[str, Handler] = {
    **{name: _unary(op) for name, op in _FUNCTIONS.items()},
    **{f"broadcast_{n}": _binary(op) for n, op in (_ARITHMETIC | _COMPARISONS).items()},
    **{f"elemwise_{n}": _binary(n) for n in ("add", "sub", "mul", "div")},
    **{f"_{n}": _binary(_ARITHMETIC[n]) for n in ("maximum", "minimum", "mod", "power")},
    **{f"_{n}": _binary(op) for n, op in _COMPARISONS.items()},
    **{f"_{n}_scalar": _binary_with_scalar(op) for n, op in _COMPARISONS.items()},
    **{
        f"_{n}_scalar": _binary_with_scalar(_ARITHMETIC[n])
        for n in ("maximum", "minimum", "mod", "mul", "div")
    },
    "_plus_scalar": _binary_with_scalar("add"),
    "_minus_scalar": _binary_with_scalar("sub"),
    "_power_scalar": _binary_with_scalar("pow"),
    "_rminus_scalar": _binary_with_scalar("sub", swapped=True),
    "_rdiv_scalar": _binary_with_scalar("div", swapped=True),
    "_rpower_scalar": _binary_with_scalar("pow", swapped=True),
    "_rmod_scalar": _binary_with_scalar("mod", swapped=True),
    "add_n": _sum,
    "Activation": activation,
    "LeakyReLU": leaky_relu,
    "clip": clip,
    "hard_sigmoid": _hard_sigmoid,
    "rint": _rint,
    "round": _round,
    "smooth_l1": _smooth_l1,
    "logical_not": _logical_not,
    "_copy": _identity(),
    "BlockGrad": _identity(),
    "make_loss": _identity(),
    "MakeLoss": _identity("grad_scale", "normalization", "valid_thresh"),
    "Dropout": _dropout,
    "Cast": _cast,
    "where": _where,
}
