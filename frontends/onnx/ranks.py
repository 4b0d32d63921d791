"""Infers the rank of an input, where the file states none, from the operators that consume it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx

_RANK_PRESERVING = frozenset(
    "BatchNormalization Cast Clip DequantizeLinear Dropout DynamicQuantizeLinear Elu Erf Identity "
    "InstanceNormalization LeakyRelu LRN Pad QuantizeLinear Relu Sigmoid Softmax Sqrt Tanh".split()
)
"""Operators whose first result has the rank of their first operand."""
_FIXED_RANK = {"Gemm": 2, "LSTM": 3, "GRU": 3, "RNN": 3}
_RANK_OF_WEIGHTS = {"Conv": 1, "ConvTranspose": 1, "ConvInteger": 1, "QLinearConv": 3}
"""Operators whose first operand has the rank of the operand at that index, the weights."""


def infer_rank(
    name: str, nodes: Sequence[onnx.NodeProto], known_rank: Callable[[str], int | None]
) -> tuple[int, str] | None:
    """Returns the rank of a tensor and the operator it follows from.

    The ranks of constants are in `known_rank`.
    """
    same_rank, producer_of = {name}, producers(nodes)
    for node in nodes:
        if node.domain not in ("", "ai.onnx") or not node.input or node.input[0] not in same_rank:
            continue
        rank = _required_rank(node, lambda weights: _weight_rank(weights, producer_of, known_rank))
        if rank is not None:
            return rank, node.op_type
        if node.op_type in _RANK_PRESERVING:
            # The file's order is topological, else the rank stays unknown.
            same_rank.add(node.output[0])
    return None


def producers(nodes: Sequence[onnx.NodeProto]) -> Mapping[str, onnx.NodeProto]:
    """Returns the producer of each tensor."""
    return {name: node for node in nodes for name in node.output}


def _weight_rank(
    name: str, producer_of: Mapping[str, onnx.NodeProto], known_rank: Callable[[str], int | None]
) -> int | None:
    """Returns the rank of weights, looking through operators that preserve it."""
    # A bound, since a damaged file may have a cycle here.
    for _ in range(len(_RANK_PRESERVING)):
        rank, node = known_rank(name), producer_of.get(name)
        if rank is not None or node is None or node.op_type not in _RANK_PRESERVING:
            return rank
        name = node.input[0]
    return None


def _required_rank(node: onnx.NodeProto, weight_rank: Callable[[str], int | None]) -> int | None:
    """Returns the rank that an operator requires of its first operand; None if it is free."""
    if node.op_type in _FIXED_RANK:
        return _FIXED_RANK[node.op_type]
    weight_index = _RANK_OF_WEIGHTS.get(node.op_type)
    if weight_index is not None:
        return weight_rank(node.input[weight_index]) if weight_index < len(node.input) else None
    sizes = next((a.ints for a in node.attribute if a.name == "kernel_shape"), None)
    pools = ("MaxPool", "AveragePool", "LpPool")
    return len(sizes) + 2 if sizes and node.op_type in pools else None
