"""Infers the quantized type of a tensor from its readers.

A QOperator model names scale and zero point where a tensor is read or made, so a tensor that
comes from outside (an input, a foreign op) gets its meaning from its readers, also through ops
that only move quantized values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import networkx as nx

from .op import MICROSOFT, OnnxOp

MOVES = frozenset(
    "MaxPool Reshape Transpose Flatten Squeeze Unsqueeze Slice Concat Pad Identity Dropout Gather "
    "Expand Tile DepthToSpace Split".split()
)
"""Standard ops whose result is quantized of their operand."""


@dataclass(frozen=True, slots=True)
class OperandLayout:
    """Where a quantized op has its (tensor, scale, zero) operands and its result's pair."""

    operands: tuple[tuple[int, int, int], ...]
    result: tuple[int, int] | None = None


_ONE = OperandLayout(((0, 1, 2),), (3, 4))
_TWO = OperandLayout(((0, 1, 2), (3, 4, 5)), (6, 7))
_LAYOUTS = {
    ("", "DequantizeLinear"): OperandLayout(((0, 1, 2),)),
    (MICROSOFT, "DequantizeLinear"): OperandLayout(((0, 1, 2),)),
    ("", "QuantizeLinear"): OperandLayout((), (1, 2)),
    (MICROSOFT, "QuantizeLinear"): OperandLayout((), (1, 2)),
    ("", "QLinearConv"): _TWO,
    (MICROSOFT, "QLinearConv"): _TWO,
    ("", "QLinearMatMul"): _TWO,
    (MICROSOFT, "QGemm"): OperandLayout(((0, 1, 2), (3, 4, 5)), (7, 8)),
    (MICROSOFT, "QLinearAdd"): _TWO,
    (MICROSOFT, "QLinearMul"): _TWO,
    (MICROSOFT, "QLinearAveragePool"): _ONE,
    (MICROSOFT, "QLinearGlobalAveragePool"): _ONE,
    (MICROSOFT, "QLinearSigmoid"): _ONE,
    (MICROSOFT, "QLinearLeakyRelu"): _ONE,
    (MICROSOFT, "QLinearSoftmax"): _ONE,
    (MICROSOFT, "QLinearReduceMean"): _ONE,
    (MICROSOFT, "QLinearWhere"): OperandLayout(((1, 2, 3), (4, 5, 6)), (7, 8)),
    (MICROSOFT, "MatMulIntegerToFloat"): OperandLayout(((0, 2, 4), (1, 3, 5))),
    (MICROSOFT, "DynamicQuantizeMatMul"): OperandLayout(((1, 2, 3),)),
    (MICROSOFT, "QAttention"): OperandLayout(((0, 3, 6), (1, 4, 7))),
}


def layout(op: OnnxOp) -> OperandLayout | None:
    """Returns the layout of an op that names scales; None for one that does not."""
    if op.type == "QLinearConcat" and op.domain == MICROSOFT:
        triples = tuple((i, i + 1, i + 2) for i in range(2, len(op.inputs) - 1, 3))
        return OperandLayout(triples, (0, 1))
    return _LAYOUTS.get((op.domain, op.type))


def moves(op: OnnxOp) -> bool:
    """Returns whether the op only moves elements."""
    if op.domain == "" and op.type == "Resize":
        return op.text("mode", "nearest") == "nearest"
    return op.domain == "" and op.type in MOVES


def meanings(ops: Sequence[OnnxOp]) -> dict[str, tuple[str, str]]:
    """Names of scale and zero point of every tensor whose integers somebody gives a meaning."""
    together: nx.Graph[str] = nx.Graph()
    made: dict[str, tuple[str, str]] = {}
    read: dict[str, tuple[str, str]] = {}
    for op in ops:
        for name, pair, is_result in _demands(op):
            (made if is_result else read).setdefault(name, pair)
    found = {**read, **made}
    if not found:
        return found
    for op in ops:
        if moves(op):
            _join(together, op)
    for group in nx.connected_components(together):
        pairs = [p for known in (made, read) for n in sorted(group) if (p := known.get(n))]
        if pairs:
            found |= {name: found.get(name, pairs[0]) for name in group}
    return found


def _join(together: nx.Graph[str], op: OnnxOp) -> None:
    parts = op.inputs if op.type == "Concat" else op.inputs[:1]
    for part in parts:
        for made in op.outputs if op.type == "Split" else op.outputs[:1]:
            if part and made:
                together.add_edge(part, made)


def _demands(op: OnnxOp) -> Iterator[tuple[str, tuple[str, str], bool]]:
    if (places := layout(op)) is None:
        return
    for data, scale, zero in places.operands:
        if op.input(data):
            yield op.input(data), (op.input(scale), op.input(zero)), False
    if places.result and op.outputs:
        scale, zero = places.result
        yield op.outputs[0], (op.input(scale), op.input(zero)), True
