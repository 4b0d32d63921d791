"""Pooling."""

from __future__ import annotations

from qir.ir.ops.conv import conv_result_shape, layout_axes, window_count
from qir.ir.ops.elementwise import require_floats, require_numbers
from qir.ir.ops.granularity import unless_along_axes
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import QuantType, TensorType


def _pool(call: Call) -> tuple[TensorType, ...]:
    require_numbers(call)
    c, h, w = layout_axes(call)
    x = call.shape("x")
    kernel, stride = call.int_list_attr("kernel", 2), call.int_list_attr("stride", 2)
    dilation = call.int_list_attr("dilation", 2) if "dilation" in call.attrs else (1, 1)
    top, left, bottom, right = call.int_list_attr("pad", 4)
    if min(*kernel, *stride, *dilation) < 1 or min(top, left, bottom, right) < 0:
        raise call.fail("kernel, stride and dilation are 1 or more, pad 0 or more")
    ceil = "ceil" in call.attrs and call.bool_attr("ceil")
    height, width = (
        window_count(
            size,
            kernel[i],
            stride[i],
            pads[0] + pads[1],
            dilation[i],
            ceil=ceil,
            lead=pads[0],
            pools=True,
        )
        for i, (size, pads) in enumerate(((x[h], (top, bottom)), (x[w], (left, right))))
    )
    return (TensorType(conv_result_shape(call, x[0], x[c], height, width), call.express("x")),)


def _mean(call: Call) -> tuple[TensorType, ...]:
    require_floats(call)
    return _pool(call)


def _global(call: Call) -> tuple[TensorType, ...]:
    require_floats(call)
    _check_p(call)
    x = call.shape("x")
    if call.text_attr("layout") not in ("NCHW", "NHWC"):
        raise call.fail(f"layout {call.text_attr('layout')!r} is neither NCHW nor NHWC")
    if len(x) < 3:
        raise call.fail(f"x has {len(x)} axes, it takes 3 or more")
    # Global pools keep their axes as 1, and take any number of spatial axes.
    ones = (1,) * (len(x) - 2)
    shape = (*x[:2], *ones) if call.text_attr("layout") == "NCHW" else (x[0], *ones, x[-1])
    return (TensorType(shape, call.express("x")),)


def _check_p(call: Call) -> None:
    if "p" in call.attrs and call.int_attr("p") < 1:
        raise call.fail(f"p = {call.int_attr('p')}, it must be 1 or more")


def _norm(call: Call) -> tuple[TensorType, ...]:
    _check_p(call)
    return _mean(call)


def _move(call: Call, element: QuantType) -> QuantType | None:
    """The quantized type stays, where it works on batch or channels alone."""
    rank = len(call.shape("x"))
    last = call.text_attr("layout") == "NHWC"
    return unless_along_axes(element, *(range(1, rank - 1) if last else range(2, rank)))


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
        move=_move,
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
        Traits(averages=True),
        doc="mean of each window; padding counts as zeros where count_pad says so",
    ),
    OpSpec(
        "global_avg_pool",
        (Slot("x"),),
        _global,
        (_LAYOUT,),
        Traits(averages=True),
        doc="mean over all axes but batch and channels, kept as axes of 1",
    ),
    OpSpec(
        "global_max_pool",
        (Slot("x"),),
        _global,
        (_LAYOUT,),
        Traits(same_params=("x",), value_preserving=True),
        move=_move,
        doc="greatest element over all axes but batch and channels, kept as axes of 1",
    ),
    OpSpec(
        "lp_pool2d",
        (Slot("x"),),
        _norm,
        (
            *_WINDOW,
            AttrSpec("p", "int", 2),
            _LAYOUT,
            AttrSpec("dilation", "ints", (1, 1)),
            AttrSpec("ceil", "bool", False),
        ),
        doc="p-th root of the sum of |x| to the p in each window",
    ),
    OpSpec(
        "global_lp_pool",
        (Slot("x"),),
        _global,
        (AttrSpec("p", "int", 2), _LAYOUT),
        doc="p-th root of the sum of |x| to the p over all axes but batch and channels",
    ),
)
