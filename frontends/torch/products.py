"""Matrix products and linear layers."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.node import Value

from .call import KeepCall, OverloadCall


def _linear(call: OverloadCall) -> Value:
    operands = {"x": call.value("input"), "w": call.value("weight"), "bias": call.optional("bias")}
    if operands["x"].type.rank == 1:  # type: ignore[union-attr]
        raise KeepCall
    return call.add("linear", operands)


def _product(first: str = "self", second: str = "other") -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        a, b = call.promoted(first, second, kind=call.result.dtype)
        return call.add("matmul", {"a": a, "b": b})

    return read


def _with_addend(first: str, second: str) -> Callable[[OverloadCall], Value]:
    """Returns the converter of addmm and baddbmm: beta * self + alpha * (a @ b)."""

    def read(call: OverloadCall) -> Value:
        a, b = call.value(first), call.value(second)
        if a.type.rank == 2:
            attrs = {"alpha": call.real("alpha"), "beta": call.real("beta")}
            return call.add("gemm", {"a": a, "b": b, "c": call.value("self")}, attrs)
        made = call.add("matmul", {"a": a, "b": b})
        addend = call.value("self")
        for name in ("alpha", "beta"):
            if call["alpha" if name == "alpha" else "beta"] != 1:
                factor = call.promoted(name, kind=call.result.dtype)[0]
                if name == "alpha":
                    made = call.add("mul", {"a": made, "b": factor})
                else:
                    addend = call.add("mul", {"a": addend, "b": factor})
        return call.add("add", {"a": addend, "b": made})

    return read


def _einsum(call: OverloadCall) -> Value:
    if call.given.get("path") is not None:
        raise KeepCall
    parts = {f"xs.{i}": value for i, value in enumerate(call.values("tensors"))}
    return call.add("einsum", parts, {"equation": call["equation"]})


OPS = {
    "linear.default": _linear,
    "matmul.default": _product(),
    "mm.default": _product(second="mat2"),
    "bmm.default": _product(second="mat2"),
    "addmm.default": _with_addend("mat1", "mat2"),
    "baddbmm.default": _with_addend("batch1", "batch2"),
    "einsum.default": _einsum,
}
