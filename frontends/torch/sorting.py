"""Sort, argsort, k-th value, median and searchsorted."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.dtype import I64, dtype
from qir.ir.node import Value

from .call import OverloadCall
from .reader import KeepCall


def _sorted_values(call: OverloadCall, axis: int, *, largest: bool) -> tuple[Value, Value]:
    """Returns the sorted elements of an axis and their indices; the order is stable."""
    x = call.value("self")
    count = x.type.shape[axis] if x.type.rank else None
    if not isinstance(count, int):
        raise KeepCall("it sorts an axis of an unknown size")
    # The language has no sort: it is the top-k of all elements, ties in the order of indices.
    attrs: dict[str, Attr] = {"k": count, "axis": axis, "largest": largest, "sorted": True}
    values, indices = call.add_many("top_k", {"x": x}, attrs)
    return values, indices


def _sort(call: OverloadCall) -> list[Value]:
    axis = call.axis("dim", call.rank("self"))
    return list(_sorted_values(call, axis, largest=call.flag("descending")))


def _argsort(call: OverloadCall) -> Value:
    return _sort(call)[1]


def _kth_value(call: OverloadCall) -> list[Value]:
    return _pick_sorted(call, call.axis("dim", call.rank("self")), call.integer("k") - 1)


def _median(call: OverloadCall) -> list[Value]:
    axis = call.axis("dim", call.rank("self"))
    count = call.fake_tensor("self").shape[axis]
    if not isinstance(count, int):
        raise KeepCall("it sorts an axis of an unknown size")
    # PyTorch's median of an even count is the lower of the two middle elements.
    return _pick_sorted(call, axis, (count - 1) // 2)


def _pick_sorted(call: OverloadCall, axis: int, position: int) -> list[Value]:
    """Returns the element at a position of the sorted axis, and its index."""
    attrs = {"starts": (position,), "ends": (position + 1,), "axes": (axis,), "steps": (1,)}
    picked = [call.add("slice", {"x": v}, attrs) for v in _sorted_values(call, axis, largest=False)]
    if call.flag("keepdim"):
        return picked
    return [call.add("squeeze", {"x": value}, {"axes": (axis,)}) for value in picked]


def _search_sorted(call: OverloadCall) -> Value:
    """Reads `searchsorted` in one sorted vector: counts the elements before each value."""
    sorted_row, x = call.value("sorted_sequence"), call.value("self")
    if sorted_row.type.rank != 1 or call["sorter"] is not None:
        raise KeepCall("it looks in several rows, or in one that is not sorted")
    is_right = call.flag("right") or call["side"] == "right"
    sorted_row, x = call.promote("sorted_sequence", "self")
    # Compares each value with the whole row: [..., 1] against [n].
    value = call.add("unsqueeze", {"x": x}, {"axes": (x.type.rank,)})
    before = call.add("less_equal" if is_right else "less", {"a": sorted_row, "b": value})
    counted = call.add("cast", {"x": before}, {"to": I64})
    axes: dict[str, Attr] = {"axes": (x.type.rank,), "keep": False}
    counts = call.add("reduce_sum", {"x": counted}, axes)
    return (
        call.add("cast", {"x": counts}, {"to": dtype("i32")}) if call.flag("out_int32") else counts
    )


OPS: dict[str, Callable[[OverloadCall], Value | list[Value]]] = {
    "sort.default": _sort,
    "sort.stable": _sort,
    "argsort.default": _argsort,
    "argsort.stable": _argsort,
    "kthvalue.default": _kth_value,
    "median.dim": _median,
    "searchsorted.Tensor": _search_sorted,
}
