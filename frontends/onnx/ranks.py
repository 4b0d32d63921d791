"""Infers the rank of an input that the file does not state, from its readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx

_KEEPS = frozenset(
    "BatchNormalization Cast Clip DequantizeLinear Dropout DynamicQuantizeLinear Elu Erf Identity "
    "InstanceNormalization LeakyRelu LRN Pad QuantizeLinear Relu Sigmoid Softmax Sqrt Tanh".split()
)
"""Operators whose first result has as many axes as their first operand."""
_FIXED = {"Gemm": 2, "LSTM": 3, "GRU": 3, "RNN": 3}
_LIKE_WEIGHTS = {"Conv": 1, "ConvTranspose": 1, "ConvInteger": 1, "QLinearConv": 3}
"""Operators whose first operand has as many axes as the one at that place."""


def of(
    name: str, nodes: Sequence[onnx.NodeProto], rank: Callable[[str], int | None]
) -> tuple[int, str] | None:
    """Returns the axes of a tensor, and the operator that says it; `rank` knows those of
    constants."""
    alike, made = {name}, makers(nodes)
    for node in nodes:
        if node.domain not in ("", "ai.onnx") or not node.input or node.input[0] not in alike:
            continue
        found = _taken(node, lambda given: _rank(given, made, rank))
        if found is not None:
            return found, node.op_type
        if node.op_type in _KEEPS:
            alike.add(node.output[0])
    return None


def makers(nodes: Sequence[onnx.NodeProto]) -> Mapping[str, onnx.NodeProto]:
    """Returns what makes each tensor."""
    return {name: node for node in nodes for name in node.output}


def _rank(
    name: str, made: Mapping[str, onnx.NodeProto], rank: Callable[[str], int | None]
) -> int | None:
    """Returns the axes of weights, seen through what keeps them."""
    for _ in range(len(_KEEPS)):
        found, node = rank(name), made.get(name)
        if found is not None or node is None or node.op_type not in _KEEPS:
            return found
        name = node.input[0]
    return None


def _taken(node: onnx.NodeProto, rank: Callable[[str], int | None]) -> int | None:
    """Returns the axes that an operator takes."""
    if node.op_type in _FIXED:
        return _FIXED[node.op_type]
    at = _LIKE_WEIGHTS.get(node.op_type)
    if at is not None:
        return rank(node.input[at]) if at < len(node.input) else None
    sizes = next((a.ints for a in node.attribute if a.name == "kernel_shape"), None)
    pools = ("MaxPool", "AveragePool", "LpPool")
    return len(sizes) + 2 if sizes and node.op_type in pools else None
