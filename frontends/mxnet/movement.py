"""Operators that only move elements: Reshape, transpose, Concat, slices, tile, Pad."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qir.ir.attrs import Attr
from qir.ir.node import Value

from . import sizes
from .call import SymbolCall
from .results import Result, Unsupported
from .sizes import SizeTerm, size_term

_MAX_PARTS = 1 << 12
_FIRST, _LAST = -(2**63) + 1, 2**63 - 1


def _reshape(call: SymbolCall) -> Value:
    x, special_sizes = call.value(0), call.attrs.integers("shape")
    call.ignore("keep_highest")
    if not special_sizes:
        # Old symbols write `target_shape`, where 0 is inferred.
        special_sizes = tuple(size or -1 for size in call.attrs.integers("target_shape"))
    call.ignore("target_shape")
    if not special_sizes:
        raise Unsupported("its shape is empty")
    axes = list(range(x.type.rank))
    if call.attrs.flag("reverse"):
        if {-3, -4} & set(special_sizes):
            special_sizes = _reversed_special_sizes(special_sizes)
        parts = _resolved_sizes(x, special_sizes[::-1], axes[::-1])[::-1]
    else:
        parts = _resolved_sizes(x, special_sizes, axes)
    return call.add("reshape", {"x": x, "shape": sizes.shape_operand(call, x, parts)})


def _reversed_special_sizes(special_sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns special sizes for a reshape from the last axis on (`reverse`)."""
    if -4 in special_sizes:
        raise Unsupported("its shape splits an axis (-4) in reverse; write the sizes instead")
    return tuple(special_sizes)


def _resolved_sizes(x: Value, special_sizes: Sequence[int], axes: list[int]) -> list[SizeTerm]:
    """Resolves the special sizes 0 and -2 to -4 of MXNet's Reshape; -1 stays.

    0 copies an axis, -2 copies the remaining ones, -3 merges two, -4 splits one into the two that
    follow.
    """
    terms: list[SizeTerm] = []
    axes_left = list(axes)
    sizes_left = list(special_sizes)

    def take() -> int:
        if not axes_left:
            raise Unsupported(f"its shape {tuple(special_sizes)} names more axes than there are")
        return axes_left.pop(0)

    while sizes_left:
        code = sizes_left.pop(0)
        if code > 0 or code == -1:
            terms.append(SizeTerm(code))
            # A plain size stands in the place of one axis.
            axes_left[:1] = []
        elif code == 0:
            terms.append(size_term(x, take()))
        elif code == -2:
            terms += [size_term(x, take()) for _ in range(len(axes_left))]
        elif code == -3:
            terms.append(size_term(x, *sorted((take(), take()))))
        elif code == -4 and len(sizes_left) >= 2:
            terms += _split(x, take(), sizes_left.pop(0), sizes_left.pop(0))
        else:
            raise Unsupported(f"its shape is {tuple(special_sizes)}, with the code {code}")
    return terms


def _split(x: Value, axis: int, first: int, second: int) -> list[SizeTerm]:
    size = x.type.shape[axis]
    if first == second == -1 or min(first, second) < -1 or 0 in (first, second):
        raise Unsupported(f"it splits axis {axis} into {first} and {second}")
    if isinstance(size, int):
        first = size // second if first == -1 else first
        second = size // first if second == -1 else second
        return [SizeTerm(first), SizeTerm(second)]
    # With an open size, one part is a number and the other the quotient.
    return [
        SizeTerm(first) if first > 0 else SizeTerm(axes=(axis,), over=second),
        SizeTerm(second) if second > 0 else SizeTerm(axes=(axis,), over=first),
    ]


def _flatten(call: SymbolCall) -> Value:
    x = call.value(0)
    return x if x.type.rank == 2 else call.add("flatten", {"x": x}, {"axis": 1})


def _expand_dims(call: SymbolCall) -> Value:
    x = call.value(0)
    return call.add("unsqueeze", {"x": x}, {"axes": (call.axis("axis", x.type.rank + 1),)})


def _squeeze(call: SymbolCall) -> Value:
    x = call.value(0)
    axes = tuple(a + x.type.rank if a < 0 else a for a in call.attrs.integers("axis"))
    # Without an axis, all axes of size 1 go.
    if not call.attrs.is_given("axis"):
        axes = tuple(i for i in range(x.type.rank) if call.size(x, i) == 1)
    return call.add("squeeze", {"x": x}, {"axes": axes}) if axes else x


