"""Operators of older operator sets whose meaning newer ones changed, said in newer ones' terms.

ONNX's own converter knows most operators; what it leaves as it is or gets wrong is here.
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

from ..writer.elements import number
from ..writer.writer import STEP, OnnxWriter

Handler = Callable[[OnnxWriter, Node, onnx.NodeProto], None]

CHANGED = {
    "Hardmax": 13,
    "Resize": 11,
    "Upsample": 11,
    "Dropout": 12,
    "Scan": 9,
    "GroupNormalization": 21,
}
"""The first operator set where they, or what became of them, mean another thing.

Of others that did, such as Softmax, RoiAlign and DFT, the converter keeps the meaning.
"""


def changed(proto: onnx.NodeProto, version: int, opset: int) -> bool:
    """Returns whether the operator means another thing from one version to the other, beyond its
    form."""
    if proto.domain or not version < CHANGED.get(proto.op_type, 0) <= opset:
        return False
    return proto.op_type != "Dropout" or bool(proto.output[1:] and proto.output[1])


def inside(proto: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yields every node of the graphs that a node holds, and of theirs."""
    for given in proto.attribute:
        for graph in [*([given.g] if given.HasField("g") else []), *given.graphs]:
            for node in graph.node:
                yield node
                yield from inside(node)


def _of_rows(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes a Hardmax that takes all axes from its own on as one, as those of rows laid out."""
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


def _resized(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes an Upsample or the first Resize.

    Places are the new ones over the scale. The nearest one is the one before, but along axes that
    shrink, where onnxruntime takes the one after: such a Resize is written as two where both occur.
    """
    x, y = proto.input[0], proto.output[0]
    given = {a.name: a for a in proto.attribute}
    mode = given["mode"].s.decode() if "mode" in given else "nearest"
    name, known = _scales(writer, node, proto)
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
        _grown(writer, [x, more, less], grown, {**attrs, "nearest_mode": "floor"})
        writer.emit("Resize", [grown, "", less], [y], {**attrs, "nearest_mode": "ceil"})
    said = f"{proto.op_type} is written as opset {writer.opset} has it, of the same places"
    writer.ledger.add(Change.EXACT, STEP, node.name, said)


def _grown(writer: OnnxWriter, given: list[str], y: str, attrs: Mapping[str, str]) -> None:
    """Emits a Resize of x by what is more than one.

    Onnxruntime leaves an x whose sizes all stay as it is, which the one Resize would not have where
    another axis shrinks: there x is resized with an axis before it that grows, and taken out again.
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


def _scales(
    writer: OnnxWriter, node: Node, proto: onnx.NodeProto
) -> tuple[str, NDArray[np.float32] | None]:
    """Returns the name of the scales, and their numbers where they are constant."""
    for given in proto.attribute:
        if given.name == "scales":
            numbers = np.array(given.floats, np.float32)
            return writer.constant(numbers, f"{proto.output[0]}_scales"), numbers
    held = node.variadic("xs")[1].constant
    return proto.input[1], None if held is None else np.asarray(held.data, np.float32)


def _dropped(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes a Dropout with a mask: at inference it drops nothing, and its mask is all false."""
    x, y, mask = proto.input[0], proto.output[0], proto.output[1]
    writer.emit("Identity", [x], [y or writer.fresh(f"{mask}_of")])
    version = node.attrs["version"]
    assert isinstance(version, int)
    sizes = writer.fresh(f"{mask}_sizes")
    writer.emit("Shape", [x], [sizes])
    like = node.variadic("xs")[0].type.dtype if version < 10 else BOOL
    none = helper.make_tensor("none", number(like), (1,), [0])
    writer.nodes.append(helper.make_node("ConstantOfShape", [sizes], [mask], value=none))
    said = "Dropout is written as what it gives: the mask that older sets have here is all false"
    writer.ledger.add(Change.EXACT, STEP, node.name, said)


def _grouped(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    """Writes a GroupNormalization whose scale and bias are of groups, as one where of channels."""
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


def _of_batches(writer: OnnxWriter, node: Node, proto: onnx.NodeProto) -> None:
    raise writer.refuse(
        node,
        f"Scan of opset {node.attrs['version']!s} goes over batches, which none of newer sets does",
    )


OWN: dict[str, Handler] = {
    "Hardmax": _of_rows,
    "Resize": _resized,
    "Upsample": _resized,
    "Dropout": _dropped,
    "Scan": _of_batches,
    "GroupNormalization": _grouped,
}
