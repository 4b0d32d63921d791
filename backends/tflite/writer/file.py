"""Writes a graph as the bytes of a `.tflite` file."""

from __future__ import annotations

from collections.abc import Mapping

from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.quantized_ops import STRUCTURAL_OPS

from . import elementwise, images, layers, movement, selection
from .halves import constants_of_halves
from .model import MAX_BYTES
from .network import Network, OpCall, OpWriter, refusal

OPS: Mapping[str, OpWriter] = {
    **elementwise.OPS,
    **images.OPS,
    **layers.OPS,
    **movement.OPS,
    **selection.OPS,
}
"""What writes each op, whether on floats or on integers."""
_REMEDY = "cut the model before it, or write ONNX"


def to_tflite(graph: Graph) -> bytes:
    """Writes a graph in the form of `converted`.

    Raises Refused for an op that TensorFlow Lite does not have, and names it.
    """
    w = Network(constants_of_halves(graph))
    inputs: dict[str, int] = {}
    for value in graph.inputs:
        w.tensors[value] = inputs[value.name] = w.made(value.node, value.type, value.name)
    for node in graph:
        if node.op not in STRUCTURAL_OPS:
            _write(w, node)
    outputs = _outputs(w, graph, inputs)
    if w.model.bytes > MAX_BYTES:
        raise Refused(f"{graph.name}: its constants exceed 2 GB, the most that a file holds")
    return w.model.build(graph.name, inputs, outputs)


def _write(w: Network, node: Node) -> None:
    call = OpCall(w, node)
    if node.bodies or call.op not in OPS:
        raise refusal(node, f"TensorFlow Lite has no operator for it; {_REMEDY}")
    written = OPS[call.op](call)
    places = [written] if isinstance(written, int) else written
    for value, place in zip(node.results, places, strict=False):
        w.tensors[value] = place


def _outputs(w: Network, graph: Graph, inputs: Mapping[str, int]) -> dict[str, int]:
    """Returns the tensors of the outputs; a second name of one gets a copy of its own."""
    outputs: dict[str, int] = {}
    for name, value in graph.outputs.items():
        at = w.tensor(value)
        if at in inputs.values() or at in outputs.values() or value.constant is not None:
            at = w.reshaped(graph.output, at, value.type, name)
        outputs[name] = at
    return outputs
