"""Ops that move elements and compute none."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from qir.ir.node import Node

from .elementwise import broadcast
from .layers import int_list_attr
from .symbol import Entry
from .writer import FIXED_SIZES, OpWriter, SymbolWriter, float_attr, int_attr

_PAST_ANY_END = 1 << 31
"""Where a slice ends that ends nowhere."""


def _shape(writer: SymbolWriter, node: Node) -> tuple[int, ...]:
    """Returns the shape that a reshape is given, in special sizes (0, -1) that MXNet has too."""
    constant = node.operands["shape"].constant
    x, result_shape = node.operands["x"].type, node.result.type.shape
    if constant is not None and not node.attrs["allow_zero"]:
        return tuple(int(v) for v in constant.data) or (1,)
    static_sizes = [size if isinstance(size, int) else None for size in result_shape]
    open_axes = [i for i, size in enumerate(static_sizes) if size is None]
    if len(open_axes) <= 1:
        return tuple(-1 if size is None else size for size in static_sizes) or (1,)
    # More than one open size: 0 copies the operand's size where the axis stays in its place.
    with_copies = [
        0 if i < x.rank and size is not None and result_shape[i] == x.shape[i] else size
        for i, size in enumerate(result_shape)
    ]
    unknown_axes = [i for i, size in enumerate(with_copies) if not isinstance(size, int)]
    if len(unknown_axes) <= 1:
        return tuple(size if isinstance(size, int) else -1 for size in with_copies)
    raise writer.refuse(node, f"its shape is computed; {FIXED_SIZES}")


def _reshape(writer: SymbolWriter, node: Node) -> Entry:
    return writer.add_result(
        node, "Reshape", [writer.operand(node)], {"shape": _shape(writer, node)}
    )


def _flatten(writer: SymbolWriter, node: Node) -> Entry:
    x, axis = node.operands["x"].type, int_attr(node.attrs, "axis")
    axis = axis + x.rank if axis < 0 else axis
    if axis == 1:
        return writer.add_result(node, "Flatten", [writer.operand(node)])
    leading_sizes = [writer.size(node, node.operands["x"], i) for i in range(axis)]
    return writer.add_result(
        node, "Reshape", [writer.operand(node)], {"shape": (prod(leading_sizes), -1)}
    )


def _transpose(writer: SymbolWriter, node: Node) -> Entry:
    return writer.add_result(
        node, "transpose", [writer.operand(node)], {"axes": int_list_attr(node, "perm")}
    )


def _axes(node: Node, rank: int) -> list[int]:
    return sorted(a + rank if a < 0 else a for a in int_list_attr(node, "axes"))


def _squeeze(writer: SymbolWriter, node: Node) -> Entry:
    x = node.operands["x"].type
    # MXNet has no scalars: a single element is an array of one.
    if not node.result.type.shape:
        return writer.add_result(node, "Reshape", [writer.operand(node)], {"shape": (1,)})
    axes = _axes(node, x.rank) or [i for i, size in enumerate(x.shape) if size == 1]
    if not axes:
        return writer.add_result(node, "_copy", [writer.operand(node)])
    return writer.add_result(node, "squeeze", [writer.operand(node)], {"axis": tuple(axes)})


def _unsqueeze(writer: SymbolWriter, node: Node) -> Entry:
    x, rank = node.operands["x"], node.result.type.rank
    expanded, axes = writer.entry(x), _axes(node, rank)
    if not x.type.shape:
        return writer.add_result(node, "Reshape", [expanded], {"shape": (1,) * rank})
    for axis in axes[:-1]:
        expanded = writer.add_intermediate(node, "expand_dims", [expanded], {"axis": axis})
    return writer.add_result(node, "expand_dims", [expanded], {"axis": axes[-1]})


def _concat(writer: SymbolWriter, node: Node) -> Entry:
    parts = [writer.entry(v) for v in node.operands.values()]
    axis = int_attr(node.attrs, "axis")
    axis = axis + node.result.type.rank if axis < 0 else axis
    return writer.add_result(node, "Concat", parts, {"dim": axis, "num_args": len(parts)})


def _split(writer: SymbolWriter, node: Node) -> Sequence[Entry]:
    sizes, axis = int_list_attr(node, "sizes"), node.attrs["axis"]
    x = writer.operand(node)
    if len(set(sizes)) == 1:
        attrs = {"num_outputs": len(sizes), "axis": axis, "squeeze_axis": False}
        if len(sizes) == 1:
            return [writer.add_result(node, "_copy", [x])]
        index, _ = writer.add_result(node, "SliceChannel", [x], attrs, results=len(sizes))
        return [(index, i) for i in range(len(sizes))]
    parts, start = [], 0
    for value, size in zip(node.results, sizes, strict=True):
        attrs = {"axis": axis, "begin": start, "end": start + size}
        parts.append(writer.emit("slice_axis", [x], attrs, name=value.name))
        start += size
    return parts


def _slice(writer: SymbolWriter, node: Node) -> Entry:
    x = node.operands["x"].type
    # begin, end and step of each axis; None is MXNet's default.
    bounds: list[list[int | None]] = [[None] * x.rank for _ in range(3)]
    fields = (int_list_attr(node, name) for name in ("axes", "starts", "ends", "steps"))
    for axis, start, end, step in zip(*fields, strict=True):
        position, size = axis % x.rank, x.shape[axis % x.rank]
        if isinstance(size, int):
            range_of_axis: list[int | None] = list(slice(start, end, step).indices(size))
            # An end before the first element is None, as -1 means the last element.
            if step < 0 and range_of_axis[1] == -1:
                range_of_axis[1] = None
            if step > 0 and range_of_axis[0] == range_of_axis[1]:
                raise writer.refuse(node, "its result has no elements")
        else:
            range_of_axis = [start, end if abs(end) < _PAST_ANY_END else None, step]
            range_of_axis[0] = None if abs(start) >= _PAST_ANY_END else start
        for bound, value in zip(bounds, range_of_axis, strict=True):
            bound[position] = value
    attrs = {n: tuple(r) for n, r in zip(("begin", "end", "step"), bounds, strict=True)}
    return writer.add_result(node, "slice", [writer.operand(node)], attrs)


def _expand(writer: SymbolWriter, node: Node) -> Entry:
    x = node.operands["x"]
    entry = broadcast(writer, node, x, writer.entry(x))
    return writer.add_result(node, "_copy", [entry])


def _tile(writer: SymbolWriter, node: Node) -> Entry:
    attrs = {"reps": int_list_attr(node, "repeats")}
    return writer.add_result(node, "tile", [writer.operand(node)], attrs)


def _flip(writer: SymbolWriter, node: Node) -> Entry:
    attrs = {"axis": tuple(_axes(node, node.operands["x"].type.rank))}
    return writer.add_result(node, "reverse", [writer.operand(node)], attrs)


def _pad(writer: SymbolWriter, node: Node) -> Entry:
    """Writes padding: MXNet's pads images and volumes, after the channels alone."""
    x, pads, mode = node.operands["x"], int_list_attr(node, "pads"), str(node.attrs["mode"])
    rank = x.type.rank
    pairs = list(zip(pads[:rank], pads[rank:], strict=True))
    padded_entry = writer.entry(x)
    if rank in (4, 5) and not any(map(any, pairs[:2])) and min(pads) >= 0:
        if mode not in ("constant", "edge", "reflect"):
            raise writer.refuse(node, f"MXNet does not pad with {mode}")
        attrs: dict[str, object] = {"mode": mode, "pad_width": tuple(p for q in pairs for p in q)}
        if mode == "constant":
            attrs["constant_value"] = node.attrs["value"]
        return writer.add_result(node, "Pad", [padded_entry], attrs)
    if mode != "constant" or min(pads) < 0:
        raise writer.refuse(node, f"MXNet pads 4 and 5 axes by {mode}, the first two not at all")
    shape = [size if isinstance(size, int) else None for size in x.type.shape]
    # Other ranks: a constant block is concatenated on each side, axis by axis.
    for axis, pair in enumerate(pairs):
        if not any(pair):
            continue
        before, after = (_block(writer, node, padded_entry, shape, axis, count) for count in pair)
        parts = [*before, padded_entry, *after]
        padded_entry = writer.add_intermediate(
            node, "Concat", parts, {"dim": axis, "num_args": len(parts)}
        )
        size = shape[axis]
        shape[axis] = None if size is None else size + sum(pair)
    return writer.add_result(node, "_copy", [padded_entry])


