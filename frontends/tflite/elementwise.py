"""Arithmetic, comparisons, functions and activations, element by element."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import OperatorCall
from .reader import Unread

Converter = Callable[[OperatorCall], Value]


def _unary(op: str, **attrs: Attr) -> Converter:
    """Returns the converter of a function of one operand."""
    return lambda call: call.finish(op, {"x": call[0]}, attrs)


def _binary(op: str) -> Converter:
    """Returns the converter of an op of two operands."""
    return lambda call: call.finish(op, {"a": call[0], "b": call[1]})


def _extreme(op: str) -> Converter:
    """Returns the converter of a minimum or maximum."""
    return lambda call: call.finish(op, {"xs.0": call[0], "xs.1": call[1]})


def _div(call: OperatorCall) -> Value:
    """Reads DIV, which divides integers toward zero."""
    a, b = call[0], call[1]
    if a.type.express.is_float:
        return call.finish("div", {"a": a, "b": b})
    quotient = {"a": call.add("abs", {"x": a}), "b": call.add("abs", {"x": b})}
    magnitude = call.add("floor_div", quotient)
    signs = {"a": call.add("sign", {"x": a}), "b": call.add("sign", {"x": b})}
    return call.add("mul", {"a": magnitude, "b": call.add("mul", signs)})


def _sum(call: OperatorCall) -> Value:
    if call.count == 1:
        return call[0]
    return call.finish("sum", {f"xs.{i}": value for i, value in enumerate(call.operands)})


def _leaky_relu(call: OperatorCall) -> Value:
    return call.finish("leaky_relu", {"x": call[0]}, {"alpha": call.real("alpha")})


def _prelu(call: OperatorCall) -> Value:
    return call.finish("prelu", {"x": call[0], "slope": call[1]})


def _gelu(call: OperatorCall) -> Value:
    approximate = "tanh" if call.flag("approximate") else "none"
    return call.finish("gelu", {"x": call[0]}, {"approximate": approximate})


def _softmax(call: OperatorCall) -> Value:
    x, beta = call[0], call.real("beta", 1.0)
    if beta != 1.0:
        if x.type.quant is not None:
            raise Unread(f"its beta is {beta:g}, and kernels of integers are known for 1")
        x = call.add("mul", {"a": x, "b": call.scalar_like(beta, x)})
    return call.finish("softmax", {"x": x}, {"axis": -1})


def _cast(call: OperatorCall) -> Value:
    x, to = call[0], call.result_dtype()
    return x if x.type.element == to else call.add("cast", {"x": x}, {"to": to})


def _dequantize(call: OperatorCall) -> Value:
    x = call[0]
    if x.type.quant is None:  # half floats, which converters store weights as
        return _cast(call)
    return call.finish("dequantize", {"x": x})


def _quantize(call: OperatorCall) -> Value:
    x, quant = call[0], call.result_quant()
    if quant is None:
        raise Unread("its result is of no type that is quantized")
    return call.finish("quantize" if x.type.quant is None else "requantize", {"x": x})


def _select(call: OperatorCall) -> Value:
    condition = call[0]
    rank = call.rank(1)
    quants = [call[1].type.quant, call[2].type.quant, call.result_quant()]
    if any(quant is not None for quant in quants) and not all(
        quant is not None and quants[0] is not None and quant.has_same_mapping(quants[0])
        for quant in quants
    ):
        raise Unread("it copies integers whose scales differ from its result's")
    # SELECT with a row of conditions chooses whole rows of its operands.
    if call.operator.op == "SELECT" and condition.type.rank == 1 < rank:
        axes = tuple(range(1, rank))
        condition = call.add("unsqueeze", {"x": condition}, {"axes": axes})
    return call.finish("where", {"condition": condition, "a": call[1], "b": call[2]})


OPS: dict[str, Converter] = {
    "ABS": _unary("abs"),
    "ADD": _binary("add"),
    "ADD_N": _sum,
    "ATAN2": _binary("atan2"),
    "CAST": _cast,
    "CEIL": _unary("ceil"),
    "COS": _unary("cos"),
    "DEQUANTIZE": _dequantize,
    "DIV": _div,
    "ELU": _unary("elu"),
    "EQUAL": _binary("equal"),
    "EXP": _unary("exp"),
    "FLOOR": _unary("floor"),
    "FLOOR_DIV": _binary("floor_div"),
    "FLOOR_MOD": _binary("mod"),
    "GELU": _gelu,
    "GREATER": _binary("greater"),
    "GREATER_EQUAL": _binary("greater_equal"),
    "HARD_SWISH": _unary("hard_swish"),
    "LEAKY_RELU": _leaky_relu,
    "LESS": _binary("less"),
    "LESS_EQUAL": _binary("less_equal"),
    "LOG": _unary("log"),
    "LOGICAL_AND": _binary("logical_and"),
    "LOGICAL_NOT": _unary("logical_not"),
    "LOGICAL_OR": _binary("logical_or"),
    "LOGISTIC": _unary("sigmoid"),
    "LOG_SOFTMAX": _unary("log_softmax", axis=-1),
    "MAXIMUM": _extreme("max"),
    "MINIMUM": _extreme("min"),
    "MUL": _binary("mul"),
    "NEG": _unary("neg"),
    "NOT_EQUAL": _binary("not_equal"),
    "POW": _binary("pow"),
    "PRELU": _prelu,
    "QUANTIZE": _quantize,
    "RELU": _unary("relu"),
    "RELU6": _unary("clip", min=0.0, max=6.0),
    "RELU_0_TO_1": _unary("clip", min=0.0, max=1.0),
    "RELU_N1_TO_1": _unary("clip", min=-1.0, max=1.0),
    "ROUND": _unary("round"),
    "RSQRT": _unary("rsqrt"),
    "SELECT": _select,
    "SELECT_V2": _select,
    "SIGN": _unary("sign"),
    "SIN": _unary("sin"),
    "SOFTMAX": _softmax,
    "SQRT": _unary("sqrt"),
    "SQUARE": _unary("square"),
    "SQUARED_DIFFERENCE": _binary("squared_difference"),
    "SUB": _binary("sub"),
    "TANH": _unary("tanh"),
}
