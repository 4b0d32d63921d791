"""Slices, gathers, scatters, tables, and tensors that are made of sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.node import Value
from qir.ir.types import Array, TensorType

from .call import OperatorCall
from .movement import exact_shape
from .reader import Unread

_TO_THE_END = 2**63 - 1
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


@dataclass
class _Cuts:
    """The parts of a STRIDED_SLICE: a slice, axes to remove, and positions of new axes."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)

    @property
    def attrs(self) -> dict[str, Attr]:
        """The attributes of the slice."""
        bounds = (("starts", self.starts), ("ends", self.ends))
        rest = (("axes", self.axes), ("steps", self.steps))
        return {name: tuple(held) for name, held in (*bounds, *rest)}

    def cut(self, axis: int, start: int, end: int, step: int = 1) -> None:
        """Adds a cut of one axis, unless it keeps all of it."""
        if (start, end, step) != (0, _TO_THE_END, 1):
            self.axes.append(axis)
            self.starts.append(start)
            self.ends.append(end)
            self.steps.append(step)


def _strided_slice(call: OperatorCall) -> Value:
    if call[1].constant is None or call[2].constant is None:
        return _strided_slice_at(call)
    x, cuts = call[0], _parse_cuts(call)
    if cuts.axes:
        x = call.add("slice", {"x": x}, cuts.attrs)
    if cuts.gone:
        x = call.add("squeeze", {"x": x}, {"axes": tuple(cuts.gone)})
    if cuts.new:
        x = call.add("unsqueeze", {"x": x}, {"axes": tuple(cuts.new)})
    return x


def _parse_cuts(call: OperatorCall) -> _Cuts:
    """Parses bounds and masks, entry by entry."""
    begin, end, strides = call.integers(1), call.integers(2), call.integers(3)
    if not len(begin) == len(end) == len(strides) or 0 in strides:
        raise Unread(f"its bounds are {list(begin)}, {list(end)} by steps of {list(strides)}")
    if call.flag("offset"):  # ends count from the starts then
        end = tuple(b + e for b, e in zip(begin, end, strict=True))
    first, last, ellipsis, new, shrink = (call.integer(name) for name in _MASKS)
    # An ellipsis and new axes stand for no axis of the data; an ellipsis covers what is left over.
    plain = [i for i in range(len(begin)) if not ((ellipsis | new) >> i) & 1]
    left = call.rank(0) - len(plain)
    if left < 0:
        raise Unread(f"it has {len(plain)} bounds for {call.rank(0)} axes")
    cuts, axis, place = _Cuts(), 0, 0
    for i in range(len(begin)):
        bit = 1 << i
        if ellipsis & bit:
            axis, place = axis + left, place + left
        elif new & bit:
            cuts.new.append(place)
            place += 1
        elif shrink & bit:
            # -1 + 1 is 0, which would end the slice before it starts.
            cuts.cut(axis, begin[i], begin[i] + 1 if begin[i] != -1 else _TO_THE_END)
            cuts.gone.append(axis)
            axis += 1
        else:
            step = strides[i]
            start = (0 if step > 0 else -1) if first & bit else begin[i]
            stop = (_TO_THE_END if step > 0 else -_TO_THE_END) if last & bit else end[i]
            cuts.cut(axis, start, stop, step)
            axis, place = axis + 1, place + 1
    return cuts


def _strided_slice_at(call: OperatorCall) -> Value:
    """Reads a STRIDED_SLICE whose bounds are computed: of leading axes, by steps of 1."""
    x, (count,), masks = call[0], call.sizes(1), [call.integer(name) for name in _MASKS]
    first, last, ellipsis, new, shrink = masks
    if ellipsis or new or call.flag("offset") or any(step != 1 for step in call.integers(3)):
        raise Unread("its bounds are computed while the network runs, and it has more than bounds")
    starts = _unless(call, first, count, 0, call.as_i64(call[1]))
    ends = _unless(call, last, count, _TO_THE_END, call.as_i64(call[2]))
    # An index is a cut of one element: -1 + 1 is 0, which would end it before it starts.
    after = call.add("add", {"a": starts, "b": call.int64_constant([1], "one")})
    is_last = call.add("equal", {"a": after, "b": call.int64_constant([0], "zero")})
    end = call.int64_constant([_TO_THE_END], "end")
    after = call.add("where", {"condition": is_last, "a": end, "b": after})
    ends = call.add("where", {"condition": _bits(call, shrink, count), "a": after, "b": ends})
    operands = {"x": x, "starts": starts, "ends": ends}
    x = call.add("slice_at", operands, {"axes": tuple(range(count))})
    gone = tuple(i for i in range(count) if shrink >> i & 1)
    return call.add("squeeze", {"x": x}, {"axes": gone}) if gone else x


def _bits(call: OperatorCall, mask: int, count: int) -> Value:
    return call.constant(np.asarray([mask >> i & 1 for i in range(count)], bool), "mask")


def _unless(call: OperatorCall, mask: int, count: int, bound: int, computed: Value) -> Value:
    """Returns computed bounds, but a stated one for each entry that the mask names."""
    stated = call.int64_constant([bound], "bound")
    condition = _bits(call, mask, count)
    return call.add("where", {"condition": condition, "a": stated, "b": computed})


def _slice(call: OperatorCall) -> Value:
    x = call[0]
    if call[1].constant is None or call[2].constant is None:
        return _slice_at(call)
    starts, sizes = call.integers(1), call.integers(2)
    cuts = _Cuts()
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        stop = start + size if size >= 0 else _TO_THE_END
        if (start, stop) != (0, x.type.shape[axis]):
            cuts.cut(axis, start, stop)
    return call.finish("slice", {"x": x}, cuts.attrs) if cuts.axes else x


