"""`quantization_annotation`: scales of inputs and constants that no operator states."""

from __future__ import annotations

from collections.abc import Iterator

from .elements import ONNX_NUMBERS
from .reader import QUANTIZED_DTYPES, OnnxReader

_QUANTIZABLE_NUMBERS = frozenset(
    ONNX_NUMBERS[kind] for kind in QUANTIZED_DTYPES if kind in ONNX_NUMBERS
)
"""`TensorProto.DataType` of the element types that quantized tensors have."""
_ANNOTATION = "the quantization_annotation"


def annotated_qparam_names(reader: OnnxReader) -> dict[str, tuple[str, str]]:
    """Returns the (scale, zero point) names that annotations give to inputs and constants.

    Other quantized tensors are results of operators, which state their parameters.
    """
    if reader.outer is not None or not reader.proto.quantization_annotation:
        return {}
    reader.annotations = tuple(_annotations(reader))
    proto = reader.proto
    quantizable = {
        i.name for i in proto.input if i.type.tensor_type.elem_type in _QUANTIZABLE_NUMBERS
    }
    quantizable |= {t.name for t in proto.initializer if t.data_type in _QUANTIZABLE_NUMBERS}
    return {name: pair for name, pair in reader.annotations if name in quantizable and pair[0]}


def dropped_annotations(reader: OnnxReader) -> Iterator[tuple[str, str]]:
    """Yields (tensor, reason) for each annotation that the graph does not hold."""
    if reader.outer is not None:
        return
    # Stated by an operator anyway, or held by the graph.
    dropped = [
        (name, pair)
        for name, pair in reader.annotations
        if name not in reader.qparam_names or name in reader.annotated_qparam_names
    ]
    dropped = [(name, pair) for name, pair in dropped if not reader.is_quantized(name)]
    if not dropped:
        return
    proto = reader.proto
    stored = {i.name for i in proto.input} | {t.name for t in proto.initializer}
    produced = {o for n in proto.node for o in n.output}
    for name, pair in dropped:
        if name not in stored and name not in produced:
            yield name, f"{_ANNOTATION} is of a tensor that is not there"
        elif not pair[0]:
            yield name, f"{_ANNOTATION} names no scale"
        elif name not in reader.annotated_qparam_names:
            what = (
                "an operator's result that is not quantized"
                if name in produced
                else "a float value"
            )
            yield name, f"{_ANNOTATION} is of {what}"
        else:
            yield name, f"{_ANNOTATION} is dropped: {_why_dropped(reader, pair)}"


def _why_dropped(reader: OnnxReader, pair: tuple[str, str]) -> str:
    """Returns why a tensor does not have the quantized type that its annotation states."""
    missing = next((n for n in pair if n and not reader.is_constant(n)), None)
    if missing is not None:
        return f"{missing!r} is no constant"
    scales = reader.array(pair[0])
    if scales is not None and scales.contents.size != 1:
        return f"it has {scales.contents.size} scales and no axis"
    return "scale and zero point fit no map of theirs, or operators take them as plain numbers"


def _annotations(reader: OnnxReader) -> Iterator[tuple[str, tuple[str, str]]]:
    for annotation in reader.proto.quantization_annotation:
        parameters = {p.key: p.value for p in annotation.quant_parameter_tensor_names}
        pair = (parameters.get("SCALE_TENSOR", ""), parameters.get("ZERO_POINT_TENSOR", ""))
        yield annotation.tensor_name, pair