def _transpose(call: SymbolCall) -> Value:
    x = call.value(0)
    axes = call.attrs.integers("axes") or tuple(reversed(range(x.type.rank)))
    return call.add("transpose", {"x": x}, {"perm": tuple(a % x.type.rank for a in axes)})


def _swap_axis(call: SymbolCall) -> Value:
    x = call.value(0)
    order = list(range(x.type.rank))
    a, b = call.axis("dim1", x.type.rank, 0), call.axis("dim2", x.type.rank, 0)
    order[a], order[b] = order[b], order[a]
    return call.add("transpose", {"x": x}, {"perm": tuple(order)})


def _concat(name: str, default: int) -> Callable[[SymbolCall], Value]:
    def read(call: SymbolCall) -> Value:
        call.ignore("num_args")
        parts = call.values()
        axis = call.axis(name, parts[0].type.rank, default)
        if len(parts) == 1:
            return parts[0]
        return call.add("concat", {f"xs.{i}": p for i, p in enumerate(parts)}, {"axis": axis})

    return read


def _stack(call: SymbolCall) -> Value:
    call.ignore("num_args")
    parts = call.values()
    axis = call.axis("axis", parts[0].type.rank + 1, 0)
    parts = [call.add("unsqueeze", {"x": p}, {"axes": (axis,)}) for p in parts]
    return call.add("concat", {f"xs.{i}": p for i, p in enumerate(parts)}, {"axis": axis})


