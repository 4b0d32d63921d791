"""Squeeze, Slice, Split, Gather, Expand, Tile and others that rearrange, and Shape and Range."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.node import Value
from qir.ir.types import Array

from .moving_ops import add_moving_op
from .op import KeepOperator, NotConstant, OnnxOp
from .reader import OnnxReader

Handler = Callable[[OnnxReader, OnnxOp], None]
_INT32_MAX = 2**31 - 1


def _ints(
    reader: OnnxReader, op: OnnxOp, name: str, index: int, since: int
) -> tuple[int, ...] | None:
    """Returns integers that are an attribute before opset `since` and an operand from it on."""
    if op.opset < since:
        return op.integers(name, ()) if op.attribute(name) else None
    if not op.input(index):
        return None
    return tuple(int(v) for v in reader.constant_data(op.input(index)).reshape(-1))


def _first_operand(reader: OnnxReader, op: OnnxOp) -> Value:
    return reader.value(op, op.input(0))


def _squeeze(reader: OnnxReader, op: OnnxOp) -> None:
    x, axes = reader.value_to_move(op, op.input(0)), _ints(reader, op, "axes", 1, 13)
    # Without axes, all axes of size 1 go: none may be open.
    if not axes and dims.known_shape(x.type.shape) is None:
        raise KeepOperator
    add_moving_op(reader, op, "squeeze", {"x": x}, {"axes": axes or ()})


def _unsqueeze(reader: OnnxReader, op: OnnxOp) -> None:
    axes = _ints(reader, op, "axes", 1, 13)
    add_moving_op(
        reader, op, "unsqueeze", {"x": reader.value_to_move(op, op.input(0))}, {"axes": axes or ()}
    )


def _slice(reader: OnnxReader, op: OnnxOp) -> None:
    try:
        starts, ends = (_ints(reader, op, n, i + 1, 10) for i, n in enumerate(("starts", "ends")))
    except NotConstant:
        if not reader.evaluates:
            raise
        _slice_at_computed_bounds(reader, op)
        return
    if starts is None or ends is None:
        raise KeepOperator
    axes, steps = _axes_and_steps(reader, op, len(starts))
    if any(step < 0 and end >= _INT32_MAX for end, step in zip(ends, steps, strict=False)):
        # A backward slice that ends at INT_MAX: the standard clamps it to the last element,
        # onnxruntime takes it for the start of the axis.
        raise KeepOperator
    attrs: dict[str, Attr] = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    add_moving_op(reader, op, "slice", {"x": reader.value_to_move(op, op.input(0))}, attrs)


def _axes_and_steps(
    reader: OnnxReader, op: OnnxOp, count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    axes, steps = (_ints(reader, op, n, i + 3, 10) for i, n in enumerate(("axes", "steps")))
    return tuple(range(count)) if axes is None else axes, (1,) * count if steps is None else steps


def _slice_at_computed_bounds(reader: OnnxReader, op: OnnxOp) -> None:
    """Slice with computed bounds, as `slice_at`."""
    bounds = {slot: reader.value(op, op.input(i + 1)) for i, slot in enumerate(("starts", "ends"))}
    counts = [v.type.shape[0] for v in bounds.values() if v.type.rank == 1]
    count = next((size for size in counts if isinstance(size, int)), None)
    if count is None:
        raise KeepOperator
    axes, steps = _axes_and_steps(reader, op, count)
    # `slice_at` goes forward only.
    if min(steps, default=1) < 0:
        raise KeepOperator
    attrs: dict[str, Attr] = {"axes": axes, "steps": steps if op.input(4) else ()}
    add_moving_op(
        reader, op, "slice_at", {"x": reader.value_to_move(op, op.input(0)), **bounds}, attrs
    )


def _split(reader: OnnxReader, op: OnnxOp) -> None:
    x, axis, count = reader.value_to_move(op, op.input(0)), op.integer("axis", 0), len(op.outputs)
    sizes = _ints(reader, op, "split", 1, 13)
    if not all(op.outputs) or not -x.type.rank <= axis < x.type.rank:
        raise KeepOperator
    if sizes is None:
        total = x.type.shape[axis]
        if not isinstance(total, int) or not count:
            raise KeepOperator
        # Parts are equal but for the last, which may be smaller (since opset 18).
        part_size = -(-total // count)
        sizes = (*(part_size,) * (count - 1), total - part_size * (count - 1))
        if sizes[-1] < 0 and reader.outer is not None:  # perhaps a branch that is never taken
            raise KeepOperator(f"{total} elements in {count} parts of {part_size}")
    if len(sizes) != count:
        raise op.error(f"gives {count} parts of {len(sizes)} sizes")
    add_moving_op(reader, op, "split", {"x": x}, {"sizes": sizes, "axis": axis})


def _gather(reader: OnnxReader, op: OnnxOp) -> None:
    x = reader.value_to_move(op, op.input(0))
    operands = {"x": x, "indices": reader.value(op, op.input(1))}
    add_moving_op(reader, op, "gather", operands, {"axis": op.integer("axis", 0)})


def _expand(reader: OnnxReader, op: OnnxOp) -> None:
    shape = reader.value(op, op.input(1))
    # The length of the shape operand is the rank of the result, which must be known.
    if shape.constant is None and not isinstance(shape.type.shape[0], int):
        raise KeepOperator
    add_moving_op(
        reader, op, "expand", {"x": reader.value_to_move(op, op.input(0)), "shape": shape}, {}
    )


def _tile(reader: OnnxReader, op: OnnxOp) -> None:
    repeats = tuple(int(v) for v in reader.constant_data(op.input(1)).reshape(-1))
    add_moving_op(
        reader, op, "tile", {"x": reader.value_to_move(op, op.input(0))}, {"repeats": repeats}
    )


def _depth_to_space(reader: OnnxReader, op: OnnxOp) -> None:
    attrs: dict[str, Attr] = {"block": op.integer("blocksize", 0), "mode": op.text("mode", "DCR")}
    add_moving_op(reader, op, "depth_to_space", {"x": reader.value_to_move(op, op.input(0))}, attrs)


def _space_to_depth(reader: OnnxReader, op: OnnxOp) -> None:
    if op.text("mode", "DCR") != "DCR":
        raise KeepOperator
    attrs: dict[str, Attr] = {"block": op.integer("blocksize", 0)}
    reader.add(op, "space_to_depth", {"x": _first_operand(reader, op)}, attrs)


def _shape(reader: OnnxReader, op: OnnxOp) -> None:
    end = op.integer("end", 0) if op.attribute("end") else None
    attrs: dict[str, Attr] = {"start": op.integer("start", 0), "end": end}
    reader.add(op, "shape", {"x": _first_operand(reader, op)}, attrs)


def _size(reader: OnnxReader, op: OnnxOp) -> None:
    reader.add(op, "size", {"x": _first_operand(reader, op)})


def _range(reader: OnnxReader, op: OnnxOp) -> None:
    operands = {
        s: reader.value(op, n) for s, n in zip(("start", "limit", "step"), op.inputs, strict=True)
    }
    if any(v.type.rank for v in operands.values()):
        raise KeepOperator
    reader.add(op, "range", operands)


def _constant_of_shape(reader: OnnxReader, op: OnnxOp) -> None:
    attribute, shape = op.attribute("value"), reader.value(op, op.input(0))
    # The standard's default is a float32 zero.
    value = Array.of(np.zeros(1, np.float32))
    if attribute is not None:
        value = reader.file.array(attribute.t, "value")
    if shape.constant is None and not isinstance(shape.type.shape[0], int):
        raise KeepOperator
    reader.add(op, "constant_of_shape", {"shape": shape}, {"value": value})


OPS: dict[str, Handler] = {
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Split": _split,
    "Gather": _gather,
    "Expand": _expand,
    "Tile": _tile,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Shape": _shape,
    "Size": _size,
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
}
