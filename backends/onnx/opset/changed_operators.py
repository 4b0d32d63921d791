"""Operators whose meaning a newer operator set changed, written as the newer set has them.

ONNX's version converter knows most operators; this module has those that it converts wrongly or not
at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from qir.ir.dtype import BOOL
from qir.ir.node import Node
from qir.ledger import Change

from ..writer.elements import element_type
from ..writer.writer import STEP, OnnxWriter

Handler = Callable[[OnnxWriter, Node, onnx.NodeProto], None]

FIRST_CHANGED_OPSET = {
    "Hardmax": 13,
    "Resize": 11,
    "Upsample": 11,
    "Dropout": 12,
    "Scan": 9,
    "GroupNormalization": 21,
}
"""The first operator set in which an operator, or its successor, means something else.

The version converter keeps the meaning of others, such as Softmax, RoiAlign and DFT.
"""


def has_changed_meaning(proto: onnx.NodeProto, version: int, opset: int) -> bool:
    """Returns whether an operator means something else in the other version."""
    if proto.domain or not version < FIRST_CHANGED_OPSET.get(proto.op_type, 0) <= opset:
        return False
    # Only the mask of Dropout changed: it became bool.
    return proto.op_type != "Dropout" or bool(proto.output[1:] and proto.output[1])


def nodes_inside(proto: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yields every node of a node's subgraphs, and of theirs."""
    for attr in proto.attribute:
        for graph in [*([attr.g] if attr.HasField("g") else []), *attr.graphs]:
            for node in graph.node:
                yield node
                yield from nodes_inside(node)


