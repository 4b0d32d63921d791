"""Finds the scale and zero point of each tensor from the operators that produce and consume it.

ONNX states parameters at operators, the language in the type of a tensor. An input or the result
of a foreign op therefore gets its quantized type from its consumers, also through operators that
only move elements (Reshape, Transpose, ...), which state none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from qir.records import record

from .op import MICROSOFT, OnnxOp

MOVING_OPERATORS = frozenset(
    "MaxPool Reshape Transpose Flatten Squeeze Unsqueeze Slice Concat Pad Identity Dropout Gather "
    "Expand Tile DepthToSpace Split".split()
)
"""Standard operators whose result has the quantized type of their first operand."""


@record
class OperandLayout:
    """The operand indices of (tensor, scale, zero point) of a quantized operator, and of the
    (scale,
    zero point) of its result."""

    operands: tuple[tuple[int, int, int], ...]
    result_qparams: tuple[int, int] | None = None


_UNARY_LAYOUT = OperandLayout(((0, 1, 2),), (3, 4))
_BINARY_LAYOUT = OperandLayout(((0, 1, 2), (3, 4, 5)), (6, 7))
_LAYOUTS = {
    ("", "DequantizeLinear"): OperandLayout(((0, 1, 2),)),
    (MICROSOFT, "DequantizeLinear"): OperandLayout(((0, 1, 2),)),
    ("", "QuantizeLinear"): OperandLayout((), (1, 2)),
    (MICROSOFT, "QuantizeLinear"): OperandLayout((), (1, 2)),
    ("", "QLinearConv"): _BINARY_LAYOUT,
    (MICROSOFT, "QLinearConv"): _BINARY_LAYOUT,
    ("", "QLinearMatMul"): _BINARY_LAYOUT,
    (MICROSOFT, "QGemm"): OperandLayout(((0, 1, 2), (3, 4, 5)), (7, 8)),
    (MICROSOFT, "QLinearAdd"): _BINARY_LAYOUT,
    (MICROSOFT, "QLinearMul"): _BINARY_LAYOUT,
    (MICROSOFT, "QLinearAveragePool"): _UNARY_LAYOUT,
    (MICROSOFT, "QLinearGlobalAveragePool"): _UNARY_LAYOUT,
    (MICROSOFT, "QLinearSigmoid"): _UNARY_LAYOUT,
    (MICROSOFT, "QLinearLeakyRelu"): _UNARY_LAYOUT,
    (MICROSOFT, "QLinearSoftmax"): _UNARY_LAYOUT,
    (MICROSOFT, "QLinearReduceMean"): _UNARY_LAYOUT,
    (MICROSOFT, "QLinearWhere"): OperandLayout(((1, 2, 3), (4, 5, 6)), (7, 8)),
    (MICROSOFT, "MatMulIntegerToFloat"): OperandLayout(((0, 2, 4), (1, 3, 5))),
    (MICROSOFT, "DynamicQuantizeMatMul"): OperandLayout(((1, 2, 3),)),
    (MICROSOFT, "QAttention"): OperandLayout(((0, 3, 6), (1, 4, 7))),
}


def operand_layout(op: OnnxOp) -> OperandLayout | None:
    """Returns the layout of an operator with scales; None for one without."""
    if op.type == "QLinearConcat" and op.domain == MICROSOFT:
        # After scale and zero point of the result come triples of data, scale and zero point.
        triples = tuple((i, i + 1, i + 2) for i in range(2, len(op.inputs) - 1, 3))
        return OperandLayout(triples, (0, 1))
    return _LAYOUTS.get((op.domain, op.type))


def moves_elements(op: OnnxOp) -> bool:
    """Returns whether the operator only moves elements; a Resize does in mode nearest."""
    if op.domain == "" and op.type == "Resize":
        return op.text("mode", "nearest") == "nearest"
    return op.domain == "" and op.type in MOVING_OPERATORS


def inferred_qparam_names(ops: Sequence[OnnxOp]) -> dict[str, tuple[str, str]]:
    """Returns the names of scale and zero point, by tensor.

    What a producer states wins over consumers. Tensors that moves connect share theirs.
    """
    moved: dict[str, list[str]] = {}
    produced: dict[str, tuple[str, str]] = {}
    consumed: dict[str, tuple[str, str]] = {}
    for op in ops:
        for name, pair, is_result in _named_qparams(op):
            # Several consumers may disagree: the first one in the file's order counts.
            (produced if is_result else consumed).setdefault(name, pair)
    qparams = {**consumed, **produced}
    if not qparams:
        return qparams
    for op in ops:
        if moves_elements(op):
            _connect_moved_tensors(moved, op)
    # A producer's parameters win over a consumer's; of several, those of the first name in order.
    for group in _connected_names(moved):
        pairs = [
            p for source in (produced, consumed) for n in sorted(group) if (p := source.get(n))
        ]
        if pairs:
            qparams |= {name: qparams.get(name, pairs[0]) for name in group}
    return qparams


def _connect_moved_tensors(moved: dict[str, list[str]], op: OnnxOp) -> None:
    # Other operands are shapes, indices and the like.
    sources = op.inputs if op.type == "Concat" else op.inputs[:1]
    for part in sources:
        for output in op.outputs if op.type == "Split" else op.outputs[:1]:
            if part and output:
                moved.setdefault(part, []).append(output)
                moved.setdefault(output, []).append(part)


def _connected_names(neighbours: Mapping[str, Sequence[str]]) -> Iterator[set[str]]:
    """Yields the names that lead to each other, group by group."""
    seen: set[str] = set()
    for first in neighbours:
        group: set[str] = set()
        todo = [] if first in seen else [first]
        while todo:
            name = todo.pop()
            if name not in group:
                group.add(name)
                todo += neighbours[name]
        if group:
            seen |= group
            yield group


def _named_qparams(op: OnnxOp) -> Iterator[tuple[str, tuple[str, str], bool]]:
    if (layout := operand_layout(op)) is None:
        return
    for data, scale, zero in layout.operands:
        if op.input(data):
            yield op.input(data), (op.input(scale), op.input(zero)), False
    if layout.result_qparams and op.outputs:
        scale, zero = layout.result_qparams
        yield op.outputs[0], (op.input(scale), op.input(zero)), True