def _block(
    writer: SymbolWriter,
    node: Node,
    neighbour: Entry,
    shape: list[int | None],
    axis: int,
    count: int,
) -> list[Entry]:
    """Returns what pads a tensor on one side of an axis, as long as the tensor on open ones."""
    if not count:
        return []
    x = node.operands["x"]
    sizes = [count if i == axis else 1 if size is None else size for i, size in enumerate(shape)]
    fill = np.full(sizes, float_attr(node.attrs, "value"), x.type.dtype.carrier)
    block = writer.constant(f"{x.name}_pad", fill, node)
    if axes := tuple(i for i, size in enumerate(shape) if size is None and i != axis):
        attrs = {"lhs_axes": axes, "rhs_axes": axes}
        block = writer.add_intermediate(node, "broadcast_like", [block, neighbour], attrs)
    return [block]


def _pixel_blocks(op: str) -> OpWriter:
    def write(writer: SymbolWriter, node: Node) -> Entry:
        if node.attrs.get("mode", "DCR") != "DCR":
            raise writer.refuse(node, "MXNet's depth_to_space has the blocks first (DCR)")
        attrs = {"block_size": node.attrs["block"]}
        return writer.add_result(node, op, [writer.operand(node)], attrs)

    return write


def _shape_array(writer: SymbolWriter, node: Node) -> Entry:
    start, end = node.attrs["start"], node.attrs["end"]
    x = writer.operand(node)
    if not start and end is None:
        return writer.add_result(node, "shape_array", [x])
    all_sizes = writer.add_intermediate(node, "shape_array", [x])
    return writer.add_result(
        node, "slice_axis", [all_sizes], {"axis": 0, "begin": start, "end": end}
    )


