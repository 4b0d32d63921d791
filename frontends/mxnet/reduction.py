"""Reductions, norms, dot, batch_dot and linalg_gemm2."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.node import Value

from .call import SymbolCall
from .results import Unsupported


def _axes(call: SymbolCall, rank: int) -> tuple[int, ...]:
    listed = tuple(a % rank for a in call.attrs.integers("axis"))
    if "exclude" in call.node.attrs and call.attrs.flag("exclude"):
        return tuple(a for a in range(rank) if a not in listed)
    return listed or tuple(range(rank))


def _reduce(op: str) -> Callable[[SymbolCall], Value]:
    def read(call: SymbolCall) -> Value:
        x, keep = call.value(0), call.attrs.flag("keepdims")
        axes = _axes(call, x.type.rank)
        reduced = call.add(op, {"x": x}, {"axes": axes, "keep": keep}) if axes else x
        if not keep and len(axes) == x.type.rank:  # MXNet has no tensors of rank 0
            reduced = call.add("unsqueeze", {"x": reduced}, {"axes": (0,)})
        return reduced

    return read


def _norm(call: SymbolCall) -> Value:
    order = call.attrs.integer("ord", 2)
    if order not in (1, 2) or call.attrs.is_given("out_dtype"):
        raise Unsupported("ord 1 and 2 without an out_dtype are read")
    return _reduce("reduce_l1" if order == 1 else "reduce_l2")(call)


def _dot(call: SymbolCall) -> Value:
    """Reads dot, which sums over the last axis of a and the first of b."""
    call.ignore("forward_stype")
    a, b = call.value(0), call.value(1)
    attrs = {"trans_a": call.attrs.flag("transpose_a"), "trans_b": call.attrs.flag("transpose_b")}
    # MXNet has no tensors of rank 0: the product of two vectors is a list of one.
    if a.type.rank == b.type.rank == 1:
        product = call.add("matmul", {"a": a, "b": b})
        return call.add("unsqueeze", {"x": product}, {"axes": (0,)})
    if b.type.rank != 2 or (a.type.rank != 2 and attrs["trans_a"]):
        raise Unsupported(f"its operands have {a.type.rank} and {b.type.rank} axes; use batch_dot")
    return call.add("matmul", {"a": a, "b": b}, attrs if a.type.rank > 1 else {})


def _batch_dot(call: SymbolCall) -> Value:
    call.ignore("forward_stype")
    attrs = {"trans_a": call.attrs.flag("transpose_a"), "trans_b": call.attrs.flag("transpose_b")}
    return call.add("matmul", {"a": call.value(0), "b": call.value(1)}, attrs)


def _gemm(call: SymbolCall) -> Value:
    if call.attrs.integer("axis", -2) != -2:
        raise Unsupported("its axis is not -2")
    alpha = call.attrs.number("alpha", 1.0)
    product = _batch_dot(call)
    if alpha == 1:
        return product
    return call.add("mul", {"a": product, "b": call.number(alpha, product.type.dtype)})


OPS: dict[str, Callable[[SymbolCall], Value]] = {
    "mean": _reduce("reduce_mean"),
    "sum": _reduce("reduce_sum"),
    "prod": _reduce("reduce_prod"),
    "max": _reduce("reduce_max"),
    "min": _reduce("reduce_min"),
    "norm": _norm,
    "dot": _dot,
    "batch_dot": _batch_dot,
    "_linalg_gemm2": _gemm,
}
