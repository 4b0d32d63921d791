"""Elementwise operators, on floats, and on integers where no result is rounded."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.dtype import BOOL, STRING, DType
from qir.ir.ops.activations import SELU_ALPHA, SELU_GAMMA

from .op import KeepOperator, OnnxOp
from .reader import OnnxReader

WRAPPING_DTYPES = ("i32", "i64")
"""Integer types whose sums and products wrap, in NumPy as in onnxruntime."""
Handler = Callable[[OnnxReader, OnnxOp], None]


def keep_unless_floats(reader: OnnxReader, op: OnnxOp) -> None:
    """Raises KeepOperator unless every operand has a float type."""
    for name in op.inputs:
        if name and not reader.type_of(op, name).dtype.is_float:
            raise KeepOperator


def _keep_unless_floats_or_wrapping(reader: OnnxReader, op: OnnxOp) -> None:
    element_type = reader.type_of(op, op.input(0)).dtype
    if not element_type.is_float and element_type.name not in WRAPPING_DTYPES:
        raise KeepOperator


def unary(op_name: str, check: Handler = keep_unless_floats, **attrs: float) -> Handler:
    """Returns the handler of an op with one operand and float attributes, given their defaults."""

    def read(reader: OnnxReader, op: OnnxOp) -> None:
        check(reader, op)
        attr_values: dict[str, Attr] = {n: op.floating(n, v) for n, v in attrs.items()}
        reader.add(op, op_name, {"x": reader.value(op, op.input(0))}, attr_values)

    return read


def _prelu(reader: OnnxReader, op: OnnxOp) -> None:
    keep_unless_floats(reader, op)
    x, slope = (reader.value(op, n) for n in op.inputs)
    # A slope of higher rank would broadcast x, which the op does not do.
    if slope.type.rank > x.type.rank:
        raise KeepOperator
    reader.add(op, "prelu", {"x": x, "slope": slope})


def _gelu(reader: OnnxReader, op: OnnxOp) -> None:
    keep_unless_floats(reader, op)
    attrs: dict[str, Attr] = {"approximate": op.text("approximate", "none")}
    reader.add(op, "gelu", {"x": reader.value(op, op.input(0))}, attrs)


def _pow(reader: OnnxReader, op: OnnxOp) -> None:
    a, b = (reader.type_of(op, n).dtype for n in op.inputs)
    if not (_is_number(a) and _is_number(b)):
        raise KeepOperator
    operands = {s: reader.value(op, n) for s, n in zip("ab", op.inputs, strict=True)}
    reader.add(op, "pow", operands)


def _mod(reader: OnnxReader, op: OnnxOp) -> None:
    element_types = [reader.type_of(op, n).dtype for n in op.inputs]
    fmod = op.integer("fmod", 0) != 0
    # Without fmod, the sign follows the divisor and floats are not permitted; with it, C's fmod.
    if not all(
        element_type.is_integer or (fmod and element_type.is_float)
        for element_type in element_types
    ):
        raise KeepOperator
    operands = {s: reader.value(op, n) for s, n in zip("ab", op.inputs, strict=True)}
    reader.add(op, "mod", operands, {"fmod": fmod})


def _variadic(reader: OnnxReader, op: OnnxOp) -> None:
    element_types = [reader.type_of(op, n).dtype for n in op.inputs]
    # Sum and Mean of integers do not exist in ONNX; Min and Max compare, so nothing is rounded.
    are_integers = op.type in ("Min", "Max") and all(
        element_type.is_integer for element_type in element_types
    )
    if not are_integers and not all(element_type.is_float for element_type in element_types):
        raise KeepOperator
    parts = {f"xs.{i}": reader.value(op, n) for i, n in enumerate(op.inputs)}
    reader.add(op, op.type.lower(), parts)


def _binary(op_name: str, is_supported: Callable[[DType], bool], **attrs: str) -> Handler:
    """Returns the handler of an op with two operands of one element type, and text attributes."""

    def read(reader: OnnxReader, op: OnnxOp) -> None:
        element_types = [reader.type_of(op, n).dtype for n in op.inputs]
        # The op requires one type of both operands, as ONNX does; others are malformed or kept.
        if not all(
            is_supported(element_type) and element_type == element_types[0]
            for element_type in element_types
        ):
            raise KeepOperator
        attr_values: dict[str, Attr] = {n: op.text(n, v).lower() for n, v in attrs.items()}
        operands = {s: reader.value(op, n) for s, n in zip("ab", op.inputs, strict=True)}
        reader.add(op, op_name, operands, attr_values)

    return read


def _is_number(kind: DType) -> bool:
    return kind.is_float or kind.is_integer


def _unary_of_any_dtype(op_name: str) -> Handler:
    def read(reader: OnnxReader, op: OnnxOp) -> None:
        reader.add(op, op_name, {"x": reader.value(op, op.input(0))})

    return read


def _is_inf(reader: OnnxReader, op: OnnxOp) -> None:
    keep_unless_floats(reader, op)
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
    **{
        name: unary(name.lower(), _keep_unless_floats_or_wrapping)
        for name in ("Abs", "Neg", "Sign")
    },
    **{name: _variadic for name in ("Min", "Max", "Sum", "Mean")},
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
    "Equal": _binary("equal", lambda kind: _is_number(kind) or kind in (BOOL, STRING)),
    "Less": _binary("less", _is_number),
    "LessOrEqual": _binary("less_equal", _is_number),
    "Greater": _binary("greater", _is_number),
    "GreaterOrEqual": _binary("greater_equal", _is_number),
    "And": _binary("logical_and", lambda kind: kind == BOOL),
    "Or": _binary("logical_or", lambda kind: kind == BOOL),
    "Xor": _binary("logical_xor", lambda kind: kind == BOOL),
    "Not": _unary_of_any_dtype("logical_not"),
    "BitwiseAnd": _binary("bit_and", lambda kind: kind.is_integer),
    "BitwiseOr": _binary("bit_or", lambda kind: kind.is_integer),
    "BitwiseXor": _binary("bit_xor", lambda kind: kind.is_integer),
    "BitwiseNot": _unary_of_any_dtype("bit_not"),
    "BitShift": _binary("bit_shift", lambda kind: kind.is_integer, direction=""),
    "IsNaN": unary("is_nan"),
    "IsInf": _is_inf,
    "Where": _where,
}
