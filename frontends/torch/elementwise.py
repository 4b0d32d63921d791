"""Elementwise arithmetic, comparisons, functions and activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import OverloadCall
from .reader import KeepCall

Handler = Callable[[OverloadCall], Value]


def _in_result_dtype(call: OverloadCall, name: str) -> Value:
    """Returns an operand in the result's type: PyTorch computes functions of integers in floats."""
    return call.promote(name, kind=call.result.dtype)[0]


def _unary(op: str, **names: str) -> Handler:
    """Returns the converter of a unary function; `names` has PyTorch's name of each attribute."""

    def read(call: OverloadCall) -> Value:
        first = "self" if "self" in call.arguments else "input"
        attrs: dict[str, Attr] = {attr: call.number(argument) for attr, argument in names.items()}
        return call.add(op, {"x": _in_result_dtype(call, first)}, attrs)

    return read


def _dtype_keeping_unary(op: str) -> Handler:
    """Returns the converter of a function that keeps the element type, such as floor."""

    def read(call: OverloadCall) -> Value:
        if call.fake_tensor("self").dtype != call.result.dtype:
            raise KeepCall
        if op in ("floor", "ceil", "trunc", "round") and not call.result.dtype.is_floating_point:
            # Integers are whole already.
            return call.value("self")
        return call.add(op, {"x": call.value("self")})

    return read


def _binary(op: str, kind: Callable[[OverloadCall], torch.dtype | None] | None = None) -> Handler:
    """Returns the converter of a binary op of tensors or numbers."""

    def read(call: OverloadCall) -> Value:
        a, b = call.promote("self", "other", kind=kind(call) if kind else None)
        return call.add(op, {"a": a, "b": b})

    return read


def _result_dtype(call: OverloadCall) -> torch.dtype:
    return call.result.dtype


def _add_with_alpha(op: str, swapped: bool = False) -> Handler:
    """Returns the converter of add, sub and rsub, which multiply the second operand by alpha."""

    def read(call: OverloadCall) -> Value:
        a, b = call.promote("self", "other", kind=call.result.dtype)
        if call["alpha"] != 1:
            factor = call.promote("alpha", kind=call.result.dtype)[0]
            scaled = "self" if swapped else "other"
            if scaled == "self":
                a = call.add("mul", {"a": a, "b": factor})
            else:
                b = call.add("mul", {"a": b, "b": factor})
        if call.result.dtype == torch.bool:
            # PyTorch adds booleans as a logical or, and multiplies them as a logical and.
            return call.add("logical_or", {"a": a, "b": b})
        return call.add(op, {"a": b, "b": a} if swapped else {"a": a, "b": b})

    return read


def _div_with_rounding(call: OverloadCall) -> Value:
    mode = call["rounding_mode"]
    a, b = call.promote("self", "other", kind=call.result.dtype)
    if mode is None:
        return call.add("div", {"a": a, "b": b})
    if mode == "floor":
        return call.add("floor_div", {"a": a, "b": b})
    if not call.result.dtype.is_floating_point:
        return _truncating_div(call, a, b)
    return call.add("trunc", {"x": call.add("div", {"a": a, "b": b})})


def _truncating_div(call: OverloadCall, a: Value, b: Value) -> Value:
    """Divides integers toward zero: the quotient of the magnitudes, times both signs."""
    if not call.result.dtype.is_signed:
        return call.add("floor_div", {"a": a, "b": b})
    # `floor_div` rounds toward negative infinity, which differs for quotients below 0.
    quotient = call.add(
        "floor_div",
        {slot: call.add("abs", {"x": operand}) for slot, operand in (("a", a), ("b", b))},
    )
    signs = call.add(
        "mul", {slot: call.add("sign", {"x": operand}) for slot, operand in (("a", a), ("b", b))}
    )
    return call.add("mul", {"a": quotient, "b": signs})


def _fmod(call: OverloadCall) -> Value:
    a, b = call.promote("self", "other", kind=call.result.dtype)
    # PyTorch's fmod has the sign of the dividend, its remainder that of the divisor.
    return call.add("mod", {"a": a, "b": b}, {"fmod": True})


def _mul(call: OverloadCall) -> Value:
    a, b = call.promote("self", "other", kind=call.result.dtype)
    return call.add("logical_and" if call.result.dtype == torch.bool else "mul", {"a": a, "b": b})


