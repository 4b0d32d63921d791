"""Reductions, and what else looks along an axis: sums so far, where the greatest is."""

from __future__ import annotations

from qir.ir.dtype import I64
from qir.ir.ops.elementwise import require_floats, require_numbers, unary
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import TensorType


def _reduce(call: Call) -> tuple[TensorType, ...]:
    shape = call.shape("x")
    reduced = call.axes_attr("axes", len(shape)) or tuple(range(len(shape)))
    if call.bool_attr("keep"):
        out = tuple(1 if i in reduced else d for i, d in enumerate(shape))
    else:
        out = tuple(d for i, d in enumerate(shape) if i not in reduced)
    return (TensorType(out, call.express("x")),)


def _reduce_numbers(call: Call) -> tuple[TensorType, ...]:
    require_numbers(call)
    return _reduce(call)


def _reduce_floats(call: Call) -> tuple[TensorType, ...]:
    require_floats(call)
    return _reduce(call)


def _arg_reduce(call: Call) -> tuple[TensorType, ...]:
    require_numbers(call)
    shape = call.shape("x")
    axis = call.axis_attr("axis", len(shape))
    kept_axis = (1,) if call.bool_attr("keep") else ()
    return (TensorType((*shape[:axis], *kept_axis, *shape[axis + 1 :]), I64),)


def _cumulative(call: Call) -> tuple[TensorType, ...]:
    require_numbers(call)
    call.axis_attr("axis", len(call.shape("x")))
    return unary(call)


def _top_k(call: Call) -> tuple[TensorType, ...]:
    require_numbers(call)
    shape, k = call.shape("x"), call.int_attr("k")
    axis = call.axis_attr("axis", len(shape))
    size = shape[axis]
    if k < 0 or (isinstance(size, int) and k > size):
        raise call.fail(f"k = {k}, but axis {axis} has {size}")
    out = (*shape[:axis], k, *shape[axis + 1 :])
    return TensorType(out, call.express("x")), TensorType(out, I64)


_X = (Slot("x"),)
_AXES = (AttrSpec("axes", "ints", ()), AttrSpec("keep", "bool", True))
_ONE_AXIS = (AttrSpec("axis", "int", 0), AttrSpec("keep", "bool", True))
_LAST = AttrSpec("last", "bool", False)

OPS = (
    OpSpec(
        "reduce_mean",
        _X,
        _reduce,
        _AXES,
        Traits(averages=True),
        doc="mean over the axes, over all of them if none is named",
    ),
    OpSpec("reduce_sum", _X, _reduce_numbers, _AXES, doc="sum over the axes"),
    OpSpec("reduce_prod", _X, _reduce_numbers, _AXES, doc="product over the axes"),
    OpSpec("reduce_max", _X, _reduce_numbers, _AXES, doc="greatest element over the axes"),
    OpSpec("reduce_min", _X, _reduce_numbers, _AXES, doc="least element over the axes"),
    OpSpec("reduce_l1", _X, _reduce_floats, _AXES, doc="sum of |x| over the axes"),
    OpSpec("reduce_l2", _X, _reduce_floats, _AXES, doc="root of the sum of squares over the axes"),
    OpSpec("reduce_log_sum", _X, _reduce_floats, _AXES, doc="log of the sum over the axes"),
    OpSpec("reduce_log_sum_exp", _X, _reduce_floats, _AXES, doc="log of the sum of exp(x)"),
    OpSpec("reduce_sum_square", _X, _reduce_floats, _AXES, doc="sum of squares over the axes"),
    OpSpec(
        "arg_max",
        _X,
        _arg_reduce,
        (*_ONE_AXIS, _LAST),
        doc="where the greatest element of an axis stands: its first place, or its last",
    ),
    OpSpec(
        "arg_min",
        _X,
        _arg_reduce,
        (*_ONE_AXIS, _LAST),
        doc="where the least element of an axis stands: its first place, or its last",
    ),
    OpSpec(
        "cumsum",
        _X,
        _cumulative,
        (
            AttrSpec("axis", "int", required=True),
            AttrSpec("exclusive", "bool", False),
            AttrSpec("reverse", "bool", False),
        ),
        doc="sums so far along an axis, without the element itself where exclusive",
    ),
    OpSpec(
        "cumprod",
        _X,
        _cumulative,
        (
            AttrSpec("axis", "int", required=True),
            AttrSpec("exclusive", "bool", False),
            AttrSpec("reverse", "bool", False),
        ),
        doc="products so far along an axis, without the element itself where exclusive",
    ),
    OpSpec(
        "top_k",
        _X,
        _top_k,
        (
            AttrSpec("k", "int", required=True),
            AttrSpec("axis", "int", -1),
            AttrSpec("largest", "bool", True),
            AttrSpec("sorted", "bool", True),
        ),
        results=2,
        doc="the k greatest (or least) elements of an axis and their places, the first one first",
    ),
)
