"""Operators that only move elements: views, concat, split, slices, padding, flips."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qir.ir.attrs import Attr
from qir.ir.node import Value
from qir.ir.types import QuantType

from .call import OverloadCall
from .reader import KeepCall
from .shape_operands import exact_shape_operand, shape_operand
from .sizes import Size

_TO_THE_END = 2**63 - 1


def _reshape_to(call: OverloadCall, sizes_requested: Sequence[Size]) -> Value:
    x = call.value("self")
    has_empty = any(size == 0 for size in sizes_requested if isinstance(size, int))
    shape = shape_operand(call.reader, call.node, sizes_requested)
    # Without `allow_zero`, a 0 in the shape means that the axis keeps its size.
    return call.add("reshape", {"x": x, "shape": shape}, {"allow_zero": has_empty})


def _reshape(name: str) -> Callable[[OverloadCall], Value]:
    return lambda call: _reshape_to(call, call[name])


def _reshape_to_result(call: OverloadCall) -> Value:
    """Reshapes to the inferred result shape, of which at most one size may be symbolic."""
    # -1 stands for the one symbolic size; next to an empty axis it would be ambiguous.
    shape = [int(s) if isinstance(s, int) else -1 for s in call.result.shape]
    if shape.count(-1) > 1 or {-1, 0} <= set(shape):
        raise KeepCall
    return _reshape_to(call, shape)


def _flatten(call: OverloadCall) -> Value:
    x = call.value("self")
    first, last = (call.axis(n, x.type.rank) for n in ("start_dim", "end_dim"))
    if first == last:
        return x
    # The form between convolutions and linear layers has an op of its own, which backends know.
    if x.type.rank and first == 1 and last == x.type.rank - 1:
        return call.add("flatten", {"x": x}, {"axis": 1})
    return _reshape_to_result(call)


def _transpose(call: OverloadCall) -> Value:
    x = call.value("self")
    perm = list(range(x.type.rank))
    if not perm:
        return x
    a, b = call.axis("dim0", x.type.rank), call.axis("dim1", x.type.rank)
    perm[a], perm[b] = perm[b], perm[a]
    return call.add("transpose", {"x": x}, {"perm": tuple(perm)})


def _permute(call: OverloadCall) -> Value:
    x = call.value("self")
    return call.add("transpose", {"x": x}, {"perm": call.axes("dims", x.type.rank)})


def _t(call: OverloadCall) -> Value:
    x = call.value("self")
    return call.add("transpose", {"x": x}, {"perm": (1, 0)}) if x.type.rank == 2 else x


def _squeeze(call: OverloadCall) -> Value:
    x = call.value("self")
    has_axes = "dim" in call.arguments
    axes = call.axes("dim", x.type.rank) if has_axes else tuple(range(x.type.rank))
    # PyTorch ignores named axes whose size is not 1; a symbolic size could be 1 at run time.
    removed = tuple(a for a in axes if x.type.shape[a] == 1)
    if not all(isinstance(x.type.shape[a], int) for a in axes):
        raise KeepCall
    return call.add("squeeze", {"x": x}, {"axes": removed}) if removed else x


def _unsqueeze(call: OverloadCall) -> Value:
    x = call.value("self")
    return call.add("unsqueeze", {"x": x}, {"axes": (call.axis("dim", x.type.rank + 1),)})


def _concat(call: OverloadCall) -> Value:
    parts = [call.cast_to(tensor, call.result.dtype) for tensor in call["tensors"]]
    rank = call.result.dim()
    parts = [part for part in parts if part.type.rank == rank]  # PyTorch skips empty 1-D tensors
    axis = call.axis("dim", rank)
    parts = [part for part in parts if part.type.shape[axis] != 0] or parts[:1]
    return call.add("concat", {f"xs.{i}": p for i, p in enumerate(parts)}, {"axis": axis})


def _stack(call: OverloadCall) -> Value:
    axis = call.axis("dim", call.result.dim())
    parts = [call.cast_to(tensor, call.result.dtype) for tensor in call["tensors"]]
    parts = [call.add("unsqueeze", {"x": part}, {"axes": (axis,)}) for part in parts]
    return call.add("concat", {f"xs.{i}": p for i, p in enumerate(parts)}, {"axis": axis})


def _split(call: OverloadCall) -> list[Value]:
    x = call.value("self")
    axis = call.axis("dim", x.type.rank)
    # PyTorch may return fewer parts than were asked for, so the sizes are those of its results.
    parts = [fake.shape[axis] for fake in call.node.meta["val"]]
    if not all(isinstance(size, int) for size in parts):
        raise KeepCall
    attrs: dict[str, Attr] = {"sizes": tuple(int(size) for size in parts), "axis": axis}
    return list(call.add_many("split", {"x": x}, attrs))


def _unbind(call: OverloadCall) -> list[Value]:
    x = call.value("self")
    axis = call.axis("dim", x.type.rank)
    count = x.type.shape[axis]
    if not isinstance(count, int):
        raise KeepCall
    parts = call.add_many("split", {"x": x}, {"sizes": (1,) * count, "axis": axis})
    return [call.add("squeeze", {"x": part}, {"axes": (axis,)}) for part in parts]


def _slice(call: OverloadCall) -> Value:
    x = call.value("self")
    axis, step = call.axis("dim", x.type.rank), call.integer("step")
    start = 0 if call["start"] is None else call["start"]
    end = _TO_THE_END if call["end"] is None else call["end"]
    # Export adds such a slice for every `:` of an index.
    if start == 0 and isinstance(end, int) and end >= _TO_THE_END and step == 1:
        return x
    if isinstance(start, int) and isinstance(end, int):
        attrs = {"starts": (start,), "ends": (end,), "axes": (axis,), "steps": (step,)}
        return call.add("slice", {"x": x}, attrs)
    # A start or end that depends on a symbolic size is an operand.
    bounds = {"starts": call.reader.size_value(start), "ends": call.reader.size_value(end)}
    return call.add("slice_at", {"x": x, **bounds}, {"axes": (axis,), "steps": (step,)})


def _narrow(call: OverloadCall) -> Value:
    x, start = call.value("self"), call.integer("start")
    attrs: dict[str, Attr] = {
        "starts": (start,),
        "ends": (start + call.integer("length"),),
        "axes": (call.axis("dim", x.type.rank),),
        "steps": (1,),
    }
    return call.add("slice", {"x": x}, attrs)


def _select(call: OverloadCall) -> Value:
    x, index = call.value("self"), call.integer("index")
    axis = call.axis("dim", x.type.rank)
    # The element after the last has no negative index.
    end = index + 1 if index != -1 else _TO_THE_END
    attrs = {"starts": (index,), "ends": (end,), "axes": (axis,), "steps": (1,)}
    part = call.add("slice", {"x": x}, attrs)
    return call.add("squeeze", {"x": part}, {"axes": (axis,)})


def _expand(call: OverloadCall) -> Value:
    x, requested = call.value("self"), list(call["size"])
    added_axes = len(requested) - x.type.rank
    # -1 keeps the size, and so does expanding to 1.
    target = [1 if size == -1 and i >= added_axes else size for i, size in enumerate(requested)]
    if tuple(x.type.shape) == tuple(call.result.shape):
        return x
    shape = exact_shape_operand(call.reader, call.node, target)
    return call.add("expand", {"x": x, "shape": shape})


def _expand_as(call: OverloadCall) -> Value:
    x, like = call.value("self"), call.value("other")
    shape = call.add("shape", {"x": like})
    return call.add("expand", {"x": x, "shape": shape})


def _repeat(call: OverloadCall) -> Value:
    x, repeats = (
        call.value("self"),
        call.integers("repeats" if "repeats" in call.arguments else "dims"),
    )
    added_axes = len(repeats) - x.type.rank
    if added_axes < 0:
        repeats, added_axes = (1,) * -added_axes + repeats, 0
    if added_axes:
        # The axes that the tensor does not have come first.
        x = call.add("unsqueeze", {"x": x}, {"axes": tuple(range(added_axes))})
    return call.add("tile", {"x": x}, {"repeats": repeats})


def _pads_of_all_axes(call: OverloadCall, rank: int) -> tuple[int, ...]:
    """Returns the front padding of all axes, then the back.

    PyTorch has a pair for each axis, from the last axis on.
    """
    pads = call.integers("pad" if "pad" in call.arguments else "padding")
    before, after = [0] * rank, [0] * rank
    for i in range(len(pads) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = pads[2 * i], pads[2 * i + 1]
    return (*before, *after)


def _pad(call: OverloadCall) -> Value:
    mode = call.arguments.get("mode", "constant")
    value = call.arguments.get("value") or 0.0
    if not isinstance(value, (int, float)):
        raise KeepCall
    # Padding with the zero point pads with zero: the tensor stays quantized.
    x = call.quantized_value("self")
    quant = x.type.quant
    if mode == "constant" and quant is not None and _is_zero_point(quant, value):
        return call.add("pad", {"x": x}, {"pads": _pads_of_all_axes(call, x.type.rank)})
    x = call.value("self")
    if mode == "circular":
        return _pad_circular(call, x)
    mode = {"replicate": "edge"}.get(mode, mode)
    attrs: dict[str, Attr] = {
        "pads": _pads_of_all_axes(call, x.type.rank),
        "mode": mode,
        "value": float(value),
    }
    return call.add("pad", {"x": x}, attrs)


def _is_zero_point(quant: QuantType, value: float) -> bool:
    """Returns whether a stored integer means zero, in a type of one known scale."""
    is_per_tensor = quant.kind == "uniform" and not quant.dynamic and quant.granularity is None
    return (
        is_per_tensor
        and not quant.has_float_zero
        and quant.plus is None
        and int(quant.zeros()) == value
    )


def _pad_circular(call: OverloadCall, x: Value) -> Value:
    """Pads with elements of the other end of each axis."""
    pads = _pads_of_all_axes(call, x.type.rank)
    if min(pads) < 0:
        raise KeepCall
    for axis, (before, after) in enumerate(
        zip(pads[: x.type.rank], pads[x.type.rank :], strict=True)
    ):
        # Both ends are taken from the tensor before this axis was padded.
        parts, unpadded = [x], x
        attrs = {"axes": (axis,), "steps": (1,)}
        if before:
            last_elements = {"starts": (-before,), "ends": (_TO_THE_END,), **attrs}
            parts.insert(0, call.add("slice", {"x": unpadded}, last_elements))
        if after:
            parts.append(
                call.add("slice", {"x": unpadded}, {"starts": (0,), "ends": (after,), **attrs})
            )
        if len(parts) > 1:
            x = call.add("concat", {f"xs.{i}": p for i, p in enumerate(parts)}, {"axis": axis})
    return x


def _pad_in_mode(mode: str) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        x = call.value("self")
        return call.add(
            "pad", {"x": x}, {"pads": _pads_of_all_axes(call, x.type.rank), "mode": mode}
        )

    return read


def _pixel_shuffle(call: OverloadCall) -> Value:
    x = call.value("self")
    # PyTorch has the channels as (C, r, r), which ONNX calls CRD.
    attrs: dict[str, Attr] = {"block": call.integer("upscale_factor"), "mode": "CRD"}
    return call.add("depth_to_space", {"x": x}, attrs)


def _flip(call: OverloadCall) -> Value:
    x = call.value("self")
    return call.add("flip", {"x": x}, {"axes": call.axes("dims", x.type.rank)})


def _roll(call: OverloadCall) -> Value:
    x = call.value("self")
    shifts, axes = call.integers("shifts"), call.integers("dims")
    if len(shifts) != len(axes):
        raise KeepCall
    for shift, axis in zip(shifts, axes, strict=True):
        axis += x.type.rank if axis < 0 else 0
        count = x.type.shape[axis]
        if not isinstance(count, int):
            raise KeepCall
        # Rolled by s, the last s elements come first.
        position = -shift % count
        if position:
            halves = call.add_many(
                "split", {"x": x}, {"sizes": (position, count - position), "axis": axis}
            )
            x = call.add("concat", {"xs.0": halves[1], "xs.1": halves[0]}, {"axis": axis})
    return x


OPS: dict[str, Callable[[OverloadCall], Value | list[Value]]] = {
    "view.default": _reshape("size"),
    "_unsafe_view.default": _reshape("size"),
    "reshape.default": _reshape("shape"),
    "flatten.using_ints": _flatten,
    "unflatten.int": _reshape_to_result,
    "transpose.int": _transpose,
    "permute.default": _permute,
    "t.default": _t,
    "squeeze.default": _squeeze,
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
    "unsqueeze.default": _unsqueeze,
    "cat.default": _concat,
    "stack.default": _stack,
    "split.Tensor": _split,
    "split_with_sizes.default": _split,
    "chunk.default": _split,
    "tensor_split.sections": _split,
    "unbind.int": _unbind,
    "slice.Tensor": _slice,
    "select.int": _select,
    "narrow.default": _narrow,
    "expand.default": _expand,
    "expand_as.default": _expand_as,
    "repeat.default": _repeat,
    "tile.default": _repeat,
    "pad.default": _pad,
    "constant_pad_nd.default": _pad,
    "reflection_pad1d.default": _pad_in_mode("reflect"),
    "reflection_pad2d.default": _pad_in_mode("reflect"),
    "replication_pad1d.default": _pad_in_mode("edge"),
    "replication_pad2d.default": _pad_in_mode("edge"),
    "pixel_shuffle.default": _pixel_shuffle,
    "flip.default": _flip,
    "roll.default": _roll,
}
