"""Embedding, gather and index operators, and writes to slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import fx

from qir.ir.dtype import I64
from qir.ir.node import Value

from .call import OverloadCall
from .reader import KeepCall


def _embedding(call: OverloadCall) -> Value:
    operands = {"w": call.value("weight"), "indices": call.value("indices")}
    padding = call.integer("padding_idx")
    # A negative padding index says that there is none.
    return call.add("embedding", operands, {"padding": padding} if padding >= 0 else {})


def _index_select(call: OverloadCall) -> Value:
    x, indices = call.value("self"), call.value("index")
    if indices.type.rank != 1:
        raise KeepCall
    return call.add("gather", {"x": x, "indices": indices}, {"axis": call.axis("dim", x.type.rank)})


def _gather(call: OverloadCall) -> Value:
    x, indices = call.value("self"), call.value("index")
    axis = call.axis("dim", x.type.rank)
    return call.add("gather_elements", {"x": x, "indices": indices}, {"axis": axis})


def _index(call: OverloadCall) -> Value:
    """Reads `x[:, i]`, `x[i, j]`, `x[:, i, :, j]` and `x[mask]`."""
    x, index_list = call.value("self"), call["indices"]
    indexed = [(i, node) for i, node in enumerate(index_list) if node is not None]
    if len(indexed) == 1 and indexed[0][0] == 0 and is_mask(indexed[0][1]):
        return _select_by_mask(call, x, call.reader.tensor(indexed[0][1]))
    if any(is_mask(node) for _, node in indexed):
        raise KeepCall("it takes elements by a mask and by indices")
    if len(indexed) == 1:
        axis, node = indexed[0]
        operands = {"x": x, "indices": call.reader.tensor(node)}
        return call.add("gather", operands, {"axis": axis})
    parts = broadcast_indices(call, [call.reader.tensor(node) for _, node in indexed])
    rank = parts[0].type.rank
    # `gather_nd` reads rows of indices into the leading axes, so the indexed axes come first.
    rows = [call.add("unsqueeze", {"x": part}, {"axes": (rank,)}) for part in parts]
    indices = call.add("concat", {f"xs.{i}": r for i, r in enumerate(rows)}, {"axis": rank})
    axes = [axis for axis, _ in indexed]
    other_axes = [axis for axis in range(x.type.rank) if axis not in axes]
    elements = call.add(
        "gather_nd", {"x": permute(call, x, [*axes, *other_axes]), "indices": indices}
    )
    # PyTorch leaves the indexed axes where they were if they are adjacent; else they come first.
    before = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    leading = [*range(rank, rank + before), *range(rank)]
    return permute(call, elements, [*leading, *range(rank + before, elements.type.rank)])


def _select_by_mask(call: OverloadCall, x: Value, mask: Value) -> Value:
    """Returns the entries of the leading axes where a mask is true."""
    # `nonzero` has a row for each axis, `gather_nd` reads a row for each element.
    positions = call.add("transpose", {"x": call.add("nonzero", {"x": mask})}, {"perm": (1, 0)})
    return call.add("gather_nd", {"x": x, "indices": positions})


def _masked_select(call: OverloadCall) -> Value:
    x, mask = call.value("self"), call.value("mask")
    if x.type.shape != mask.type.shape:
        raise KeepCall("its mask has another shape")
    return _select_by_mask(call, x, mask)


def _nonzero(call: OverloadCall) -> Value:
    # Here PyTorch has a row for each element too.
    return call.add(
        "transpose", {"x": call.add("nonzero", {"x": call.value("self")})}, {"perm": (1, 0)}
    )


def permute(call: OverloadCall, x: Value, perm: Sequence[int]) -> Value:
    """Returns a tensor with its axes in another order."""
    if list(perm) == list(range(x.type.rank)):
        return x
    return call.add("transpose", {"x": x}, {"perm": tuple(perm)})


def broadcast_indices(call: OverloadCall, parts: list[Value]) -> list[Value]:
    """Returns index tensors expanded to one shape, as i64."""
    parts = [
        part if str(part.type.dtype) == "i64" else call.add("cast", {"x": part}, {"to": I64})
        for part in parts
    ]
    broadcast = parts[0]
    for part in parts[1:]:
        if part.type.shape != broadcast.type.shape:
            zeros = call.add("sub", {"a": part, "b": part})
            broadcast = call.add(
                "add", {"a": broadcast, "b": zeros}
            )  # broadcasts to the shape of both
    return [call.expand_like(part, broadcast) for part in parts]


def is_mask(node: fx.Node) -> bool:
    """Returns whether an index is a mask; PyTorch takes u8 for one too."""
    return str(node.meta["val"].dtype) in ("torch.bool", "torch.uint8")


def _unfold(call: OverloadCall) -> Value:
    """Reads `x.unfold(axis, size, step)`: windows of an axis, along a new last axis."""
    x, size, step = call.value("self"), call.integer("size"), call.integer("step")
    axis = call.axis("dimension", x.type.rank)
    count = x.type.shape[axis]
    if not isinstance(count, int):
        raise KeepCall("it takes windows of an axis of an unknown size")
    starts = np.arange(0, count - size + 1, step, dtype=np.int64)
    # Row i has the indices of window i.
    indices = call.reader.graph.constant(starts[:, None] + np.arange(size))
    windows = call.add("gather", {"x": x, "indices": indices}, {"axis": axis})
    # `gather` leaves the window where its axis was; PyTorch puts it last.
    other_axes = [a for a in range(windows.type.rank) if a != axis + 1]
    return permute(call, windows, [*other_axes, axis + 1])


def _diagonal(call: OverloadCall) -> Value:
    x, offset = call.value("self"), call.integer("offset")
    axes = [call.axis(name, x.type.rank) for name in ("dim1", "dim2")]
    height, width = (x.type.shape[axis] for axis in axes)
    if not isinstance(height, int) or not isinstance(width, int):
        raise KeepCall("it takes a diagonal of unknown length")
    # A positive offset starts to the right of the main diagonal, a negative one below it.
    rows = np.arange(max(0, -offset), min(height, width - offset), dtype=np.int64)
    # The indices of each element on the diagonal.
    indices = call.reader.graph.constant(np.stack([rows, rows + offset], -1))
    other_axes = [axis for axis in range(x.type.rank) if axis not in axes]
    elements = call.add(
        "gather_nd", {"x": permute(call, x, [*axes, *other_axes]), "indices": indices}
    )
    return permute(call, elements, [*range(1, elements.type.rank), 0])


def _repeat_interleave(call: OverloadCall) -> Value:
    """Reads `repeat_interleave` with constant counts."""
    x, counts = call.value("self"), call.reader.stored_tensor(call["repeats"])
    if counts is None or call["dim"] is None:
        raise KeepCall("its counts are computed")
    # Of counts alone, PyTorch's function returns the index of each repeated element.
    indices = call.reader.graph.constant(torch.repeat_interleave(counts[1]).numpy())
    return call.add("gather", {"x": x, "indices": indices}, {"axis": call.axis("dim", x.type.rank)})


def _slice_scatter(call: OverloadCall) -> Value:
    """Reads `x[:, i:j] = y`, which functionalization turns into slice_scatter."""
    x, axis = call.value("self"), call.axis("dim", call.rank("self"))
    count = x.type.shape[axis]
    bounds = call["start"], call["end"]
    if call.integer("step") != 1 or not isinstance(count, int):
        raise KeepCall("it writes parts that are not next to each other, or of an unknown size")
    if not all(bound is None or isinstance(bound, int) for bound in bounds):
        raise KeepCall("it writes to a place that is computed")
    # As in PyTorch, negative bounds count from the end, and bounds outside are clamped.
    start, end, _ = slice(*bounds).indices(count)
    return _replace_part(call, x, call.value("src"), axis, (start, end, count))


def _select_scatter(call: OverloadCall) -> Value:
    """Reads `x[:, i] = y`, which functionalization turns into select_scatter."""
    x, axis = call.value("self"), call.axis("dim", call.rank("self"))
    count, index = x.type.shape[axis], call.integer("index")
    if not isinstance(count, int):
        raise KeepCall("it writes to an axis of an unknown size")
    start = index + count if index < 0 else index
    part = call.add("unsqueeze", {"x": call.value("src")}, {"axes": (axis,)})
    return _replace_part(call, x, part, axis, (start, start + 1, count))


def _replace_part(
    call: OverloadCall, x: Value, part: Value, axis: int, bounds: tuple[int, int, int]
) -> Value:
    """Returns a tensor with a part of an axis replaced by another tensor."""
    start, end, count = bounds

    def kept(first: int, last: int) -> list[Value]:
        attrs = {"starts": (first,), "ends": (last,), "axes": (axis,), "steps": (1,)}
        return [call.add("slice", {"x": x}, attrs)] if first < last else []

    # An empty range writes nothing.
    if start >= end:
        return x
    # What lies before the part, the part, and what lies after it.
    parts = [*kept(0, start), part, *kept(end, count)]
    if len(parts) == 1:
        return part
    return call.add("concat", {f"xs.{i}": p for i, p in enumerate(parts)}, {"axis": axis})


def _copy(call: OverloadCall) -> Value:
    """Reads `x[...] = y`: y in the shape and element type of x."""
    source = call.cast_to(call["src"], call.result.dtype)
    if tuple(call.fake_tensor("src").shape) == tuple(call.result.shape):
        return source
    shape = call.add("shape", {"x": call.value("self")})
    return call.add("expand", {"x": source, "shape": shape})


def _tril_or_triu(upper: bool) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        attrs = {"k": call.integer("diagonal"), "upper": upper}
        return call.add("trilu", {"x": call.value("self")}, attrs)

    return read


OPS = {
    "embedding.default": _embedding,
    "index_select.default": _index_select,
    "gather.default": _gather,
    "index.Tensor": _index,
    "masked_select.default": _masked_select,
    "nonzero.default": _nonzero,
    "unfold.default": _unfold,
    "diagonal.default": _diagonal,
    "repeat_interleave.self_Tensor": _repeat_interleave,
    "slice_scatter.default": _slice_scatter,
    "select_scatter.default": _select_scatter,
    "copy.default": _copy,
    "tril.default": _tril_or_triu(upper=False),
    "triu.default": _tril_or_triu(upper=True),
}
