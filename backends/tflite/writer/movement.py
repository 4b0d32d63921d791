"""Ops that move elements: reshape, transpose, pad, concat, slice, split, tile, gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qir.ir.dtype import I32

from .network import TO_LAST, OpCall, OpWriter, Options, float_kind, sizes_of


def _reshape(c: OpCall) -> int:
    """Writes all ops that only give the same elements other sizes."""
    sizes = sizes_of(c.result)
    shape = c.operands.get("shape")
    if sizes.count(-1) > 1 and shape is not None and shape.constant is None:
        wanted = c.w.tensor(shape)
        if str(shape.type.dtype) != "i32":
            cast: Options = ("CastOptions", {"in_data_type": 4, "out_data_type": 2})
            wanted = c.add("CAST", (wanted,), float_kind((len(sizes),), I32), cast)
        return c.finish("RESHAPE", (c.tensor(), wanted), ("ReshapeOptions", {}))
    return c.w.reshaped(c.node, c.tensor(), c.result, c.node.result.name)


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
    pads, rank, mode = c.integers("pads"), c.kind().rank, c.attrs["mode"]
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
    sizes = sizes_of(c.result)
    if -1 in sizes:
        raise c.refused("sizes that it expands to are open; state them")
    return c.finish("BROADCAST_TO", (c.tensor(), c.w.ints(sizes, "shape")))


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
    if array is None or not (array.data < 0).any():
        return c.tensor(slot)
    if not isinstance(size, int):
        raise c.refused("it counts from the end of an axis whose size is open")
    return c.w.plain(np.where(array.data < 0, array.data + size, array.data).astype(np.int64))


def _gather_nd(c: OpCall) -> int:
    if c.integer("batch"):
        raise c.refused("GATHER_ND has no batch axes; write the indices of these too")
    return c.finish("GATHER_ND", (c.tensor(), c.tensor("indices")))


def _embedding(c: OpCall) -> int:
    options: Options = ("GatherOptions", {"axis": 0, "batch_dims": 0})
    return c.finish("GATHER", (c.tensor("w"), c.tensor("indices")), options)


def _shape(c: OpCall) -> int:
    if c.attrs["start"] != 0 or c.attrs["end"] is not None:
        raise c.refused("a part of a shape is not written; slice the whole one")
    return c.finish("SHAPE", (c.tensor(),), ("ShapeOptions", {"out_type": 4}))


OPS: Mapping[str, OpWriter] = {
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
