"""Operators that write elements to places that indices name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import fx

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import OverloadCall
from .indexing import broadcast_indices, is_mask, permute
from .reader import KeepCall
from .sizes import int64_array

_REDUCTIONS = {
    "add": "add",
    "sum": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


def _scatter(reduction: str = "none") -> Callable[[OverloadCall], Value]:
    """Returns the converter of a scatter with that reduction, or that of its argument `reduce`."""

    def read(call: OverloadCall) -> Value:
        reduction_name = reduction
        if "reduce" in call.arguments:
            reduction_name = _REDUCTIONS.get(str(call["reduce"]), "")
        if not reduction_name or not call.arguments.get("include_self", True):
            raise KeepCall(f"it reduces by {call['reduce']}, or without the elements themselves")
        x, indices = call.value("self"), call.value("index")
        # PyTorch allows scalars here; scatter_elements needs an axis.
        if not x.type.rank or x.type.rank != indices.type.rank:
            raise KeepCall
        operands = {"x": x, "indices": indices, "updates": _updates(call, indices)}
        attrs: dict[str, Attr] = {
            "axis": call.axis("dim", x.type.rank),
            "reduction": reduction_name,
        }
        return call.add("scatter_elements", operands, attrs)

    return read


def _updates(call: OverloadCall, indices: Value) -> Value:
    """Returns an element for each index: the leading part of the source, or one number for all."""
    if "src" not in call.arguments or not isinstance(call["src"], fx.Node):
        argument = "value" if "value" in call.arguments else "src"
        number = call.promote(argument, kind=call.result.dtype)[0]
        return call.expand_like(number, indices)
    source, shape = call.value("src"), indices.type.shape
    # `scatter` reads only as much of its source as there are indices.
    if source.type.shape == shape:
        return source
    ends = tuple(size for size in shape if isinstance(size, int))
    if len(ends) != len(shape):
        raise KeepCall("its source is larger than its indices, of which nobody knows how many")
    axes = tuple(range(len(ends)))
    attrs: dict[str, Attr] = {
        "starts": (0,) * len(ends),
        "ends": ends,
        "axes": axes,
        "steps": (1,) * len(ends),
    }
    return call.add("slice", {"x": source}, attrs)


def _index_put(call: OverloadCall) -> Value:
    """Reads `x[mask] = 1`, `x[i] = y`, `x[:, i, j] = y`, and the same with `+=`."""
    x, index_list, accumulates = call.value("self"), call["indices"], call.flag("accumulate")
    indexed = [(axis, node) for axis, node in enumerate(index_list) if node is not None]
    if len(indexed) == 1 and indexed[0][0] == 0 and is_mask(indexed[0][1]):
        return _fill_by_mask(call, x, call.reader.tensor(indexed[0][1]), accumulates)
    # How many places a mask names is known only at run time.
    if any(is_mask(node) for _, node in indexed):
        raise KeepCall("it writes by a mask and by indices")
    parts = broadcast_indices(call, [call.reader.tensor(node) for _, node in indexed])
    axes = [axis for axis, _ in indexed]
    return _scatter_entries(
        call, x, axes, parts, call.cast_to(call["values"], call.result.dtype), accumulates
    )


def _fill_by_mask(call: OverloadCall, x: Value, mask: Value, accumulates: bool) -> Value:
    value = call.cast_to(call["values"], call.result.dtype)
    if value.type.rank > 1 or value.type.shape not in ((), (1,)):
        raise KeepCall("it writes as many elements as a mask has")
    # A mask may cover the leading axes alone.
    trailing_axes = tuple(range(mask.type.rank, x.type.rank))
    condition = (
        call.add("unsqueeze", {"x": mask}, {"axes": trailing_axes}) if trailing_axes else mask
    )
    chosen = call.add("add", {"a": x, "b": value}) if accumulates else value
    return call.add("where", {"condition": condition, "a": chosen, "b": x})


def _scatter_entries(
    call: OverloadCall,
    x: Value,
    axes: Sequence[int],
    parts: Sequence[Value],
    values: Value,
    accumulates: bool,
) -> Value:
    """Writes values at index tensors of some axes, as `x[:, i, j] = values`.

    PyTorch puts the indexed axes where the first one was if all are adjacent, else at the front.
    """
    rank, count = x.type.rank, parts[0].type.rank
    other_axes = [axis for axis in range(rank) if axis not in axes]
    are_adjacent = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    axes_before = [axis for axis in other_axes if axis < axes[0]] if are_adjacent else []
    axes_after = [axis for axis in other_axes if axis not in axes_before]
    indexed = parts[0].type.shape
    values_shape = (
        *(x.type.shape[a] for a in axes_before),
        *indexed,
        *(x.type.shape[a] for a in axes_after),
    )
    if values.type.shape != values_shape:
        sizes = tuple(size for size in values_shape if isinstance(size, int))
        if len(sizes) != len(values_shape):
            raise KeepCall("it repeats values as often as nobody knows")
        shape = call.reader.graph.constant(int64_array(sizes))
        values = call.add("expand", {"x": values, "shape": shape})
    leading_count = len(axes_before)
    order = [
        *range(leading_count, leading_count + count),
        *range(leading_count),
        *range(leading_count + count, len(values_shape)),
    ]
    # `scatter_nd` writes to leading axes, so the indexed axes go to the front and back again.
    updates = permute(call, values, order)
    perm = [*axes, *other_axes]
    rows = [call.add("unsqueeze", {"x": part}, {"axes": (count,)}) for part in parts]
    indices = call.add("concat", {f"xs.{i}": r for i, r in enumerate(rows)}, {"axis": count})
    operands = {"x": permute(call, x, perm), "indices": indices, "updates": updates}
    scattered = call.add("scatter_nd", operands, {"reduction": "add" if accumulates else "none"})
    return permute(call, scattered, [perm.index(axis) for axis in range(rank)])


def _write_along_axis(source: str, accumulates: bool = False) -> Callable[[OverloadCall], Value]:
    """Returns the converter of index_copy and its like, which write entries of one axis."""

    def read(call: OverloadCall) -> Value:
        x, indices = call.value("self"), call.value("index")
        is_scaled = call.arguments.get("alpha", 1) != 1
        if indices.type.rank != 1 or not x.type.rank or is_scaled:
            raise KeepCall
        values = call.cast_to(call[source], call.result.dtype)
        return _scatter_entries(
            call, x, [call.axis("dim", x.type.rank)], [indices], values, accumulates
        )

    return read


OPS: dict[str, Callable[[OverloadCall], Value]] = {
    "scatter.src": _scatter(),
    "scatter.value": _scatter(),
    "scatter.reduce": _scatter(),
    "scatter.value_reduce": _scatter(),
    "scatter_add.default": _scatter("add"),
    "scatter_reduce.two": _scatter(),
    "index_put.default": _index_put,
    "index_copy.default": _write_along_axis("source"),
    "index_add.default": _write_along_axis("source", accumulates=True),
    "index_fill.int_Scalar": _write_along_axis("value"),
    "index_fill.int_Tensor": _write_along_axis("value"),
}
