"""Reductions, norms, places of extremes, cumulative sums, and the largest elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qir.ir.attrs import Attr
from qir.ir.dtype import I32
from qir.ir.node import Value

from .call import OperatorCall
from .reader import Unread


def _reduce(op: str) -> Callable[[OperatorCall], Value]:
    def read(call: OperatorCall) -> Value:
        x = call[0]
        axes = call.axes(1, x.type.rank)
        if not axes:
            return x
        return call.finish(op, {"x": x}, {"axes": axes, "keep": call.flag("keep_dims")})

    return read


def _reduce_booleans(op: str) -> Callable[[OperatorCall], Value]:
    """Returns the converter of REDUCE_ALL and REDUCE_ANY, as minimum or maximum of 0 and 1."""

    def read(call: OperatorCall) -> Value:
        x = call[0]
        axes = call.axes(1, x.type.rank)
        if not axes:
            return x
        integers = call.add("cast", {"x": x}, {"to": I32})
        reduced = call.add(op, {"x": integers}, {"axes": axes, "keep": call.flag("keep_dims")})
        return call.add("not_equal", {"a": reduced, "b": call.scalar_like(0, reduced)})

    return read


def _arg_reduce(op: str) -> Callable[[OperatorCall], Value]:
    def read(call: OperatorCall) -> Value:
        axis = call.axis(1, call.rank(0))
        reduced = call.add(op, {"x": call[0]}, {"axis": axis, "keep": False})
        to = call.result_dtype()
        return reduced if to == reduced.type.dtype else call.add("cast", {"x": reduced}, {"to": to})

    return read


def _cumsum(call: OperatorCall) -> Value:
    attrs: dict[str, Attr] = {
        "axis": call.axis(1, call.rank(0)),
        "exclusive": call.flag("exclusive"),
        "reverse": call.flag("reverse"),
    }
    return call.finish("cumsum", {"x": call[0]}, attrs)


def _top_k(call: OperatorCall) -> Sequence[Value]:
    (k,) = call.integers(1)
    if call[0].type.quant is not None:
        raise Unread("it takes quantized values, and the language's top_k floats")
    attrs: dict[str, Attr] = {"k": k, "axis": -1, "largest": True, "sorted": True}
    values, places = call.finish_all("top_k", {"x": call[0]}, attrs)
    return values, call.add("cast", {"x": places}, {"to": call.result_dtype(1)})


def _l2_normalization(call: OperatorCall) -> Value:
    return call.finish("lp_normalize", {"x": call[0]}, {"axis": -1, "p": 2})


def _lrn(call: OperatorCall) -> Value:
    """Reads LOCAL_RESPONSE_NORMALIZATION, along the last axis; the language has it along axis 1."""
    x, rank = call[0], call.rank(0)
    if rank != 4:
        raise Unread(f"it is of rank {rank}, and images have 4")
    size = 2 * call.integer("radius") + 1
    attrs: dict[str, Attr] = {
        "size": size,
        "bias": call.real("bias"),
        "alpha": call.real("alpha") * size,  # the language's sum is a mean
        "beta": call.real("beta"),
    }
    image = call.add("transpose", {"x": x}, {"perm": (0, 3, 1, 2)})
    return call.add(
        "transpose", {"x": call.add("lrn", {"x": image}, attrs)}, {"perm": (0, 2, 3, 1)}
    )


OPS: dict[str, Callable[[OperatorCall], Value | Sequence[Value]]] = {
    "ARG_MAX": _arg_reduce("arg_max"),
    "ARG_MIN": _arg_reduce("arg_min"),
    "CUMSUM": _cumsum,
    "L2_NORMALIZATION": _l2_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": _lrn,
    "MEAN": _reduce("reduce_mean"),
    "REDUCE_ALL": _reduce_booleans("reduce_min"),
    "REDUCE_ANY": _reduce_booleans("reduce_max"),
    "REDUCE_MAX": _reduce("reduce_max"),
    "REDUCE_MIN": _reduce("reduce_min"),
    "REDUCE_PROD": _reduce("reduce_prod"),
    "SUM": _reduce("reduce_sum"),
    "TOPK_V2": _top_k,
}
