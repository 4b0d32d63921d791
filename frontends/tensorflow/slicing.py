"""Slice, and StridedSlice with its masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from qir.ir.attrs import Attr
from qir.ir.dims import Dim, Sym
from qir.ir.node import Value

from .call import NodeCall
from .movement import as_i64
from .reader import KeepNode

_TO_THE_END = 2**63 - 1
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


@dataclass(frozen=True)
class _Computed:
    """A cut of one axis: the entry in the operands, and which of them say where it starts, ends."""

    entry: int
    start: int | None
    stop: int | None
    step: int


@dataclass
class _SliceParts:
    """The parts of a StridedSlice: a slice, axes to remove, and positions of new axes."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)
    computed: dict[int, _Computed] = field(default_factory=dict)
    """By axis: a cut with a bound that is computed while the network runs."""

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
    if cuts.computed:
        x = _slice_at(call, x, cuts)
    if cuts.gone:
        x = call.add("squeeze", {"x": x}, {"axes": tuple(cuts.gone)})
    if cuts.new:
        x = call.add("unsqueeze", {"x": x}, {"axes": tuple(cuts.new)})
    return x


def _slice_at(call: NodeCall, x: Value, cuts: _SliceParts) -> Value:
    """Adds a slice whose bounds are computed."""
    rows = []
    for index, name in ((1, "start"), (2, "stop")):
        held = as_i64(call, call[index])
        parts = [
            call.add("gather", {"x": held, "indices": call.int64_constant([c.entry])}, {"axis": 0})
            if getattr(c, name) is None
            else call.int64_constant([getattr(c, name)])
            for c in cuts.computed.values()
        ]
        joined = {f"xs.{i}": part for i, part in enumerate(parts)}
        rows.append(parts[0] if len(parts) == 1 else call.add("concat", joined, {"axis": 0}))
    attrs = {"axes": (*cuts.computed,), "steps": tuple(c.step for c in cuts.computed.values())}
    return call.add("slice_at", {"x": x, "starts": rows[0], "ends": rows[1]}, attrs)


def _parse_strided_slice(call: NodeCall) -> _SliceParts:
    """Parses bounds and masks, entry by entry."""
    begin, end, strides = _bounds(call, 1), _bounds(call, 2), call.integers(3)
    first, last, ellipsis, new, shrink = (call.integer(name) for name in _MASKS)
    # An ellipsis and new axes stand for no axis of the data; what is left over, the ellipsis
    # covers.
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
            if not isinstance(at, int):
                raise KeepNode(f"its index {i} is computed while the network runs")
            # -1 + 1 is 0, which would end the slice before it starts.
            cuts.cut(axis, at, at + 1 if at != -1 else _TO_THE_END, 1)
            cuts.gone.append(axis)
            axis += 1
        else:
            step = strides[i]
            start = (0 if step > 0 else -1) if first & bit else begin[i]
            # An end that is the size of the axis is no limit, and needs no computed bound.
            to_the_end = last & bit or (step > 0 and _is_size(end[i], call.shape(0)[axis]))
            stop = (_TO_THE_END if step > 0 else -_TO_THE_END) if to_the_end else end[i]
            if isinstance(start, int) and isinstance(stop, int):
                cuts.cut(axis, start, stop, step)
            else:
                first_known, last_known = (s if isinstance(s, int) else None for s in (start, stop))
                cuts.computed[axis] = _Computed(i, first_known, last_known, step)
            axis, place = axis + 1, place + 1
    return cuts


def _bounds(call: NodeCall, index: int) -> list[Dim]:
    """Returns bounds: numbers, open sizes, None for those that nothing is known of."""
    found = call.reader.known.sizes(call[index])
    if found is not None:
        return list(found.reshape(-1).tolist())
    (count,) = call.shape(index)
    if not isinstance(count, int):
        raise KeepNode("the number of its bounds is not known")
    return [None] * count


def _is_size(bound: Dim, size: Dim) -> bool:
    """Returns whether a bound is the open size of its axis."""
    return isinstance(bound, Sym) and bound == size


def _slice(call: NodeCall) -> Value:
    x = call[0]
    starts = call.reader.known.elements(call[1])
    sizes = call.integers(2)
    axes = tuple(range(len(sizes)))
    if starts is None:
        # A size of -1 means up to the end, which start + size cannot say.
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
