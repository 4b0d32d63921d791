"""Operators of MXNet that QIR does not know: written as the file had them."""

from __future__ import annotations

import json
from typing import Any, cast

from qir.errors import PluginError
from qir.ir.node import Node, Value

from .quantized import Ranges
from .symbol import Entry
from .writer import SymbolWriter

FRAMEWORK = "mxnet"


def is_kept(node: Node) -> bool:
    """Returns whether a node is an operator of MXNet that was kept."""
    return node.op == "foreign" and node.attrs["framework"] == FRAMEWORK


def write(writer: SymbolWriter, ranges: Ranges, node: Node) -> None:
    """Writes a kept operator; raises PluginError for one that no file of MXNet had."""
    try:
        entry = _write(writer, ranges, node)
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        reason = "its slots and attrs are not those of an operator with these operands"
        raise PluginError(f"mxnet {node.attrs['op']!s}: {reason}") from error
    for number, value in enumerate(node.results):
        writer.entries[value] = entry[0], number


def _write(writer: SymbolWriter, ranges: Ranges, node: Node) -> Entry:
    slots, stated = node.attrs["slots"], cast("Any", node.attrs["attrs"])
    assert isinstance(slots, tuple)
    # `attrs` holds the text attributes, and the subgraphs as JSON.
    (_, pairs), (_, subgraphs) = stated
    attrs: dict[str, object] = {str(name): str(text) for name, text in pairs}
    operands = [
        _operand(writer, ranges, value, str(kind))
        for value, kind in zip(node.variadic("xs"), slots, strict=True)
    ]
    name, count = node.results[0].name, len(node.results)
    entry = writer.emit(str(node.attrs["op"]), operands, attrs, name=name, results=count)
    if subgraphs:
        writer.symbol.nodes[entry[0]]["subgraphs"] = json.loads(str(subgraphs))
    return entry


def _operand(writer: SymbolWriter, ranges: Ranges, value: Value, kind: str) -> Entry:
    if kind == "state":
        return writer.state(value)
    if kind:
        return ranges.ends_of(value)[("low", "high").index(kind)]
    return writer.entry(value)