def _min_or_max(op: str) -> Handler:
    """Returns the converter of minimum and maximum."""

    def read(call: OverloadCall) -> Value:
        a, b = call.promote("self", "other", kind=call.result.dtype)
        return call.add(op, {"xs.0": a, "xs.1": b})

    return read


def _pow(call: OverloadCall) -> Value:
    exponent = call["exponent"]
    if exponent == 1 and call.fake_tensor("self").dtype == call.result.dtype:
        return call.value("self")
    base, power = call.promote("self", "exponent", kind=call.result.dtype)
    # PyTorch computes x ** 2 as x * x, and x ** 0.5 as sqrt(x).
    if exponent == 2:
        return call.add("square", {"x": base})
    if exponent == 0.5:
        return call.add("sqrt", {"x": base})
    return call.add("pow", {"a": base, "b": power})


def _logical(op: str) -> Handler:
    def read(call: OverloadCall) -> Value:
        a, b = call.promote("self", "other", kind=torch.bool)
        return call.add(op, {"a": a, "b": b})

    return read


def _bitwise(op: str, logical_op: str) -> Handler:
    """Returns the converter of a bitwise op, which is the logical one on booleans."""

    def read(call: OverloadCall) -> Value:
        a, b = call.promote("self", "other")
        return call.add(logical_op if call.result.dtype == torch.bool else op, {"a": a, "b": b})

    return read


def _not(call: OverloadCall) -> Value:
    is_bool = call.fake_tensor("self").dtype == torch.bool
    if not is_bool and str(call.node.target) == "aten.logical_not.default":
        return call.add("logical_not", {"x": call.promote("self", kind=torch.bool)[0]})
    return call.add("logical_not" if is_bool else "bit_not", {"x": call.value("self")})


def _clip(call: OverloadCall) -> Value:
    argument_names = ("min", "min_val"), ("max", "max_val")
    low, high = (
        next((call[name] for name in names if name in call.arguments), None)
        for names in argument_names
    )
    are_numbers = all(bound is None or isinstance(bound, (int, float)) for bound in (low, high))
    if not call.result.dtype.is_floating_point or not are_numbers:
        # The bounds of `clip` are float attributes: they fit neither integers nor computed bounds.
        return _clamp_by_min_max(call, low, high)
    attrs: dict[str, Attr] = {}
    if low is not None and not math.isnan(low):
        attrs["min"] = float(low)
    if high is not None and not math.isnan(high):
        attrs["max"] = float(high)
    return call.add("clip", {"x": _in_result_dtype(call, "self")}, attrs)


def _clamp_by_min_max(call: OverloadCall, low: object, high: object) -> Value:
    """Clamps by max and min: for integers, and for bounds that are tensors."""
    kind = call.result.dtype
    value = call.cast_to(call["self"], kind)
    for op, bound in (("max", low), ("min", high)):
        if bound is None:
            continue
        if isinstance(bound, (torch.SymInt, torch.SymFloat)) or not _is_representable(bound, kind):
            raise KeepCall
        value = call.add(op, {"xs.0": value, "xs.1": call.cast_to(bound, kind)})
    return value


def _is_representable(bound: object, kind: torch.dtype) -> bool:
    """Returns whether an element type can represent a number; true for tensors."""
    if kind.is_floating_point or not isinstance(bound, (int, float)):
        return True
    return torch.iinfo(kind).min <= bound <= torch.iinfo(kind).max


def _relu6(call: OverloadCall) -> Value:
    return call.add("clip", {"x": call.value("self")}, {"min": 0.0, "max": 6.0})


def _relu(call: OverloadCall) -> Value:
    return call.add("relu", {"x": call.value("self")})


def _hard_sigmoid(call: OverloadCall) -> Value:
    attrs: Mapping[str, Attr] = {"alpha": 1 / 6, "beta": 0.5}
    return call.add("hard_sigmoid", {"x": call.value("self")}, attrs)


def _gelu(call: OverloadCall) -> Value:
    return call.add("gelu", {"x": call.value("self")}, {"approximate": call["approximate"]})


