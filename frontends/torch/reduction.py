"""Reductions, ArgMax and the like, cumulative sums, and top-k."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import OverloadCall
from .reader import KeepCall
from .sizes import int64_array

_TO_THE_END = 2**63 - 1


def _reduce(op: str, name: str = "dim") -> Callable[[OverloadCall], Value]:
    """Returns the converter of a reduction, computed in the result's type: integer sums in i64."""

    def read(call: OverloadCall) -> Value:
        # PyTorch sums integers and booleans in int64.
        x = call.promote("self", kind=call.result.dtype)[0]
        has_axes = name in call.arguments
        axes = call.axes(name, x.type.rank) if has_axes else tuple(range(x.type.rank))
        # A scalar is its own sum, and the language has no reduction of no axes.
        if not axes:
            return x
        attrs: dict[str, Attr] = {"axes": axes, "keep": bool(call.arguments.get("keepdim", False))}
        return call.add(op, {"x": x}, attrs)

    return read


def _variance(root: bool) -> Callable[[OverloadCall], Value]:
    """Returns the converter of var and std: the mean of squared differences from the mean."""

    def read(call: OverloadCall) -> Value:
        x = call.value("self")
        axes = (
            call.axes("dim", x.type.rank) if "dim" in call.arguments else tuple(range(x.type.rank))
        )
        # Bessel's correction: the sum is divided by count - 1, unless the call says otherwise.
        correction = call.arguments.get("correction", 1)
        if "unbiased" in call.arguments:
            correction = int(call.flag("unbiased"))
        count = 1
        for axis in axes:
            size = x.type.shape[axis]
            if not isinstance(size, int):
                raise KeepCall
            count *= size
        correction = 1 if correction is None else correction
        # The divisor would be 0 or less, where PyTorch returns infinity or NaN.
        if count <= correction:
            raise KeepCall
        mean = call.add("reduce_mean", {"x": x}, {"axes": axes, "keep": True})
        square = call.add("squared_difference", {"a": x, "b": mean})
        keep = bool(call.arguments.get("keepdim", False))
        sum_of_squares = call.add("reduce_sum", {"x": square}, {"axes": axes, "keep": keep})
        divisor = call.reader.number(call.node, float(count - correction), x.type.dtype)
        sum_of_squares = call.add("div", {"a": sum_of_squares, "b": divisor})
        return call.add("sqrt", {"x": sum_of_squares}) if root else sum_of_squares

    return read


def _variance_and_mean(root: bool) -> Callable[[OverloadCall], list[Value]]:
    """Returns the converter of var_mean and std_mean."""

    def read(call: OverloadCall) -> list[Value]:
        x, keep = call.value("self"), bool(call.arguments.get("keepdim", False))
        axes = call.axes("dim", x.type.rank) if call.arguments.get("dim") is not None else ()
        attrs: dict[str, Attr] = {"axes": axes or tuple(range(x.type.rank)), "keep": keep}
        return [_variance(root)(call), call.add("reduce_mean", {"x": x}, attrs)]

    return read


def _aminmax(call: OverloadCall) -> list[Value]:
    x = call.value("self")
    axes = tuple(range(x.type.rank)) if call["dim"] is None else (call.axis("dim", x.type.rank),)
    attrs: dict[str, Attr] = {"axes": axes, "keep": call.flag("keepdim")}
    return [call.add(op, {"x": x}, attrs) for op in ("reduce_min", "reduce_max")]


def _norm(call: OverloadCall) -> Value:
    x, order = call.promote("self", kind=call.result.dtype)[0], call.arguments.get("p")
    order = call.arguments.get("ord", order)
    order = 2 if order is None else order
    axes = call.axes("dim", x.type.rank) if call.arguments.get("dim") is not None else ()
    attrs: dict[str, Attr] = {
        "axes": axes or tuple(range(x.type.rank)),
        "keep": bool(call.arguments.get("keepdim", False)),
    }
    if order in (math.inf, -math.inf):
        op = "reduce_max" if order > 0 else "reduce_min"
        return call.add(op, {"x": call.add("abs", {"x": x})}, attrs)
    op = {1: "reduce_l1", 2: "reduce_l2"}.get(order, "")
    if not op:
        raise KeepCall(f"it is a norm of order {order}")
    return call.add(op, {"x": x}, attrs)


