"""Pooling."""

from __future__ import annotations

from qir.ir.ops.conv import place, spatial, window
from qir.ir.ops.elementwise import floats, keep, numbers
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import TensorType


def _pool(call: Call) -> tuple[TensorType, ...]:
    numbers(call)
    c, h, w = spatial(call)
    x = call.shape("x")
    kernel, stride = call.wholes("kernel", 2), call.wholes("stride", 2)
    dilation = call.wholes("dilation", 2) if "dilation" in call.attrs else (1, 1)
    top, left, bottom, right = call.wholes("pad", 4)
    if min(*kernel, *stride, *dilation) < 1 or min(top, left, bottom, right) < 0:
        raise call.fail("kernel, stride and dilation are 1 or more, pad 0 or more")
    ceil = "ceil" in call.attrs and call.flag("ceil")
    height = window(x[h], kernel[0], stride[0], top + bottom, dilation[0], ceil=ceil, lead=top)
    width = window(x[w], kernel[1], stride[1], left + right, dilation[1], ceil=ceil, lead=left)
    return (TensorType(place(call, x[0], x[c], height, width), call.express("x")),)


def _mean(call: Call) -> tuple[TensorType, ...]:
    floats(call)
    return _pool(call)


def _global(call: Call) -> tuple[TensorType, ...]:
    floats(call)
    c, _, _ = spatial(call)
    x = call.shape("x")
    return (TensorType(place(call, x[0], x[c], 1, 1), call.express("x")),)


def _norm(call: Call) -> tuple[TensorType, ...]:
    if call.whole("p") < 1:
        raise call.fail(f"p = {call.whole('p')}, it must be 1 or more")
    return _mean(call)


_LAYOUT = AttrSpec("layout", "text", "NCHW")
_WINDOW = (
    AttrSpec("kernel", "ints", required=True),
    AttrSpec("stride", "ints", (1, 1)),
    AttrSpec("pad", "ints", (0, 0, 0, 0)),
)

OPS = (
    OpSpec(
        "max_pool2d",
        (Slot("x"),),
        _pool,
        (
            *_WINDOW,
            AttrSpec("dilation", "ints", (1, 1)),
            AttrSpec("ceil", "bool", False),
            _LAYOUT,
        ),
        Traits(same_params=("x",), value_preserving=True),
        move=keep,
        doc="greatest element of each window; padding never wins",
    ),
    OpSpec(
        "avg_pool2d",
        (Slot("x"),),
        _mean,
        (
            *_WINDOW,
            AttrSpec("ceil", "bool", False),
            AttrSpec("count_pad", "bool", False),
            _LAYOUT,
        ),
        doc="mean of each window; padding counts as zeros where count_pad says so",
    ),
    OpSpec(
        "global_avg_pool",
        (Slot("x"),),
        _global,
        (_LAYOUT,),
        doc="mean over height and width, kept as axes of 1",
    ),
    OpSpec(
        "global_max_pool",
        (Slot("x"),),
        _global,
        (_LAYOUT,),
        Traits(same_params=("x",), value_preserving=True),
        move=keep,
        doc="greatest element over height and width, kept as axes of 1",
    ),
    OpSpec(
        "lp_pool2d",
        (Slot("x"),),
        _norm,
        (*_WINDOW, AttrSpec("p", "int", 2), _LAYOUT),
        doc="p-th root of the sum of |x| to the p in each window",
    ),
)
