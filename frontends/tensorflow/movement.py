"""Ops that only move elements: reshape, transpose, concat, split, pad, space and batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import I64
from qir.ir.node import Value

from .call import NodeCall
from .reader import KeepNode

_MOST_PARTS = 1 << 16
"""Results of a node, at most: a damaged file may ask for any number."""


def _reshape(call: NodeCall) -> Value:
    return add_reshape(call, call[0], call[1])


def add_reshape(call: NodeCall, x: Value, shape: Value) -> Value:
    """Adds a reshape; open sizes become 0 (copy) or a single -1 where possible.

    A constant shape is easier for passes and targets than a computed one.
    """
    known_sizes = call.reader.known.sizes(shape)
    sizes: list[object] = (
        [None] * _known_length(shape) if known_sizes is None else known_sizes.tolist()
    )
    if all(isinstance(size, int) for size in sizes):
        numbers = [size for size in sizes if isinstance(size, int)]
        attrs: dict[str, Attr] = {"allow_zero": True} if 0 in numbers else {}
        return call.add("reshape", {"x": x, "shape": call.int64_constant(numbers, "shape")}, attrs)
    if -1 not in sizes and 0 not in sizes:
        entries = [
            # 0 copies the size of the same axis of x; a single remaining open size may be -1.
            size
            if isinstance(size, int)
            else 0
            if size is not None and i < x.type.rank and size == x.type.shape[i]
            else -1
            for i, size in enumerate(sizes)
        ]
        if entries.count(-1) < 2:
            return call.add("reshape", {"x": x, "shape": call.int64_constant(entries, "shape")})
    return call.add("reshape", {"x": x, "shape": as_i64(call, shape)})


def _known_length(value: Value) -> int:
    length = value.type.shape[0] if value.type.rank == 1 else None
    if not isinstance(length, int):
        raise KeepNode("the rank of its result is not known")
    return length


def as_i64(call: NodeCall, value: Value) -> Value:
    """Returns integers as i64, the language's type of sizes."""
    return value if value.type.dtype == I64 else call.add("cast", {"x": value}, {"to": I64})


def _exact_shape_operand(call: NodeCall, index: int) -> Value:
    """Returns a shape operand without -1, constant if it is known."""
    elements = call.reader.known.elements(call[index])
    return (
        as_i64(call, call[index])
        if elements is None
        else call.int64_constant(call.integers(index), "shape")
    )


def _transpose(call: NodeCall) -> Value:
    perm = call.axes(1, call.rank(0))
    if perm == tuple(range(len(perm))):
        return call[0]
    return call.add("transpose", {"x": call[0]}, {"perm": perm})


def _expand_dims(call: NodeCall) -> Value:
    return call.add("unsqueeze", {"x": call[0]}, {"axes": (call.axis(1, call.rank(0) + 1),)})


def _squeeze(call: NodeCall) -> Value:
    x, rank = call[0], call.rank(0)
    listed = call.integer_list("squeeze_dims")
    if not listed:
        # Without squeeze_dims, all axes of size 1 are removed, so that their sizes must be known.
        if not all(isinstance(size, int) for size in x.type.shape):
            raise KeepNode("which of its axes have size 1 is not known")
        listed = tuple(i for i, size in enumerate(x.type.shape) if size == 1)
    axes = tuple(sorted(axis + rank if axis < 0 else axis for axis in listed))
    return call.add("squeeze", {"x": x}, {"axes": axes}) if axes else x


def _concat(call: NodeCall) -> Value:
    parts = list(call.operands)
    # Concat has the axis first, ConcatV2 last.
    axis_index = 0 if call.node.op == "Concat" else len(parts) - 1
    axis = call.axis(axis_index, parts[1 - bool(axis_index)].type.rank)
    del parts[axis_index]
    if len(parts) == 1:
        return parts[0]
    return call.add("concat", {f"xs.{i}": part for i, part in enumerate(parts)}, {"axis": axis})


def _pack(call: NodeCall) -> Value:
    axis = call.integer("axis")
    axis += call.rank(0) + 1 if axis < 0 else 0
    parts = [call.add("unsqueeze", {"x": part}, {"axes": (axis,)}) for part in call.operands]
    if len(parts) == 1:
        return parts[0]
    return call.add("concat", {f"xs.{i}": part for i, part in enumerate(parts)}, {"axis": axis})