def _nearest(writer: SymbolWriter, node: Node) -> Entry:
    """Writes what enlarges images by a whole factor; where it is stated, all sizes may be open."""
    x, rank = node.operands["x"], node.result.type.rank
    axes = [axis % rank for axis in int_list_attr(node, "axes")] or list(range(rank))
    stated = node.attrs["scales"]
    scales = [s for s in stated if isinstance(s, (int, float))] if isinstance(stated, tuple) else []
    if not scales:
        old, new = ([writer.size(node, v, axis) for axis in axes] for v in (x, node.result))
        scales = [n / o if o else 0.0 for o, n in zip(old, new, strict=True)]
    by_axis = dict(zip(axes, scales, strict=True))
    scale = by_axis.get(rank - 1, 1.0)
    is_square_scale = rank == 4 and [by_axis.get(a, 1.0) for a in range(rank)] == [
        1.0,
        1.0,
        scale,
        scale,
    ]
    kinds = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")}
    rounding_mode = node.attrs["coordinates"], node.attrs["rounding"]
    if not is_square_scale or scale < 1 or scale % 1 or rounding_mode not in kinds:
        raise writer.refuse(node, "MXNet's UpSampling makes images larger by one whole factor")
    attrs = {"scale": int(scale), "sample_type": "nearest", "num_args": 1}
    return writer.add_result(node, "UpSampling", [writer.operand(node)], attrs)


def _resize(writer: SymbolWriter, node: Node) -> Entry:
    """Writes what makes images of a fixed height and width, of any number."""
    shape, result_shape = node.operands["x"].type.shape, node.result.type.shape
    axes = {axis % len(result_shape) for axis in int_list_attr(node, "axes")} or set(
        range(len(result_shape))
    )
    aligned = {"align_corners": True, "half_pixel": False}.get(str(node.attrs["coordinates"]))
    is_bilinear = node.attrs["mode"] == "linear" and not node.attrs["antialias"]
    keeps_batch_and_channels = all(
        shape[i] is not None and shape[i] == result_shape[i] for i in axes if i < 2
    )
    if not is_bilinear or aligned is None or len(result_shape) != 4 or not keeps_batch_and_channels:
        raise writer.refuse(node, "MXNet resizes images bilinearly, by half pixels or corners")
    sizes = node.operands.get("sizes")
    if sizes is not None and sizes.constant is not None and axes == {2, 3}:
        height, width = (int(size) for size in sizes.constant.data)
    else:
        height, width = (writer.size(node, node.result, axis) for axis in (2, 3))
    attrs = {"height": height, "width": width, "align_corners": aligned}
    return writer.add_result(node, "_contrib_BilinearResize2D", [writer.operand(node)], attrs)


def _reverse_sequence(writer: SymbolWriter, node: Node) -> Entry:
    if (node.attrs["time"], node.attrs["batch"]) != (0, 1):
        raise writer.refuse(node, "MXNet has the steps first and the batch second")
    lengths = writer.add_intermediate(
        node, "Cast", [writer.operand(node, "lengths")], {"dtype": "float32"}
    )
    attrs = {"use_sequence_length": True}
    return writer.add_result(node, "SequenceReverse", [writer.operand(node), lengths], attrs)


OPS: dict[str, OpWriter] = {
    "reshape": _reshape,
    "flatten": _flatten,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "concat": _concat,
    "split": _split,
    "slice": _slice,
    "expand": _expand,
    "tile": _tile,
    "flip": _flip,
    "pad": _pad,
    "depth_to_space": _pixel_blocks("depth_to_space"),
    "space_to_depth": _pixel_blocks("space_to_depth"),
    "shape": _shape_array,
    "resize_nearest": _nearest,
    "resize": _resize,
    "reverse_sequence": _reverse_sequence,
}
