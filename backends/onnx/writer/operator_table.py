"""The table of ops that are one ONNX operator: its name and attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from onnx import TensorProto

from .writer import AttrValue, OnnxWriter, OpToWrite

OperatorWriter: TypeAlias = "Callable[[OnnxWriter, OpToWrite, dict[str, str]], None]"
"""Writes an op; the last argument has the operands' tensor names by slot."""


def operator(onnx_op: str, **names: str) -> OperatorWriter:
    """Returns a writer of one operator; `names` maps ONNX's attribute names to QIR's."""

    def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        attrs = {theirs: _attribute_value(work, ours) for theirs, ours in names.items()}
        writer.emit(onnx_op, ins.values(), [work.out], attrs, origins=work.origins)

    return write


def _attribute_value(work: OpToWrite, name: str) -> AttrValue:
    value = work.attrs[name]
    if isinstance(value, tuple):
        return work.int_tuple(name)
    assert isinstance(value, int | float | str)
    # ONNX has no bool attributes: they are integers.
    return int(value) if isinstance(value, bool) else value


def int64_operand(
    writer: OnnxWriter, work: OpToWrite, ins: dict[str, str], slot: str, *more: str
) -> str:
    """Returns an integer operand as int64, or as another type that the operator accepts
    (`more`)."""
    kind = work.operands[slot].type.dtype.name
    if kind in ("i64", *more):
        return ins[slot]
    out = writer.fresh(f"{work.out}_{slot}")
    writer.emit("Cast", [ins[slot]], [out], {"to": TensorProto.INT64})
    return out
