"""A graph as the bytes of a GraphDef."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qir.ir.graph import Graph
from qir.ir.node import Node

from . import (
    attention,
    control,
    conv_nd,
    elementwise,
    foreign,
    kernels,
    layers,
    moves,
    reductions,
    wire,
)
from .nodes import Nodes, kind, node_of, refused, sizes
from .simulated import is_simulated

FLOAT: Mapping[str, moves.Write] = {
    **elementwise.OPS,
    **layers.OPS,
    **conv_nd.OPS,
    **moves.OPS,
    **reductions.OPS,
    **attention.OPS,
}


@dataclass(frozen=True)
class WrittenGraph:
    """The bytes of a GraphDef, and the tensors that are its inputs and outputs by name."""

    data: bytes
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    values: Mapping[str, str]
    """The tensor of each value that an output hangs on."""
    types: Mapping[str, tuple[str, tuple[int, ...]]]
    """The element type and the shape of each input and output, by its tensor."""


def to_graphdef(graph: Graph) -> WrittenGraph:
    """Writes a graph whose groups are TensorFlow's kernels.

    Raises Refused for an op that TensorFlow's graphs are not written with.
    """
    names = [*(value.name for value in graph.inputs), *graph.outputs]
    w = Nodes(names)
    w.simulates = is_simulated(graph)
    inputs: dict[str, str] = {}
    for value in graph.inputs:
        made = w.put("Placeholder", value.name, (), dtype=kind(value), shape=sizes(value))
        w.places[value] = inputs[value.name] = made
    _nodes(w, graph)
    outputs = {}
    for name, value in graph.outputs.items():
        outputs[name] = w.put("Identity", name, (w.read(value),), T=kind(value))
    needed = w.needed([*inputs.values(), *outputs.values()])
    computed = {v.name: at for v, at in w.places.items() if at and v.constant is None}
    values = {name: at for name, at in computed.items() if node_of(at) in needed}
    ends = [(inputs[value.name], value) for value in graph.inputs]
    ends += [(outputs[name], value) for name, value in graph.outputs.items()]
    types = {place: (kind(value).name, sizes(value).sizes) for place, value in ends}
    return WrittenGraph(wire.graph(needed.values()), inputs, outputs, values, types)


def _nodes(w: Nodes, graph: Graph) -> None:
    """Writes all nodes of a graph, or of a body whose inputs have their tensors."""
    for node in graph:
        if node.op in ("input", "constant", "output"):
            continue
        if node.op in control.OPS:
            _set(w, node, control.OPS[node.op](w, graph, node, _nodes))
        else:
            _set(w, node, _write(w, graph, node))


def _set(w: Nodes, node: Node, made: str | Sequence[str]) -> None:
    places = [made] if isinstance(made, str) else made
    for value, place in zip(node.results, places, strict=True):
        w.places[value] = place


def _write(w: Nodes, graph: Graph, node: Node) -> str | Sequence[str]:
    quantized = any(v.type.quant for v in (*node.operands.values(), *node.results))
    head = node.stages[0].op if node.stages else node.op
    table = kernels.OPS if quantized or node.stages else FLOAT
    if node.op == "foreign":
        return foreign.write(w, node)
    if head not in table or node.bodies:
        ops = " |> ".join(stage.op for stage in node.stages) or node.op
        on = " on quantized values" if quantized else ""
        raise refused(
            node, f"{ops}{on} is not written for TensorFlow; write ONNX, or run it by cpu"
        )
    if node.stages:
        kernels.check_summand(graph, node)
    return table[head](w, node)
