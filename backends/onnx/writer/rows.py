"""The table of ops that are one ONNX operator: its name and attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from onnx import TensorProto

from .writer import OnnxWriter, Wire, Work

Row: TypeAlias = "Callable[[OnnxWriter, Work, dict[str, str]], None]"


def operator(onnx_op: str, **names: str) -> Row:
    """Returns one operator; `names` are ONNX's names of attributes, each with ours."""

    def row(writer: OnnxWriter, work: Work, ins: dict[str, str]) -> None:
        attrs = {theirs: _wire(work, ours) for theirs, ours in names.items()}
        writer.emit(onnx_op, ins.values(), [work.out], attrs, origins=work.origins)

    return row


def _wire(work: Work, name: str) -> Wire:
    value = work.attrs[name]
    if isinstance(value, tuple):
        return work.numbers(name)
    assert isinstance(value, int | float | str)
    return int(value) if isinstance(value, bool) else value


def whole(writer: OnnxWriter, work: Work, ins: dict[str, str], slot: str, *more: str) -> str:
    """Returns an operand of whole numbers as int64, or as a type that the operator takes next to
    it."""
    kind = work.operands[slot].type.dtype.name
    if kind in ("i64", *more):
        return ins[slot]
    out = writer.fresh(f"{work.out}_{slot}")
    writer.emit("Cast", [ins[slot]], [out], {"to": TensorProto.INT64})
    return out
