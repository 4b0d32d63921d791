"""Writes ops that select, repeat and rearrange elements, and ops on shapes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from qir.ir.dtype import I32, I64, DType
from qir.ir.types import Array

from .elements import tensor
from .operator_table import OperatorWriter, int64_operand, operator
from .writer import AttrValue, OnnxWriter, OpToWrite

_TO_CHANNELS_FIRST = (0, 3, 1, 2)
_TO_CHANNELS_LAST = (0, 2, 3, 1)


def int_list_operand(
    writer: OnnxWriter,
    work: OpToWrite,
    name: str,
    onnx_op: str,
    onnx_name: str = "",
    *,
    kind: DType = I64,
) -> str:
    """Returns an attribute of integers as an operand, under its source's name."""
    onnx_name = onnx_name or name
    data = np.array(work.int_tuple(name), kind.carrier)
    return writer.parameter(
        data, f"{work.out}_{onnx_name}", source_operand_names(work, onnx_op).get(onnx_name)
    )


def source_operand_names(work: OpToWrite, onnx_op: str) -> dict[str, str]:
    """Returns the source's names for the operands of an operator."""
    return {s: n for o in work.origins for s, n in o.operands if o.op == onnx_op}


def _squeeze(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    axes = [int_list_operand(writer, work, "axes", "Squeeze")] if work.int_tuple("axes") else []
    writer.emit("Squeeze", [ins["x"], *axes], [work.out], origins=work.origins)


def _unsqueeze(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    axes = int_list_operand(writer, work, "axes", "Unsqueeze")
    writer.emit("Unsqueeze", [ins["x"], axes], [work.out], origins=work.origins)


def _slice(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    source, axes, steps = (
        source_operand_names(work, "Slice"),
        work.int_tuple("axes"),
        work.int_tuple("steps"),
    )
    names = ["starts", "ends"]
    needs_steps = "steps" in source or set(steps) != {1}
    # Operands that state the defaults are left out, unless the source had them.
    if needs_steps or "axes" in source or axes != tuple(range(len(axes))):
        names.append("axes")
    if needs_steps:
        names.append("steps")
    operands = [int_list_operand(writer, work, name, "Slice") for name in names]
    writer.emit("Slice", [ins["x"], *operands], [work.out], origins=work.origins)


def _slice_at(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    """Writes the bounds of a slice in one type: int32 where both bounds have it."""
    bounds, names = ("starts", "ends"), ["axes", "steps"] if work.int_tuple("steps") else ["axes"]
    # Slice has one type parameter for starts, ends, axes and steps.
    is_int32 = all(work.operands[slot].type.dtype == I32 for slot in bounds)
    kind, other_types = (I32, ("i32",)) if is_int32 else (I64, ())
    operands = [
        ins["x"],
        *(int64_operand(writer, work, ins, slot, *other_types) for slot in bounds),
    ]
    operands += [int_list_operand(writer, work, name, "Slice", kind=kind) for name in names]
    writer.emit("Slice", operands, [work.out], origins=work.origins)


def _split(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    outs = [writer.name(value) for value in work.node.results]
    sizes, attrs = work.int_tuple("sizes"), {"axis": work.int_attr("axis")}
    operands = [ins["x"]]
    # Equal parts: Split without sizes needs no operand below opset 18 and num_outputs from there.
    may_omit_sizes = "split" not in source_operand_names(work, "Split") and len(set(sizes)) == 1
    if not may_omit_sizes or not any(o.op == "Split" for o in work.origins):
        operands.append(int_list_operand(writer, work, "sizes", "Split", "split"))
    elif writer.opset >= 18:
        attrs["num_outputs"] = len(sizes)
    writer.emit("Split", operands, outs, attrs, origins=work.origins)


def _gather(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    attrs: dict[str, AttrValue] = {"axis": work.int_attr("axis")} if work.attrs["axis"] else {}
    writer.emit("Gather", ins.values(), [work.out], attrs, origins=work.origins)


def _tile(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    repeats = int_list_operand(writer, work, "repeats", "Tile")
    writer.emit("Tile", [ins["x"], repeats], [work.out], origins=work.origins)


def _pixel_blocks(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    name = "DepthToSpace" if work.op == "depth_to_space" else "SpaceToDepth"
    attrs: dict[str, AttrValue] = {"blocksize": work.int_attr("block")}
    if "mode" in work.attrs:
        attrs["mode"] = str(work.attrs["mode"])
    if not work.is_nhwc:
        writer.emit(name, [ins["x"]], [work.out], attrs, origins=work.origins)
        return
    channels_first_result = writer.fresh(f"{work.out}_first")
    writer.emit(
        name,
        [writer.transposed(ins["x"], _TO_CHANNELS_FIRST)],
        [channels_first_result],
        attrs,
        origins=work.origins,
    )
    writer.transposed(channels_first_result, _TO_CHANNELS_LAST, work.out)


def _shape(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    attrs: dict[str, AttrValue] = {"start": work.int_attr("start")} if work.attrs["start"] else {}
    if work.attrs["end"] is not None:
        attrs["end"] = work.int_attr("end")
    # Shape has start and end since opset 15.
    if attrs and writer.opset < 15:
        _sliced_shape(writer, work, ins["x"])
        return
    writer.emit("Shape", [ins["x"]], [work.out], attrs, origins=work.origins)


def _sliced_shape(writer: OnnxWriter, work: OpToWrite, x: str) -> None:
    """Writes some of the sizes for operator sets before 15: a slice of the whole shape."""
    sizes, rank = writer.fresh(f"{work.out}_sizes"), work.operands["x"].type.rank
    end = rank if work.attrs["end"] is None else work.int_attr("end")
    bounds = [max(0, i + rank if i < 0 else min(i, rank)) for i in (work.int_attr("start"), end)]
    names = [
        writer.parameter(np.array([i], np.int64), f"{work.out}_{word}", None)
        for word, i in zip(("start", "end"), bounds, strict=True)
    ]
    writer.emit("Shape", [x], [sizes], origins=work.origins)
    writer.emit("Slice", [sizes, *names], [work.out])


def _constant_of_shape(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    value = work.attrs["value"]
    assert isinstance(value, Array)
    proto = tensor(value, "")
    # ONNX's default is a float32 zero.
    attrs = (
        {} if proto.data_type == TensorProto.FLOAT and not value.data.any() else {"value": proto}
    )
    writer.emit("ConstantOfShape", [ins["shape"]], [work.out], attrs, origins=work.origins)


OPS: dict[str, OperatorWriter] = {
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "slice": _slice,
    "slice_at": _slice_at,
    "split": _split,
    "gather": _gather,
    "expand": operator("Expand"),
    "tile": _tile,
    "depth_to_space": _pixel_blocks,
    "space_to_depth": _pixel_blocks,
    "shape": _shape,
    "size": operator("Size"),
    "range": operator("Range"),
    "constant_of_shape": _constant_of_shape,
}
