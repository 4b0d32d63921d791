"""Ops that work element by element, on floats, and on integers where nothing can be rounded."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.dtype import BOOL, STRING, DType
from qir.ir.ops.activations import SELU_ALPHA, SELU_GAMMA

from .op import KeepOperator, OnnxOp
from .reader import OnnxReader

_WRAPPING = ("i32", "i64")
Handler = Callable[[OnnxReader, OnnxOp], None]


def floats(reader: OnnxReader, op: OnnxOp) -> None:
    """Keep unless every operand is floats."""
    for name in op.inputs:
        if name and not reader.type_of(op, name).dtype.is_float:
            raise KeepOperator


def _numbers(reader: OnnxReader, op: OnnxOp) -> None:
    kind = reader.type_of(op, op.input(0)).dtype
    if not kind.is_float and kind.name not in _WRAPPING:
        raise KeepOperator


def unary(kind: str, check: Handler = floats, **attrs: float) -> Handler:
    """Returns the handler of an op with one operand and float attributes with these defaults."""

    def read(reader: OnnxReader, op: OnnxOp) -> None:
        check(reader, op)
        given: dict[str, Attr] = {n: op.real(n, v) for n, v in attrs.items()}
        reader.add(op, kind, {"x": reader.value(op, op.input(0))}, given)

    return read


def _prelu(reader: OnnxReader, op: OnnxOp) -> None:
    floats(reader, op)
    x, slope = (reader.value(op, n) for n in op.inputs)
    if slope.type.rank > x.type.rank:
        raise KeepOperator
    reader.add(op, "prelu", {"x": x, "slope": slope})


def _gelu(reader: OnnxReader, op: OnnxOp) -> None:
    floats(reader, op)
    attrs: dict[str, Attr] = {"approximate": op.text("approximate", "none")}
    reader.add(op, "gelu", {"x": reader.value(op, op.input(0))}, attrs)


def _pow(reader: OnnxReader, op: OnnxOp) -> None:
    a, b = (reader.type_of(op, n).dtype for n in op.inputs)
    if not (_is_number(a) and _is_number(b)):
        raise KeepOperator
    operands = {s: reader.value(op, n) for s, n in zip("ab", op.inputs, strict=True)}
    reader.add(op, "pow", operands)


def _mod(reader: OnnxReader, op: OnnxOp) -> None:
    kinds = [reader.type_of(op, n).dtype for n in op.inputs]
    fmod = op.integer("fmod", 0) != 0
    if not all(k.is_integer or (fmod and k.is_float) for k in kinds):
        raise KeepOperator
    operands = {s: reader.value(op, n) for s, n in zip("ab", op.inputs, strict=True)}
    reader.add(op, "mod", operands, {"fmod": fmod})


def _many(reader: OnnxReader, op: OnnxOp) -> None:
    kinds = [reader.type_of(op, n).dtype for n in op.inputs]
    whole = op.type in ("Min", "Max") and all(k.is_integer for k in kinds)
    if not whole and not all(k.is_float for k in kinds):
        raise KeepOperator
    parts = {f"xs.{i}": reader.value(op, n) for i, n in enumerate(op.inputs)}
    reader.add(op, op.type.lower(), parts)


def _pair(kind: str, fits: Callable[[DType], bool], **attrs: str) -> Handler:
    """Returns the handler of an op with two operands of a kind that fits, and attributes that are
    text."""

    def read(reader: OnnxReader, op: OnnxOp) -> None:
        kinds = [reader.type_of(op, n).dtype for n in op.inputs]
        if not all(fits(k) and k == kinds[0] for k in kinds):
            raise KeepOperator
        given: dict[str, Attr] = {n: op.text(n, v).lower() for n, v in attrs.items()}
        operands = {s: reader.value(op, n) for s, n in zip("ab", op.inputs, strict=True)}
        reader.add(op, kind, operands, given)

    return read


def _is_number(kind: DType) -> bool:
    return kind.is_float or kind.is_integer


def _single(kind: str) -> Handler:
    def read(reader: OnnxReader, op: OnnxOp) -> None:
        reader.add(op, kind, {"x": reader.value(op, op.input(0))})

    return read


def _is_inf(reader: OnnxReader, op: OnnxOp) -> None:
    floats(reader, op)
    attrs: dict[str, Attr] = {
        side: op.integer(f"detect_{side}", 1) != 0 for side in ("negative", "positive")
    }
    reader.add(op, "is_inf", {"x": reader.value(op, op.input(0))}, attrs)


def _where(reader: OnnxReader, op: OnnxOp) -> None:
    slots = ("condition", "a", "b")
    reader.add(op, "where", {s: reader.value(op, n) for s, n in zip(slots, op.inputs, strict=True)})


_FUNCTIONS = (
    "Tanh Erf Exp Log Sqrt Reciprocal Floor Ceil Round Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh "
    "Acosh Atanh Softplus Softsign Mish"
).split()

OPS: dict[str, Handler] = {
    **{name: unary(name.lower()) for name in _FUNCTIONS},
    **{name: unary(name.lower(), _numbers) for name in ("Abs", "Neg", "Sign")},
    **{name: _many for name in ("Min", "Max", "Sum", "Mean")},
    "LeakyRelu": unary("leaky_relu", alpha=0.01),
    "ThresholdedRelu": unary("thresholded_relu", alpha=1.0),
    "Elu": unary("elu", alpha=1.0),
    "Celu": unary("celu", alpha=1.0),
    "Selu": unary("selu", alpha=SELU_ALPHA, gamma=SELU_GAMMA),
    "HardSigmoid": unary("hard_sigmoid", alpha=0.2, beta=0.5),
    "HardSwish": unary("hard_swish"),
    "Swish": unary("silu", alpha=1.0),
    "Shrink": unary("shrink", lambd=0.5, bias=0.0),
    "Gelu": _gelu,
    "PRelu": _prelu,
    "Pow": _pow,
    "Mod": _mod,
    "Equal": _pair("equal", lambda kind: _is_number(kind) or kind in (BOOL, STRING)),
    "Less": _pair("less", _is_number),
    "LessOrEqual": _pair("less_equal", _is_number),
    "Greater": _pair("greater", _is_number),
    "GreaterOrEqual": _pair("greater_equal", _is_number),
    "And": _pair("logical_and", lambda kind: kind == BOOL),
    "Or": _pair("logical_or", lambda kind: kind == BOOL),
    "Xor": _pair("logical_xor", lambda kind: kind == BOOL),
    "Not": _single("logical_not"),
    "BitwiseAnd": _pair("bit_and", lambda kind: kind.is_integer),
    "BitwiseOr": _pair("bit_or", lambda kind: kind.is_integer),
    "BitwiseXor": _pair("bit_xor", lambda kind: kind.is_integer),
    "BitwiseNot": _single("bit_not"),
    "BitShift": _pair("bit_shift", lambda kind: kind.is_integer, direction=""),
    "IsNaN": unary("is_nan"),
    "IsInf": _is_inf,
    "Where": _where,
}
