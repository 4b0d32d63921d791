"""Matrix products."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.dims import Shape
from qir.ir.ops.elementwise import (
    broadcast,
    require_bias_type,
    require_numbers,
    require_same_express,
)
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import TensorType


def _operand_shape(call: Call, slot: str, flag: str) -> Shape:
    shape = call.shape(slot)
    if call.bool_attr(flag) and len(shape) >= 2:
        return (*shape[:-2], shape[-1], shape[-2])
    return shape


def _check_addend(call: Call, slot: str, shape: Shape) -> None:
    """Raises TypeRuleError if what is added would widen the result."""
    if slot not in call.types:
        return
    result_shape = broadcast(call, shape, call.shape(slot))
    if len(result_shape) > len(shape) or not all(map(dims.may_be_equal, result_shape, shape)):
        raise call.fail(f"{slot} {list(call.shape(slot))} does not broadcast to {list(shape)}")


def _matmul(call: Call) -> tuple[TensorType, ...]:
    require_same_express(call, "a", "b")
    require_bias_type(call, "a", "bias")
    require_numbers(call, "a")
    a, b = _operand_shape(call, "a", "trans_a"), _operand_shape(call, "b", "trans_b")
    if not a or not b:
        raise call.fail("an operand is a scalar")
    has_rows, has_columns = len(a) > 1, len(b) > 1
    # NumPy's rule: a vector counts as one row on the left, one column on the right, and its axis is
    # dropped from the result.
    a, b = (a if has_rows else (1, *a)), (b if has_columns else (*b, 1))
    if not dims.may_be_equal(a[-1], b[-2]):
        raise call.fail(f"a has {a[-1]} columns, b has {b[-2]} rows")
    batch = broadcast(call, a[:-2], b[:-2]) if a[:-2] or b[:-2] else ()
    shape = (*batch, *((a[-2],) if has_rows else ()), *((b[-1],) if has_columns else ()))
    _check_addend(call, "bias", shape)
    return (TensorType(shape, call.express("a")),)


def _gemm(call: Call) -> tuple[TensorType, ...]:
    require_same_express(call, "a", "b")
    require_bias_type(call, "a", "c")
    require_numbers(call, "a")
    a, b = _operand_shape(call, "a", "trans_a"), _operand_shape(call, "b", "trans_b")
    if len(a) != 2 or len(b) != 2:
        raise call.fail(f"a has {len(a)} axes and b {len(b)}, both take 2")
    if not dims.may_be_equal(a[1], b[0]):
        raise call.fail(f"a has {a[1]} columns, b has {b[0]} rows")
    _check_addend(call, "c", (a[0], b[1]))
    return (TensorType((a[0], b[1]), call.express("a")),)


def _linear(call: Call) -> tuple[TensorType, ...]:
    require_same_express(call, "x", "w")
    require_bias_type(call, "x", "bias")
    require_numbers(call)
    x, w = call.shape("x"), call.shape("w")
    if len(w) != 2 or not x:
        raise call.fail("w takes 2 axes, x at least 1")
    if not dims.may_be_equal(x[-1], w[1]):
        raise call.fail(f"x has {x[-1]} features, w wants {w[1]}")
    _check_addend(call, "bias", (*x[:-1], w[0]))
    return (TensorType((*x[:-1], w[0]), call.express("x")),)


def _weight_axis(call: Call) -> int:
    rank = len(call.shape("b"))
    return rank - 2 if call.bool_attr("trans_b") and rank > 1 else rank - 1


def _last_axis(call: Call) -> int:
    return max(len(t.shape) for t in call.types.values()) - 1


def _macs(result: Shape, inner: dims.Dim) -> int:
    total = 1
    for size in dims.known_shape((*result, inner)) or (0,):
        total *= size
    return total


def _product_macs(call: Call, result: Shape) -> int:
    return _macs(result, _operand_shape(call, "a", "trans_a")[-1])


def _linear_macs(call: Call, result: Shape) -> int:
    return _macs(result, call.shape("x")[-1])


_TRANS = (AttrSpec("trans_a", "bool", False), AttrSpec("trans_b", "bool", False))

OPS = (
    OpSpec(
        "matmul",
        (Slot("a"), Slot("b"), Slot("bias", optional=True)),
        _matmul,
        _TRANS,
        Traits(
            weight="b",
            weight_axis=_weight_axis,
            result_axis=_last_axis,
            bias="bias",
            data="a",
            layer="matrix",
        ),
        cost=_product_macs,
        doc="a @ b + bias, batched by NumPy's rules; trans swaps the last two axes first",
    ),
    OpSpec(
        "gemm",
        (Slot("a"), Slot("b"), Slot("c", optional=True)),
        _gemm,
        (AttrSpec("alpha", "float", 1.0), AttrSpec("beta", "float", 1.0), *_TRANS),
        Traits(
            weight="b",
            weight_axis=_weight_axis,
            result_axis=_last_axis,
            bias="c",
            data="a",
            layer="matrix",
        ),
        cost=_product_macs,
        doc="alpha * a @ b + beta * c",
    ),
    OpSpec(
        "linear",
        (Slot("x"), Slot("w"), Slot("bias", optional=True)),
        _linear,
        traits=Traits(
            weight="w",
            weight_axis=lambda call: 0,
            result_axis=_last_axis,
            bias="bias",
            layer="matrix",
        ),
        cost=_linear_macs,
        doc="x @ w.T + bias; w is [out, in]",
    ),
)
