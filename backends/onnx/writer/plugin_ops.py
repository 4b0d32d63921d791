"""Writes ops of plugins under the ONNX names that they state."""

from __future__ import annotations

from qir.ir.attrs import Attr
from qir.ir.node import Node
from qir.ir.ops import OPS, Elsewhere, plugin_op, spec

from .writer import AttrValue, OnnxWriter


def is_plugin_op(node: Node) -> bool:
    """Returns whether the node is an op that a plugin brings."""
    return not OPS.own(node.op)


def write(writer: OnnxWriter, node: Node) -> None:
    """Writes an op of a plugin; raises Refused where ONNX has no name for it, or where it is
    quantized."""
    form = plugin_op(node.op).elsewhere.get("onnx")
    if form is None:
        raise writer.refuse(node, f"{node.op} has no form in ONNX; the plugin names none")
    if any(v.type.quant for v in (*node.operands.values(), *node.results)):
        raise writer.refuse(
            node, f"{node.op} computes on quantized values; `format='qdq'` would do"
        )
    op_spec = spec(node.op)
    slots = [slot.name for slot in op_spec.operands]
    if any(slot.variadic for slot in op_spec.operands):
        ins = [writer.name(value) for value in node.variadic("xs")]
    else:
        # Absent optional operands in between are empty names; trailing ones are left out.
        operands = node.operands
        ins = [writer.name(operands[slot]) if slot in operands else "" for slot in slots]
        while ins and not ins[-1]:
            ins.pop()
    attrs = {
        form.attrs.get(name, name): _attribute_value(writer, node, name, value)
        for name, value in node.attrs.items()
        if value is not None
    }
    writer.domains[form.domain] = max(form.version, writer.domains.get(form.domain, 1))
    _emit(writer, node, form, ins, attrs)


def _emit(
    writer: OnnxWriter, node: Node, form: Elsewhere, ins: list[str], attrs: dict[str, AttrValue]
) -> None:
    outs = [writer.name(value) for value in node.results]
    writer.emit(form.op, ins, outs, attrs, domain=form.domain, origins=node.origins)
    for value in node.results:
        writer.add_value_info(value)


def _attribute_value(writer: OnnxWriter, node: Node, name: str, value: Attr) -> AttrValue:
    match value:
        case bool():
            # bool is a subclass of int, so it comes first: ONNX has integers alone.
            return int(value)
        case int() | float() | str():
            return value
        case (_, *_) if all(type(v) is int for v in value):
            return tuple(v for v in value if type(v) is int)
        case (_, *_) if all(isinstance(v, float) for v in value):
            return tuple(v for v in value if isinstance(v, float))
        case (_, *_) if all(isinstance(v, str) for v in value):
            return tuple(v for v in value if isinstance(v, str))
    raise writer.refuse(node, f"attribute {name} = {value!r} has no form in ONNX")
