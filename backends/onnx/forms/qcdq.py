"""QCDQ form: integers within bounds, as QuantizeLinear or an initializer followed by Clip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qir.ir.node import Node, Value
from qir.ir.origin import Origin
from qir.ir.types import Array, QuantType, TensorType

from ..writer.writer import OnnxWriter


def clip_origin(node: Node) -> Origin | None:
    """Returns the Clip of the source model that is part of a node, if any."""
    return next((o for o in node.origins if (o.framework, o.op) == ("onnx", "Clip")), None)


def quantize(
    writer: OnnxWriter,
    node: Node,
    source: str,
    source_names: tuple[str | None, str | None],
    *,
    zero: bool,
) -> bool:
    """Writes a quantize into bounds as QuantizeLinear and Clip; returns False where the source
    had no Clip."""
    value, clip = node.result, clip_origin(node)
    quant = value.type.quant
    if clip is None or quant is None or quant.bounds is None:
        return False
    # QuantizeLinear saturates at the storage's ends; Clip then applies the narrower bounds.
    unbounded = value.type.with_element(replace(quant, bounds=None))
    out = writer.name(value)
    unclipped = writer.fresh(dict(clip.operands).get("input", f"{out}_unclipped"))
    writer.quantize(
        source, unbounded, unclipped, node, value.lineage.tensor, source_names, zero=zero
    )
    _write_clip(writer, node, unclipped, out, quant, clip)
    return True


def _write_clip(
    writer: OnnxWriter, node: Node, source: str, out: str, quant: QuantType, clip: Origin
) -> None:
    source_names = dict(clip.operands)
    operands = [source]
    for slot, end, storage_end in zip(
        ("min", "max"), quant.bounds or (), quant.storage.bounds, strict=True
    ):
        # A bound that clamps nothing is left out, unless the source had it.
        if end == storage_end and slot not in source_names:
            operands.append("")
            continue
        bound = np.array(end, quant.storage.carrier)
        operands.append(
            writer.parameter(bound, f"{out}_{slot}", source_names.get(slot), quant.storage)
        )
    while not operands[-1]:
        operands.pop()
    writer.emit("Clip", operands, [out], origins=[clip])


def clip_constant(writer: OnnxWriter, node: Node, value: Value) -> bool:
    """Writes a quantized constant and its Clip, once; returns False where the source had no
    Clip."""
    array, clip, quant = value.constant, clip_origin(value.node), value.type.quant
    if array is None or clip is None or quant is None or quant.bounds is None:
        return False
    if not writer.is_alias(value):
        # The clipped constant has the source's tensor name, unless another writer took it.
        out = writer.fresh(f"{value.name}_clipped") if _is_name_taken(writer, value) else value.name
        name = writer.fresh(dict(clip.operands).get("input", f"{out}_unclipped"))
        unclipped = Array(array.contents, TensorType(array.type.shape, quant.storage))
        writer.main.add_initializer(name, unclipped)
        _write_clip(writer, node, name, out, quant, clip)
        writer.alias(value, out)
    return True


def _is_name_taken(writer: OnnxWriter, value: Value) -> bool:
    return value.name in writer.initializers or writer.outer is not None
