"""Ops that move elements and compute none."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from qir.ir.node import Node

from .elementwise import wide
from .layers import numbers
from .symbol import Entry
from .writer import FIXED_SIZES, OpWriter, SymbolWriter, float_attr, int_attr

_FAR = 1 << 31
"""Where a slice ends that ends nowhere."""


def _shape(writer: SymbolWriter, node: Node) -> tuple[int, ...]:
    """Returns the shape that a reshape is given, in special sizes (0, -1) that MXNet has too."""
    held = node.operands["shape"].constant
    x, made = node.operands["x"].type, node.result.type.shape
    if held is not None and not node.attrs["allow_zero"]:
        return tuple(int(v) for v in held.data) or (1,)
    known = [size if isinstance(size, int) else None for size in made]
    open_axes = [i for i, size in enumerate(known) if size is None]
    if len(open_axes) <= 1:
        return tuple(-1 if size is None else size for size in known) or (1,)
    kept = [
        0 if i < x.rank and size is not None and made[i] == x.shape[i] else size
        for i, size in enumerate(made)
    ]
    left = [i for i, size in enumerate(kept) if not isinstance(size, int)]
    if len(left) <= 1:
        return tuple(size if isinstance(size, int) else -1 for size in kept)
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
    rows = [writer.size(node, node.operands["x"], i) for i in range(axis)]
    return writer.add_result(node, "Reshape", [writer.operand(node)], {"shape": (prod(rows), -1)})


def _transpose(writer: SymbolWriter, node: Node) -> Entry:
    return writer.add_result(
        node, "transpose", [writer.operand(node)], {"axes": numbers(node, "perm")}
    )


def _axes(node: Node, rank: int) -> list[int]:
    return sorted(a + rank if a < 0 else a for a in numbers(node, "axes"))


def _squeeze(writer: SymbolWriter, node: Node) -> Entry:
    x = node.operands["x"].type
    if not node.result.type.shape:
        return writer.add_result(node, "Reshape", [writer.operand(node)], {"shape": (1,)})
    axes = _axes(node, x.rank) or [i for i, size in enumerate(x.shape) if size == 1]
    if not axes:
        return writer.add_result(node, "_copy", [writer.operand(node)])
    return writer.add_result(node, "squeeze", [writer.operand(node)], {"axis": tuple(axes)})


def _unsqueeze(writer: SymbolWriter, node: Node) -> Entry:
    x, rank = node.operands["x"], node.result.type.rank
    made, axes = writer.entry(x), _axes(node, rank)
    if not x.type.shape:
        return writer.add_result(node, "Reshape", [made], {"shape": (1,) * rank})
    for axis in axes[:-1]:
        made = writer.add_intermediate(node, "expand_dims", [made], {"axis": axis})
    return writer.add_result(node, "expand_dims", [made], {"axis": axes[-1]})


def _concat(writer: SymbolWriter, node: Node) -> Entry:
    parts = [writer.entry(v) for v in node.operands.values()]
    axis = int_attr(node.attrs, "axis")
    axis = axis + node.result.type.rank if axis < 0 else axis
    return writer.add_result(node, "Concat", parts, {"dim": axis, "num_args": len(parts)})


def _split(writer: SymbolWriter, node: Node) -> Sequence[Entry]:
    sizes, axis = numbers(node, "sizes"), node.attrs["axis"]
    x = writer.operand(node)
    if len(set(sizes)) == 1:
        attrs = {"num_outputs": len(sizes), "axis": axis, "squeeze_axis": False}
        if len(sizes) == 1:
            return [writer.add_result(node, "_copy", [x])]
        index, _ = writer.add_result(node, "SliceChannel", [x], attrs, results=len(sizes))
        return [(index, i) for i in range(len(sizes))]
    made, start = [], 0
    for value, size in zip(node.results, sizes, strict=True):
        attrs = {"axis": axis, "begin": start, "end": start + size}
        made.append(writer.emit("slice_axis", [x], attrs, name=value.name))
        start += size
    return made


def _slice(writer: SymbolWriter, node: Node) -> Entry:
    x = node.operands["x"].type
    rows: list[list[int | None]] = [[None] * x.rank for _ in range(3)]
    fields = (numbers(node, name) for name in ("axes", "starts", "ends", "steps"))
    for axis, start, end, step in zip(*fields, strict=True):
        at, size = axis % x.rank, x.shape[axis % x.rank]
        if isinstance(size, int):
            found: list[int | None] = list(slice(start, end, step).indices(size))
            if step < 0 and found[1] == -1:
                found[1] = None
            if step > 0 and found[0] == found[1]:
                raise writer.refuse(node, "its result has no elements")
        else:
            found = [start, end if abs(end) < _FAR else None, step]
            found[0] = None if abs(start) >= _FAR else start
        for row, one in zip(rows, found, strict=True):
            row[at] = one
    attrs = {n: tuple(r) for n, r in zip(("begin", "end", "step"), rows, strict=True)}
    return writer.add_result(node, "slice", [writer.operand(node)], attrs)


def _expand(writer: SymbolWriter, node: Node) -> Entry:
    x = node.operands["x"]
    entry = wide(writer, node, x, writer.entry(x))
    return writer.add_result(node, "_copy", [entry])


def _tile(writer: SymbolWriter, node: Node) -> Entry:
    attrs = {"reps": numbers(node, "repeats")}
    return writer.add_result(node, "tile", [writer.operand(node)], attrs)


def _flip(writer: SymbolWriter, node: Node) -> Entry:
    attrs = {"axis": tuple(_axes(node, node.operands["x"].type.rank))}
    return writer.add_result(node, "reverse", [writer.operand(node)], attrs)


def _pad(writer: SymbolWriter, node: Node) -> Entry:
    """Writes padding: MXNet's pads images and volumes, after the channels alone."""
    x, pads, mode = node.operands["x"], numbers(node, "pads"), str(node.attrs["mode"])
    rank = x.type.rank
    pairs = list(zip(pads[:rank], pads[rank:], strict=True))
    made = writer.entry(x)
    if rank in (4, 5) and not any(map(any, pairs[:2])) and min(pads) >= 0:
        if mode not in ("constant", "edge", "reflect"):
            raise writer.refuse(node, f"MXNet does not pad with {mode}")
        attrs: dict[str, object] = {"mode": mode, "pad_width": tuple(p for q in pairs for p in q)}
        if mode == "constant":
            attrs["constant_value"] = node.attrs["value"]
        return writer.add_result(node, "Pad", [made], attrs)
    if mode != "constant" or min(pads) < 0:
        raise writer.refuse(node, f"MXNet pads 4 and 5 axes by {mode}, the first two not at all")
    shape = [size if isinstance(size, int) else None for size in x.type.shape]
    for axis, pair in enumerate(pairs):
        if not any(pair):
            continue
        before, after = (_block(writer, node, made, shape, axis, count) for count in pair)
        parts = [*before, made, *after]
        made = writer.add_intermediate(node, "Concat", parts, {"dim": axis, "num_args": len(parts)})
        size = shape[axis]
        shape[axis] = None if size is None else size + sum(pair)
    return writer.add_result(node, "_copy", [made])


