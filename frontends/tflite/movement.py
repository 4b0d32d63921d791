"""Ops that only move elements: reshape, transpose, pad, concat, split, tile, space and batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import OperatorCall
from .reader import Unread

_MOST_PARTS = 1 << 16
"""Results of an operator, at most: a damaged file may ask for any number."""
_PAD_MODES = ("reflect", "symmetric")


def exact_shape(call: OperatorCall, index: int) -> Value:
    """Returns the operand that says the result's sizes; constant where the file states them."""
    value = call[index]
    if value.constant is not None:
        return call.int64_constant(call.integers(index), "shape")
    sizes = call.result_sizes()
    return call.as_i64(value) if -1 in sizes else call.int64_constant(sizes, "shape")


def _reshape(call: OperatorCall) -> Value:
    x, stated = call[0], call.optional(1)
    if stated is None:  # files of early releases have an option instead
        shape = call.int64_constant(call.integer_list("new_shape") or call.result_sizes(), "shape")
    elif stated.constant is None and call.result_sizes().count(-1) == 1:
        # One open size follows from the others.
        shape = call.int64_constant(call.result_sizes(), "shape")
    else:
        shape = exact_shape(call, 1)
    listed = shape.constant
    attrs: dict[str, Attr] = {}
    if listed is not None and (listed.data == 0).any():
        attrs["allow_zero"] = True
    return call.finish("reshape", {"x": x, "shape": shape}, attrs)


def _transpose(call: OperatorCall) -> Value:
    x, perm = call[0], call.axes(1, call.rank(0))
    return (
        x if perm == tuple(range(len(perm))) else call.finish("transpose", {"x": x}, {"perm": perm})
    )


def _expand_dims(call: OperatorCall) -> Value:
    return call.finish("unsqueeze", {"x": call[0]}, {"axes": (call.axis(1, call.rank(0) + 1),)})


def _squeeze(call: OperatorCall) -> Value:
    x, rank = call[0], call.rank(0)
    listed = call.integer_list("squeeze_dims")
    if not listed:
        listed = tuple(i for i, size in enumerate(call.sizes(0)) if size == 1)
    axes = tuple(sorted(axis + rank if axis < 0 else axis for axis in listed))
    return call.finish("squeeze", {"x": x}, {"axes": axes}) if axes else x


def _concat(call: OperatorCall) -> Value:
    parts = call.operands
    axis = call.integer("axis")
    axis += parts[0].type.rank if axis < 0 else 0
    if len(parts) == 1:
        return parts[0]
    return call.finish("concat", {f"xs.{i}": part for i, part in enumerate(parts)}, {"axis": axis})


def _pack(call: OperatorCall) -> Value:
    axis = call.integer("axis")
    axis += call.rank(0) + 1 if axis < 0 else 0
    parts = [call.add("unsqueeze", {"x": part}, {"axes": (axis,)}) for part in call.operands]
    if len(parts) == 1:
        return parts[0]
    return call.finish("concat", {f"xs.{i}": part for i, part in enumerate(parts)}, {"axis": axis})


def _unpack(call: OperatorCall) -> Sequence[Value]:
    x, axis, count = call[0], call.integer("axis"), call.integer("num")
    axis += x.type.rank if axis < 0 else 0
    parts = _parts(call, x, axis, (1,) * _checked(count))
    return [call.add("squeeze", {"x": part}, {"axes": (axis,)}) for part in parts]


def _checked(count: int) -> int:
    if not 0 < count <= _MOST_PARTS:
        raise Unread(f"it has {count} results; 1 to {_MOST_PARTS} are read")
    return count


def _parts(call: OperatorCall, x: Value, axis: int, sizes: tuple[int, ...]) -> Sequence[Value]:
    if len(sizes) == 1:
        return [x]
    return call.finish_all("split", {"x": x}, {"sizes": sizes, "axis": axis})


