"""Inputs with defaults: constants that the caller may replace, unless the graph depends on them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from qir.errors import TypeRuleError
from qir.ir.calls import value_dependent_slots
from qir.ir.node import Value
from qir.ledger import Change

from .foreign import MAX_SHAPE_ELEMENTS
from .reader import DEFAULTS_SINCE_IR_VERSION, OnnxReader


def mark_overridable_constants(reader: OnnxReader) -> None:
    """Marks constants that are defaults of inputs with `default = true`, and reports the fixed
    ones.

    A default is fixed where the graph depends on its elements (axes, sizes, scales, quantized
    values), and where the input is declared with another type.
    """
    inputs = list(_inputs_with_defaults(reader))
    if not inputs:
        return
    unused, constants = set(reader.unused_constants()), reader.unquantized_constants()
    for info in inputs:
        value = constants.get(info.name)
        if value is not None and not _is_fixed(reader, info, value):
            reader.graph.set_attrs(value.node, default=True)
        elif info.name not in unused:
            reader.note(Change.DROPPED, info.name, "an input with a default is a constant here")


def _inputs_with_defaults(reader: OnnxReader) -> Iterator[onnx.ValueInfoProto]:
    if reader.file.proto.ir_version >= DEFAULTS_SINCE_IR_VERSION:
        yield from (info for info in reader.proto.input if reader.is_constant(info.name))


def _is_fixed(reader: OnnxReader, info: onnx.ValueInfoProto, value: Value) -> bool:
    """Returns whether a type or an attribute of the graph depends on the elements of a constant."""
    try:
        stated = reader.dims.tensor_type(info.type)
    except (ValueError, TypeRuleError):
        return True
    if stated != value.type or reader.is_inspected(value):
        return True
    array = value.constant
    is_small = array is None or array.contents.size <= MAX_SHAPE_ELEMENTS
    return any(
        # Shape inference of a foreign op was given the elements of small constants.
        (is_small and use.node.op == "foreign") or use.slot in value_dependent_slots(use.node)
        for use in value.uses
    )
