"""Writes If, Loop and Scan: a body becomes a subgraph, which reads outer values by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx
from onnx import helper

from qir.ir.graph import Graph
from qir.ir.node import Node, Value

from ..optimizer import moved_values
from .elements import type_proto
from .writer import AttrValue, OnnxWriter

_SCAN_ATTRIBUTES = {
    "axes": "scan_input_axes",
    "reverse": "scan_input_directions",
    "out_axes": "scan_output_axes",
    "out_reverse": "scan_output_directions",
}
"""ONNX's names of scan's attributes."""


def write(writer: OnnxWriter, node: Node, write_node: Callable[[OnnxWriter, Node], None]) -> None:
    """Writes a control node; raises Refused for what ONNX cannot express in its bodies."""
    # `xs` are values of the outer graph that the bodies read: ONNX's subgraphs read them by name.
    outer_values = node.variadic("xs")
    protos = {}
    for name in node.bodies:
        body = writer.graph.body(node, name)
        inner = OnnxWriter(body, writer.ledger, writer.opset, writer)
        captured = body.inputs[len(body.inputs) - len(outer_values) :]
        for value, source in zip(captured, outer_values, strict=True):
            inner.set_name(value, writer.name(source))
        own_inputs = body.inputs[: len(body.inputs) - len(outer_values)]
        protos[name] = _body(inner, body, own_inputs, write_node)
    outs = [writer.name(value) for value in node.results]
    attrs: dict[str, AttrValue]
    match node.op:
        case "if":
            ins = [writer.name(node.operands["cond"])]
            attrs = {"then_branch": protos["then"], "else_branch": protos["else"]}
            writer.emit("If", ins, outs, attrs, origins=node.origins)
        case "loop":
            ins = [_name_or_empty(writer, node.operands.get(slot)) for slot in ("count", "cond")]
            ins += [writer.name(value) for value in node.variadic("vs")]
            writer.emit("Loop", ins, outs, {"body": protos["body"]}, origins=node.origins)
        case _:
            scanned = node.variadic("ss")
            ins = [writer.name(value) for value in (*node.variadic("vs"), *scanned)]
            directions = {theirs: node.attrs[ours] for ours, theirs in _SCAN_ATTRIBUTES.items()}
            stated = {k: v for k, v in directions.items() if isinstance(v, tuple) and v}
            int_attrs = {k: tuple(i for i in v if isinstance(i, int)) for k, v in stated.items()}
            attrs = {"body": protos["body"], "num_scan_inputs": len(scanned)}
            attrs.update(int_attrs)
            writer.emit("Scan", ins, outs, attrs, origins=node.origins)


def _name_or_empty(writer: OnnxWriter, value: Value | None) -> str:
    return "" if value is None else writer.name(value)


def _body(
    writer: OnnxWriter,
    body: Graph,
    own_inputs: Iterable[Value],
    write_node: Callable[[OnnxWriter, Node], None],
) -> onnx.GraphProto:
    for node in body:
        write_node(writer, node)
    outputs: list[onnx.ValueInfoProto] = []
    written = {name for node in writer.nodes for name in node.output}
    for slot, value in body.outputs.items():
        name = writer.name(value)
        # Each output of a subgraph needs a tensor of its own that the subgraph writes.
        if name not in written or any(name == o.name for o in outputs):
            name = writer.fresh(slot)
            writer.emit("Identity", [writer.name(value)], [name])
        outputs.append(helper.make_value_info(name, type_proto(value.type)))
    moved_values.add_moved_quantizes(writer, [info.name for info in outputs])
    inputs = [helper.make_value_info(writer.name(v), type_proto(v.type)) for v in own_inputs]
    # ONNX allows no value_info for a name that is an input or output already.
    declared = {info.name for info in (*inputs, *outputs)}
    infos = [info for info in writer.value_infos if info.name not in declared]
    return helper.make_graph(writer.nodes, body.name, inputs, outputs, value_info=infos)


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def names_read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Yields every name that nodes and their subgraphs read."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.type in _GRAPHS:
                for subgraph in (attribute.g, *attribute.graphs):
                    yield from names_read(subgraph.node)