def _split(call: OperatorCall) -> Sequence[Value]:
    x, count = call[1], _checked(call.integer("num_splits", len(call.operator.outputs)))
    axis = call.axis(0, x.type.rank)
    size = x.type.shape[axis]
    if not isinstance(size, int) or size % count:
        raise Unread(f"it splits {size} into {count} parts")
    return _parts(call, x, axis, (size // count,) * count)


def _split_at(call: OperatorCall) -> Sequence[Value]:
    x, sizes = call[0], list(call.integers(1))
    axis = call.axis(2, x.type.rank)
    size = x.type.shape[axis]
    # One size may be -1: what the others leave.
    if -1 in sizes:
        if not isinstance(size, int):
            raise Unread("the size of its last part is not known")
        sizes[sizes.index(-1)] = size - sum(s for s in sizes if s != -1)
    return _parts(call, x, axis, tuple(sizes))


def _pad(call: OperatorCall) -> Value:
    pairs = call.elements(1).astype(np.int64).reshape(-1, 2)
    # The op has all front paddings, then all back ones; the file has pairs by axis.
    attrs: dict[str, Attr] = {"pads": (*pairs[:, 0].tolist(), *pairs[:, 1].tolist())}
    if call.operator.op == "MIRROR_PAD":
        mode = call.integer("mode")
        if not 0 <= mode < len(_PAD_MODES):
            raise Unread(f"its mode is number {mode}")
        attrs["mode"] = _PAD_MODES[mode]
    elif call.operator.op == "PADV2":
        attrs["value"] = _padding_value(call)
    return call.finish("pad", {"x": call[0]}, attrs)


def _padding_value(call: OperatorCall) -> float:
    array = call[2].constant
    if array is None or array.data.size != 1:
        raise Unread("the number that it pads with is computed while the network runs")
    quant = array.type.quant
    number = float(array.data.reshape(()))
    if quant is None:
        return number
    zeros = np.asarray(quant.zeros()).reshape(-1)
    return (number - float(zeros[0])) * float(quant.scales().reshape(-1)[0])


def _tile(call: OperatorCall) -> Value:
    return call.finish("tile", {"x": call[0]}, {"repeats": call.integers(1)})


def _broadcast_to(call: OperatorCall) -> Value:
    return call.finish("expand", {"x": call[0], "shape": exact_shape(call, 1)})


def _reverse(call: OperatorCall) -> Value:
    axes = call.axes(1, call.rank(0))
    return call.finish("flip", {"x": call[0]}, {"axes": axes}) if axes else call[0]


def _block(op: str) -> Callable[[OperatorCall], Value]:
    def read(call: OperatorCall) -> Value:
        attrs: dict[str, Attr] = {"block": call.integer("block_size"), "layout": "NHWC"}
        return call.finish(op, {"x": call[0]}, attrs)

    return read


def _space_to_batch(call: OperatorCall) -> Value:
    """Reads SPACE_TO_BATCH_ND: pads, splits each axis by its block, moves the blocks first."""
    x, blocks = call[0], call.integers(1)
    pairs = call.elements(2).astype(np.int64).reshape(-1, 2).tolist()
    rank, count = x.type.rank, len(blocks)
    front, back = ([0, *(pair[i] for pair in pairs), *[0] * (rank - count - 1)] for i in (0, 1))
    x = call.add("pad", {"x": x}, {"pads": (*front, *back)})
    sizes = _sizes_with_open_batch(x)
    # [batch, h, w, ...] -> [batch, h / b, b, w / b, b, ...] -> [b, b, batch, h / b, w / b, ...].
    split = [sizes[0]]
    for size, block in zip(sizes[1:], blocks, strict=False):
        if block < 1 or size % block:
            raise Unread(f"it splits {size} into blocks of {block}")
        split += [size // block, block]
    inner = [2 * i + 2 for i in range(count)]
    outer = [2 * i + 1 for i in range(count)]
    rest = list(range(2 * count + 1, 2 * count + 1 + rank - count - 1))
    x = _reshaped(call, x, [*split, *sizes[count + 1 :]])
    x = call.add("transpose", {"x": x}, {"perm": (*inner, 0, *outer, *rest)})
    batch = sizes[0] * prod(blocks) if sizes[0] >= 0 else -1
    made = (s // b for s, b in zip(sizes[1:], blocks, strict=False))
    return _reshaped(call, x, [batch, *made, *sizes[count + 1 :]])


def _batch_to_space(call: OperatorCall) -> Value:
    """Reads BATCH_TO_SPACE_ND, the inverse of SPACE_TO_BATCH_ND with crops instead of pads."""
    x, blocks = call[0], call.integers(1)
    crops = call.elements(2).astype(np.int64).reshape(-1, 2).tolist()
    rank, count = x.type.rank, len(blocks)
    sizes = _sizes_with_open_batch(x)
    if min(blocks, default=1) < 1 or (sizes[0] >= 0 and sizes[0] % prod(blocks)):
        raise Unread(f"it joins {sizes[0]} blocks by {list(blocks)}")
    batch = sizes[0] // prod(blocks) if sizes[0] >= 0 else -1
    x = _reshaped(call, x, [*blocks, batch, *sizes[1:]])
    # [b, b, batch / b^2, h, w, ...] -> [batch / b^2, h, b, w, b, ...] -> crop.
    pairs = [axis for i in range(count) for axis in (count + 1 + i, i)]
    rest = list(range(2 * count + 1, count + rank))
    x = call.add("transpose", {"x": x}, {"perm": (count, *pairs, *rest)})
    joined = [s * b for s, b in zip(sizes[1:], blocks, strict=False)]
    x = _reshaped(call, x, [batch, *joined, *sizes[count + 1 :]])
    attrs: dict[str, Attr] = {
        "starts": tuple(crop[0] for crop in crops),
        "ends": tuple(size - crop[1] for size, crop in zip(joined, crops, strict=True)),
        "axes": tuple(range(1, count + 1)),
        "steps": (1,) * count,
    }
    return call.finish("slice", {"x": x}, attrs)


def _sizes_with_open_batch(x: Value) -> list[int]:
    sizes = [size if isinstance(size, int) else -1 for size in x.type.shape]
    if -1 in sizes[1:]:
        raise Unread("the sizes that it splits or joins are not known")
    return sizes


def _reshaped(call: OperatorCall, x: Value, sizes: Sequence[int]) -> Value:
    return call.add("reshape", {"x": x, "shape": call.int64_constant(sizes, "shape")})


def _resize(op: str) -> Callable[[OperatorCall], Value]:
    def read(call: OperatorCall) -> Value:
        nearest = op == "resize_nearest"
        attrs: dict[str, Attr] = {"axes": (1, 2)}
        if call.flag("align_corners"):
            coordinates, rounding = "align_corners", "round_prefer_ceil"
        elif call.flag("half_pixel_centers"):
            coordinates, rounding = "half_pixel", "round_prefer_ceil"
        else:
            coordinates, rounding = "asymmetric", "floor"
        attrs["coordinates"] = coordinates
        attrs |= {"rounding": rounding} if nearest else {"mode": "linear"}
        sizes = call.int64_constant(call.integers(1))
        return call.finish(op, {"x": call[0], "sizes": sizes}, attrs)

    return read


OPS: dict[str, Callable[[OperatorCall], Value | Sequence[Value]]] = {
    "BATCH_TO_SPACE_ND": _batch_to_space,
    "BROADCAST_TO": _broadcast_to,
    "CONCATENATION": _concat,
    "DEPTH_TO_SPACE": _block("depth_to_space"),
    "EXPAND_DIMS": _expand_dims,
    "MIRROR_PAD": _pad,
    "PACK": _pack,
    "PAD": _pad,
    "PADV2": _pad,
    "RESHAPE": _reshape,
    "RESIZE_BILINEAR": _resize("resize"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("resize_nearest"),
    "REVERSE_V2": _reverse,
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "SPACE_TO_DEPTH": _block("space_to_depth"),
    "SPLIT": _split,
    "SPLIT_V": _split_at,
    "SQUEEZE": _squeeze,
    "TILE": _tile,
    "TRANSPOSE": _transpose,
    "UNPACK": _unpack,
}
