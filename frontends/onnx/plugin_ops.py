"""Ops that plugins bring, read by the names that they say ONNX has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
from onnx import AttributeProto

from qir.ir.attrs import Attr
from qir.ir.node import Value
from qir.ir.ops import AttrSpec, PluginOp, found_elsewhere

from .op import OnnxOp
from .reader import OnnxReader

_KINDS: Mapping[str, int] = {
    "int": AttributeProto.INT,
    "bool": AttributeProto.INT,
    "float": AttributeProto.FLOAT,
    "text": AttributeProto.STRING,
    "ints": AttributeProto.INTS,
    "floats": AttributeProto.FLOATS,
    "texts": AttributeProto.STRINGS,
}


def handler(op: OnnxOp) -> Callable[[OnnxReader, OnnxOp], None] | None:
    """Returns what reads an op of that domain and name, where a plugin brings it."""
    found = found_elsewhere("onnx", op.domain, op.type)
    if found is None:
        return None
    return lambda reader, op: _read(found, reader, op)


def _read(found: PluginOp, reader: OnnxReader, op: OnnxOp) -> None:
    row = found.spec
    if any(slot.variadic for slot in row.operands):
        slots = [f"xs.{i}" for i in range(len(op.inputs))]
    else:
        slots = [slot.name for slot in row.operands]
    if len(op.inputs) > len(slots):
        raise op.fail(f"has {len(op.inputs)} inputs, {row.name} takes {len(slots)}")
    operands: dict[str, Value] = {
        slot: reader.value(op, name) for slot, name in zip(slots, op.inputs, strict=False) if name
    }
    named = {ours: theirs for ours, theirs in found.elsewhere["onnx"].attrs.items()}
    attrs: dict[str, Attr] = {}
    known = {named.get(attr.name, attr.name): attr for attr in row.attrs}
    for given in op.proto.attribute:
        if given.name not in known:
            raise op.fail(f"has an attribute {given.name!r} that {row.name} does not take")
        attrs[known[given.name].name] = _value(op, known[given.name], given)
    reader.add(op, row.name, operands, attrs)


def _value(op: OnnxOp, attr: AttrSpec, given: AttributeProto) -> Attr:
    if _KINDS.get(attr.kind) != given.type:
        raise op.fail(f"attribute {given.name!r} is not {attr.kind}")
    value = onnx.helper.get_attribute_value(given)
    match attr.kind:
        case "bool":
            return bool(value)
        case "text":
            return str(value.decode())
        case "texts":
            return tuple(text.decode() for text in value)
        case "ints" | "floats":
            return tuple(value)
    return int(value) if attr.kind == "int" else float(value)
