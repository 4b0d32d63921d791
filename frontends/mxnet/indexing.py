"""Embedding, take, pick, gather_nd, one_hot, topk; MXNet stores indices as floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qir.ir.node import Value

from . import sizes
from .call import SymbolCall
from .results import Result, Unsupported
from .sizes import SizeTerm


def _embedding(call: SymbolCall) -> Value:
    call.ignore("input_dim", "output_dim", "sparse_grad", "dtype")
    indices = call.indices_as_i64(call.value(0))
    return call.add("embedding", {"w": call.value(1), "indices": indices})


def _into_bounds(call: SymbolCall, x: Value, indices: Value, axis: int, mode: str) -> Value:
    """Returns indices brought into the bounds of an axis, by clipping or wrapping."""
    dtype, size = indices.type.dtype, call.size(x, axis)
    if mode == "wrap":
        return call.add("mod", {"a": indices, "b": call.number(size, dtype)})
    not_negative = call.add("max", {"xs.0": indices, "xs.1": call.number(0, dtype)})
    return call.add("min", {"xs.0": not_negative, "xs.1": call.number(size - 1, dtype)})


def _take(call: SymbolCall) -> Value:
    x, indices = call.value(0), call.indices_as_i64(call.value(1))
    axis = call.axis("axis", x.type.rank, 0)
    mode = call.choice("mode", "clip", "clip", "wrap", "raise")
    if mode != "raise":
        indices = _into_bounds(call, x, indices, axis, mode)
    return call.add("gather", {"x": x, "indices": indices}, {"axis": axis})


def _pick(call: SymbolCall) -> Value:
    x, indices = call.value(0), call.indices_as_i64(call.value(1))
    axis, keep = call.axis("axis", x.type.rank, -1), call.attrs.flag("keepdims")
    indices = _into_bounds(call, x, indices, axis, call.choice("mode", "clip", "clip", "wrap"))
    if indices.type.rank < x.type.rank:
        indices = call.add("unsqueeze", {"x": indices}, {"axes": (axis,)})
    picked = call.add("gather_elements", {"x": x, "indices": indices}, {"axis": axis})
    return picked if keep else call.add("squeeze", {"x": picked}, {"axes": (axis,)})


def _gather_nd(call: SymbolCall) -> Value:
    """Reads gather_nd, whose indices have the coordinates along the first axis."""
    x, indices = call.value(0), call.indices_as_i64(call.value(1))
    order = (*range(1, indices.type.rank), 0)
    indices = call.add("transpose", {"x": indices}, {"perm": order})
    return call.add("gather_nd", {"x": x, "indices": indices})


def _one_hot(call: SymbolCall) -> Value:
    indices, dtype = call.indices_as_i64(call.value(0)), call.dtype()
    off_and_on = call.attrs.number("off_value", 0.0), call.attrs.number("on_value", 1.0)
    values = call.constant(np.asarray(off_and_on, dtype.carrier), "values")
    attrs = {"depth": call.attrs.integer("depth"), "axis": -1}
    return call.add("one_hot", {"indices": indices, "values": values}, attrs)


def _top_k(call: SymbolCall) -> list[Result]:
    x = call.value(0)
    axis = call.axis("axis", x.type.rank, -1)
    dtype = call.dtype()
    result_kind = call.choice("ret_typ", "indices", "indices", "value", "both")
    # A k of 0 means all elements.
    count = call.attrs.integer("k", 1) or call.size(x, axis)
    attrs = {
        "k": count,
        "axis": axis,
        "largest": not call.attrs.flag("is_ascend"),
        "sorted": True,
    }
    values, indices = call.add_many("top_k", {"x": x}, attrs)
    cast_indices = call.cast(indices, dtype)
    results_by_kind: dict[str, list[Result]] = {
        "indices": [cast_indices],
        "value": [values],
        "both": [values, cast_indices],
    }
    return results_by_kind[result_kind]


def _arg_reduce(op: str) -> Callable[[SymbolCall], Value]:
    def read(call: SymbolCall) -> Value:
        x, keep = call.value(0), call.attrs.flag("keepdims")
        if not call.attrs.is_given("axis"):
            if keep:
                raise Unsupported("keepdims without an axis is not read")
            x = call.add("reshape", {"x": x, "shape": sizes.shape_operand(call, x, [SizeTerm(-1)])})
            call.ignore("axis")
            index = call.add(op, {"x": x}, {"axis": 0, "keep": True})
        else:
            axis = call.axis("axis", x.type.rank)
            index = call.add(op, {"x": x}, {"axis": axis, "keep": keep})
        # MXNet returns indices in the element type of the data.
        return call.cast(index, call.value(0).type.dtype)

    return read


OPS: dict[str, Callable[[SymbolCall], Result | list[Result]]] = {
    "Embedding": _embedding,
    "take": _take,
    "pick": _pick,
    "gather_nd": _gather_nd,
    "one_hot": _one_hot,
    "topk": _top_k,
    "argmax": _arg_reduce("arg_max"),
    "argmin": _arg_reduce("arg_min"),
}
