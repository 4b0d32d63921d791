"""Ops of TensorFlow that QIR does not know, written back with the attributes that they had."""

from __future__ import annotations

from typing import Any

from qir.ir.node import Node, Value

from .nodes import GraphNodes, refusal
from .wire import TYPES, Attr, ShapeAttr, TypeAttr, TypeListAttr

_TAKES = "_takes"
"""The attribute in which the reader keeps the element types of operands."""
_NAMES = {number: name for name, number in TYPES.items()}


def write(w: GraphNodes, n: Node) -> list[str]:
    """Writes a kept op as it was; Refused for one of another framework."""
    framework, op = (str(n.attrs[name]) for name in ("framework", "op"))
    if framework != "tensorflow":
        reason = f"{framework}'s {op} is not written for TensorFlow"
        raise refusal(n, f"{reason}; cut the model before it")
    attributes: Any = n.attrs["attrs"]
    stated = dict(attributes)
    operand_types = stated.pop(_TAKES, ("list.type", [0] * len(n.operands)))[1]
    attrs = {name: _attr(n, *pair) for name, pair in stated.items()}
    inputs = [
        _operand_tensor(w, value, kind)
        for value, kind in zip(n.operands.values(), operand_types, strict=True)
    ]
    name = w.add(op, inputs, n.name, **attrs)
    return [f"{name}:{i}" if i else name for i in range(len(n.results))]


def _operand_tensor(w: GraphNodes, value: Value, type_number: int) -> str:
    """Returns an operand; a constant of plain integers has the quantized type that the op takes."""
    kind = _NAMES.get(type_number, "")
    # QIR's recode makes plain integers of quantized constants; the op reads TensorFlow's own type.
    if value.constant is None or value.type.quant is not None or "qint" not in kind:
        return w.tensor(value)
    return w.constant(value.constant.data, kind, value.name)


def _attr(n: Node, field: str, value: Any) -> Attr:
    match field:
        case "type":
            return TypeAttr(_type_name(n, value))
        case "list.type":
            return TypeListAttr(tuple(_type_name(n, each) for each in value))
        case "shape":
            return ShapeAttr(tuple(value))
        case "list.f" | "list.b":
            raise refusal(n, f"lists of {field[-1]} are not written for TensorFlow")
    plain: Attr = tuple(value) if field.startswith("list.") else value
    return plain


def _type_name(n: Node, type_number: int) -> str:
    if type_number not in _NAMES:
        raise refusal(n, f"TensorFlow's type number {type_number} is not written")
    return _NAMES[type_number]