def _slice_at(call: OperatorCall) -> Value:
    """Reads a SLICE whose bounds are computed; a size of -1 means up to the end."""
    x, starts, sizes = call[0], call.as_i64(call[1]), call.as_i64(call[2])
    zero, end = call.int64_constant([0], "zero"), call.int64_constant([_TO_THE_END], "end")
    is_open = call.add("less", {"a": sizes, "b": zero})
    ends = call.add("add", {"a": starts, "b": sizes})
    ends = call.add("where", {"condition": is_open, "a": end, "b": ends})
    operands = {"x": x, "starts": starts, "ends": ends}
    return call.finish("slice_at", operands, {"axes": tuple(range(x.type.rank))})


def _gather(call: OperatorCall) -> Value:
    x, indices = call[0], call[1]
    axis, batch = call.integer("axis"), call.integer("batch_dims")
    axis += x.type.rank if axis < 0 else 0
    batch += indices.type.rank if batch < 0 else 0
    if not batch:
        return call.finish("gather", {"x": x, "indices": indices}, {"axis": axis})
    # `gather_nd` with batch axes reads the axis right after these.
    if axis != batch:
        raise Unread(f"it gathers along axis {axis} with {batch} batch axes")
    columns = call.add("unsqueeze", {"x": indices}, {"axes": (indices.type.rank,)})
    return call.finish("gather_nd", {"x": x, "indices": call.as_i64(columns)}, {"batch": batch})


def _gather_nd(call: OperatorCall) -> Value:
    return call.finish("gather_nd", {"x": call[0], "indices": call.as_i64(call[1])})


def _embedding(call: OperatorCall) -> Value:
    table, indices = call[1], call[0]
    operands = {"w": table, "indices": indices}
    if table.type.quant is None or call.result_quant() is not None:
        return call.finish("embedding", operands)
    # Rows of integers that have a scale each are floats when they are read.
    shape = (*indices.type.shape, *table.type.shape[1:])
    kinds = [TensorType(shape, call.result_dtype())]
    return call.reader.add(call.operator, "embedding", operands, {}, kinds).result


def _one_hot(call: OperatorCall) -> Value:
    (depth,) = call.integers(1)
    on, off = (call.add("unsqueeze", {"x": call[i]}, {"axes": (0,)}) for i in (2, 3))
    values = call.add("concat", {"xs.0": off, "xs.1": on}, {"axis": 0})
    indices = call[0]
    # A negative index gives all `off` here; the language would count it from the end, so it is
    # replaced by one that is out of range.
    negative = call.add("less", {"a": indices, "b": call.scalar_like(0, indices)})
    beyond = call.scalar_like(depth, indices)
    indices = call.add("where", {"condition": negative, "a": beyond, "b": indices})
    attrs: dict[str, Attr] = {"depth": depth, "axis": call.integer("axis", -1)}
    return call.finish("one_hot", {"indices": indices, "values": values}, attrs)


def _scatter_nd(call: OperatorCall) -> Value:
    indices, updates = call[0], call[1]
    x = _filled(call, exact_shape(call, 2), np.zeros(1, updates.type.dtype.carrier), updates)
    operands = {"x": x, "indices": call.as_i64(indices), "updates": updates}
    # Updates of the same index are summed.
    return call.finish("scatter_nd", operands, {"reduction": "add"})


def _filled(call: OperatorCall, shape: Value, element: np.ndarray, like: Value) -> Value:
    value = Array(element, TensorType((1,), like.type.dtype))
    return call.add("constant_of_shape", {"shape": shape}, {"value": value})


def _fill(call: OperatorCall) -> Value:
    return call.finish("expand", {"x": call[1], "shape": exact_shape(call, 0)})


def _zeros_like(call: OperatorCall) -> Value:
    x = call[0]
    sizes = call.add("shape", {"x": x})
    return _filled(call, sizes, np.zeros(1, x.type.dtype.carrier), x)


def _where(call: OperatorCall) -> Value:
    """Reads WHERE of one operand: the indices of its true elements, one row each."""
    return call.add("transpose", {"x": call.add("nonzero", {"x": call[0]})}, {"perm": (1, 0)})


def _shape(call: OperatorCall) -> Value:
    sizes, to = call.add("shape", {"x": call[0]}), call.result_dtype()
    return sizes if sizes.type.dtype == to else call.add("cast", {"x": sizes}, {"to": to})


def _rank(call: OperatorCall) -> Value:
    return call.constant(np.asarray(call.rank(0), np.int32), "rank")


def _range(call: OperatorCall) -> Value:
    return call.finish("range", {"start": call[0], "limit": call[1], "step": call[2]})


def _reverse_sequence(call: OperatorCall) -> Value:
    attrs: dict[str, Attr] = {"batch": call.integer("batch_dim"), "time": call.integer("seq_dim")}
    operands = {"x": call[0], "lengths": call.as_i64(call[1])}
    return call.finish("reverse_sequence", operands, attrs)


OPS: dict[str, Callable[[OperatorCall], Value]] = {
    "EMBEDDING_LOOKUP": _embedding,
    "FILL": _fill,
    "GATHER": _gather,
    "GATHER_ND": _gather_nd,
    "ONE_HOT": _one_hot,
    "RANGE": _range,
    "RANK": _rank,
    "REVERSE_SEQUENCE": _reverse_sequence,
    "SCATTER_ND": _scatter_nd,
    "SHAPE": _shape,
    "SLICE": _slice,
    "STRIDED_SLICE": _strided_slice,
    "WHERE": _where,
    "ZEROS_LIKE": _zeros_like,
}
