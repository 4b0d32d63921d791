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
    for given in proto.attribute:
        for graph in [*([given.g] if given.HasField("g") else []), *given.graphs]:
            for node in graph.node:
                yield node
                yield from nodes_inside(node)


def _write_hardmax(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes a Hardmax over all axes from `axis` on, between Flatten and Reshape."""
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
    said = f"Hardmax is written as opset {writer.opset} has it, of rows laid out and back"
    writer.ledger.add(Change.EXACT, STEP, node.name, said)


def _write_resize(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes an Upsample or the first Resize.

    Positions are those of the result divided by the scale. The nearest pixel is the one before,
    except along axes that shrink, where onnxruntime takes the one after. A Resize with both is
    written as two.
    """
    x, y = proto.input[0], proto.output[0]
    given = {a.name: a for a in proto.attribute}
    mode = given["mode"].s.decode() if "mode" in given else "nearest"
    name, known = _scale_operand(writer, node, proto)
    attrs: dict[str, str] = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    if mode != "nearest":
        writer.emit("Resize", [x, "", name], [y], attrs)
    elif known is not None and ((known >= 1).all() or (known <= 1).all()):
        rounding = "floor" if (known >= 1).all() else "ceil"
        writer.emit("Resize", [x, "", name], [y], {**attrs, "nearest_mode": rounding})
    else:
        more, less, grown = (writer.fresh(f"{y}_{word}") for word in ("more", "less", "grown"))
        one = writer.constant(np.ones(1, np.float32), f"{y}_one")
        writer.emit("Max", [name, one], [more])
        writer.emit("Min", [name, one], [less])
        _write_upscale(writer, [x, more, less], grown, {**attrs, "nearest_mode": "floor"})
        writer.emit("Resize", [grown, "", less], [y], {**attrs, "nearest_mode": "ceil"})
    said = f"{proto.op_type} is written as opset {writer.opset} has it, of the same places"
    writer.ledger.add(Change.EXACT, STEP, node.name, said)


def _write_upscale(writer: OnnxWriter, given: list[str], y: str, attrs: Mapping[str, str]) -> None:
    """Writes a Resize of x by the scales above 1.

    onnxruntime returns x unchanged where all sizes stay. A Resize that also shrinks another axis
    would not. So x is resized with an extra leading axis that grows, which is removed again.
    """
    x, more, less = given
    words = ("least", "whole", "before", "by", "row", "rows")
    least, whole, before, by, row, rows = (writer.fresh(f"{y}_{word}") for word in words)
    two = writer.constant(np.full(1, 2, np.float32), f"{y}_two")
    writer.emit("ReduceMin", [less], [least])
    writer.emit("Floor", [least], [whole])
    writer.emit("Sub", [two, whole], [before])
    writer.emit("Concat", [before, more], [by], {"axis": 0})
    if writer.opset < 13:
        writer.emit("Unsqueeze", [x], [row], {"axes": (0,)})
    else:
        axes = writer.constant(np.zeros(1, np.int64), f"{y}_axes")
        writer.emit("Unsqueeze", [x, axes], [row])
    writer.emit("Resize", [row, "", by], [rows], attrs)
    first = writer.constant(np.array(0), f"{y}_first")
    writer.emit("Gather", [rows, first], [y], {"axis": 0})


def _scale_operand(
    writer: OnnxWriter, node: Node, proto: onnx.NodeProto
) -> tuple[str, NDArray[np.float32] | None]:
    """Returns the name of the scales, and their values where they are constant."""
    for given in proto.attribute:
        if given.name == "scales":
            numbers = np.array(given.floats, np.float32)
            return writer.constant(numbers, f"{proto.output[0]}_scales"), numbers
    held = node.variadic("xs")[1].constant
    return proto.input[1], None if held is None else np.asarray(held.data, np.float32)


def _write_dropout(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes a Dropout with a mask: inference drops nothing, and the mask is all false."""
    x, y, mask = proto.input[0], proto.output[0], proto.output[1]
    writer.emit("Identity", [x], [y or writer.fresh(f"{mask}_of")])
    version = node.attrs["version"]
    assert isinstance(version, int)
    sizes = writer.fresh(f"{mask}_sizes")
    writer.emit("Shape", [x], [sizes])
    like = node.variadic("xs")[0].type.dtype if version < 10 else BOOL
    none = helper.make_tensor("none", element_type(like), (1,), [0])
    writer.nodes.append(helper.make_node("ConstantOfShape", [sizes], [mask], value=none))
    said = "Dropout is written as what it gives: the mask that older sets have here is all false"
    writer.ledger.add(Change.EXACT, STEP, node.name, said)


def _write_group_normalization(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes a GroupNormalization whose scale and bias are per group as one with them per
    channel."""
    groups = next((a.i for a in proto.attribute if a.name == "num_groups"), 0)
    shape = node.variadic("xs")[0].type.shape
    channels = shape[1] if len(shape) > 1 else None
    if not isinstance(channels, int) or not groups or channels % groups:
        what = f"its {groups} groups are of channels whose number nobody knows"
        raise writer.refuse(node, f"{proto.op_type} of opset {node.attrs['version']!s}: {what}")
    y = proto.output[0]
    column = writer.constant(np.array([groups, 1]), f"{y}_column")
    wide = writer.constant(np.array([groups, channels // groups]), f"{y}_wide")
    flat = writer.constant(np.array([channels]), f"{y}_flat")
    for at in (1, 2):
        one, more, each = (writer.fresh(f"{proto.input[at]}_{w}") for w in ("one", "more", "each"))
        writer.emit("Reshape", [proto.input[at], column], [one])
        writer.emit("Expand", [one, wide], [more])
        writer.emit("Reshape", [more, flat], [each])
        proto.input[at] = each
    writer.nodes.append(proto)
    said = f"{proto.op_type} is written as opset {writer.opset} has it, of each channel's numbers"
    writer.ledger.add(Change.EXACT, STEP, node.name, said)


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
