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
from qir.testing.integer_networks import random_map
from qir.testing.random_source import Pick


def insert_pairs(pick: Pick, graph: Graph) -> None:
    """Puts quantize and dequantize after values, and quantizes weights and biases."""
    for node in list(graph):
        if node.op != "output" and pick(4):
            _quantize_weights(pick, graph, node)
        if node.results and node.op != "constant" and node.used and pick(4):
            _put_pair(pick, graph, node.result)


def _put_pair(pick: Pick, graph: Graph, value: Value) -> None:
    kind = random_map(pick, (U8, I8)[pick(2)])
    source = value.node.operands.get("x")
    if source is not None and spec(value.node.op).traits.same_params and pick(8):
        # Ops that move values keep their scale: a pair with another one would be a requantize.
        if source.node.op != "dequantize":
            return
        kind = source.node.operands["x"].type.quant or kind
    users = set(value.users)
    first = next(n for n in graph if n in users)
    quantized = value.type.with_element(kind)
    name = value.name
    quantize = graph.add(
        "quantize", {"x": value}, types=[quantized], name=f"{name}.q", before=first
    )
    dequantize = graph.add("dequantize", {"x": quantize.result}, name=f"{name}.dq", before=first)
    for added in (quantize, dequantize):
        graph.set_origins(added, [Origin("onnx", added.op, f"{name}/{added.op}")])
    # Readers of the real value now read its rounded twin; the pair itself must not.
    graph.set_lineage(quantize.result, value.lineage.then("coded"))
    graph.replace(value, dequantize.result, except_in=quantize)


def _quantize_weights(pick: Pick, graph: Graph, node: Node) -> None:
    traits = spec(node.op).traits
    if traits.weight is None or traits.weight_axis is None:
        return
    data, weight = node.operands[traits.data], node.operands[traits.weight]
    if data.node.op != "dequantize" or weight.constant is None:
        return
    axis = traits.weight_axis(make_call(node.op, node.operands, node.attrs)) if pick(2) else None
    reduced_axes = tuple(i for i in range(weight.type.rank) if i != axis)
    largest = np.abs(weight.constant.data).max(axis=reduced_axes if axis is not None else None)
    kind = uniform(I8, np.asarray(largest / np.float32(127), np.float32), axis=axis, name="w")
    along = [-1 if i == axis else 1 for i in range(weight.type.rank)]
    scale = np.asarray(kind.scales()).reshape(along if axis is not None else ())
    reals: NDArray[np.float64] = weight.constant.data.astype(np.float64)
    quantized_weight = np.rint(np.divide(reals, scale)).clip(-127, 127)
    _put_quantized(graph, node, traits.weight, quantized_weight, kind)
    # A bias has the scale of the accumulator it is added to, data times weight.
    bias = node.operands.get(traits.bias or "")
    source = data.node.operands["x"].type.quant
    if traits.bias and bias is not None and bias.constant is not None and source is not None:
        bias_scale = np.asarray(np.float32(source.scales()) * kind.scales(), np.float32)
        bias_type = uniform(I32, bias_scale, axis=0 if bias_scale.ndim else None, name="b")
        _put_quantized(
            graph, node, traits.bias, np.rint(np.divide(bias.constant.data, bias_scale)), bias_type
        )


def _put_quantized(
    graph: Graph, node: Node, slot: str, quantized: NDArray[np.floating], kind: QuantType
) -> None:
    data = Array(quantized.astype(kind.storage.carrier), TensorType(quantized.shape, kind), slot)
    constant = graph.constant(data, name=f"{node.name}.{slot}", before=node)
    dequantize = graph.add("dequantize", {"x": constant}, name=f"{constant.name}.dq", before=node)
    graph.set_origins(dequantize, [Origin("onnx", "DequantizeLinear", f"{constant.name}/dq")])
    graph.set_operand(node, slot, dequantize.result)
