"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import KeepNode, NodeCall


def _matmul(call: NodeCall) -> Value:
    attrs: dict[str, Attr] = {
        "trans_a": call.flag("transpose_a"),
        "trans_b": call.flag("transpose_b"),
    }
    op = "gemm" if call[1].constant is not None and call[0].type.dtype.is_float else "matmul"
    return call.add(op, {"a": call[0], "b": call[1]}, attrs)


def add_bias(call: NodeCall, x: Value, bias: Value) -> Value:
    """Adds a bias: a constant vector becomes the addend of the gemm before it, else an add."""
    node, constant = x.node, bias.constant
    if node.op == "gemm" and "c" not in node.operands and constant is not None:
        if constant.type.shape == x.type.shape[1:] and constant.type.dtype == x.type.dtype:
            return call.add("gemm", {**node.operands, "c": bias}, node.attrs)
    return call.add("add", {"a": x, "b": bias})


def _batch_matmul(call: NodeCall) -> Value:
    attrs: dict[str, Attr] = {"trans_a": call.flag("adj_x"), "trans_b": call.flag("adj_y")}
    return call.add("matmul", {"a": call[0], "b": call[1]}, attrs)


def _einsum(call: NodeCall) -> Value:
    equation = call.text("equation")
    if not equation:
        raise KeepNode("it has no equation")
    parts = {f"xs.{i}": value for i, value in enumerate(call.operands)}
    return call.add("einsum", parts, {"equation": equation})


OPS: dict[str, Callable[[NodeCall], Value]] = {
    "MatMul": _matmul,
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _batch_matmul),
    "Einsum": _einsum,
}
