"""Writes elementwise ops."""

from __future__ import annotations

import numpy as np

from .operator_table import OperatorWriter, operator
from .writer import AttrValue, OnnxWriter, OpToWrite

SWISH_OPSET = 24
"""The first operator set with Swish. onnxruntime 1.31 has no kernel; it decomposes it in this
set alone."""


def _silu(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    alpha = work.float_attr("alpha")
    if writer.opset == SWISH_OPSET or (writer.standard and writer.opset > SWISH_OPSET):
        writer.emit("Swish", [ins["x"]], [work.out], {"alpha": alpha}, origins=work.origins)
        return
    # x * sigmoid(alpha * x)
    scaled = ins["x"]
    if alpha != 1.0:
        scaled = writer.fresh(f"{work.out}_scaled")
        factor = writer.constant(np.array(alpha, work.kind.dtype.carrier), f"{work.out}_alpha")
        writer.emit("Mul", [ins["x"], factor], [scaled])
    gate = writer.fresh(f"{work.out}_gate")
    writer.emit("Sigmoid", [scaled], [gate])
    writer.emit("Mul", [ins["x"], gate], [work.out], origins=work.origins)


def _mod(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    fmod = work.attrs["fmod"] is True
    # By the standard fmod must be 1 for floats; with it the sign is that of the dividend.
    if work.kind.dtype.is_float and not fmod:
        raise writer.refuse(work.node, "ONNX's Mod of floats has the sign of a, not of b")
    attrs = {"fmod": 1} if fmod else {}
    writer.emit("Mod", ins.values(), [work.out], attrs, origins=work.origins)


def _bit_shift(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    attrs: dict[str, AttrValue] = {"direction": str(work.attrs["direction"]).upper()}
    writer.emit("BitShift", ins.values(), [work.out], attrs, origins=work.origins)


def _is_inf(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    sides = ("negative", "positive")
    attrs: dict[str, AttrValue] = {f"detect_{s}": 0 for s in sides if not work.attrs[s]}
    writer.emit("IsInf", ins.values(), [work.out], attrs, origins=work.origins)


def _pow(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    kind = work.kind.express
    if kind.is_integer and kind.name not in ("i32", "i64"):
        raise writer.refuse(work.node, f"ONNX's Pow takes i32 and i64 of integers, a is {kind}")
    writer.emit("Pow", ins.values(), [work.out], origins=work.origins)


def _sum(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    parts = list(ins.values())
    # ONNX's Sum is for floats alone: integers are added in pairs.
    if not work.kind.express.is_integer or len(parts) == 1:
        writer.emit("Sum", parts, [work.out], origins=work.origins)
        return
    for i, part in enumerate(parts[1:], 1):
        last = i == len(parts) - 1
        partial = work.out if last else writer.fresh(f"{work.out}_sum")
        writer.emit("Add", [parts[0], part], [partial], origins=work.origins if last else ())
        parts[0] = partial


def _equal(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    if work.op == "equal":
        writer.emit("Equal", ins.values(), [work.out], origins=work.origins)
        return
    # ONNX has no NotEqual.
    equals = writer.fresh(f"{work.out}_equal")
    writer.emit("Equal", ins.values(), [equals])
    writer.emit("Not", [equals], [work.out], origins=work.origins)


_SAME_NAME = (
    "Tanh Erf Exp Log Sqrt Reciprocal Floor Ceil Round Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh "
    "Acosh Atanh Softplus Softsign Mish Abs Neg Sign Min Max Mean"
).split()
"""Operators whose lower-case name is the op's."""

FIRST_OPSETS = dict.fromkeys(("bit_and", "bit_or", "bit_xor", "bit_not"), 18)
"""The first operator set that has an op, where it is newer than the oldest written one."""

OPS: dict[str, OperatorWriter] = {
    **{name.lower(): operator(name) for name in _SAME_NAME},
    "leaky_relu": operator("LeakyRelu", alpha="alpha"),
    "prelu": operator("PRelu"),
    "thresholded_relu": operator("ThresholdedRelu", alpha="alpha"),
    "elu": operator("Elu", alpha="alpha"),
    "celu": operator("Celu", alpha="alpha"),
    "selu": operator("Selu", alpha="alpha", gamma="gamma"),
    "hard_sigmoid": operator("HardSigmoid", alpha="alpha", beta="beta"),
    "hard_swish": operator("HardSwish"),
    "shrink": operator("Shrink", lambd="lambd", bias="bias"),
    "gelu": operator("Gelu", approximate="approximate"),
    "silu": _silu,
    "mod": _mod,
    "pow": _pow,
    "sum": _sum,
    "equal": _equal,
    "not_equal": _equal,
    "less": operator("Less"),
    "less_equal": operator("LessOrEqual"),
    "greater": operator("Greater"),
    "greater_equal": operator("GreaterOrEqual"),
    "logical_and": operator("And"),
    "logical_or": operator("Or"),
    "logical_xor": operator("Xor"),
    "logical_not": operator("Not"),
    "bit_and": operator("BitwiseAnd"),
    "bit_or": operator("BitwiseOr"),
    "bit_xor": operator("BitwiseXor"),
    "bit_not": operator("BitwiseNot"),
    "bit_shift": _bit_shift,
    "is_nan": operator("IsNaN"),
    "is_inf": _is_inf,
    "where": operator("Where"),
}