def _slice_channel(call: SymbolCall) -> list[Result]:
    x, count = call.value(0), call.attrs.integer("num_outputs")
    axis = call.axis("axis", x.type.rank, 1)
    size, squeezes = call.size(x, axis), call.attrs.flag("squeeze_axis")
    if not 1 <= count <= _MAX_PARTS or size % count:
        raise Unsupported(f"it splits axis {axis}, of size {size}, into {count}")
    return _split_into(call, x, axis, [size // count] * count, squeezes)


def _split_into(
    call: SymbolCall, x: Value, axis: int, parts: list[int], squeezes: bool
) -> list[Result]:
    if len(parts) == 1:
        return [call.add("squeeze", {"x": x}, {"axes": (axis,)}) if squeezes else x]
    results = call.add_many("split", {"x": x}, {"sizes": tuple(parts), "axis": axis})
    if squeezes:
        results = tuple(call.add("squeeze", {"x": p}, {"axes": (axis,)}) for p in results)
    return list(results)


def _split_at(call: SymbolCall) -> list[Result]:
    """Reads `split_v2`: by a count of equal sections, or by the start indices of parts."""
    x = call.value(0)
    axis, squeezes = call.axis("axis", x.type.rank, 0), call.attrs.flag("squeeze_axis")
    sections, starts = call.attrs.integer("sections", 0), call.attrs.integers("indices")
    size = call.size(x, axis)
    if not 0 <= sections <= _MAX_PARTS:
        raise Unsupported(f"it splits axis {axis} into {sections}")
    if sections:
        return _split_into(call, x, axis, [size // sections] * sections, squeezes)
    ends = (*starts[1:], size)
    return _split_into(call, x, axis, [b - a for a, b in zip(starts, ends, strict=True)], squeezes)


def _slice(call: SymbolCall) -> Value:
    x = call.value(0)
    begin, end, step = (call.attrs.optional_integers(name) for name in ("begin", "end", "step"))
    steps = [
        1 if step_size is None else step_size
        for step_size in (*step, *[1] * (len(begin) - len(step)))
    ]
    backwards = [step_size < 0 for step_size in steps]
    # A bound of None is the start or the end, in the direction of the step.
    starts = [
        (_LAST if is_backward else 0) if bound is None else bound
        for bound, is_backward in zip(begin, backwards, strict=True)
    ]
    ends = [
        (_FIRST if is_backward else _LAST) if e is None else e
        for e, is_backward in zip(end, backwards, strict=True)
    ]
    return _add_slice(call, x, starts, ends, list(range(len(begin))), steps)


def _add_slice(
    call: SymbolCall,
    x: Value,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> Value:
    attrs = {
        "starts": tuple(starts),
        "ends": tuple(ends),
        "axes": tuple(axes),
        "steps": tuple(steps),
    }
    return call.add("slice", {"x": x}, attrs)


def _slice_axis(call: SymbolCall) -> Value:
    x = call.value(0)
    axis = call.axis("axis", x.type.rank)
    end = call.attrs.integer("end", _LAST)
    return _add_slice(call, x, [call.attrs.integer("begin")], [end], [axis], [1])


def _slice_like(call: SymbolCall) -> Value:
    x, like = call.value(0), call.value(1)
    # Without axes, all axes are sliced.
    axes = [a % x.type.rank for a in call.attrs.integers("axes")] or list(range(x.type.rank))
    return _cut_like(call, x, like, axes, axes)


def _cut_like(
    call: SymbolCall, x: Value, like: Value, axes: Sequence[int], like_axes: Sequence[int]
) -> Value:
    """Returns x sliced to the sizes of another value along some axes."""
    parts = [size_term(like, axis) for axis in like_axes]
    # With known sizes it is a plain slice, else one whose ends are computed.
    if not any(p.axes for p in parts):
        return _add_slice(
            call, x, [0] * len(axes), [p.number for p in parts], axes, [1] * len(axes)
        )
    starts = sizes.exact_shape_operand(call, x, [SizeTerm(0)] * len(axes))
    ends = sizes.exact_shape_operand(call, like, parts)
    return call.add("slice_at", {"x": x, "starts": starts, "ends": ends}, {"axes": tuple(axes)})


def _crop(call: SymbolCall) -> Value:
    call.ignore("num_args")
    x, offset = call.value(0), call.attrs.integers("offset", (0, 0))
    size = call.attrs.integers("h_w", (0, 0))
    if len(call) == 2:
        if not any(offset) and not call.attrs.flag("center_crop"):
            return _cut_like(call, x, call.value(1), (2, 3), (2, 3))
        size = tuple(call.size(call.value(1), axis) for axis in (2, 3))
    if call.attrs.flag("center_crop"):
        # center_crop ignores the offset.
        offset = tuple((call.size(x, 2 + i) - size[i]) // 2 for i in (0, 1))
    ends = [o + s for o, s in zip(offset, size, strict=True)]
    return _add_slice(call, x, offset, ends, (2, 3), (1, 1))


def _tile(call: SymbolCall) -> Value:
    x, repeats = call.value(0), call.attrs.integers("reps")
    if len(repeats) > x.type.rank:
        new_axes = tuple(range(len(repeats) - x.type.rank))
        x = call.add("unsqueeze", {"x": x}, {"axes": new_axes})
    repeats = (*(1,) * (x.type.rank - len(repeats)), *repeats)
    return call.add("tile", {"x": x}, {"repeats": repeats})


def _repeat(call: SymbolCall) -> Value:
    x, count, axis = call.value(0), call.attrs.integer("repeats"), 0
    if call.attrs.is_given("axis"):
        axis = call.axis("axis", x.type.rank)
    else:
        call.ignore("axis")
        x = call.add("reshape", {"x": x, "shape": sizes.shape_operand(call, x, [SizeTerm(-1)])})
    # A new axis after the repeated one is tiled, then merged into it.
    tiled = call.add("unsqueeze", {"x": x}, {"axes": (axis + 1,)})
    repeats = tuple(count if i == axis + 1 else 1 for i in range(x.type.rank + 1))
    tiled = call.add("tile", {"x": tiled}, {"repeats": repeats})
    parts = [size_term(x, i) for i in range(x.type.rank)]
    parts[axis] = SizeTerm(-1) if parts[axis].axes else SizeTerm(parts[axis].number * count)
    return call.add("reshape", {"x": tiled, "shape": _shape_of_other(call, x, parts)})


def _shape_of_other(call: SymbolCall, x: Value, parts: list[SizeTerm]) -> Value:
    """Returns a shape operand for another value than x, without sizes of 0, which copy."""
    unknown = [p for p in parts if p.axes]
    if len(unknown) == 1 and not any(p.number == -1 for p in parts):
        return sizes.exact_shape_operand(call, x, [SizeTerm(-1) if p.axes else p for p in parts])
    return sizes.exact_shape_operand(call, x, parts)


def _flip(call: SymbolCall) -> Value:
    x = call.value(0)
    axes = tuple(sorted(a % x.type.rank for a in call.attrs.integers("axis")))
    return call.add("flip", {"x": x}, {"axes": axes})


def _broadcast_to(call: SymbolCall) -> Value:
    x = call.value(0)
    target_sizes = call.attrs.integers("shape")
    parts = [SizeTerm(size) if size else size_term(x, i) for i, size in enumerate(target_sizes)]
    return call.add("expand", {"x": x, "shape": sizes.exact_shape_operand(call, x, parts)})


def _broadcast_like(call: SymbolCall) -> Value:
    x, like = call.value(0), call.value(1)
    if call.attrs.is_given("lhs_axes") and call.attrs.is_given("rhs_axes"):
        x_axes, like_axes = call.attrs.integers("lhs_axes"), call.attrs.integers("rhs_axes")
        pairs = zip(x_axes, like_axes, strict=False)
        terms_by_axis = {
            i % x.type.rank: sizes.size_term(like, j % like.type.rank) for i, j in pairs
        }
        parts = [terms_by_axis.get(i, SizeTerm(1)) for i in range(x.type.rank)]
        return call.add("expand", {"x": x, "shape": sizes.exact_shape_operand(call, like, parts)})
    call.ignore("lhs_axes", "rhs_axes")
    return call.add("expand", {"x": x, "shape": sizes.shape_of_value(call, like)})


def _broadcast_axis(call: SymbolCall) -> Value:
    x = call.value(0)
    size_by_axis = dict(zip(call.attrs.integers("axis"), call.attrs.integers("size"), strict=False))
    size_by_axis = {axis % x.type.rank: size for axis, size in size_by_axis.items()}
    parts = [SizeTerm(size_by_axis.get(i, 1)) for i in range(x.type.rank)]
    return call.add("expand", {"x": x, "shape": sizes.exact_shape_operand(call, x, parts)})


def _pad(call: SymbolCall) -> Value:
    widths = call.attrs.integers("pad_width")
    mode = call.choice("mode", "", "constant", "edge", "reflect")
    attrs: dict[str, Attr] = {
        # pad_width has (front, back) pairs by axis.
        "pads": (*widths[0::2], *widths[1::2]),
        "mode": mode,
        "value": call.attrs.number("constant_value", 0.0),
    }
    return call.add("pad", {"x": call.value(0)}, attrs)


def _depth_to_space(op: str) -> Callable[[SymbolCall], Value]:
    return lambda call: call.add(
        op, {"x": call.value(0)}, {"block": call.attrs.integer("block_size")}
    )


def _sequence_reverse(call: SymbolCall) -> Value:
    x = call.value(0)
    if call.attrs.integer("axis", 0):
        raise Unsupported("its axis is not 0")
    if not call.attrs.flag("use_sequence_length"):
        return call.add("flip", {"x": x}, {"axes": (0,)})
    lengths = call.indices_as_i64(call.value(1))
    return call.add("reverse_sequence", {"x": x, "lengths": lengths}, {"batch": 1, "time": 0})


def _sequence_last(call: SymbolCall) -> Value:
    x = call.value(0)
    axis = call.axis("axis", x.type.rank, 0)
    if call.attrs.flag("use_sequence_length"):
        raise Unsupported("use_sequence_length is True; take the rows with gather_nd instead")
    last_step = _add_slice(call, x, [-1], [_LAST], [axis], [1])
    return call.add("squeeze", {"x": last_step}, {"axes": (axis,)})


OPS: dict[str, Callable[[SymbolCall], Result | list[Result]]] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "SwapAxis": _swap_axis,
    "Concat": _concat("dim", 1),
    "_rnn_param_concat": _concat("dim", 1),
    "stack": _stack,
    "SliceChannel": _slice_channel,
    "_split_v2": _split_at,
    "slice": _slice,
    "slice_axis": _slice_axis,
    "slice_like": _slice_like,
    "Crop": _crop,
    "tile": _tile,
    "repeat": _repeat,
    "reverse": _flip,
    "broadcast_to": _broadcast_to,
    "broadcast_like": _broadcast_like,
    "broadcast_axis": _broadcast_axis,
    "Pad": _pad,
    "depth_to_space": _depth_to_space("depth_to_space"),
    "space_to_depth": _depth_to_space("space_to_depth"),
    "SequenceReverse": _sequence_reverse,
    "SequenceLast": _sequence_last,
}