def _elu(call: OverloadCall) -> Value:
    if call.number("scale") != 1 or call.number("input_scale") != 1:
        raise KeepCall
    return call.add("elu", {"x": call.value("self")}, {"alpha": call.number("alpha")})


def _softplus(call: OverloadCall) -> Value:
    if call.number("beta") != 1 or call.number("threshold") < 15:
        # Above the threshold PyTorch returns x itself. From 15 on, that is softplus in float32.
        raise KeepCall
    return call.add("softplus", {"x": call.value("self")})


def _threshold(call: OverloadCall) -> Value:
    if call.number("value"):
        raise KeepCall("values below the threshold do not become 0")
    x = call.value("self")
    return call.add("thresholded_relu", {"x": x}, {"alpha": call.number("threshold")})


def _prelu(call: OverloadCall) -> Value:
    slope, x = call.value("weight"), call.value("self")
    if x.type.rank > 2 and slope.type.shape != (1,):
        # PyTorch's slopes are those of axis 1; `prelu` broadcasts them from the last axis.
        axes = {"axes": tuple(range(1, x.type.rank - 1))}
        # The axes are added before the dequantize, so that groups still match a dequantized slope.
        if slope.node.op == "dequantize":
            with_axes = call.add("unsqueeze", {"x": slope.node.operands["x"]}, axes)
            slope = call.add("dequantize", {"x": with_axes})
        else:
            slope = call.add("unsqueeze", {"x": slope}, axes)
    return call.add("prelu", {"x": x, "slope": slope})


def _where(call: OverloadCall) -> Value:
    # PyTorch accepts u8 conditions too.
    condition = call.promote("condition", kind=torch.bool)[0]
    a, b = call.promote("self", "other", kind=call.result.dtype)
    return call.add("where", {"condition": condition, "a": a, "b": b})


def _masked_fill(call: OverloadCall) -> Value:
    x = call.value("self")
    replacement = call.promote("value", kind=call.result.dtype)[0]
    return call.add("where", {"condition": call.value("mask"), "a": replacement, "b": x})


def _identity(call: OverloadCall) -> Value:
    return call.value("self" if "self" in call.arguments else "input")


def _cast(call: OverloadCall) -> Value:
    # A copy to another device or memory format keeps the elements, so only the type matters.
    return call.promote("self", kind=call.result.dtype)[0]


def _is_nan(call: OverloadCall) -> Value:
    return call.add("is_nan", {"x": call.value("self")})


def _is_inf(call: OverloadCall) -> Value:
    return call.add("is_inf", {"x": call.value("self")}, {"negative": True, "positive": True})


def _addc(op: str) -> Handler:
    """Returns the converter of addcmul and addcdiv."""

    def read(call: OverloadCall) -> Value:
        x, a, b = call.promote("self", "tensor1", "tensor2", kind=call.result.dtype)
        product = call.add(op, {"a": a, "b": b})
        if call["value"] != 1:
            factor = call.promote("value", kind=call.result.dtype)[0]
            product = call.add("mul", {"a": product, "b": factor})
        return call.add("add", {"a": x, "b": product})

    return read


