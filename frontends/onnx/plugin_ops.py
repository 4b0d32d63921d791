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
    plugin = found_elsewhere("onnx", op.domain, op.type)
    if plugin is None:
        return None
    return lambda reader, op: _read(plugin, reader, op)


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
    # A plugin may give an attribute another name than the operator of the file has.
    file_names = {
        attr_name: file_name for attr_name, file_name in plugin.elsewhere["onnx"].attrs.items()
    }
    attrs: dict[str, Attr] = {}
    attrs_by_file_name = {file_names.get(attr.name, attr.name): attr for attr in spec.attrs}
    for attribute in op.proto.attribute:
        if attribute.name not in attrs_by_file_name:
            raise op.error(f"has an attribute {attribute.name!r} that {spec.name} does not take")
        attrs[attrs_by_file_name[attribute.name].name] = _attribute_value(
            op, attrs_by_file_name[attribute.name], attribute
        )
    reader.add(op, spec.name, operands, attrs)


def _attribute_value(op: OnnxOp, attr: AttrSpec, attribute: AttributeProto) -> Attr:
    if _ATTRIBUTE_TYPES.get(attr.kind) != attribute.type:
        raise op.error(f"attribute {attribute.name!r} is not {attr.kind}")
    value = onnx.helper.get_attribute_value(attribute)
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
