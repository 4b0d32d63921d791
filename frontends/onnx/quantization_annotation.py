"""`quantization_annotation`: which tensors say what integers mean that no operator says it of."""

from __future__ import annotations

from collections.abc import Iterator

from .elements import NUMBERS
from .reader import CODES, OnnxReader

_WHOLE = frozenset(NUMBERS[kind] for kind in CODES if kind in NUMBERS)
"""ONNX's numbers of what may be quantized."""
_ANNOTATION = "the quantization_annotation"


def pairs(reader: OnnxReader) -> dict[str, tuple[str, str]]:
    """Names of scale and zero point that annotations give to inputs and constants of quantized
    values.

    Others' quantized values are made by operators, which say what they mean.
    """
    if reader.outer is not None or not reader.proto.quantization_annotation:
        return {}
    proto = reader.proto
    whole = {i.name for i in proto.input if i.type.tensor_type.elem_type in _WHOLE}
    whole |= {t.name for t in proto.initializer if t.data_type in _WHOLE}
    return {name: pair for name, pair in _said(reader) if name in whole and pair[0]}


def lost(reader: OnnxReader) -> Iterator[tuple[str, str]]:
    """Yields the tensors whose annotations say what the graph does not hold, and why it does
    not."""
    if reader.outer is not None:
        return
    proto = reader.proto
    kinds = {i.name: i.type.tensor_type.elem_type for i in proto.input}
    kinds |= {t.name: t.data_type for t in proto.initializer}
    made = {o for n in proto.node for o in n.output}
    for name, pair in _said(reader):
        if reader.holds(name) or (name in reader.meanings and name not in reader.annotated):
            continue
        if name not in kinds and name not in made:
            yield name, f"{_ANNOTATION} is of a tensor that is not there"
        elif not pair[0]:
            yield name, f"{_ANNOTATION} names no scale"
        elif name not in reader.annotated:
            what = "an operator's result that is not quantized" if name in made else "a float value"
            yield name, f"{_ANNOTATION} is of {what}"
        else:
            yield name, f"{_ANNOTATION} is dropped: {_why(reader, pair)}"


def _why(reader: OnnxReader, pair: tuple[str, str]) -> str:
    """Returns why quantized values have not the meaning that an annotation gives."""
    missing = next((n for n in pair if n and not reader.is_constant(n)), None)
    if missing is not None:
        return f"{missing!r} is no constant"
    scales = reader.array(pair[0])
    if scales is not None and scales.contents.size != 1:
        return f"it has {scales.contents.size} scales and no axis"
    return "scale and zero point fit no map of theirs, or operators take them as plain numbers"


def _said(reader: OnnxReader) -> Iterator[tuple[str, tuple[str, str]]]:
    for each in reader.proto.quantization_annotation:
        said = {p.key: p.value for p in each.quant_parameter_tensor_names}
        pair = (said.get("SCALE_TENSOR", ""), said.get("ZERO_POINT_TENSOR", ""))
        yield each.tensor_name, pair