def _arg_reduce(op: str) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        x = call.value("self")
        if call["dim"] is None:
            if call.flag("keepdim") and x.type.rank:
                raise KeepCall
            # Without an axis, the index is that in the flattened tensor.
            flat = call.add(
                "reshape", {"x": x, "shape": call.reader.graph.constant(int64_array([-1]))}
            )
            return call.add(op, {"x": flat}, {"axis": 0, "keep": False})
        attrs = {"axis": call.axis("dim", x.type.rank), "keep": call.flag("keepdim")}
        return call.add(op, {"x": x}, attrs)

    return read


def _reduce_with_index(reduce: str, place: str) -> Callable[[OverloadCall], list[Value]]:
    """Returns the converter of max and min along an axis, which return element and index."""

    def read(call: OverloadCall) -> list[Value]:
        x = call.value("self")
        axis, keep = call.axis("dim", x.type.rank), call.flag("keepdim")
        value = call.add(reduce, {"x": x}, {"axes": (axis,), "keep": keep})
        return [value, call.add(place, {"x": x}, {"axis": axis, "keep": keep})]

    return read


def _cumulative(op: str) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        x = call.promote("self", kind=call.result.dtype)[0]
        return call.add(op, {"x": x}, {"axis": call.axis("dim", x.type.rank)})

    return read


def _diff(call: OverloadCall) -> Value:
    """Reads differences of neighbors along an axis, repeated `n` times."""
    tensors = [call[name] for name in ("prepend", "self", "append") if call[name] is not None]
    kind, is_bool = call.result.dtype, call.result.dtype == torch.bool
    parts = [call.cast_to(part, kind) for part in tensors]
    axis = call.axis("dim", call.rank("self"))
    x = parts[0]
    if len(parts) > 1:
        x = call.add("concat", {f"xs.{i}": p for i, p in enumerate(parts)}, {"axis": axis})
    for _ in range(call.integer("n")):
        attrs = {"axes": (axis,), "steps": (1,)}
        # x[1:] - x[:-1] along the axis.
        later = call.add("slice", {"x": x}, {"starts": (1,), "ends": (_TO_THE_END,), **attrs})
        earlier = call.add("slice", {"x": x}, {"starts": (0,), "ends": (-1,), **attrs})
        # PyTorch defines the difference of booleans as exclusive or.
        x = call.add("logical_xor" if is_bool else "sub", {"a": later, "b": earlier})
    return x


def _top_k(call: OverloadCall) -> list[Value]:
    x = call.value("self")
    attrs: dict[str, Attr] = {
        "k": call.integer("k"),
        "axis": call.axis("dim", x.type.rank),
        "largest": call.flag("largest"),
        "sorted": call.flag("sorted"),
    }
    return list(call.add_many("top_k", {"x": x}, attrs))


OPS: dict[str, Callable[[OverloadCall], Value | list[Value]]] = {
    "mean.default": _reduce("reduce_mean"),
    "mean.dim": _reduce("reduce_mean"),
    "sum.default": _reduce("reduce_sum"),
    "sum.dim_IntList": _reduce("reduce_sum"),
    "prod.default": _reduce("reduce_prod"),
    "amax.default": _reduce("reduce_max"),
    "amin.default": _reduce("reduce_min"),
    "max.default": _reduce("reduce_max"),
    "min.default": _reduce("reduce_min"),
    "logsumexp.default": _reduce("reduce_log_sum_exp"),
    "var.correction": _variance(root=False),
    "var.dim": _variance(root=False),
    "std.correction": _variance(root=True),
    "std.dim": _variance(root=True),
    "norm.ScalarOpt_dim": _norm,
    "linalg_vector_norm.default": _norm,
    "argmax.default": _arg_reduce("arg_max"),
    "argmin.default": _arg_reduce("arg_min"),
    "max.dim": _reduce_with_index("reduce_max", "arg_max"),
    "min.dim": _reduce_with_index("reduce_min", "arg_min"),
    "cumsum.default": _cumulative("cumsum"),
    "cumprod.default": _cumulative("cumprod"),
    "var_mean.correction": _variance_and_mean(root=False),
    "var_mean.dim": _variance_and_mean(root=False),
    "std_mean.correction": _variance_and_mean(root=True),
    "std_mean.dim": _variance_and_mean(root=True),
    "aminmax.default": _aminmax,
    "diff.default": _diff,
    "topk.default": _top_k,
}
