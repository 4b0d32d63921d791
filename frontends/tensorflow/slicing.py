"""Slice, and StridedSlice with its masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import KeepNode, NodeCall
from .movement import as_i64

_TO_THE_END = 2**63 - 1
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


@dataclass
class _SliceParts:
    """The parts of a StridedSlice: a slice, axes to remove, and positions of new axes."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    inserted: list[int] = field(default_factory=list)

    @property
    def attrs(self) -> dict[str, Attr]:
        """The attributes of the slice."""
        bounds = (("starts", self.starts), ("ends", self.ends))
        axes_and_steps = (("axes", self.axes), ("steps", self.steps))
        return {name: tuple(values) for name, values in (*bounds, *axes_and_steps)}

    def add_axis(self, axis: int, start: int, end: int, step: int) -> None:
        if (start, end, step) != (0, _TO_THE_END, 1):
            self.axes.append(axis)
            self.starts.append(start)
            self.ends.append(end)
            self.steps.append(step)


def _strided_slice(call: NodeCall) -> Value:
    x, parts = call[0], _parse_strided_slice(call)
    if parts.axes:
        x = call.add("slice", {"x": x}, parts.attrs)
    if parts.removed:
        x = call.add("squeeze", {"x": x}, {"axes": tuple(parts.removed)})
    if parts.inserted:
        x = call.add("unsqueeze", {"x": x}, {"axes": tuple(parts.inserted)})
    return x


def _parse_strided_slice(call: NodeCall) -> _SliceParts:
    """Parses bounds and masks, entry by entry."""
    begin, end, strides = (call.integers(i) for i in (1, 2, 3))
    begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask = (
        call.integer(name) for name in _MASKS
    )
    bounded = [i for i in range(len(begin)) if not ((ellipsis_mask | new_axis_mask) >> i) & 1]
    skipped_axes = call.rank(0) - len(bounded)
    if skipped_axes < 0:
        raise KeepNode(f"it has {len(bounded)} bounds for {call.rank(0)} axes")
    parts, axis, result_axis = _SliceParts(), 0, 0
    for i in range(len(begin)):
        bit = 1 << i
        if ellipsis_mask & bit:
            # An ellipsis stands for all axes that have no entry of their own.
            axis, result_axis = axis + skipped_axes, result_axis + skipped_axes
        elif new_axis_mask & bit:
            parts.inserted.append(result_axis)
            result_axis += 1
        elif shrink_axis_mask & bit:
            index = begin[i]
            # A single index: the axis is removed after the slice.
            parts.add_axis(axis, index, index + 1 if index != -1 else _TO_THE_END, 1)
            parts.removed.append(axis)
            axis += 1
        else:
            step = strides[i]
            # A set bit of a mask means that the bound is not used.
            start = (0 if step > 0 else -1) if begin_mask & bit else begin[i]
            stop = (_TO_THE_END if step > 0 else -_TO_THE_END) if end_mask & bit else end[i]
            parts.add_axis(axis, start, stop, step)
            axis, result_axis = axis + 1, result_axis + 1
    return parts


def _slice(call: NodeCall) -> Value:
    x = call[0]
    starts = call.reader.known.elements(call[1])
    sizes = call.integers(2)
    axes = tuple(range(len(sizes)))
    if starts is None:
        if any(size < 0 for size in sizes):
            raise KeepNode("where it ends is computed while the network runs")
        begin = as_i64(call, call[1])
        end = call.add("add", {"a": begin, "b": call.int64_constant(sizes)})
        attrs = {"axes": axes, "steps": (1,) * len(axes)}
        return call.add("slice_at", {"x": x, "starts": begin, "ends": end}, attrs)
    begins = [int(start) for start in starts]
    ends = [b + s if s >= 0 else _TO_THE_END for b, s in zip(begins, sizes, strict=True)]
    parts = _SliceParts()
    for axis, start, stop in zip(axes, begins, ends, strict=True):
        if (start, stop) != (0, x.type.shape[axis]):
            parts.add_axis(axis, start, stop, 1)
    return call.add("slice", {"x": x}, parts.attrs) if parts.axes else x


OPS: dict[str, Callable[[NodeCall], Value]] = {"StridedSlice": _strided_slice, "Slice": _slice}
