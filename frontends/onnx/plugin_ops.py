"""Operators of plugins, read by the ONNX domain and name that the plugin's op states."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
from onnx import AttributeProto

from qir.ir.attrs import Attr
from qir.ir.node import Value
from qir.ir.ops import AttrSpec, PluginOp, found_elsewhere

from .op import OnnxOp
from .reader import OnnxReader

_ATTRIBUTE_TYPES: Mapping[str, int] = {
    "int": AttributeProto.INT,
    "bool": AttributeProto.INT,
    "float": AttributeProto.FLOAT,
    "text": AttributeProto.STRING,
    "ints": AttributeProto.INTS,
    "floats": AttributeProto.FLOATS,
    "texts": AttributeProto.STRINGS,
}


def plugin_handler(op: OnnxOp) -> Callable[[OnnxReader, OnnxOp], None] | None:
    """Returns the handler of an operator that a plugin defines, if one does."""
    found = found_elsewhere("onnx", op.domain, op.type)
    if found is None:
        return None
    return lambda reader, op: _read(found, reader, op)


def _read(plugin: PluginOp, reader: OnnxReader, op: OnnxOp) -> None:
    spec = plugin.spec
    if any(slot.variadic for slot in spec.operands):
        slots = [f"xs.{i}" for i in range(len(op.inputs))]
    else:
        slots = [slot.name for slot in spec.operands]
    if len(op.inputs) > len(slots):
        raise op.error(f"has {len(op.inputs)} inputs, {spec.name} takes {len(slots)}")
    operands: dict[str, Value] = {
        slot: reader.value(op, name) for slot, name in zip(slots, op.inputs, strict=False) if name
    }
    named = {ours: theirs for ours, theirs in plugin.elsewhere["onnx"].attrs.items()}
    attrs: dict[str, Attr] = {}
    known = {named.get(attr.name, attr.name): attr for attr in spec.attrs}
    for given in op.proto.attribute:
        if given.name not in known:
            raise op.error(f"has an attribute {given.name!r} that {spec.name} does not take")
        attrs[known[given.name].name] = _attribute_value(op, known[given.name], given)
    reader.add(op, spec.name, operands, attrs)


def _attribute_value(op: OnnxOp, attr: AttrSpec, given: AttributeProto) -> Attr:
    if _ATTRIBUTE_TYPES.get(attr.kind) != given.type:
        raise op.error(f"attribute {given.name!r} is not {attr.kind}")
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
