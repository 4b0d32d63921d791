"""Convolutions, depthwise and transposed convolutions, and pools."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import KeepNode, NodeCall
from .windows import FIRST, LAST, add_transpose, explicit_pads, image_layout, same_padding


def _conv2d(call: NodeCall) -> Value:
    (x, w), layout = call.all_operands(2), image_layout(call)
    height, width, channels_per_group, _ = _known_sizes(call, 1)
    stride = layout.sides(call, "strides")
    dilation = layout.sides(call, "dilations", (1, 1, 1, 1))
    channels = x.type.shape[layout.channels]
    if not isinstance(channels, int):
        raise KeepNode("the number of its channels is not known")
    sizes = [x.type.shape[axis] for axis in layout.axes]
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": explicit_pads(call, layout, sizes, (height, width), stride, dilation),
        "dilation": dilation,
        # The filter's third axis has the input channels of one group.
        "groups": channels // channels_per_group if channels_per_group else 1,
        "layout": layout.layout,
    }
    return call.add("conv2d", {"x": x, "w": add_transpose(call, w, (3, 2, 0, 1), "weights")}, attrs)


def _known_sizes(call: NodeCall, index: int) -> tuple[int, ...]:
    """Returns the sizes of an operand; raises KeepNode for an open one."""
    sizes = [size for size in call.shape(index) if isinstance(size, int)]
    if len(sizes) != call.rank(index):
        raise KeepNode(f"the sizes of its input {index} are not known")
    return tuple(sizes)


def _depthwise(call: NodeCall) -> Value:
    (x, w), layout = call.all_operands(2), image_layout(call)
    height, width, channels, multiplier = _known_sizes(call, 1)
    stride = layout.sides(call, "strides")
    dilation = layout.sides(call, "dilations", (1, 1, 1, 1))
    sizes = [x.type.shape[axis] for axis in layout.axes]
    # The filter is [height, width, channel, multiplier]. Output channels are ordered by channel
    # first, so that the two last axes can be merged.
    weights = add_transpose(call, w, (2, 3, 0, 1), "weights")
    shape = (channels * multiplier, 1, height, width)
    constant = weights.constant
    if constant is not None:
        weights = call.constant(constant.data.reshape(shape), "weights")
    else:
        weights = call.add("reshape", {"x": weights, "shape": call.int64_constant(shape)})
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": explicit_pads(call, layout, sizes, (height, width), stride, dilation),
        "dilation": dilation,
        "groups": channels,
        "layout": layout.layout,
    }
    return call.add("conv2d", {"x": x, "w": weights}, attrs)


def _transposed_conv(call: NodeCall) -> Value:
    """Reads Conv2DBackpropInput: output sizes, filter [height, width, out, in], and the data."""
    x, w, layout = call[2], call[1], image_layout(call)
    height, width, _, _ = _known_sizes(call, 1)
    stride = layout.sides(call, "strides")
    dilation = layout.sides(call, "dilations", (1, 1, 1, 1))
    result_sizes = call.reader.known.sizes(call[0])
    if result_sizes is None:
        raise KeepNode("the sizes of its result are computed while the network runs")
    spatial = [result_sizes.tolist()[axis] for axis in layout.axes]
    if not all(isinstance(size, int) for size in spatial):
        raise KeepNode("the sizes of its result are not known; state the sizes of the input")
    padding = explicit_pads(call, layout, spatial, (height, width), stride, dilation)
    output_pads = []
    for i, axis in enumerate(layout.axes):
        size = x.type.shape[axis]
        if not isinstance(size, int):
            raise KeepNode("the sizes of its data are not known; state the sizes of the input")
        span = ((height, width)[i] - 1) * dilation[i] + 1
        # The result without output padding has (size - 1) * stride + span - pads positions.
        output_pads.append(
            spatial[i] - ((size - 1) * stride[i] + span - padding[i] - padding[i + 2])
        )
    if min(output_pads) < 0:
        raise KeepNode(f"its result of {spatial} does not follow from its data")
    if layout.layout == LAST:
        x = call.add("transpose", {"x": x}, {"perm": (0, 3, 1, 2)})
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": padding,
        "dilation": dilation,
        "output_pad": tuple(output_pads),
    }
    weights = add_transpose(call, w, (3, 2, 0, 1), "weights")
    y = call.add("conv_transpose2d", {"x": x, "w": weights}, attrs)
    return y if layout.layout == FIRST else call.add("transpose", {"x": y}, {"perm": (0, 2, 3, 1)})


def _conv3d(call: NodeCall) -> Value:
    x, w = call.all_operands(2)
    layout = call.text("data_format", "NDHWC")
    axes = (1, 2, 3) if layout == "NDHWC" else (2, 3, 4)
    kernel = _known_sizes(call, 1)
    stride, dilation = (
        tuple((call.integer_list(name) or (1,) * 5)[axis] for axis in axes)
        for name in ("strides", "dilations")
    )
    pads = _volume_pads(call, axes, kernel[:3], stride, dilation)
    channels = x.type.shape[4 if layout == "NDHWC" else 1]
    # conv3d of the language has its channels first.
    if layout == "NDHWC":
        x = call.add("transpose", {"x": x}, {"perm": (0, 4, 1, 2, 3)})
    if not isinstance(channels, int):
        raise KeepNode("the number of its channels is not known")
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": pads,
        "dilation": dilation,
        "groups": channels // kernel[3],
    }
    y = call.add("conv3d", {"x": x, "w": add_transpose(call, w, (4, 3, 0, 1, 2), "weights")}, attrs)
    return call.add("transpose", {"x": y}, {"perm": (0, 2, 3, 4, 1)}) if layout == "NDHWC" else y


def _volume_pads(
    call: NodeCall,
    axes: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[int, ...]:
    if call.text("padding") == "VALID":
        return (0,) * 6
    total = [
        same_padding(call.shape(0)[axis], kernel[i], stride[i], dilation[i])
        for i, axis in enumerate(axes)
    ]
    return (*(t // 2 for t in total), *(t - t // 2 for t in total))


def _pool2d(op: str) -> Callable[[NodeCall], Value]:
    def read(call: NodeCall) -> Value:
        x, layout = call[0], image_layout(call)
        kernel, stride = layout.sides(call, "ksize"), layout.sides(call, "strides")
        sizes = [x.type.shape[axis] for axis in layout.axes]
        attrs: dict[str, Attr] = {
            "kernel": kernel,
            "stride": stride,
            "pad": explicit_pads(call, layout, sizes, kernel, stride),
            "layout": layout.layout,
        }
        return call.add(op, {"x": x}, attrs)

    return read


def _pool3d(op: str) -> Callable[[NodeCall], Value]:
    def read(call: NodeCall) -> Value:
        x, layout = call[0], call.text("data_format", "NDHWC")
        axes = (1, 2, 3) if layout == "NDHWC" else (2, 3, 4)
        kernel, stride = (
            tuple(call.integer_list(name)[axis] for axis in axes) for name in ("ksize", "strides")
        )
        attrs: dict[str, Attr] = {
            "kernel": kernel,
            "stride": stride,
            "pad": _volume_pads(call, axes, kernel, stride, (1, 1, 1)),
        }
        if layout == "NDHWC":
            x = call.add("transpose", {"x": x}, {"perm": (0, 4, 1, 2, 3)})
        y = call.add(op, {"x": x}, attrs)
        return (
            y if layout != "NDHWC" else call.add("transpose", {"x": y}, {"perm": (0, 2, 3, 4, 1)})
        )

    return read


OPS: dict[str, Callable[[NodeCall], Value]] = {
    "Conv2D": _conv2d,
    "DepthwiseConv2dNative": _depthwise,
    "Conv2DBackpropInput": _transposed_conv,
    "Conv3D": _conv3d,
    "MaxPool": _pool2d("max_pool2d"),
    "AvgPool": _pool2d("avg_pool2d"),
    "MaxPool3D": _pool3d("max_pool3d"),
    "AvgPool3D": _pool3d("avg_pool3d"),
}
