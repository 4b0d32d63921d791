"""How most ops are written: one operator, its attributes under ONNX's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .writer import Wire, Work, Writer

Row: TypeAlias = "Callable[[Writer, Work, dict[str, str]], None]"


def operator(onnx_op: str, **names: str) -> Row:
    """One operator; `names` are ONNX's names of attributes, each with ours."""

    def row(writer: Writer, work: Work, ins: dict[str, str]) -> None:
        attrs = {theirs: _wire(work, ours) for theirs, ours in names.items()}
        writer.emit(onnx_op, ins.values(), [work.out], attrs, origins=work.origins)

    return row


def _wire(work: Work, name: str) -> Wire:
    value = work.attrs[name]
    if isinstance(value, tuple):
        return work.numbers(name)
    assert isinstance(value, int | float | str)
    return int(value) if isinstance(value, bool) else value
