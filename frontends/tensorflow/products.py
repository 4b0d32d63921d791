"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import NodeCall
from .reader import KeepNode
from .windows import add_transpose


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
    if (made := _product_of_letters(call, equation.replace(" ", ""))) is not None:
        return made
    parts = {f"xs.{i}": value for i, value in enumerate(call.operands)}
    return call.add("einsum", parts, {"equation": equation})


def _product_of_letters(call: NodeCall, equation: str) -> Value | None:
    """Returns an einsum that is a product of matrices, as of attention; None for another.

    Runtimes have integer kernels for products, and none for einsum.
    """
    terms, _, result = equation.partition("->")
    a, _, b = terms.partition(",")
    plain = equation.replace(",", "").replace("->", "").isalpha() and "," not in b
    if call.count != 2 or not plain or any(len({*t}) < len(t) for t in (a, b, result)):
        return None
    batch = [c for c in result if c in a and c in b]
    rows, columns = ([c for c in result if c in t and c not in batch] for t in (a, b))
    summed = [c for c in a if c in b and c not in batch]
    whole = len(a) + len(b) == len(rows) + len(columns) + 2 * len(batch + summed)
    if not whole or len(summed) != 1 or len(columns) != 1 or not rows or (batch and len(rows) > 1):
        return None
    left = _letters_moved(call, call[0], a, [*batch, *rows, *summed])
    right = _letters_moved(call, call[1], b, [*batch, *summed, *columns])
    made = call.add("matmul", {"a": left, "b": right})
    return _letters_moved(call, made, [*batch, *rows, *columns], result)


def _letters_moved(call: NodeCall, x: Value, have: Sequence[str], want: Sequence[str]) -> Value:
    perm = tuple([*have].index(letter) for letter in want)
    return add_transpose(call, x, perm, "moved") if perm != (*range(len(perm)),) else x


OPS: dict[str, Callable[[NodeCall], Value]] = {
    "MatMul": _matmul,
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _batch_matmul),
    "Einsum": _einsum,
}
