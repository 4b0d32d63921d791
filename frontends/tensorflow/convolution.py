"""Convolutions, depthwise and transposed convolutions, and pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import NodeCall
from .reader import KeepNode
from .windows import FIRST, LAST, add_transpose, explicit_pads, image_layout, same_padding


def _conv2d(call: NodeCall) -> Value:
    x, w, where = call[0], call[1], image_layout(call)
    height, width, each, _ = _known_sizes(call, 1)
    stride = where.sides(call, "strides")
    dilation = where.sides(call, "dilations", (1, 1, 1, 1))
    channels = x.type.shape[where.channels]
    if not isinstance(channels, int):
        raise KeepNode("the number of its channels is not known")
    sizes = [x.type.shape[axis] for axis in where.axes]
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": explicit_pads(call, where, sizes, (height, width), stride, dilation),
        "dilation": dilation,
        "groups": channels // each if each else 1,
        "layout": where.layout,
    }
    return call.add("conv2d", {"x": x, "w": add_transpose(call, w, (3, 2, 0, 1), "weights")}, attrs)


def _known_sizes(call: NodeCall, index: int) -> tuple[int, ...]:
    """Returns the sizes of an operand; raises KeepNode for an open one."""
    found = [size for size in call.shape(index) if isinstance(size, int)]
    if len(found) != call.rank(index):
        raise KeepNode(f"the sizes of its input {index} are not known")
    return tuple(found)


def _depthwise(call: NodeCall) -> Value:
    x, w, where = call[0], call[1], image_layout(call)
    height, width, channels, times = _known_sizes(call, 1)
    stride = where.sides(call, "strides")
    dilation = where.sides(call, "dilations", (1, 1, 1, 1))
    sizes = [x.type.shape[axis] for axis in where.axes]
    # The filter is [height, width, channel, multiplier]. Output channels are ordered by channel
    # first, so that the two last axes can be merged.
    turned = add_transpose(call, w, (2, 3, 0, 1), "weights")
    shape = (channels * times, 1, height, width)
    held = turned.constant
    if held is not None:
        turned = call.constant(held.data.reshape(shape), "weights")
    else:
        turned = call.add("reshape", {"x": turned, "shape": call.int64_constant(shape)})
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": explicit_pads(call, where, sizes, (height, width), stride, dilation),
        "dilation": dilation,
        "groups": channels,
        "layout": where.layout,
    }
    return call.add("conv2d", {"x": x, "w": turned}, attrs)


def _transposed_conv(call: NodeCall) -> Value:
    """Reads Conv2DBackpropInput: output sizes, filter [height, width, out, in], and the data."""
    x, w, where = call[2], call[1], image_layout(call)
    kernel = _known_sizes(call, 1)[:2]
    stride = where.sides(call, "strides")
    dilation = where.sides(call, "dilations", (1, 1, 1, 1))
    sides, more = _transposed_pads(call, where.axes, kernel, stride, dilation)
    if where.layout == LAST:
        x = call.add("transpose", {"x": x}, {"perm": (0, 3, 1, 2)})
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": sides,
        "dilation": dilation,
        "output_pad": more,
    }
    weights = add_transpose(call, w, (3, 2, 0, 1), "weights")
    y = call.add("conv_transpose2d", {"x": x, "w": weights}, attrs)
    return y if where.layout == FIRST else call.add("transpose", {"x": y}, {"perm": (0, 2, 3, 1)})


def _transposed_pads(
    call: NodeCall,
    axes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the padding of a transposed convolution, and what its result has beyond it.

    They follow from the sizes of its result, the first operand. A stride times an open size is
    known well enough.
    """
    wanted = call.reader.known.sizes(call[0])
    if wanted is None:
        raise KeepNode("the sizes of its result are computed while the network runs")
    made = wanted.tolist()
    padding = call.text("padding", "VALID")
    fronts, backs, more = [], [], []
    for i, axis in enumerate(axes):
        span = (kernel[i] - 1) * dilation[i] + 1
        # The size without padding; TensorFlow states the size of the result, and leaves the padding
        # to follow from it.
        size = dims.add(dims.multiply(dims.add(call.shape(2)[axis], -1), stride[i]), span)
        extra = dims.subtract(size, made[axis])
        if not isinstance(extra, int):
            raise KeepNode("the sizes of its result are not known; state the sizes of the input")
        if padding == "EXPLICIT":
            held = call.integer_list("explicit_paddings")
            front, back = held[2 * axis], held[2 * axis + 1]
        else:
            total = max(extra, 0) if padding == "SAME" else 0
            # SAME pads an odd element at the end.
            front, back = total // 2, total - total // 2
        fronts.append(front)
        backs.append(back)
        more.append(front + back - extra)
    if min(more) < 0:
        raise KeepNode(
            f"its result of {[made[axis] for axis in axes]} does not follow from its data"
        )
    return (*fronts, *backs), tuple(more)


def _transposed_conv3d(call: NodeCall) -> Value:
    """Reads Conv3DBackpropInputV2, whose filter is [depth, height, width, out, in]."""
    x, w, last = call[2], call[1], call.text("data_format", "NDHWC") == "NDHWC"
    axes = (1, 2, 3) if last else (2, 3, 4)
    stride, dilation = (
        tuple((call.integer_list(name) or (1,) * 5)[axis] for axis in axes)
        for name in ("strides", "dilations")
    )
    kernel = _known_sizes(call, 1)[:3]
    sides, more = _transposed_pads(call, axes, kernel, stride, dilation)
    if last:
        x = call.add("transpose", {"x": x}, {"perm": (0, 4, 1, 2, 3)})
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": sides,
        "dilation": dilation,
        "output_pad": more,
    }
    weights = add_transpose(call, w, (4, 3, 0, 1, 2), "weights")
    y = call.add("conv_transpose3d", {"x": x, "w": weights}, attrs)
    return call.add("transpose", {"x": y}, {"perm": (0, 2, 3, 4, 1)}) if last else y


def _conv3d(call: NodeCall) -> Value:
    x, w = call.all_operands(2)
    layout = call.text("data_format", "NDHWC")
    axes = (1, 2, 3) if layout == "NDHWC" else (2, 3, 4)
    kernel = _known_sizes(call, 1)
    stride, dilation = (
        tuple((call.integer_list(name) or (1,) * 5)[axis] for axis in axes)
        for name in ("strides", "dilations")
    )
    sides = _volume_pads(call, axes, kernel[:3], stride, dilation)
    channels = x.type.shape[4 if layout == "NDHWC" else 1]
    if layout == "NDHWC":
        x = call.add("transpose", {"x": x}, {"perm": (0, 4, 1, 2, 3)})
    if not isinstance(channels, int):
        raise KeepNode("the number of its channels is not known")
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": sides,
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
        x, where = call[0], image_layout(call)
        kernel, stride = where.sides(call, "ksize"), where.sides(call, "strides")
        sizes = [x.type.shape[axis] for axis in where.axes]
        attrs: dict[str, Attr] = {
            "kernel": kernel,
            "stride": stride,
            "pad": explicit_pads(call, where, sizes, kernel, stride),
            "layout": where.layout,
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
    "Conv3DBackpropInputV2": _transposed_conv3d,
    "MaxPool": _pool2d("max_pool2d"),
    "AvgPool": _pool2d("avg_pool2d"),
    "MaxPool3D": _pool3d("max_pool3d"),
    "AvgPool3D": _pool3d("avg_pool3d"),
}
