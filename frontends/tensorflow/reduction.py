"""Reductions, ArgMax, cumulative sums, and TopK."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qir.ir.attrs import Attr
from qir.ir.dtype import dtype
from qir.ir.node import Value

from .call import NodeCall


def _reduce(op: str) -> Callable[[NodeCall], Value]:
    def read(call: NodeCall) -> Value:
        x = call[0]
        axes = call.axes(1, x.type.rank)
        if not axes:
            return x
        return call.add(op, {"x": x}, {"axes": axes, "keep": call.flag("keep_dims")})

    return read


def _reduce_booleans(op: str) -> Callable[[NodeCall], Value]:
    """Returns the converter of All and Any, as minimum or maximum of 0 and 1."""

    def read(call: NodeCall) -> Value:
        x = call[0]
        axes = call.axes(1, x.type.rank)
        if not axes:
            return x
        # The language reduces numbers only: booleans become 0 and 1.
        integers = call.add("cast", {"x": x}, {"to": _I32})
        reduced = call.add(op, {"x": integers}, {"axes": axes, "keep": call.flag("keep_dims")})
        return call.add("not_equal", {"a": reduced, "b": call.scalar_like(0, reduced)})

    return read


def _arg_reduce(op: str) -> Callable[[NodeCall], Value]:
    def read(call: NodeCall) -> Value:
        axis = call.axis(1, call.rank(0))
        reduced = call.add(op, {"x": call[0]}, {"axis": axis, "keep": False})
        to = call.dtype("output_type") if call.has("output_type") else reduced.type.dtype
        return reduced if to == reduced.type.dtype else call.add("cast", {"x": reduced}, {"to": to})

    return read


def _cumulative(op: str) -> Callable[[NodeCall], Value]:
    def read(call: NodeCall) -> Value:
        attrs: dict[str, Attr] = {
            "axis": call.axis(1, call.rank(0)),
            "exclusive": call.flag("exclusive"),
            "reverse": call.flag("reverse"),
        }
        return call.add(op, {"x": call[0]}, attrs)

    return read


def _top_k(call: NodeCall) -> Sequence[Value]:
    (k,) = call.integers(1)
    attrs: dict[str, Attr] = {
        "k": k,
        "axis": -1,
        "largest": True,
        "sorted": call.flag("sorted", True),
    }
    values, indices = call.add_many("top_k", {"x": call[0]}, attrs)
    to = call.dtype("index_type") if call.has("index_type") else _I32
    return values, call.add("cast", {"x": indices}, {"to": to})


_I32 = dtype("i32")
OPS: dict[str, Callable[[NodeCall], Value | Sequence[Value]]] = {
    "Mean": _reduce("reduce_mean"),
    "Sum": _reduce("reduce_sum"),
    "Prod": _reduce("reduce_prod"),
    "Max": _reduce("reduce_max"),
    "Min": _reduce("reduce_min"),
    "EuclideanNorm": _reduce("reduce_l2"),
    "All": _reduce_booleans("reduce_min"),
    "Any": _reduce_booleans("reduce_max"),
    "ArgMax": _arg_reduce("arg_max"),
    "ArgMin": _arg_reduce("arg_min"),
    "Cumsum": _cumulative("cumsum"),
    "Cumprod": _cumulative("cumprod"),
    "TopKV2": _top_k,
}