def _unpack(call: NodeCall) -> Sequence[Value]:
    x, axis, count = call[0], call.integer("axis"), call.integer("num")
    axis += x.type.rank if axis < 0 else 0
    if not 0 < count <= _MOST_PARTS:
        raise KeepNode(f"it has {count} results; 1 to {_MOST_PARTS} are read")
    parts = call.add_many("split", {"x": x}, {"sizes": (1,) * count, "axis": axis})
    return [call.add("squeeze", {"x": part}, {"axes": (axis,)}) for part in parts]


def _split(call: NodeCall) -> Sequence[Value]:
    x, count = call[1], call.integer("num_split")
    axis = call.axis(0, x.type.rank)
    size = x.type.shape[axis]
    if not isinstance(size, int) or not 0 < count <= _MOST_PARTS or size % count:
        raise KeepNode(f"it splits {size} into {count} parts")
    if count == 1:
        return [x]
    return call.add_many("split", {"x": x}, {"sizes": (size // count,) * count, "axis": axis})


def _split_at(call: NodeCall) -> Sequence[Value]:
    x, sizes = call[0], list(call.integers(1))
    axis = call.axis(2, x.type.rank)
    size = x.type.shape[axis]
    # One size may be -1: what the others leave.
    if -1 in sizes:
        if not isinstance(size, int):
            raise KeepNode("the size of its last part is not known")
        sizes[sizes.index(-1)] = size - sum(s for s in sizes if s != -1)
    if len(sizes) == 1:
        return [x]
    return call.add_many("split", {"x": x}, {"sizes": tuple(sizes), "axis": axis})


def _pad(call: NodeCall) -> Value:
    pairs = call.constant_elements(1).astype(np.int64)
    # The op has all front paddings, then all back ones; TensorFlow has pairs by axis.
    attrs: dict[str, Attr] = {"pads": (*pairs[:, 0].tolist(), *pairs[:, 1].tolist())}
    if call.node.op == "MirrorPad":
        attrs["mode"] = "reflect" if call.text("mode") == "REFLECT" else "symmetric"
    elif call.node.op == "PadV2":
        # PadV2 has the padding value as third operand.
        attrs["value"] = float(call.constant_elements(2).item())
    return call.add("pad", {"x": call[0]}, attrs)


def _tile(call: NodeCall) -> Value:
    if call.reader.known.elements(call[1]) is None:
        return _tile_computed(call)
    return call.add("tile", {"x": call[0]}, {"repeats": call.integers(1)})


def _tile_computed(call: NodeCall) -> Value:
    """Reads a Tile whose counts depend on sizes: an axis of 1 before each axis is expanded."""
    x, counts = call[0], as_i64(call, call[1])
    if not x.type.rank:
        return x
    sizes = call.add("shape", {"x": x})
    ones = call.int64_constant([1] * x.type.rank, "ones")

    def interleaved(first: Value) -> Value:
        columns = [call.add("unsqueeze", {"x": each}, {"axes": (1,)}) for each in (first, sizes)]
        pairs = call.add("concat", {f"xs.{i}": c for i, c in enumerate(columns)}, {"axis": 1})
        row = call.int64_constant([2 * x.type.rank], "pairs")
        return call.add("reshape", {"x": pairs, "shape": row})

    split = call.add("reshape", {"x": x, "shape": interleaved(ones)})
    expanded = call.add("expand", {"x": split, "shape": interleaved(counts)})
    tiled = call.add("mul", {"a": sizes, "b": counts})
    return call.add("reshape", {"x": expanded, "shape": tiled})


def _broadcast(call: NodeCall) -> Value:
    return call.add("expand", {"x": call[0], "shape": _exact_shape_operand(call, 1)})


def _flip(call: NodeCall) -> Value:
    axes = call.axes(1, call.rank(0))
    return call.add("flip", {"x": call[0]}, {"axes": axes}) if axes else call[0]


def _roll(call: NodeCall) -> Value:
    x = call[0]
    shifts, axes = call.integers(1), call.axes(2, x.type.rank)
    for shift, axis in zip(shifts, axes, strict=True):
        size = x.type.shape[axis]
        if not isinstance(size, int):
            raise KeepNode("the size of the axis that it rolls is not known")
        position = -shift % size
        if position:
            first, last = call.add_many(
                "split", {"x": x}, {"sizes": (position, size - position), "axis": axis}
            )
            x = call.add("concat", {"xs.0": last, "xs.1": first}, {"axis": axis})
    return x


def _depth_to_space(op: str) -> Callable[[NodeCall], Value]:
    def read(call: NodeCall) -> Value:
        layout = call.text("data_format", "NHWC")
        attrs: dict[str, Attr] = {"block": call.integer("block_size"), "layout": layout}
        return call.add(op, {"x": call[0]}, attrs)

    return read


def _sizes_with_one_open(call: NodeCall, x: Value) -> list[int]:
    """Returns the sizes of a value, with -1 for at most one open size."""
    sizes = [size if isinstance(size, int) else -1 for size in x.type.shape]
    if sizes.count(-1) > 1:
        raise KeepNode("more than one of its sizes is not known")
    return sizes


def _space_to_batch(call: NodeCall) -> Value:
    """Reads SpaceToBatchND: pads, splits each axis by its block, moves the blocks to the front."""
    x, blocks, pairs = (
        call[0],
        call.integers(1),
        call.constant_elements(2).astype(np.int64).tolist(),
    )
    rank, count = x.type.rank, len(blocks)
    pads_before, pads_after = (
        [0, *(pair[i] for pair in pairs), *[0] * (rank - count - 1)] for i in (0, 1)
    )
    x = call.add("pad", {"x": x}, {"pads": (*pads_before, *pads_after)})
    sizes = _sizes_with_one_open(call, x)
    if -1 in sizes[1 : count + 1]:
        raise KeepNode("the sizes that it splits are not known")
    # [batch, h, w, ...] -> [batch, h / b, b, w / b, b, ...] -> [b, b, batch, h / b, w / b, ...].
    split = [sizes[0]]
    for size, block in zip(sizes[1:], blocks, strict=False):
        split += [size // block, block]
    inner = [2 * i + 2 for i in range(count)]
    outer = [2 * i + 1 for i in range(count)]
    remaining = list(range(2 * count + 1, 2 * count + 1 + rank - count - 1))
    x = call.add("reshape", {"x": x, "shape": call.int64_constant([*split, *sizes[count + 1 :]])})
    x = call.add("transpose", {"x": x}, {"perm": (*inner, 0, *outer, *remaining)})
    batch = sizes[0] * prod(blocks) if sizes[0] >= 0 else -1
    result_sizes = [
        batch,
        *(s // b for s, b in zip(sizes[1:], blocks, strict=False)),
        *sizes[count + 1 :],
    ]
    return call.add("reshape", {"x": x, "shape": call.int64_constant(result_sizes)})


def _batch_to_space(call: NodeCall) -> Value:
    """Reads BatchToSpaceND, the inverse of SpaceToBatchND with crops instead of pads."""
    x, blocks, crops = (
        call[0],
        call.integers(1),
        call.constant_elements(2).astype(np.int64).tolist(),
    )
    rank, count = x.type.rank, len(blocks)
    sizes = _sizes_with_one_open(call, x)
    if -1 in sizes[1 : count + 1]:
        raise KeepNode("the sizes that it joins are not known")
    batch = sizes[0] // prod(blocks) if sizes[0] >= 0 else -1
    x = call.add("reshape", {"x": x, "shape": call.int64_constant([*blocks, batch, *sizes[1:]])})
    # [b, b, batch / b^2, h, w, ...] -> [batch / b^2, h, b, w, b, ...] -> crop.
    pairs = [axis for i in range(count) for axis in (count + 1 + i, i)]
    remaining = list(range(2 * count + 1, count + rank))
    x = call.add("transpose", {"x": x}, {"perm": (count, *pairs, *remaining)})
    joined = [s * b for s, b in zip(sizes[1:], blocks, strict=False)]
    x = call.add(
        "reshape", {"x": x, "shape": call.int64_constant([batch, *joined, *sizes[count + 1 :]])}
    )
    attrs: dict[str, Attr] = {
        "starts": tuple(crop[0] for crop in crops),
        "ends": tuple(s - crop[1] for s, crop in zip(joined, crops, strict=True)),
        "axes": tuple(range(1, count + 1)),
        "steps": (1,) * count,
    }
    return call.add("slice", {"x": x}, attrs)


def _identity_n(call: NodeCall) -> Sequence[Value]:
    return call.operands


OPS: dict[str, Callable[[NodeCall], Value | Sequence[Value]]] = {
    "Reshape": _reshape,
    "Transpose": _transpose,
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "Concat": _concat,
    "ConcatV2": _concat,
    "Pack": _pack,
    "Unpack": _unpack,
    "Split": _split,
    "SplitV": _split_at,
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _pad),
    "Tile": _tile,
    "BroadcastTo": _broadcast,
    "ReverseV2": _flip,
    "Roll": _roll,
    "DepthToSpace": _depth_to_space("depth_to_space"),
    "SpaceToDepth": _depth_to_space("space_to_depth"),
    "SpaceToBatchND": _space_to_batch,
    "BatchToSpaceND": _batch_to_space,
    "IdentityN": _identity_n,
}