def _glu(call: OverloadCall) -> Value:
    x = call.value("self")
    axis = call.axis("dim", x.type.rank)
    size = x.type.shape[axis]
    if not isinstance(size, int):
        raise KeepCall
    halves = call.add_many("split", {"x": x}, {"sizes": (size // 2, size // 2), "axis": axis})
    # The first half is gated by the sigmoid of the second.
    return call.add("mul", {"a": halves[0], "b": call.add("sigmoid", {"x": halves[1]})})


_FUNCTIONS = (
    "exp log sqrt reciprocal erf sin cos tan asin acos atan sinh cosh asinh acosh atanh exp2 expm1"
    " log1p log2 log10 rsqrt erfc sigmoid tanh"
).split()
_COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
OPS: dict[str, Handler] = {
    "threshold.default": _threshold,
    **{f"{name}.default": _unary(name) for name in _FUNCTIONS},
    **{
        f"{n}.default": _dtype_keeping_unary(n)
        for n in ("floor", "ceil", "round", "trunc", "neg", "sign")
    },
    "abs.default": _dtype_keeping_unary("abs"),
    "square.default": _dtype_keeping_unary("square"),
    **{
        f"{name}.{form}": _binary(op)
        for name, op in _COMPARISONS.items()
        for form in ("Tensor", "Scalar")
    },
    "add.Tensor": _add_with_alpha("add"),
    "add.Scalar": _add_with_alpha("add"),
    "sub.Tensor": _add_with_alpha("sub"),
    "sub.Scalar": _add_with_alpha("sub"),
    "rsub.Tensor": _add_with_alpha("sub", swapped=True),
    "rsub.Scalar": _add_with_alpha("sub", swapped=True),
    "mul.Tensor": _mul,
    "mul.Scalar": _mul,
    "div.Tensor": _binary("div", _result_dtype),
    "div.Scalar": _binary("div", _result_dtype),
    "div.Tensor_mode": _div_with_rounding,
    "div.Scalar_mode": _div_with_rounding,
    "floor_divide.default": _binary("floor_div", _result_dtype),
    "remainder.Tensor": _binary("mod", _result_dtype),
    "remainder.Scalar": _binary("mod", _result_dtype),
    "atan2.default": _binary("atan2", _result_dtype),
    "minimum.default": _min_or_max("min"),
    "maximum.default": _min_or_max("max"),
    "min.other": _min_or_max("min"),
    "max.other": _min_or_max("max"),
    "pow.Tensor_Scalar": _pow,
    "pow.Scalar": _pow,
    "pow.Tensor_Tensor": _pow,
    "logical_and.default": _logical("logical_and"),
    "logical_or.default": _logical("logical_or"),
    "logical_xor.default": _logical("logical_xor"),
    "logical_not.default": _not,
    "bitwise_not.default": _not,
    "bitwise_and.Tensor": _bitwise("bit_and", "logical_and"),
    "bitwise_or.Tensor": _bitwise("bit_or", "logical_or"),
    "bitwise_xor.Tensor": _bitwise("bit_xor", "logical_xor"),
    **{
        f"{name}.{form}": _bitwise(f"bit_{kind}", f"logical_{kind}")
        for kind in ("and", "or", "xor")
        for name, form in (
            (f"bitwise_{kind}", "Scalar"),
            (f"__{kind}__", "Scalar"),
            (f"__{kind}__", "Tensor"),
        )
    },
    "fmod.Tensor": _fmod,
    "fmod.Scalar": _fmod,
    "__and__.Tensor": _bitwise("bit_and", "logical_and"),
    "__or__.Tensor": _bitwise("bit_or", "logical_or"),
    "isnan.default": _is_nan,
    "isinf.default": _is_inf,
    "clamp.default": _clip,
    "clamp_min.default": _clip,
    "clamp_max.default": _clip,
    "clamp.Tensor": _clip,
    "clamp_min.Tensor": _clip,
    "clamp_max.Tensor": _clip,
    "hardtanh.default": _clip,
    "relu6.default": _relu6,
    "relu.default": _relu,
    "hardsigmoid.default": _hard_sigmoid,
    "hardswish.default": _unary("hard_swish"),
    "silu.default": _unary("silu"),
    "mish.default": _unary("mish"),
    "selu.default": _unary("selu"),
    "celu.default": _unary("celu", alpha="alpha"),
    "elu.default": _elu,
    "gelu.default": _gelu,
    "leaky_relu.default": _unary("leaky_relu", alpha="negative_slope"),
    "softplus.default": _softplus,
    "log_sigmoid.default": _unary("log_sigmoid"),
    "prelu.default": _prelu,
    "glu.default": _glu,
    "where.self": _where,
    "where.ScalarOther": _where,
    "where.ScalarSelf": _where,
    "where.Scalar": _where,
    "masked_fill.Scalar": _masked_fill,
    "masked_fill.Tensor": _masked_fill,
    "addcmul.default": _addc("mul"),
    "addcdiv.default": _addc("div"),
    "alias.default": _identity,
    "clone.default": _identity,
    "contiguous.default": _identity,
    "detach.default": _identity,
    "dropout.default": _identity,
    "feature_dropout.default": _identity,
    "alpha_dropout.default": _identity,
    "lift_fresh_copy.default": _identity,
    "_to_copy.default": _cast,
    "to.dtype": _cast,
    "to.dtype_layout": _cast,
    "to.device": _cast,
    "type_as.default": _cast,
}
