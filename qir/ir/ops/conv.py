"""Convolution. Weights are [out, in / groups, height, width] whatever the layout of x."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.dims import Dim, Shape
from qir.ir.ops.elementwise import require_bias_type, require_numbers, require_same_express
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import TensorType


def layout_axes(call: Call) -> tuple[int, int, int]:
    """Axes of channel, height and width; raises TypeRuleError for an unknown layout or rank."""
    layout = call.text_attr("layout")
    if layout not in ("NCHW", "NHWC"):
        raise call.fail(f"layout {layout!r} is neither NCHW nor NHWC")
    if len(call.shape("x")) != 4:
        raise call.fail(f"x has {len(call.shape('x'))} axes, it takes 4")
    return (1, 2, 3) if layout == "NCHW" else (3, 1, 2)


def window_count(
    size: Dim,
    kernel: Dim,
    stride: int,
    pad: int,
    dilation: int = 1,
    *,
    ceil: bool = False,
    lead: int = 0,
    pools: bool = False,
) -> Dim:
    """Returns how many windows fit, below 0 where none can; `pad` is both sides together, `lead`
    the front.

    Of pools a window that lacks less than a step can not: runtimes count it as they like.
    """
    if not isinstance(kernel, int):
        return None
    reach = dims.add(size, pad - dilation * (kernel - 1) - 1)
    # Runtimes count such a pool differently, so it is refused as one that does not fit.
    if pools and not ceil and isinstance(reach, int) and reach < 0 and reach % stride:
        return -1
    if ceil and isinstance(reach, int) and isinstance(size, int):
        # With `ceil` the last window may start inside the padding; like torch, such a window is
        # dropped.
        count = -(-reach // stride) + 1
        return count - 1 if (count - 1) * stride >= size + lead else count
    if ceil and pad - lead + stride > dilation * (kernel - 1) + 1:
        return None  # whether the last window counts depends on the size
    return dims.add(dims.divide(dims.add(reach, stride - 1 if ceil else 0), stride), 1)


def conv_result_shape(call: Call, batch: Dim, channels: Dim, height: Dim, width: Dim) -> Shape:
    """Returns the result's shape in the op's layout."""
    for dim, name in ((height, "height"), (width, "width")):
        if isinstance(dim, int) and dim < 0:
            raise call.fail(f"the window is larger than the padded {name}")
    nchw = call.text_attr("layout") == "NCHW"
    # The weights' layout never changes; only x and the result follow `layout`.
    return (batch, channels, height, width) if nchw else (batch, height, width, channels)


def _conv2d(call: Call) -> tuple[TensorType, ...]:
    require_same_express(call, "x", "w")
    require_bias_type(call, "x", "bias")
    require_numbers(call)
    c, h, w = layout_axes(call)
    x, weight = call.shape("x"), call.shape("w")
    if len(weight) != 4:
        raise call.fail(f"w has {len(weight)} axes, it takes 4")
    groups = call.int_attr("groups")
    out_channels, per_group = weight[0], weight[1]
    if groups < 1 or (isinstance(out_channels, int) and out_channels % groups):
        raise call.fail(f"{out_channels} output channels do not split into {groups} groups")
    if not dims.may_be_equal(x[c], dims.multiply(per_group, groups)):
        raise call.fail(f"x has {x[c]} channels, w wants {per_group} x {groups} groups")
    if "bias" in call.types and not dims.may_be_equal(
        dims.product(call.shape("bias")), out_channels
    ):
        raise call.fail(
            f"bias has {list(call.shape('bias'))}, there are {out_channels} output channels"
        )
    stride, dilation = call.int_list_attr("stride", 2), call.int_list_attr("dilation", 2)
    top, left, bottom, right = call.int_list_attr("pad", 4)
    if min(*stride, *dilation) < 1 or min(top, left, bottom, right) < 0:
        raise call.fail("stride and dilation are 1 or more, pad 0 or more")
    height = window_count(x[h], weight[2], stride[0], top + bottom, dilation[0])
    width = window_count(x[w], weight[3], stride[1], left + right, dilation[1])
    return (
        TensorType(conv_result_shape(call, x[0], out_channels, height, width), call.express("x")),
    )


def _macs(call: Call, result: Shape) -> int:
    sizes = dims.known_shape((*result, *call.shape("w")[1:]))
    if sizes is None:
        return 0
    total = 1
    for size in sizes:
        total *= size
    return total


OPS = (
    OpSpec(
        "conv2d",
        (Slot("x"), Slot("w"), Slot("bias", optional=True)),
        _conv2d,
        (
            AttrSpec("stride", "ints", (1, 1)),
            AttrSpec("pad", "ints", (0, 0, 0, 0)),
            AttrSpec("dilation", "ints", (1, 1)),
            AttrSpec("groups", "int", 1),
            AttrSpec("layout", "text", "NCHW"),
        ),
        Traits(
            weight="w",
            weight_axis=lambda call: 0,
            result_axis=lambda call: layout_axes(call)[0],
            bias="bias",
            layer="convolution",
        ),
        cost=_macs,
        doc="2-d convolution; pad is (top, left, bottom, right); depthwise where groups = channels",
    ),
)
