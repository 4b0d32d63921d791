"""Ops that move elements: reshape, transpose, pad, concat, slice, split, tile, gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qir.ir.dtype import I32, I64, DType
from qir.ir.types import Array

from .network import TO_LAST, OpCall, Options, OpWriter, float_kind, sizes_of
from .schema import ELEMENT_TYPES


def _reshape(c: OpCall) -> int:
    """Writes all ops that only give the same elements other sizes."""
    sizes = sizes_of(c.result)
    shape = c.operands.get("shape")
    if sizes.count(-1) > 1 and shape is not None and shape.constant is None:
        wanted = c.w.tensor(shape)
        if str(shape.type.dtype) != "i32":
            kind = float_kind((len(sizes),), I32)
            wanted = c.add("CAST", (wanted,), kind, cast_to(c, wanted, I32))
        return c.finish("RESHAPE", (c.tensor(), wanted), ("ReshapeOptions", {}))
    if sizes.count(-1) > 1:
        return _by_axes(c)
    return c.w.reshaped(c.node, c.tensor(), c.result, c.node.result.name)


def _by_axes(c: OpCall) -> int:
    """Adds or removes axes of size 1 by number, where more than one size is open."""
    made, kind = c.tensor(), c.kind()
    if c.op == "unsqueeze":
        *first, last = sorted(axis % c.result.rank for axis in c.integers("axes"))
        for axis in first:
            kind = kind.with_shape((*kind.shape[:axis], 1, *kind.shape[axis:]))
            made = c.add("EXPAND_DIMS", (made, c.w.ints(axis)), kind)
        return c.finish("EXPAND_DIMS", (made, c.w.ints(last)))
    if c.op == "squeeze":
        axes = [axis % kind.rank for axis in c.integers("axes")]
        axes = axes or [i for i, size in enumerate(kind.shape) if size == 1]
        return c.finish("SQUEEZE", (made,), ("SqueezeOptions", {"squeeze_dims": axes}))
    # What is left without axes of size 1 is the same: only these move.
    ones = [i for i, size in enumerate(kind.shape) if size == 1]
    rest = tuple(size for size in kind.shape if size != 1)
    added = [i for i, size in enumerate(c.result.shape) if size == 1]
    if rest != tuple(size for size in c.result.shape if size != 1) or not added or not ones:
        raise c.refused("more than one size of its result is open; state the sizes")
    kind = kind.with_shape(rest)
    made = c.add("SQUEEZE", (made,), kind, ("SqueezeOptions", {"squeeze_dims": ones}))
    *first, last = added
    for axis in first:
        kind = kind.with_shape((*kind.shape[:axis], 1, *kind.shape[axis:]))
        made = c.add("EXPAND_DIMS", (made, c.w.ints(axis)), kind)
    return c.finish("EXPAND_DIMS", (made, c.w.ints(last)))


def _transpose(c: OpCall) -> int | Sequence[int]:
    x, perm = c.operands["x"], c.integers("perm")
    if perm == TO_LAST and x in c.w.images:
        c.w.tensors[c.node.result] = c.w.images[x]
        return ()
    if perm == (0, 3, 1, 2) and all(use.node.op in _READS_IMAGES for use in c.node.result.uses):
        return ()  # its readers want the image with channels last
    return c.w.transposed(c.node, c.tensor(), c.result, perm, c.node.result.name)


_READS_IMAGES = frozenset({"conv_transpose2d", "lrn"})


def _concat(c: OpCall) -> int:
    parts = list(c.node.operands.values())
    axis = c.integer("axis") % c.result.rank
    options: Options = ("ConcatenationOptions", {"axis": axis, "fused_activation_function": 0})
    return c.finish("CONCATENATION", [c.w.tensor(part) for part in parts], options)


def _pad(c: OpCall) -> int:
    pads, rank, mode = c.integers("pads"), c.kind().rank, str(c.attrs["mode"])
    if min(pads, default=0) < 0:
        raise c.refused("padding below zero is not written; slice instead")
    sides = np.ascontiguousarray(np.asarray(pads, np.int32).reshape(2, rank).T)
    inputs = [c.tensor(), c.w.plain(sides, "paddings")]
    if mode in ("reflect", "symmetric"):
        return c.finish("MIRROR_PAD", inputs, ("MirrorPadOptions", {"mode": mode == "symmetric"}))
    if mode != "constant":
        raise c.refused(f"TensorFlow Lite has no padding of mode {mode}; write ONNX")
    value, quant = c.real("value"), c.kind().quant
    if value == 0.0:
        return c.finish("PAD", inputs)
    if quant is None:
        return c.finish("PADV2", (*inputs, c.scalar(value)))
    low, high = quant.storage.bounds
    integer = np.rint(value / float(quant.scales().reshape(-1)[0])) + int(
        np.asarray(quant.zeros()).reshape(-1)[0]
    )
    filler = np.asarray(np.clip(integer, low, high), quant.storage.carrier)
    number = c.w.constant(c.node, filler, c.kind().with_shape(()), "padding")
    return c.finish("PADV2", (*inputs, number))


def _slice(c: OpCall) -> int:
    x, made = c.kind(), c.result
    axes = [axis % x.rank for axis in c.integers("axes")]
    steps = dict(zip(axes, c.integers("steps") or (1,) * len(axes), strict=True))
    starts = dict(zip(axes, c.integers("starts"), strict=True))
    ends = dict(zip(axes, c.integers("ends"), strict=True))
    begin, size = [0] * x.rank, list(sizes_of(made))
    strided = any(step != 1 for step in steps.values())
    begin_mask = end_mask = 0
    end, step = [0] * x.rank, [1] * x.rank
    for axis in range(x.rank):
        if axis not in starts:
            begin_mask, end_mask = begin_mask | 1 << axis, end_mask | 1 << axis
            continue
        n = x.shape[axis]
        if not isinstance(n, int):
            strided = True
            begin[axis], end[axis], step[axis] = starts[axis], ends[axis], steps[axis]
        else:
            first, stop, by = slice(starts[axis], ends[axis], steps[axis]).indices(n)
            begin[axis], end[axis], step[axis] = first, stop, by
            end_mask |= (1 << axis) if stop < 0 else 0
        if abs(end[axis]) >= 2**31 - 1:  # up to the end
            end[axis], end_mask = 0, end_mask | 1 << axis
    if not strided:
        return c.finish("SLICE", (c.tensor(), c.w.ints(begin, "begin"), c.w.ints(size, "size")))
    inputs = (c.tensor(), *(c.w.ints(each) for each in (begin, end, step)))
    options: Options = (
        "StridedSliceOptions",
        {"begin_mask": begin_mask, "end_mask": end_mask},
    )
    return c.finish("STRIDED_SLICE", inputs, options)


def _split(c: OpCall) -> Sequence[int]:
    sizes, axis = c.integers("sizes"), c.axis()
    inputs = (c.tensor(), c.w.ints(sizes, "sizes"), c.w.ints(axis, "axis"))
    kinds = [value.type for value in c.node.results]
    names = [value.name for value in c.node.results]
    options: Options = ("SplitVOptions", {"num_splits": len(sizes)})
    return c.w.operator(c.node, "SPLIT_V", inputs, kinds, options, names)


def _expand(c: OpCall) -> int:
    sizes, shape = sizes_of(c.result), c.operands["shape"]
    if -1 not in sizes:
        return c.finish("BROADCAST_TO", (c.tensor(), c.w.ints(sizes, "shape")))
    if shape.constant is not None or shape.type.shape != (len(sizes),) or not _fills_open_axes(c):
        raise c.refused("sizes that it expands to are open; state them")
    # A computed size may be 1 where the data's is greater, which BROADCAST_TO does not take.
    known = c.w.plain(np.maximum(np.asarray(sizes, np.int64), 1), "least")
    asked = shape.type.with_element(I64)
    wanted = c.w.tensor(shape)
    if shape.type.element != I64:
        wanted = c.add("CAST", (wanted,), asked, cast_to(c, wanted, I64))
    return c.finish("BROADCAST_TO", (c.tensor(), c.add("MAXIMUM", (wanted, known), asked)))


def _fills_open_axes(c: OpCall) -> bool:
    """Returns whether data have the size 1 along each axis whose size is open in the result."""
    x, made = c.kind().shape, c.result.shape
    padded = (1,) * (len(made) - len(x)) + tuple(x)
    return all(a == 1 for a, b in zip(padded, made, strict=True) if not isinstance(b, int))


def cast_to(c: OpCall, x: int, dtype: DType) -> Options:
    """Returns the options of a cast."""
    return (
        "CastOptions",
        {"in_data_type": c.w.element_of(x), "out_data_type": ELEMENT_TYPES[str(dtype)]},
    )


def _tile(c: OpCall) -> int:
    return c.finish("TILE", (c.tensor(), c.w.ints(c.integers("repeats"), "repeats")))


def _flip(c: OpCall) -> int:
    x, axes = c.kind(), [axis % c.kind().rank for axis in c.integers("axes")]
    made = c.tensor()
    for axis in axes[:-1]:  # an axis at a time
        made = c.add("REVERSE_V2", (made, c.w.ints([axis])), x)
    return c.finish("REVERSE_V2", (made, c.w.ints(axes[-1:])))


def _gather(c: OpCall) -> int:
    options: Options = ("GatherOptions", {"axis": c.axis(), "batch_dims": 0})
    return c.finish("GATHER", (c.tensor(), _counted_from_first(c, "indices", c.axis())), options)


def _counted_from_first(c: OpCall, slot: str, axis: int) -> int:
    """Returns indices; constant ones below zero, which GATHER does not take, count from the end."""
    array, size = c.operands[slot].constant, c.kind().shape[axis]
    data = None if array is None else np.asarray(array.data, np.int64)
    if data is None or not (data < 0).any():
        return c.tensor(slot)
    if not isinstance(size, int):
        raise c.refused("it counts from the end of an axis whose size is open")
    return c.w.plain(np.where(data < 0, data + size, data))


def _gather_nd(c: OpCall) -> int:
    if c.integer("batch"):
        raise c.refused("GATHER_ND has no batch axes; write the indices of these too")
    return c.finish("GATHER_ND", (c.tensor(), c.tensor("indices")))


def _embedding(c: OpCall) -> int:
    options: Options = ("GatherOptions", {"axis": 0, "batch_dims": 0})
    return c.finish("GATHER", (c.tensor("w"), c.tensor("indices")), options)


def _shape(c: OpCall) -> int:
    rank, options = c.kind().rank, ("ShapeOptions", {"out_type": ELEMENT_TYPES["i64"]})
    start, count = c.integer("start") % max(rank, 1), sizes_of(c.result)[0]
    if count == rank:
        return c.finish("SHAPE", (c.tensor(),), options)
    whole = c.add("SHAPE", (c.tensor(),), c.result.with_shape((rank,)), options)
    return c.finish("SLICE", (whole, c.w.ints([start]), c.w.ints([count])))


def _filled(c: OpCall) -> int:
    """Writes a tensor of one number, of sizes that are computed."""
    value = c.attrs["value"]
    assert isinstance(value, Array)
    return c.finish("FILL", (c.tensor("shape"), c.w.plain(value.data.reshape(()), "number")))


OPS: Mapping[str, OpWriter] = {
    "constant_of_shape": _filled,
    "concat": _concat,
    "embedding": _embedding,
    "expand": _expand,
    "flatten": _reshape,
    "flip": _flip,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "pad": _pad,
    "reshape": _reshape,
    "shape": _shape,
    "slice": _slice,
    "split": _split,
    "squeeze": _reshape,
    "tile": _tile,
    "transpose": _transpose,
    "unsqueeze": _reshape,
}
