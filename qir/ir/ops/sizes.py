"""Ops about sizes: a tensor's shape, tensors of a shape, rows of numbers."""

from __future__ import annotations

from qir.ir.dims import Dim
from qir.ir.dtype import I64
from qir.ir.ops.elementwise import require_numbers, require_same_express
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot
from qir.ir.types import Array, TensorType

_MAX_AXES = 64


def _shape(call: Call) -> tuple[TensorType, ...]:
    rank = len(call.shape("x"))
    start = call.int_attr("start")
    end = rank if call.attrs["end"] is None else call.int_attr("end")
    return (TensorType((len(range(rank)[start:end]),), I64),)


def _size(call: Call) -> tuple[TensorType, ...]:
    return (TensorType((), I64),)


def _range(call: Call) -> tuple[TensorType, ...]:
    require_same_express(call, "start", "limit", "step")
    require_numbers(call, "start")
    for slot in ("start", "limit", "step"):
        if call.types[slot].rank:
            raise call.fail(f"{slot} is {call.types[slot]}, it takes one number")
    return (TensorType((_count(call),), call.express("start")),)


def _count(call: Call) -> Dim:
    """Returns how many numbers there are; float bounds are counted when they run."""
    bounds = [call.constant(s) for s in ("start", "limit", "step")]
    if not call.express("start").is_integer or any(f is None for f in bounds):
        return None
    start, limit, step = (int(f) for f in bounds if f is not None)
    if not step:
        raise call.fail("step is 0")
    return len(range(start, limit, step))


def _filled(call: Call) -> tuple[TensorType, ...]:
    kind, constant = call.types["shape"], call.constant("shape")
    value = call.attrs["value"]
    if kind.rank != 1 or kind.quant or not kind.dtype.is_integer:
        raise call.fail(f"shape is {kind}, it takes one row of whole numbers")
    if not isinstance(value, Array) or value.contents.size != 1:
        raise call.fail("value is no array of one element")
    if constant is not None:
        target: list[int] = constant.tolist()
        if min(target, default=0) < 0:
            raise call.fail(f"shape {target} has a negative size")
        return (TensorType(tuple(target), value.type.dtype),)
    count = kind.shape[0]
    if not isinstance(count, int) or count > _MAX_AXES:
        raise call.fail(f"shape is {kind}; its length must be known, and {_MAX_AXES} at most")
    return (TensorType((None,) * count, value.type.dtype),)


OPS = (
    OpSpec(
        "shape",
        (Slot("x"),),
        _shape,
        (AttrSpec("start", "int", 0), AttrSpec("end", "int")),
        doc="the sizes of the axes from start to before end",
    ),
    OpSpec("size", (Slot("x"),), _size, doc="the number of elements"),
    OpSpec(
        "range",
        (Slot("start"), Slot("limit"), Slot("step")),
        _range,
        doc="numbers from start to before limit",
    ),
    OpSpec(
        "constant_of_shape",
        (Slot("shape"),),
        _filled,
        (AttrSpec("value", "array", required=True),),
        doc="a tensor of that shape, every element the value",
    ),
)
