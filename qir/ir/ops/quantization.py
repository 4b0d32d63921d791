"""Ops between reals and codes, whose result type says which map is meant; and `cast`."""

from __future__ import annotations

from qir.ir.dtype import DType
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot
from qir.ir.types import TensorType


def _express(call: Call) -> tuple[TensorType, ...]:
    return (TensorType(call.shape("x"), call.express("x")),)


def _quantize(call: Call) -> tuple[TensorType, ...]:
    if call.types["x"].quant is not None:
        raise call.fail("x holds codes already; requantize converts them")
    return _express(call)


def _needs_codes(call: Call) -> tuple[TensorType, ...]:
    if call.types["x"].quant is None:
        raise call.fail(f"x is {call.types['x']} and holds no codes")
    return _express(call)


def _cast(call: Call) -> tuple[TensorType, ...]:
    to = call.attrs["to"]
    if not isinstance(to, DType):
        raise call.fail("to is no element type")
    return (TensorType(call.shape("x"), to),)


OPS = (
    OpSpec(
        "quantize",
        (Slot("x"),),
        _quantize,
        doc="reals to the codes of the result type",
    ),
    OpSpec(
        "dequantize",
        (Slot("x"),),
        _needs_codes,
        doc="codes to the reals they mean",
    ),
    OpSpec("requantize", (Slot("x"),), _needs_codes, doc="codes of one map to codes of another"),
    OpSpec(
        "cast",
        (Slot("x"),),
        _cast,
        (AttrSpec("to", "dtype", required=True),),
        doc="values converted to another element type, as NumPy converts them",
    ),
)
