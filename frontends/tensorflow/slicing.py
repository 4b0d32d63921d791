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
    gone: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)

    @property
    def attrs(self) -> dict[str, Attr]:
        """The attributes of the slice."""
        bounds = (("starts", self.starts), ("ends", self.ends))
        rest = (("axes", self.axes), ("steps", self.steps))
        return {name: tuple(held) for name, held in (*bounds, *rest)}

    def cut(self, axis: int, start: int, end: int, step: int) -> None:
        if (start, end, step) != (0, _TO_THE_END, 1):
            self.axes.append(axis)
            self.starts.append(start)
            self.ends.append(end)
            self.steps.append(step)


def _strided_slice(call: NodeCall) -> Value:
    x, cuts = call[0], _parse_strided_slice(call)
    if cuts.axes:
        x = call.add("slice", {"x": x}, cuts.attrs)
    if cuts.gone:
        x = call.add("squeeze", {"x": x}, {"axes": tuple(cuts.gone)})
    if cuts.new:
        x = call.add("unsqueeze", {"x": x}, {"axes": tuple(cuts.new)})
    return x


def _parse_strided_slice(call: NodeCall) -> _SliceParts:
    """Parses bounds and masks, entry by entry."""
    begin, end, strides = (call.integers(i) for i in (1, 2, 3))
    first, last, ellipsis, new, shrink = (call.integer(name) for name in _MASKS)
    plain = [i for i in range(len(begin)) if not ((ellipsis | new) >> i) & 1]
    left = call.rank(0) - len(plain)
    if left < 0:
        raise KeepNode(f"it has {len(plain)} bounds for {call.rank(0)} axes")
    cuts, axis, place = _SliceParts(), 0, 0
    for i in range(len(begin)):
        bit = 1 << i
        if ellipsis & bit:
            axis, place = axis + left, place + left
        elif new & bit:
            cuts.new.append(place)
            place += 1
        elif shrink & bit:
            at = begin[i]
            cuts.cut(axis, at, at + 1 if at != -1 else _TO_THE_END, 1)
            cuts.gone.append(axis)
            axis += 1
        else:
            step = strides[i]
            start = (0 if step > 0 else -1) if first & bit else begin[i]
            stop = (_TO_THE_END if step > 0 else -_TO_THE_END) if last & bit else end[i]
            cuts.cut(axis, start, stop, step)
            axis, place = axis + 1, place + 1
    return cuts


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
    cuts = _SliceParts()
    for axis, start, stop in zip(axes, begins, ends, strict=True):
        if (start, stop) != (0, x.type.shape[axis]):
            cuts.cut(axis, start, stop, 1)
    return call.add("slice", {"x": x}, cuts.attrs) if cuts.axes else x


OPS: dict[str, Callable[[NodeCall], Value]] = {"StridedSlice": _strided_slice, "Slice": _slice}
