"""Operators that move elements (Reshape, Transpose, Concat, Pad), and Identity and Dropout.

They are read alike for floats and quantized values.
"""

from __future__ import annotations

import numpy as np

from qir.errors import TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.node import Value
from qir.ir.ops import spec
from qir.ledger import Change

from .op import KeepOperator, OnnxOp
from .reader import OnnxReader


def add_moving_op(
    reader: OnnxReader, op: OnnxOp, op_name: str, operands: dict[str, Value], attrs: dict[str, Attr]
) -> None:
    """Adds the node; raises KeepOperator where the axis of per-channel scales would be lost."""
    is_quantized = any(v.type.quant for v in operands.values())
    if is_quantized:
        try:
            infer_result_types(op_name, operands, spec(op_name).complete_attrs(attrs))
        except TypeRuleError:
            raise KeepOperator from None
    reader.add(op, op_name, operands, attrs)


def reshape(reader: OnnxReader, op: OnnxOp) -> None:
    """Reshape."""
    x, shape = reader.value_to_move(op, op.input(0)), reader.value(op, op.input(1))
    attrs: dict[str, Attr] = {"allow_zero": op.integer("allowzero", 0) != 0}
    if shape.type.rank != 1:
        raise op.error(f"its shape operand has {shape.type.rank} axes, it takes 1")
    if shape.constant is None and not isinstance(shape.type.shape[0], int):
        raise KeepOperator
    add_moving_op(reader, op, "reshape", {"x": x, "shape": shape}, attrs)


def flatten(reader: OnnxReader, op: OnnxOp) -> None:
    """Flatten."""
    x = reader.value_to_move(op, op.input(0))
    add_moving_op(reader, op, "flatten", {"x": x}, {"axis": op.integer("axis", 1)})


def transpose(reader: OnnxReader, op: OnnxOp) -> None:
    """Transpose."""
    x = reader.value_to_move(op, op.input(0))
    perm = op.integers("perm", tuple(range(x.type.rank))[::-1])
    add_moving_op(reader, op, "transpose", {"x": x}, {"perm": perm})


def concat(reader: OnnxReader, op: OnnxOp) -> None:
    """Concat; raises KeepOperator for operands of different quantized types."""
    parts = [reader.value_to_move(op, n) for n in op.inputs]
    first = parts[0].type.quant
    for part in parts[1:]:
        quant = part.type.quant
        # Results have one quantized type: values of another would have to be requantized.
        if (first is None) != (quant is None) or (
            first and quant and not first.has_same_mapping(quant)
        ):
            raise KeepOperator
    attrs: dict[str, Attr] = {"axis": op.integer("axis", 1)}
    add_moving_op(reader, op, "concat", {f"xs.{i}": p for i, p in enumerate(parts)}, attrs)


def pad(reader: OnnxReader, op: OnnxOp) -> None:
    """Pad; its amounts are an attribute before opset 11 and an operand since."""
    x = reader.value_to_move(op, op.input(0))
    mode = op.text("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise KeepOperator
    if op.opset < 11:
        amounts, value = op.integers("pads", ()), op.floating("value", 0.0)
    else:
        amounts = tuple(int(p) for p in reader.constant_data(op.input(1)).reshape(-1))
        fill = reader.constant_data(op.input(2)).astype(np.float64) if op.input(2) else np.zeros(1)
        if fill.size != 1:
            raise op.error(f"pads with {fill.size} numbers, it takes 1")
        value = float(fill.reshape(()))
    if op.input(3):
        amounts = _pads_of_all_axes(reader, op, x.type.rank, amounts)
    # ONNX pads integers with an integer; the value of `pad` is a float, which gives it back.
    if (quant := x.type.quant) is not None:
        # Per-channel types have no one float that gives back the integer.
        if quant.granularity or np.isnan(value):
            raise KeepOperator
        value = float((value - float(quant.zeros())) * float(quant.scales()))
    elif not x.type.dtype.is_float:
        raise KeepOperator
    attrs: dict[str, Attr] = {"pads": amounts, "mode": mode, "value": value}
    add_moving_op(reader, op, "pad", {"x": x}, attrs)


def _pads_of_all_axes(
    reader: OnnxReader, op: OnnxOp, rank: int, amounts: tuple[int, ...]
) -> tuple[int, ...]:
    axes = [int(a) for a in reader.constant_data(op.input(3)).reshape(-1)]
    if len(amounts) != 2 * len(axes) or any(not -rank <= a < rank for a in axes):
        raise op.error(f"{len(amounts)} pads for axes {axes} of {rank}")
    all_pads = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        # All amounts before come first, then all amounts after.
        all_pads[axis % rank] = amounts[i]
        all_pads[axis % rank + rank] = amounts[i + len(axes)]
    return tuple(all_pads)


def identity(reader: OnnxReader, op: OnnxOp) -> None:
    """Identity as an alias of its operand."""
    reader.type_of(op, op.input(0))
    reader.alias(op.outputs[0], op.input(0))
    reader.note(Change.EXACT, op.outputs[0], f"Identity of {op.input(0)} taken out")


def dropout(reader: OnnxReader, op: OnnxOp) -> None:
    """Dropout in inference mode as an alias; with a mask or in training mode it is kept."""
    if len(op.outputs) > 1 and reader.read_counts.get(op.outputs[1]):
        raise KeepOperator
    # The third operand is training_mode.
    if op.input(2) and (
        not reader.is_constant(op.input(2)) or reader.constant_data(op.input(2)).any()
    ):
        raise KeepOperator
    reader.type_of(op, op.input(0))
    reader.alias(op.outputs[0], op.input(0))
    reader.note(Change.DROPPED, op.outputs[0], f"Dropout of {op.input(0)}, which only training has")


OPS = {
    "Reshape": reshape,
    "Flatten": flatten,
    "Transpose": transpose,
    "Concat": concat,
    "Pad": pad,
    "Identity": identity,
    "Dropout": dropout,
}
