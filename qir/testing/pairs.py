"""QDQ form: quantize and dequantize put after values, weights and biases made quantized values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.ir.calls import make_call
from qir.ir.dtype import I8, I32, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.origin import Origin
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.testing.chance import Pick
from qir.testing.codes import random_map


def insert_pairs(pick: Pick, graph: Graph) -> None:
    """Puts quantize and dequantize after values, and quantizes weights and biases."""
    for node in list(graph):
        if node.op != "output" and pick(4):
            _weigh(pick, graph, node)
        if node.results and node.op != "constant" and node.used and pick(4):
            _pair(pick, graph, node.result)


def _pair(pick: Pick, graph: Graph, value: Value) -> None:
    kind = random_map(pick, (U8, I8)[pick(2)])
    moved = value.node.operands.get("x")
    if moved is not None and spec(value.node.op).traits.same_params and pick(8):
        if moved.node.op != "dequantize":
            return
        kind = moved.node.operands["x"].type.quant or kind
    users = set(value.users)
    first = next(n for n in graph if n in users)
    quantized = value.type.with_element(kind)
    name = value.name
    codes = graph.add("quantize", {"x": value}, types=[quantized], name=f"{name}.q", before=first)
    real = graph.add("dequantize", {"x": codes.result}, name=f"{name}.dq", before=first)
    for made in (codes, real):
        graph.set_origins(made, [Origin("onnx", made.op, f"{name}/{made.op}")])
    graph.set_lineage(codes.result, value.lineage.then("coded"))
    graph.replace(value, real.result, except_in=codes)


def _weigh(pick: Pick, graph: Graph, node: Node) -> None:
    traits = spec(node.op).traits
    if traits.weight is None or traits.weight_axis is None:
        return
    data, weight = node.operands[traits.data], node.operands[traits.weight]
    if data.node.op != "dequantize" or weight.constant is None:
        return
    axis = traits.weight_axis(make_call(node.op, node.operands, node.attrs)) if pick(2) else None
    rest = tuple(i for i in range(weight.type.rank) if i != axis)
    reach = np.abs(weight.constant.data).max(axis=rest if axis is not None else None)
    kind = uniform(I8, np.asarray(reach / np.float32(127), np.float32), axis=axis, name="w")
    along = [-1 if i == axis else 1 for i in range(weight.type.rank)]
    scale = np.asarray(kind.scales()).reshape(along if axis is not None else ())
    real: NDArray[np.float64] = weight.constant.data.astype(np.float64)
    codes = np.rint(np.divide(real, scale)).clip(-127, 127)
    _coded(graph, node, traits.weight, codes, kind)
    bias = node.operands.get(traits.bias or "")
    source = data.node.operands["x"].type.quant
    if traits.bias and bias is not None and bias.constant is not None and source is not None:
        unit = np.asarray(np.float32(source.scales()) * kind.scales(), np.float32)
        row = uniform(I32, unit, axis=0 if unit.ndim else None, name="b")
        _coded(graph, node, traits.bias, np.rint(np.divide(bias.constant.data, unit)), row)


def _coded(
    graph: Graph, node: Node, slot: str, codes: NDArray[np.floating], kind: QuantType
) -> None:
    data = Array(codes.astype(kind.storage.carrier), TensorType(codes.shape, kind), slot)
    made = graph.constant(data, name=f"{node.name}.{slot}", before=node)
    real = graph.add("dequantize", {"x": made}, name=f"{made.name}.dq", before=node)
    graph.set_origins(real, [Origin("onnx", "DequantizeLinear", f"{made.name}/dq")])
    graph.set_operand(node, slot, real.result)
