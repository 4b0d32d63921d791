"""Inputs with defaults: constants that the caller may give, where nobody looked into them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from qir.errors import TypeRuleError
from qir.ir.calls import value_dependent_slots
from qir.ir.node import Value
from qir.ledger import Change

from .foreign import SMALL
from .reader import DEFAULTS_SINCE, OnnxReader


def entered(reader: OnnxReader) -> None:
    """Marks the constants that are defaults of inputs; a line of the ledger for each that is fixed.

    One is fixed where its numbers are part of what reads it, such as axes, sizes, scales and
    quantized values, or where the input may have other sizes than it.
    """
    given = list(_with_defaults(reader))
    unused, plain = set(reader.unneeded()), reader.plain() if given else {}
    for info in given:
        value = plain.get(info.name)
        if value is not None and not _fixed(reader, info, value):
            reader.graph.set_attrs(value.node, default=True)
        elif info.name not in unused:
            reader.note(Change.DROPPED, info.name, "an input with a default is a constant here")


def _with_defaults(reader: OnnxReader) -> Iterator[onnx.ValueInfoProto]:
    if reader.file.proto.ir_version >= DEFAULTS_SINCE:
        yield from (info for info in reader.proto.input if reader.is_constant(info.name))


def _fixed(reader: OnnxReader, info: onnx.ValueInfoProto, value: Value) -> bool:
    """Returns whether a type, an attribute or a number of integers hangs on what a constant
    holds."""
    try:
        stated = reader.dims.tensor_type(info.type)
    except (ValueError, TypeRuleError):
        return True
    if stated != value.type or reader.counted_on(value):
        return True
    array = value.constant
    small = array is None or array.contents.size <= SMALL
    return any(
        (small and use.node.op == "foreign") or use.slot in value_dependent_slots(use.node)
        for use in value.uses
    )
