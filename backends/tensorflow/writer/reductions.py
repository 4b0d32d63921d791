"""Reductions and normalization as TensorFlow's ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qir.ir.node import Node, Value

from .elementwise import ElementwiseWriter, number
from .moves import int_attr, int_list
from .nodes import GraphNodes, refusal, type_attr, type_name
from .wire import TypeAttr

Write = Callable[[GraphNodes, Node], "str | list[str]"]


def _axes(n: Node) -> list[int]:
    rank = n.operands["x"].type.rank
    return [axis % rank for axis in int_list(n, "axes")] or list(range(rank))


def reduced(
    w: GraphNodes,
    op: str,
    x: str,
    value: Value,
    axes: Sequence[int],
    like: str,
    *,
    keep: bool = True,
) -> str:
    """Adds a reduction along axes."""
    inputs = (x, w.int_constant(list(axes)))
    return w.add(op, inputs, like, T=type_attr(value), Tidx=TypeAttr("int32"), keep_dims=keep)


def _reduce(op: str, before: str = "", after: str = "") -> Write:
    """Returns a reduction of a function of each element, and a function of what comes out."""

    def write(w: GraphNodes, n: Node) -> str:
        s = ElementwiseWriter(w, n)
        x = s.f(before, s.x) if before else s.x
        result = reduced(w, op, x, s.value, _axes(n), n.name, keep=bool(n.attrs["keep"]))
        return s.f(after, result) if after else result

    return write


def _arg(op: str) -> Write:
    def write(w: GraphNodes, n: Node) -> str:
        x, axis = n.operands["x"], int_attr(n, "axis")
        if n.attrs["last"]:
            raise refusal(n, "TensorFlow gives the first of equal elements")
        axis_tensor = w.constant(np.asarray(axis, np.int32))
        types = {"T": type_attr(x), "Tidx": TypeAttr("int32"), "output_type": type_attr(n.result)}
        indices = w.add(op, (w.tensor(x), axis_tensor), n.name, **types)
        if not n.attrs["keep"]:
            return indices
        axis_tensor = w.constant(np.asarray(axis % x.type.rank, np.int32))
        return w.add(
            "ExpandDims",
            (indices, axis_tensor),
            n.name,
            T=type_attr(n.result),
            Tdim=TypeAttr("int32"),
        )

    return write


def _cumulated(op: str) -> Write:
    def write(w: GraphNodes, n: Node) -> str:
        x, axis = n.operands["x"], w.constant(np.asarray(int_attr(n, "axis"), np.int32))
        options = {name: bool(n.attrs[name]) for name in ("exclusive", "reverse")}
        return w.add(
            op, (w.tensor(x), axis), n.name, T=type_attr(x), Tidx=TypeAttr("int32"), **options
        )

    return write


def _top_k(w: GraphNodes, n: Node) -> list[str]:
    x, rank = n.operands["x"], n.operands["x"].type.rank
    if not n.attrs["largest"] or int_attr(n, "axis") % rank != rank - 1:
        raise refusal(n, "TensorFlow has the greatest elements of the last axis alone")
    count = w.constant(np.asarray(int_attr(n, "k"), np.int32))
    types = {"T": type_attr(x), "Tk": TypeAttr("int32"), "index_type": TypeAttr("int64")}
    made = w.add("TopKV2", (w.tensor(x), count), n.name, sorted=bool(n.attrs["sorted"]), **types)
    return [made, f"{made}:1"]


def _parameters(n: Node, *slots: str) -> list[np.ndarray]:
    constants = [n.operands[slot].constant for slot in slots]
    if any(array is None for array in constants):
        raise refusal(n, "normalization with computed parameters is not written")
    return [np.asarray(array.data, np.float64) for array in constants if array is not None]


def _batch_norm(w: GraphNodes, n: Node) -> str:
    gamma, beta, mean, var = _parameters(n, "gamma", "beta", "mean", "var")
    s, axis = ElementwiseWriter(w, n), int_attr(n, "axis") % n.operands["x"].type.rank
    # x * factor + (beta - mean * factor), factor = gamma / sqrt(var + eps), folded in float64.
    factor = gamma / np.sqrt(var + number(n, "eps"))
    channel_shape = [-1 if i == axis else 1 for i in range(s.value.type.rank)]
    name, carrier = type_name(s.value.type.element, s.value), s.value.type.dtype.carrier
    factor_tensor, offset_tensor = (
        w.constant(np.asarray(per_channel.reshape(channel_shape), carrier), name, n.name)
        for per_channel in (factor, beta - mean * factor)
    )
    return s.f("AddV2", s.f("Mul", s.x, factor_tensor), offset_tensor)


def _centered(
    w: GraphNodes, s: ElementwiseWriter, axes: Sequence[int], eps: float, *, mean: bool
) -> str:
    """Elements less their mean, over the root of their variance."""
    x = s.x
    if mean:
        x = s.f("Sub", x, reduced(w, "Mean", x, s.value, axes, s.like))
    var = reduced(w, "Mean", s.f("Square", x), s.value, axes, s.like)
    return s.f("Mul", x, s.f("Rsqrt", s.f("AddV2", var, s.number(eps))))


def _layer_norm(w: GraphNodes, n: Node) -> str:
    s, rank = ElementwiseWriter(w, n), n.operands["x"].type.rank
    axes = list(range(int_attr(n, "axis") % rank, rank))
    normalized = _centered(w, s, axes, number(n, "eps"), mean=n.op == "layer_norm")
    normalized = s.f("Mul", normalized, w.tensor(n.operands["gamma"]))
    beta = n.operands.get("beta")
    return normalized if beta is None else s.f("AddV2", normalized, w.tensor(beta))


def _instance_norm(w: GraphNodes, n: Node) -> str:
    s, rank = ElementwiseWriter(w, n), n.operands["x"].type.rank
    normalized = _centered(w, s, list(range(2, rank)), number(n, "eps"), mean=True)
    channel_shape = [-1, *[1] * (rank - 2)]
    gamma, beta = _parameters(n, "gamma", "beta")
    carrier = s.value.type.dtype.carrier
    normalized = s.f(
        "Mul", normalized, w.constant(np.asarray(gamma.reshape(channel_shape), carrier))
    )
    return s.f("AddV2", normalized, w.constant(np.asarray(beta.reshape(channel_shape), carrier)))


OPS: Mapping[str, Write] = {
    "reduce_mean": _reduce("Mean"),
    "reduce_sum": _reduce("Sum"),
    "reduce_prod": _reduce("Prod"),
    "reduce_max": _reduce("Max"),
    "reduce_min": _reduce("Min"),
    "reduce_l1": _reduce("Sum", "Abs"),
    "reduce_l2": _reduce("Sum", "Square", "Sqrt"),
    "reduce_sum_square": _reduce("Sum", "Square"),
    "reduce_log_sum": _reduce("Sum", "", "Log"),
    "reduce_log_sum_exp": _reduce("Sum", "Exp", "Log"),
    "top_k": _top_k,
    "arg_max": _arg("ArgMax"),
    "arg_min": _arg("ArgMin"),
    "cumsum": _cumulated("Cumsum"),
    "cumprod": _cumulated("Cumprod"),
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
    "instance_norm": _instance_norm,
}
