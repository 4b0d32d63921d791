"""Operators that write elements to places that indices name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import fx

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import KeepCall, OverloadCall, int64_array
from .indexing import broadcast_indices, is_mask, permute

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
        how = reduction
        if "reduce" in call.arguments:
            how = _REDUCTIONS.get(str(call["reduce"]), "")
        if not how or not call.arguments.get("include_self", True):
            raise KeepCall(f"it reduces by {call['reduce']}, or without the elements themselves")
        x, indices = call.value("self"), call.value("index")
        if not x.type.rank or x.type.rank != indices.type.rank:
            raise KeepCall
        operands = {"x": x, "indices": indices, "updates": _updates(call, indices)}
        attrs: dict[str, Attr] = {"axis": call.axis("dim", x.type.rank), "reduction": how}
        return call.add("scatter_elements", operands, attrs)

    return read


def _updates(call: OverloadCall, indices: Value) -> Value:
    """Returns an element for each index: the leading part of the source, or one number for all."""
    if "src" not in call.arguments or not isinstance(call["src"], fx.Node):
        held = "value" if "value" in call.arguments else "src"
        number = call.promote(held, kind=call.result.dtype)[0]
        return call.expand_like(number, indices)
    source, shape = call.value("src"), indices.type.shape
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
    x, held, adds = call.value("self"), call["indices"], call.flag("accumulate")
    named = [(axis, node) for axis, node in enumerate(held) if node is not None]
    if len(named) == 1 and named[0][0] == 0 and is_mask(named[0][1]):
        return _fill_by_mask(call, x, call.reader.tensor(named[0][1]), adds)
    if any(is_mask(node) for _, node in named):
        raise KeepCall("it writes by a mask and by indices")
    parts = broadcast_indices(call, [call.reader.tensor(node) for _, node in named])
    axes = [axis for axis, _ in named]
    return _scatter_entries(
        call, x, axes, parts, call.cast_to(call["values"], call.result.dtype), adds
    )


def _fill_by_mask(call: OverloadCall, x: Value, mask: Value, adds: bool) -> Value:
    value = call.cast_to(call["values"], call.result.dtype)
    if value.type.rank > 1 or value.type.shape not in ((), (1,)):
        raise KeepCall("it writes as many elements as a mask has")
    more = tuple(range(mask.type.rank, x.type.rank))
    condition = call.add("unsqueeze", {"x": mask}, {"axes": more}) if more else mask
    chosen = call.add("add", {"a": x, "b": value}) if adds else value
    return call.add("where", {"condition": condition, "a": chosen, "b": x})


def _scatter_entries(
    call: OverloadCall,
    x: Value,
    axes: Sequence[int],
    parts: Sequence[Value],
    values: Value,
    adds: bool,
) -> Value:
    """Writes values at index tensors of some axes, as `x[:, i, j] = values`.

    PyTorch puts the indexed axes where the first one was if all are adjacent, else at the front.
    """
    rank, count = x.type.rank, parts[0].type.rank
    rest = [axis for axis in range(rank) if axis not in axes]
    next_to = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    before = [axis for axis in rest if axis < axes[0]] if next_to else []
    after = [axis for axis in rest if axis not in before]
    indexed = parts[0].type.shape
    wanted = (
        *(x.type.shape[a] for a in before),
        *indexed,
        *(x.type.shape[a] for a in after),
    )
    if values.type.shape != wanted:
        sizes = tuple(size for size in wanted if isinstance(size, int))
        if len(sizes) != len(wanted):
            raise KeepCall("it repeats values as often as nobody knows")
        shape = call.reader.graph.constant(int64_array(sizes))
        values = call.add("expand", {"x": values, "shape": shape})
    lead = len(before)
    order = [*range(lead, lead + count), *range(lead), *range(lead + count, len(wanted))]
    updates = permute(call, values, order)
    perm = [*axes, *rest]
    rows = [call.add("unsqueeze", {"x": part}, {"axes": (count,)}) for part in parts]
    indices = call.add("concat", {f"xs.{i}": r for i, r in enumerate(rows)}, {"axis": count})
    operands = {"x": permute(call, x, perm), "indices": indices, "updates": updates}
    made = call.add("scatter_nd", operands, {"reduction": "add" if adds else "none"})
    return permute(call, made, [perm.index(axis) for axis in range(rank)])


def _write_along_axis(source: str, adds: bool = False) -> Callable[[OverloadCall], Value]:
    """Returns the converter of index_copy and its like, which write entries of one axis."""

    def read(call: OverloadCall) -> Value:
        x, indices = call.value("self"), call.value("index")
        scaled = call.arguments.get("alpha", 1) != 1
        if indices.type.rank != 1 or not x.type.rank or scaled:
            raise KeepCall
        values = call.cast_to(call[source], call.result.dtype)
        return _scatter_entries(call, x, [call.axis("dim", x.type.rank)], [indices], values, adds)

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
    "index_add.default": _write_along_axis("source", adds=True),
    "index_fill.int_Scalar": _write_along_axis("value"),
    "index_fill.int_Tensor": _write_along_axis("value"),
}