def _block(
    writer: SymbolWriter, node: Node, beside: Entry, shape: list[int | None], axis: int, count: int
) -> list[Entry]:
    """Returns what pads a tensor on one side of an axis, as long as the tensor on open ones."""
    if not count:
        return []
    x = node.operands["x"]
    sizes = [count if i == axis else 1 if size is None else size for i, size in enumerate(shape)]
    held = np.full(sizes, float_attr(node.attrs, "value"), x.type.dtype.carrier)
    made = writer.constant(f"{x.name}_pad", held, node)
    if axes := tuple(i for i, size in enumerate(shape) if size is None and i != axis):
        attrs = {"lhs_axes": axes, "rhs_axes": axes}
        made = writer.add_intermediate(node, "broadcast_like", [made, beside], attrs)
    return [made]


def _blocks(op: str) -> OpWriter:
    def write(writer: SymbolWriter, node: Node) -> Entry:
        if node.attrs.get("mode", "DCR") != "DCR":
            raise writer.refuse(node, "MXNet's depth_to_space has the blocks first (DCR)")
        attrs = {"block_size": node.attrs["block"]}
        return writer.add_result(node, op, [writer.operand(node)], attrs)

    return write


def _sizes_of(writer: SymbolWriter, node: Node) -> Entry:
    start, end = node.attrs["start"], node.attrs["end"]
    x = writer.operand(node)
    if not start and end is None:
        return writer.add_result(node, "shape_array", [x])
    made = writer.add_intermediate(node, "shape_array", [x])
    return writer.add_result(node, "slice_axis", [made], {"axis": 0, "begin": start, "end": end})


def _nearest(writer: SymbolWriter, node: Node) -> Entry:
    """Writes what enlarges images by a whole factor; where it is stated, all sizes may be open."""
    x, rank = node.operands["x"], node.result.type.rank
    axes = [axis % rank for axis in numbers(node, "axes")] or list(range(rank))
    stated = node.attrs["scales"]
    scales = [s for s in stated if isinstance(s, (int, float))] if isinstance(stated, tuple) else []
    if not scales:
        old, new = ([writer.size(node, v, axis) for axis in axes] for v in (x, node.result))
        scales = [n / o if o else 0.0 for o, n in zip(old, new, strict=True)]
    by_axis = dict(zip(axes, scales, strict=True))
    scale = by_axis.get(rank - 1, 1.0)
    whole = rank == 4 and [by_axis.get(a, 1.0) for a in range(rank)] == [1.0, 1.0, scale, scale]
    kinds = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")}
    asked = node.attrs["coordinates"], node.attrs["rounding"]
    if not whole or scale < 1 or scale % 1 or asked not in kinds:
        raise writer.refuse(node, "MXNet's UpSampling makes images larger by one whole factor")
    attrs = {"scale": int(scale), "sample_type": "nearest", "num_args": 1}
    return writer.add_result(node, "UpSampling", [writer.operand(node)], attrs)


def _resize(writer: SymbolWriter, node: Node) -> Entry:
    """Writes what makes images of a fixed height and width, of any number."""
    shape, made = node.operands["x"].type.shape, node.result.type.shape
    axes = {axis % len(made) for axis in numbers(node, "axes")} or set(range(len(made)))
    aligned = {"align_corners": True, "half_pixel": False}.get(str(node.attrs["coordinates"]))
    plain = node.attrs["mode"] == "linear" and not node.attrs["antialias"]
    kept = all(shape[i] is not None and shape[i] == made[i] for i in axes if i < 2)
    if not plain or aligned is None or len(made) != 4 or not kept:
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


ROWS: dict[str, OpWriter] = {
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
    "depth_to_space": _blocks("depth_to_space"),
    "space_to_depth": _blocks("space_to_depth"),
    "shape": _sizes_of,
    "resize_nearest": _nearest,
    "resize": _resize,
    "reverse_sequence": _reverse_sequence,
}
