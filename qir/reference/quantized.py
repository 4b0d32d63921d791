"""Ops on codes, by the rules of a profile: accumulate and round once, or the method it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.ir.dtype import I32
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.types import TensorType
from qir.numerics import (
    Affine,
    Query,
    Rule,
    accumulate,
    affine_of,
    dequantize,
    multiplier,
    profile,
    quantize,
    requantize,
    scale_sum,
)
from qir.reference import methods
from qir.reference.table import Operands, compute

Codes = NDArray[np.generic]
_PRODUCTS = frozenset({"conv2d", "matmul", "gemm", "linear"})
_TAILS = frozenset({"relu", "clip"})


@dataclass(frozen=True, slots=True)
class Kernel:
    """One op on codes with what it is given and what it must give."""

    op: str
    attrs: Mapping[str, Attr]
    types: Mapping[str, TensorType]
    result: TensorType
    rule: Rule

    def affine(self, slot: str) -> Affine:
        """The map of an operand; OpError where it holds no codes."""
        quant = self.types[slot].quant
        if quant is None:
            raise OpError(f"{self.op}: {slot} is {self.types[slot]}, codes are needed")
        return affine_of(quant)

    @property
    def out(self) -> Affine | None:
        """The map of the result; None where it is real."""
        return None if self.result.quant is None else affine_of(self.result.quant)


def run_quantized(node: Node, operands: Operands, profile_name: str) -> Codes:
    """One op on codes."""
    types = {slot: value.type for slot, value in node.operands.items()}
    return _run(node.op, node.attrs, types, operands, node.result.type, profile_name)


def run_chain(node: Node, operands: Operands, profile_name: str) -> Codes:
    """A group: its first op, then activations that only bound the codes.

    Rounding is monotone and zero is a code, so bounding the codes is bounding the reals first.
    Raises OpError for stages that no profile's executor computes.
    """
    head = node.stages[0]
    values = node.stage_operands(0)
    types = {slot: value.type for slot, value in values.items()}
    arrays = {slot: operands[slot] for slot in values}
    out = node.result.type
    for i, stage in enumerate(node.stages[1:], 1):
        if stage.op not in _TAILS or node.stages[i - 1].type is not None:
            chain = " |> ".join(s.op for s in node.stages)
            raise OpError(f"the group {chain} has no integer arithmetic; expand-qdq unwraps it")
    if out.quant is None:
        data = _run(head.op, head.attrs, types, arrays, out, profile_name)
        for stage in node.stages[1:]:
            data = compute(stage.op, {"x": data}, stage.attrs)
        return data
    codes = _run(head.op, head.attrs, types, arrays, out, profile_name)
    for stage in node.stages[1:]:
        low, high = bounds(
            stage.op, stage.attrs, affine_of(out.quant), _quantizing(out, profile_name)
        )
        codes = np.clip(codes, low, high).astype(codes.dtype)
    return codes


def bounds(op: str, attrs: Mapping[str, Attr], out: Affine, rule: Rule) -> tuple[int, int]:
    """The least and greatest code that an activation leaves."""
    least = 0.0 if op == "relu" else attrs.get("min")
    most = None if op == "relu" else attrs.get("max")
    ends = [
        end if value is None else int(quantize(np.array([value], np.float32), out, rule)[0])
        for value, end in ((least, out.low), (most, out.high))
    ]
    return min(ends), ends[1]


def _quantizing(kind: TensorType, profile_name: str) -> Rule:
    return profile(profile_name).resolve(_query("quantize", {}, {}, kind))


def _query(
    op: str, attrs: Mapping[str, Attr], types: Mapping[str, TensorType], result: TensorType
) -> Query:
    storage = {slot: str(t.quant.storage) for slot, t in types.items() if t.quant}
    if result.quant is not None:
        storage["result"] = str(result.quant.storage)
    weight = types.get(spec(op).traits.weight or "")
    many = weight is not None and weight.quant is not None and weight.quant.grain is not None
    return Query(op, storage, "channel" if many else "tensor", attrs)


def _run(
    op: str,
    attrs: Mapping[str, Attr],
    types: Mapping[str, TensorType],
    arrays: Operands,
    result: TensorType,
    profile_name: str,
) -> Codes:
    rule = profile(profile_name).resolve(_query(op, attrs, types, result))
    kernel = Kernel(op, attrs, types, result, rule)
    if op == "quantize":
        out = kernel.out
        assert out is not None
        return quantize(arrays["x"], out, rule)
    if op == "dequantize":
        return dequantize(arrays["x"], kernel.affine("x"), rule)
    if op in _PRODUCTS:
        return _product(kernel, arrays)
    if rule.method is not None:
        return methods.run(kernel, arrays)
    raise OpError(
        f"{op} on codes is not in profile {profile_name}; expand-qdq computes it in reals"
    )


# -- products -------------------------------------------------------------------------------------


def _product(kernel: Kernel, arrays: Operands) -> Codes:
    """Sums of code products, plus a bias in the same unit, rounded once."""
    traits = spec(kernel.op).traits
    assert traits.weight is not None
    accumulate.check(kernel.rule)
    x, w = kernel.affine(traits.data), kernel.affine(traits.weight)
    acc = _sums(kernel, arrays, x, w)
    axis = acc.ndim - 1 if kernel.op != "conv2d" or kernel.attrs["layout"] == "NHWC" else 1
    gain = kernel.attrs.get("alpha", 1.0)
    assert isinstance(gain, float)
    if traits.bias is not None and traits.bias in arrays:
        acc = _with_bias(kernel, acc, arrays[traits.bias], kernel.types[traits.bias], axis)
    factor = multiplier(x, w, kernel.out, kernel.rule, gain=gain)
    if kernel.out is None:
        return scale_sum(acc, factor, axis=axis)
    return requantize(acc, factor, kernel.out, kernel.rule, axis=axis)


def _sums(kernel: Kernel, arrays: Operands, x: Affine, w: Affine) -> NDArray[np.int32]:
    attrs = kernel.attrs
    if kernel.op == "conv2d":
        return accumulate.conv2d(
            arrays["x"],
            arrays["w"],
            x.zero,
            w.zero,
            **{k: attrs[k] for k in attrs},  # type: ignore[arg-type]
        )
    if kernel.op == "linear":
        return accumulate.matmul(arrays["x"], np.swapaxes(arrays["w"], -1, -2), x.zero, w.zero)
    a, b = arrays["a"], arrays["b"]
    if attrs["trans_a"] and a.ndim > 1:
        a = np.swapaxes(a, -1, -2)
    if attrs["trans_b"] and b.ndim > 1:
        b = np.swapaxes(b, -1, -2)
    return accumulate.matmul(a, b, x.zero, w.zero)


def _with_bias(
    kernel: Kernel, acc: NDArray[np.int32], bias: Codes, kind: TensorType, axis: int
) -> NDArray[np.int32]:
    """The sums with a bias in their own unit; i32 arithmetic wraps."""
    if kind.dtype != I32:
        raise OpError(f"{kernel.op}: a bias of {kind} is not in units of the accumulator")
    if kernel.attrs.get("beta", 1.0) != 1.0:
        raise OpError(f"{kernel.op}: beta = {kernel.attrs['beta']!r} has no integer arithmetic")
    shape = [1] * acc.ndim
    if bias.ndim == 1:
        shape[axis] = -1
        bias = bias.reshape(shape)
    return np.asarray((acc.astype(np.int64) + bias.astype(np.int64)).astype(np.int32))
