"""Matrix products and linear layers."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.node import Value

from .call import OverloadCall
from .reader import KeepCall


def _linear(call: OverloadCall) -> Value:
    operands = {"x": call.value("input"), "w": call.value("weight"), "bias": call.optional("bias")}
    # A vector without a batch is decomposed by PyTorch.
    if operands["x"].type.rank == 1:  # type: ignore[union-attr]
        raise KeepCall
    return call.add("linear", operands)


def _product(first: str = "self", second: str = "other") -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        a, b = call.promote(first, second, kind=call.result.dtype)
        return call.add("matmul", {"a": a, "b": b})

    return read


def _product_with_addend(first: str, second: str) -> Callable[[OverloadCall], Value]:
    """Returns the converter of addmm and baddbmm: beta * self + alpha * (a @ b)."""

    def read(call: OverloadCall) -> Value:
        a, b = call.value(first), call.value(second)
        # `gemm` has alpha and beta as attributes; it takes matrices only, no batches.
        if a.type.rank == 2:
            attrs = {"alpha": call.number("alpha"), "beta": call.number("beta")}
            return call.add("gemm", {"a": a, "b": b, "c": call.value("self")}, attrs)
        product = call.add("matmul", {"a": a, "b": b})
        addend = call.value("self")
        for name in ("alpha", "beta"):
            if call["alpha" if name == "alpha" else "beta"] != 1:
                factor = call.promote(name, kind=call.result.dtype)[0]
                if name == "alpha":
                    product = call.add("mul", {"a": product, "b": factor})
                else:
                    addend = call.add("mul", {"a": addend, "b": factor})
        return call.add("add", {"a": addend, "b": product})

    return read


def _einsum(call: OverloadCall) -> Value:
    if call.arguments.get("path") is not None:
        raise KeepCall
    parts = {f"xs.{i}": value for i, value in enumerate(call.values("tensors"))}
    return call.add("einsum", parts, {"equation": call["equation"]})


def _bilinear(call: OverloadCall) -> Value:
    """Reads `x1 @ w[k] @ x2` of each result k, along the last axes."""
    a, b, w = (call.value(name) for name in ("input1", "input2", "weight"))
    axes = "abcdefg"[: a.type.rank - 1]
    if len(axes) != a.type.rank - 1:
        raise KeepCall
    equation = f"{axes}i,kij,{axes}j->{axes}k"
    product = call.add("einsum", {"xs.0": a, "xs.1": w, "xs.2": b}, {"equation": equation})
    bias = call.optional("bias")
    return product if bias is None else call.add("add", {"a": product, "b": bias})


def _distances(call: OverloadCall) -> Value:
    """Reads the distance of each row of one tensor from each of another."""
    op = {1.0: "reduce_l1", 2.0: "reduce_l2"}.get(call.number("p"))
    if op is None:
        raise KeepCall(f"its norm is {call['p']}")
    a, b = call.value("x1"), call.value("x2")
    # [..., n, 1, d] - [..., 1, m, d] gives all pairs.
    a = call.add("unsqueeze", {"x": a}, {"axes": (a.type.rank - 1,)})
    b = call.add("unsqueeze", {"x": b}, {"axes": (b.type.rank - 2,)})
    difference = call.add("sub", {"a": a, "b": b})
    return call.add(op, {"x": difference}, {"axes": (difference.type.rank - 1,), "keep": False})


def _matrix_op(op: str) -> Callable[[OverloadCall], Value]:
    return lambda call: call.add(op, {"x": call.value("A" if "A" in call.arguments else "self")})


OPS = {
    "linear.default": _linear,
    "matmul.default": _product(),
    "mm.default": _product(second="mat2"),
    "bmm.default": _product(second="mat2"),
    "addmm.default": _product_with_addend("mat1", "mat2"),
    "baddbmm.default": _product_with_addend("batch1", "batch2"),
    "einsum.default": _einsum,
    "bilinear.default": _bilinear,
    "cdist.default": _distances,
    "linalg_inv.default": _matrix_op("inverse"),
    "inverse.default": _matrix_op("inverse"),
    "linalg_det.default": _matrix_op("det"),
}