def _write_hardmax(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes a Hardmax over all axes from `axis` on, between Flatten and Reshape."""
    # Since opset 13 Hardmax works along one axis: flatten, take it along axis 1, reshape.
    x, y = proto.input[0], proto.output[0]
    axis = next((a.i for a in proto.attribute if a.name == "axis"), 1)
    sizes, flat, rows = (writer.fresh(f"{y}_{word}") for word in ("sizes", "flat", "rows"))
    writer.emit("Shape", [x], [sizes])
    writer.emit("Flatten", [x], [flat], {"axis": axis})
    proto.input[:], proto.output[:] = [flat], [rows]
    del proto.attribute[:]
    proto.attribute.append(helper.make_attribute("axis", 1))
    writer.nodes.append(proto)
    writer.emit("Reshape", [rows, sizes], [y])
    reason = f"Hardmax is written as opset {writer.opset} has it, of rows laid out and back"
    writer.ledger.add(Change.EXACT, STEP, node.name, reason)


def _write_resize(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes an Upsample or the first Resize.

    Positions are those of the result divided by the scale. The nearest pixel is the one before,
    except along axes that shrink, where onnxruntime takes the one after. A Resize with both is
    written as two.
    """
    x, y = proto.input[0], proto.output[0]
    attrs_by_name = {a.name: a for a in proto.attribute}
    mode = attrs_by_name["mode"].s.decode() if "mode" in attrs_by_name else "nearest"
    name, scales = _scale_operand(writer, node, proto)
    attrs: dict[str, str] = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    if mode != "nearest":
        # Other modes interpolate, so one Resize covers growing and shrinking axes.
        writer.emit("Resize", [x, "", name], [y], attrs)
    elif scales is not None and ((scales >= 1).all() or (scales <= 1).all()):
        rounding = "floor" if (scales >= 1).all() else "ceil"
        writer.emit("Resize", [x, "", name], [y], {**attrs, "nearest_mode": rounding})
    # Split the scales: max(scale, 1) grows first, min(scale, 1) shrinks after it.
    else:
        upscales, downscales, grown = (
            writer.fresh(f"{y}_{word}") for word in ("more", "less", "grown")
        )
        one = writer.constant(np.ones(1, np.float32), f"{y}_one")
        writer.emit("Max", [name, one], [upscales])
        writer.emit("Min", [name, one], [downscales])
        _write_upscale(writer, [x, upscales, downscales], grown, {**attrs, "nearest_mode": "floor"})
        writer.emit("Resize", [grown, "", downscales], [y], {**attrs, "nearest_mode": "ceil"})
    reason = f"{proto.op_type} is written as opset {writer.opset} has it, of the same places"
    writer.ledger.add(Change.EXACT, STEP, node.name, reason)


def _write_upscale(
    writer: OnnxWriter, operands: list[str], y: str, attrs: Mapping[str, str]
) -> None:
    """Writes a Resize of x by the scales above 1.

    onnxruntime returns x unchanged where all sizes stay. A Resize that also shrinks another axis
    would not. So x is resized with an extra leading axis that grows, which is removed again.
    """
    x, upscales, downscales = operands
    words = ("least", "whole", "before", "by", "row", "rows")
    least, floored, leading, all_scales, unsqueezed, resized = (
        writer.fresh(f"{y}_{word}") for word in words
    )
    two = writer.constant(np.full(1, 2, np.float32), f"{y}_two")
    writer.emit("ReduceMin", [downscales], [least])
    writer.emit("Floor", [least], [floored])
    # 2 - floor(least): more than 1 exactly where some other axis shrinks, else 1.
    writer.emit("Sub", [two, floored], [leading])
    writer.emit("Concat", [leading, upscales], [all_scales], {"axis": 0})
    if writer.opset < 13:
        writer.emit("Unsqueeze", [x], [unsqueezed], {"axes": (0,)})
    else:
        axes = writer.constant(np.zeros(1, np.int64), f"{y}_axes")
        writer.emit("Unsqueeze", [x, axes], [unsqueezed])
    writer.emit("Resize", [unsqueezed, "", all_scales], [resized], attrs)
    first = writer.constant(np.array(0), f"{y}_first")
    writer.emit("Gather", [resized, first], [y], {"axis": 0})


def _scale_operand(
    writer: OnnxWriter, node: Node, proto: onnx.NodeProto
) -> tuple[str, NDArray[np.float32] | None]:
    """Returns the name of the scales, and their values where they are constant."""
    for attr in proto.attribute:
        if attr.name == "scales":
            values = np.array(attr.floats, np.float32)
            return writer.constant(values, f"{proto.output[0]}_scales"), values
    constant = node.variadic("xs")[1].constant
    return proto.input[1], None if constant is None else np.asarray(constant.data, np.float32)


def _write_dropout(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes a Dropout with a mask: inference drops nothing, and the mask is all false."""
    x, y, mask = proto.input[0], proto.output[0], proto.output[1]
    writer.emit("Identity", [x], [y or writer.fresh(f"{mask}_of")])
    version = node.attrs["version"]
    assert isinstance(version, int)
    sizes = writer.fresh(f"{mask}_sizes")
    writer.emit("Shape", [x], [sizes])
    # Until opset 9 the mask had the type of the data.
    mask_type = node.variadic("xs")[0].type.dtype if version < 10 else BOOL
    false_value = helper.make_tensor("none", element_type(mask_type), (1,), [0])
    writer.nodes.append(helper.make_node("ConstantOfShape", [sizes], [mask], value=false_value))
    reason = "Dropout is written as what it gives: the mask that older sets have here is all false"
    writer.ledger.add(Change.EXACT, STEP, node.name, reason)


def _write_group_normalization(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes a GroupNormalization whose scale and bias are per group as one with them per
    channel."""
    groups = next((a.i for a in proto.attribute if a.name == "num_groups"), 0)
    shape = node.variadic("xs")[0].type.shape
    channels = shape[1] if len(shape) > 1 else None
    if not isinstance(channels, int) or not groups or channels % groups:
        problem = f"its {groups} groups are of channels whose number nobody knows"
        raise writer.refuse(node, f"{proto.op_type} of opset {node.attrs['version']!s}: {problem}")
    y = proto.output[0]
    column = writer.constant(np.array([groups, 1]), f"{y}_column")
    grid = writer.constant(np.array([groups, channels // groups]), f"{y}_wide")
    flat = writer.constant(np.array([channels]), f"{y}_flat")
    # [groups] -> [groups, 1] -> [groups, channels / groups] -> [channels]: repeat per channel.
    for position in (1, 2):
        reshaped, expanded, per_channel = (
            writer.fresh(f"{proto.input[position]}_{w}") for w in ("one", "more", "each")
        )
        writer.emit("Reshape", [proto.input[position], column], [reshaped])
        writer.emit("Expand", [reshaped, grid], [expanded])
        writer.emit("Reshape", [expanded, flat], [per_channel])
        proto.input[position] = per_channel
    writer.nodes.append(proto)
    reason = f"{proto.op_type} is written as opset {writer.opset} has it, of each channel's numbers"
    writer.ledger.add(Change.EXACT, STEP, node.name, reason)


def _refuse_scan(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    raise writer.refuse(
        node,
        f"Scan of opset {node.attrs['version']!s} goes over batches, which none of newer sets does",
    )


WRITERS: dict[str, Handler] = {
    "Hardmax": _write_hardmax,
    "Resize": _write_resize,
    "Upsample": _write_resize,
    "Dropout": _write_dropout,
    "Scan": _refuse_scan,
    "GroupNormalization": _write_group_normalization,
}
"""The writer of each operator of FIRST_CHANGED_OPSET."""
