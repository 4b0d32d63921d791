"""Writes a graph as the bytes of a GraphDef."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.quantized_ops import STRUCTURAL_OPS

from . import (
    attention,
    control,
    conv_nd,
    elementwise,
    foreign,
    indices,
    kernels,
    layers,
    moves,
    reductions,
    wire,
)
from .fake_quantize import is_simulated
from .nodes import GraphNodes, node_name, refusal, shape_attr, type_attr

FLOAT: Mapping[str, moves.Write] = {
    **elementwise.OPS,
    **layers.OPS,
    **conv_nd.OPS,
    **moves.OPS,
    **reductions.OPS,
    **indices.OPS,
    **attention.OPS,
}


@dataclass(frozen=True)
class WrittenGraph:
    """The bytes of a GraphDef, and the tensors of its inputs and outputs by name."""

    data: bytes
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    values: Mapping[str, str]
    """The tensor of each value of the graph itself on which an output depends; TensorFlow fetches
    none from within a loop."""
    types: Mapping[str, tuple[str, tuple[int, ...]]]
    """The element type and the shape of each input and output, by its tensor."""


def to_graphdef(graph: Graph) -> WrittenGraph:
    """Writes a graph whose groups are TensorFlow's kernels.

    Raises Refused for an op that TensorFlow does not have.
    """
    names = [*(value.name for value in graph.inputs), *graph.outputs]
    w = GraphNodes(names)
    w.simulates = is_simulated(graph)
    inputs: dict[str, str] = {}
    for value in graph.inputs:
        placeholder = w.add_named(
            "Placeholder", value.name, (), dtype=type_attr(value), shape=shape_attr(value)
        )
        w.tensors[value] = inputs[value.name] = placeholder
    _write_nodes(w, graph)
    outputs = {}
    # An Identity gives each output its name, as one value may be several outputs.
    for name, value in graph.outputs.items():
        outputs[name] = w.add_named("Identity", name, (w.tensor(value),), T=type_attr(value))
    # Unread nodes would be outputs, as readers take every tensor without a consumer for one.
    needed = w.reachable_nodes([*inputs.values(), *outputs.values()])
    own_values = graph.values.items()
    computed = {name: w.tensors.get(v, "") for name, v in own_values if v.constant is None}
    values = {name: at for name, at in computed.items() if at and node_name(at) in needed}
    ends = [(inputs[value.name], value) for value in graph.inputs]
    ends += [(outputs[name], value) for name, value in graph.outputs.items()]
    types = {place: (type_attr(value).name, shape_attr(value).sizes) for place, value in ends}
    return WrittenGraph(wire.graph_def(needed.values()), inputs, outputs, values, types)


def _write_nodes(w: GraphNodes, graph: Graph) -> None:
    """Writes all nodes of a graph, or of a body whose inputs have tensors already."""
    for node in graph:
        if node.op in STRUCTURAL_OPS:
            continue
        if node.op in control.OPS:
            _set_tensors(w, node, control.OPS[node.op](w, graph, node, _write_nodes))
        else:
            _set_tensors(w, node, _write(w, graph, node))


def _set_tensors(w: GraphNodes, node: Node, written: str | Sequence[str]) -> None:
    places = [written] if isinstance(written, str) else written
    for value, place in zip(node.results, places, strict=True):
        w.tensors[value] = place


def _write(w: GraphNodes, graph: Graph, node: Node) -> str | Sequence[str]:
    quantized = any(v.type.quant for v in (*node.operands.values(), *node.results))
    first_op = node.stages[0].op if node.stages else node.op
    table = kernels.OPS if quantized or node.stages else FLOAT
    if node.op == "foreign":
        return foreign.write(w, node)
    if first_op not in table or node.bodies:
        ops = " |> ".join(stage.op for stage in node.stages) or node.op
        where = " on quantized values" if quantized else ""
        raise refusal(
            node, f"{ops}{where} is not written for TensorFlow; write ONNX, or run it by cpu"
        )
    if node.stages:
        kernels.require_last_read(graph, node)
    return table[first_op](w, node)
