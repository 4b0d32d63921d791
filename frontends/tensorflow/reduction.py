"""Reductions over axes, and ops that look along one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qir.ir.attrs import Attr
from qir.ir.dtype import dtype
from qir.ir.node import Value

from .call import NodeCall


def _over_axes(op: str) -> Callable[[NodeCall], Value]:
    def read(call: NodeCall) -> Value:
        x = call[0]
        axes = call.axes(1, x.type.rank)
        if not axes:
            return x
        return call.add(op, {"x": x}, {"axes": axes, "keep": call.flag("keep_dims")})

    return read


def _truths(op: str) -> Callable[[NodeCall], Value]:
    """Returns the converter of All and Any, as the least or greatest of 0 and 1."""

    def read(call: NodeCall) -> Value:
        x = call[0]
        axes = call.axes(1, x.type.rank)
        if not axes:
            return x
        whole = call.add("cast", {"x": x}, {"to": _I32})
        made = call.add(op, {"x": whole}, {"axes": axes, "keep": call.flag("keep_dims")})
        return call.add("not_equal", {"a": made, "b": call.number(0, made)})

    return read


def _place(op: str) -> Callable[[NodeCall], Value]:
    def read(call: NodeCall) -> Value:
        axis = call.axis(1, call.rank(0))
        made = call.add(op, {"x": call[0]}, {"axis": axis, "keep": False})
        to = call.kind("output_type") if call.has("output_type") else made.type.dtype
        return made if to == made.type.dtype else call.add("cast", {"x": made}, {"to": to})

    return read


def _running(op: str) -> Callable[[NodeCall], Value]:
    def read(call: NodeCall) -> Value:
        attrs: dict[str, Attr] = {
            "axis": call.axis(1, call.rank(0)),
            "exclusive": call.flag("exclusive"),
            "reverse": call.flag("reverse"),
        }
        return call.add(op, {"x": call[0]}, attrs)

    return read


def _top_k(call: NodeCall) -> Sequence[Value]:
    (k,) = call.sizes(1)
    attrs: dict[str, Attr] = {
        "k": k,
        "axis": -1,
        "largest": True,
        "sorted": call.flag("sorted", True),
    }
    values, places = call.add_many("top_k", {"x": call[0]}, attrs)
    to = call.kind("index_type") if call.has("index_type") else _I32
    return values, call.add("cast", {"x": places}, {"to": to})


_I32 = dtype("i32")
OPS: dict[str, Callable[[NodeCall], Value | Sequence[Value]]] = {
    "Mean": _over_axes("reduce_mean"),
    "Sum": _over_axes("reduce_sum"),
    "Prod": _over_axes("reduce_prod"),
    "Max": _over_axes("reduce_max"),
    "Min": _over_axes("reduce_min"),
    "EuclideanNorm": _over_axes("reduce_l2"),
    "All": _truths("reduce_min"),
    "Any": _truths("reduce_max"),
    "ArgMax": _place("arg_max"),
    "ArgMin": _place("arg_min"),
    "Cumsum": _running("cumsum"),
    "Cumprod": _running("cumprod"),
    "TopKV2": _top_k,
}
