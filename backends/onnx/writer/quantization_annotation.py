"""Writes `quantization_annotation`: which constants are the parameters of a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from qir.ir.graph import Graph
from qir.ir.node import Value

from . import custom
from .writer import MICROSOFT, OnnxWriter

_PARAMETER_POSITIONS: dict[str, tuple[tuple[tuple[int, int, int], ...], tuple[int, int] | None]] = {
    "QuantizeLinear": ((), (1, 2)),
    "DequantizeLinear": (((0, 1, 2),), None),
    **dict.fromkeys(
        ("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul"),
        (((0, 1, 2), (3, 4, 5)), (6, 7)),
    ),
    **dict.fromkeys(
        (
            "QLinearAveragePool",
            "QLinearGlobalAveragePool",
            "QLinearSigmoid",
            "QLinearLeakyRelu",
            "QLinearSoftmax",
            "QLinearReduceMean",
        ),
        (((0, 1, 2),), (3, 4)),
    ),
    "QGemm": (((0, 1, 2), (3, 4, 5)), (7, 8)),
    "QLinearWhere": (((1, 2, 3), (4, 5, 6)), (7, 8)),
}
"""The (tensor, scale, zero point) positions of an operator's operands, and those of its result's
pair."""


def annotate(
    writer: OnnxWriter, graph: onnx.GraphProto, outputs: Iterable[tuple[str, Value]]
) -> None:
    """Annotates all quantized tensors whose scale and zero point are constants.

    Some inputs and outputs of a model are quantized where no operator names their parameters. So
    are constants that operators read as plain integers.
    """
    # An annotation names initializers; parameters that are computed or are inputs cannot be named.
    known = {t.name for t in graph.initializer}
    annotated: set[str] = set()
    for name, scale, zero in _stated_tensors(graph.node):
        if name not in annotated and scale in known and (not zero or zero in known):
            annotated.add(name)
            _add_annotation(graph, name, scale, zero)
    # What no QDQ or QLinear operator covers: inputs and outputs of the graph, and constants.
    constants = [v for v in _unstated_constants(writer.graph) if v.name in known]
    inputs = ((v.name, v) for v in (*writer.graph.inputs, *constants))
    for name, value in (*inputs, *outputs):
        quant = value.type.quant
        if quant is None or quant.dynamic or name in annotated:
            continue
        # ONNX's scale and zero point do not express the type, so a pair would state it wrongly.
        if custom.needs_function(quant, value.type.shape, constant=False):
            continue
        pair = writer.parameters_of(value, value.node)
        _add_annotation(graph, name, *pair)
        for parameter in pair:
            if parameter not in known:
                known.add(parameter)
                graph.initializer.append(writer.initializers[parameter])


def _unstated_constants(graph: Graph) -> Iterator[Value]:
    """Yields quantized constants with one scale whose parameters no operator names."""
    for node in graph:
        quant = node.results[0].type.quant if node.op == "constant" else None
        if quant is not None and quant.granularity is None:
            if all(user.op == "recode" for user in node.result.users):
                yield node.result


def _stated_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, str, str]]:
    """Yields quantized tensors, with the names of their scales and zero points."""
    for node in nodes:
        joins = node.op_type == "QLinearConcat"
        if not (joins or node.op_type in _PARAMETER_POSITIONS) or node.domain not in (
            "",
            MICROSOFT,
        ):
            continue
        names = list(node.input)
        # QLinearConcat lists its result's pair first, then (tensor, scale, zero point) for each
        # input.
        operands, result = _PARAMETER_POSITIONS.get(node.op_type, ((), None))
        if joins:
            operands = tuple((i, i + 1, i + 2) for i in range(2, len(names) - 2, 3))
            result = (0, 1)
        # Optional trailing operands may be missing from `input`: pad, so that every position
        # exists.
        names += [""] * 9
        if result is not None:
            yield node.output[0], names[result[0]], names[result[1]]
        for data, scale, zero in operands:
            if names[data]:
                yield names[data], names[scale], names[zero]


def _add_annotation(graph: onnx.GraphProto, name: str, scale: str, zero: str) -> None:
    annotation = graph.quantization_annotation.add(tensor_name=name)
    for key, parameter in (("SCALE_TENSOR", scale), ("ZERO_POINT_TENSOR", zero)):
        if parameter:
            annotation.quant_parameter_tensor_names.add(key=key, value=parameter)
