"""Writes float convolutions, pools and matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np

from qir.ir.node import Node, Value
from qir.profiles import dequantize_by_profile, library_of

from . import fake_quantize
from .elementwise import binary, number, scalar, unary
from .moves import transposed
from .nodes import PROFILE, GraphNodes, refusal, type_attr
from .wire import Attr

Write = Callable[[GraphNodes, Node], str]
NEED_SIZES = "need the size of the image; give it with --shape"
NEEDS_SIZES = NEED_SIZES.replace("need", "needs", 1)


def int_tuple(n: Node, name: str) -> tuple[int, ...]:
    """Returns an attribute of integers."""
    value = n.attrs[name]
    assert isinstance(value, tuple)
    return tuple(int(each) for each in value)  # type: ignore[arg-type]


def padding(
    sizes: Sequence[object],
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int] = (),
) -> dict[str, Attr]:
    """Returns the padding attributes of windows over NHWC data."""
    if not any(pad):
        return {"padding": "VALID"}
    axes = len(kernel)
    before, after = pad[:axes], pad[axes:]
    # SAME pads so that the output has ceil(size / stride) elements, the odd one at the end.
    axes_values = zip(sizes, kernel, stride, dilation or (1,) * axes, before, after, strict=True)
    if all(_is_same_padding(*of_axis) for of_axis in axes_values):
        return {"padding": "SAME"}
    sides = [side for pair in zip(before, after, strict=True) for side in pair]
    return {"padding": "EXPLICIT", "explicit_paddings": (0, 0, *sides, 0, 0)}


def _is_same_padding(
    size: object, kernel: int, stride: int, dilation: int, before: int, after: int
) -> bool:
    # A dilated kernel spans (kernel - 1) * dilation + 1 elements.
    span = (kernel - 1) * dilation + 1
    if isinstance(size, int):
        total = max((-(-size // stride) - 1) * stride + span - size, 0)
    elif stride == 1:
        total = span - 1
    else:
        return False
    return before == total // 2 and after == total - before


def spatial_sizes(n: Node, x: Value) -> tuple[object, ...]:
    """Returns the sizes of images or volumes without batch and channels."""
    shape = x.type.shape
    return tuple(shape[1:-1] if _is_nhwc(n) else shape[2:])


def _is_nhwc(n: Node) -> bool:
    """Returns whether channels are the last axis; ops on volumes have no layout attribute."""
    return n.attrs.get("layout") == "NHWC"


def to_nhwc(w: GraphNodes, n: Node, x: Value) -> str:
    """Returns an operand with channels last."""
    tensor, rank = w.tensor(x), x.type.rank
    return tensor if _is_nhwc(n) else transposed(w, tensor, (0, *range(2, rank), 1), x, n.name)


def from_nhwc(w: GraphNodes, n: Node, tensor: str, value: Value) -> str:
    """Returns a result in the layout that the op states."""
    rank = value.type.rank
    perm = (0, rank - 1, *range(1, rank - 1))
    return tensor if _is_nhwc(n) else transposed(w, tensor, perm, value, n.name)


def is_depthwise(groups: int, weights: Sequence[int]) -> bool:
    """Returns whether each channel has filters of its own."""
    return groups > 1 and weights[1] == 1


def tensorflow_filters(data: np.ndarray, groups: int) -> tuple[np.ndarray, bool]:
    """Returns constant filters in TensorFlow's axis order, and whether they are depthwise.

    Other groups become one convolution, with zeros between the groups.
    """
    outer, inner, *window = data.shape
    # Depthwise filters are [height, width, channels, multiplier].
    if is_depthwise(groups, data.shape):
        by_group = data.reshape(groups, outer // groups, *window)
        return np.ascontiguousarray(by_group.transpose(2, 3, 0, 1)), True
    if groups > 1:
        expanded = np.zeros((outer, inner * groups, *window), data.dtype)
        for g in range(groups):
            group_rows = slice(g * outer // groups, (g + 1) * outer // groups)
            expanded[group_rows, g * inner : (g + 1) * inner] = data[group_rows]
        data = expanded
    return np.ascontiguousarray(data.transpose(2, 3, 1, 0)), False


def constant_weights(n: Node, value: Value) -> np.ndarray:
    """Returns weights that are constant, or a dequantized constant; raises Refused for others."""
    # Filters that the graph dequantizes are computed here, as the profile dequantizes them.
    x = value.node.operands.get("x") if value.node.op == "dequantize" else None
    if x is not None and x.constant is not None and x.type.quant is not None:
        rules = library_of(n.graph).find(n.profile or PROFILE)
        return dequantize_by_profile(rules, x.constant.data, x.type.quant)
    value = fake_quantize.quantized_source(value) or value
    if value.constant is None:
        raise refusal(n, "TensorFlow's filters are written as constants, these are computed")
    return np.asarray(value.constant.data)


def filter_constant(w: GraphNodes, n: Node, value: Value, data: np.ndarray) -> str:
    """Adds constant filters, with the FakeQuant op of their type if there is one."""
    constant = w.constant(data, type_attr(value).name, value.name)
    if fake_quantize.quantized_source(value) is None:
        return constant
    quant = value.node.operands["x"].type.quant
    assert quant is not None
    if not w.simulates:
        raise refusal(n, "its weights are quantized while it runs; fold constants first")
    # The scales' axis of results is the last one in TensorFlow's order of axes.
    has_channel_scales = quant.axis == 0 and value.type.shape[0] == data.shape[-1]
    axis = data.ndim - 1 if has_channel_scales else None
    return fake_quantize.write(w, value.node, constant, quant, axis, data.ndim)


def _conv2d(w: GraphNodes, n: Node) -> str:
    x, weight, groups = n.operands["x"], n.operands["w"], int(number(n, "groups"))
    data, depthwise = tensorflow_filters(constant_weights(n, weight), groups)
    stride, dilation = int_tuple(n, "stride"), int_tuple(n, "dilation")
    attrs: dict[str, Attr] = {
        "T": type_attr(x),
        "strides": (1, *stride, 1),
        "dilations": (1, *dilation, 1),
        "data_format": "NHWC",
        **padding(spatial_sizes(n, x), data.shape[:2], stride, int_tuple(n, "pad"), dilation),
    }
    if depthwise and stride[0] != stride[1]:
        raise refusal(n, "TensorFlow's depthwise convolution has one stride for both axes")
    image = to_nhwc(w, n, x)
    if depthwise and attrs["padding"] == "EXPLICIT":  # its fusion with a bias aborts on these
        image = padded(w, n, image, x, int_tuple(n, "pad"))
        del attrs["explicit_paddings"]
        attrs["padding"] = "VALID"
    inputs = (image, filter_constant(w, n, weight, data))
    product = w.add("DepthwiseConv2dNative" if depthwise else "Conv2D", inputs, n.name, **attrs)
    if bias := n.operands.get("bias"):
        product = w.add(
            "BiasAdd", (product, w.tensor(bias)), n.name, T=type_attr(x), data_format="NHWC"
        )
    return from_nhwc(w, n, product, n.result)


def padded(
    w: GraphNodes, n: Node, image: str, x: Value, pad: Sequence[int], value: float = 0
) -> str:
    """Adds a value, zero as a rule, around images or volumes whose channels are last."""
    axes = len(pad) // 2
    paddings = np.asarray([[0, 0], *zip(pad[:axes], pad[axes:], strict=True), [0, 0]], np.int32)
    return w.add(
        "PadV2", (image, w.constant(paddings), scalar(w, value, x)), n.name, T=type_attr(x)
    )


def _conv1d(w: GraphNodes, n: Node) -> str:
    """Returns one row of an image: [batch, channels, width] is [batch, 1, width, channels]."""
    x, weight = n.operands["x"], n.operands["w"]
    image_weights = constant_weights(n, weight)[:, :, None]
    data, depthwise = tensorflow_filters(image_weights, int(number(n, "groups")))
    (stride,), (dilation,) = int_tuple(n, "stride"), int_tuple(n, "dilation")
    before, after = int_tuple(n, "pad")
    image = transposed(w, w.tensor(x), (0, 2, 1), x, n.name)
    image = w.add("ExpandDims", (image, w.int_constant([1])), n.name, T=type_attr(x))
    # DepthwiseConv2dNative has one stride for both axes; along an axis of size 1 it does not
    # matter.
    steps = (stride, stride) if depthwise else (1, stride)
    attrs: dict[str, Attr] = {
        "T": type_attr(x),
        "strides": (1, *steps, 1),
        "dilations": (1, 1, dilation, 1),
        **padding((1, None), data.shape[:2], steps, (0, before, 0, after), (1, dilation)),
    }
    inputs = (image, filter_constant(w, n, weight, data))
    product = w.add("DepthwiseConv2dNative" if depthwise else "Conv2D", inputs, n.name, **attrs)
    if bias := n.operands.get("bias"):
        product = w.add("BiasAdd", (product, w.tensor(bias)), n.name, T=type_attr(x))
    product = w.add("Squeeze", (product,), n.name, T=type_attr(x), squeeze_dims=(1,))
    return transposed(w, product, (0, 2, 1), n.result, n.name)


def _max_pool(op: str) -> Write:
    def write(w: GraphNodes, n: Node) -> str:
        x, kernel, stride = n.operands["x"], int_tuple(n, "kernel"), int_tuple(n, "stride")
        if any(step != 1 for step in int_tuple(n, "dilation")):
            raise refusal(n, "TensorFlow's pools have no dilation")
        pad, image = _pads(n, x), to_nhwc(w, n, x)
        pads = padding(spatial_sizes(n, x), kernel, stride, pad)
        if pads["padding"] == "EXPLICIT" and len(kernel) > 2:  # MaxPool alone takes these
            image, pads = padded(w, n, image, x, pad, -math.inf), {"padding": "VALID"}
        window: dict[str, Attr] = {"ksize": (1, *kernel, 1), "strides": (1, *stride, 1)}
        pooled = w.add(op, (image,), n.name, T=type_attr(x), **window, **pads)
        return from_nhwc(w, n, pooled, n.result)

    return write


def _pads(n: Node, x: Value) -> tuple[int, ...]:
    """Returns the padding, with what a rounded up size of the result adds at the end."""
    pad, kernel, stride = list(int_tuple(n, "pad")), int_tuple(n, "kernel"), int_tuple(n, "stride")
    if n.attrs["ceil"]:
        # The last window's end gives the padding that the rounded up size needs.
        for i, (size, output) in enumerate(
            zip(spatial_sizes(n, x), spatial_sizes(n, n.result), strict=True)
        ):
            if not isinstance(size, int) or not isinstance(output, int):
                if n.op.startswith("avg") or pad[i + len(kernel)] or stride[i] > kernel[i]:
                    raise refusal(n, f"sizes that are rounded up {NEED_SIZES}")
                pad[i + len(kernel)] = stride[i] - 1  # a window more wherever one is left
                continue
            needed = (output - 1) * stride[i] + kernel[i] - size - pad[i]
            pad[i + len(kernel)] = max(pad[i + len(kernel)], needed)
    return tuple(pad)


def _avg_pool(op: str) -> Write:
    def write(w: GraphNodes, n: Node) -> str:
        x, kernel, stride = n.operands["x"], int_tuple(n, "kernel"), int_tuple(n, "stride")
        pad, image = _pads(n, x), to_nhwc(w, n, x)
        window: dict[str, Attr] = {"ksize": (1, *kernel, 1), "strides": (1, *stride, 1)}
        pads = padding(spatial_sizes(n, x), kernel, stride, pad)
        pads_before = pads["padding"] == "EXPLICIT" or (any(pad) and n.attrs["count_pad"])
        if pads_before:
            image, pads = padded(w, n, image, x, pad), {"padding": "VALID"}
        pooled = w.add(op, (image,), n.name, T=type_attr(x), **window, **pads)
        # AvgPool divides by the whole window here; the factor restores the number of counted
        # elements.
        if pads_before:
            counts = reduce(
                np.multiply.outer, [_counted_elements(n, x, i) for i in range(len(kernel))]
            )
            factor = (math.prod(kernel) / counts).astype(x.type.dtype.carrier)
            if np.any(factor != 1):
                factors = w.constant(factor[None, ..., None], type_attr(x).name)
                pooled = binary(w, "Mul", pooled, factors, x, n.name)
        return from_nhwc(w, n, pooled, n.result)

    return write


def _counted_elements(n: Node, x: Value, axis: int) -> np.ndarray:
    """Returns how many elements along an axis each window of an average pool counts."""
    size, output = spatial_sizes(n, x)[axis], spatial_sizes(n, n.result)[axis]
    if not isinstance(size, int) or not isinstance(output, int):
        raise refusal(n, f"an average pool with padding {NEEDS_SIZES}")
    pad, kernel, stride = int_tuple(n, "pad"), int_tuple(n, "kernel"), int_tuple(n, "stride")
    # With count_pad, padding counts, but not what a rounded up size reads beyond it.
    first_counted, end_counted = (
        (-pad[axis], size + pad[axis + len(kernel)]) if n.attrs["count_pad"] else (0, size)
    )
    starts = np.arange(output) * stride[axis] - pad[axis]
    ends = np.minimum(starts + kernel[axis], end_counted)
    return np.asarray(ends - np.maximum(starts, first_counted), np.float64)


def _global_pool(op: str) -> Write:
    def write(w: GraphNodes, n: Node) -> str:
        x = n.operands["x"]
        rank = x.type.rank
        axes = range(1, rank - 1) if n.attrs["layout"] == "NHWC" else range(2, rank)
        inputs = (w.tensor(x), w.int_constant(list(axes)))
        return w.add(op, inputs, n.name, T=type_attr(x), keep_dims=True)

    return write


def _product(
    w: GraphNodes, n: Node, a: Value, b: Value, *, transpose_a: bool, transpose_b: bool
) -> str:
    """Returns a product of matrices, or of stacks of them, which may be transposed."""
    inputs = (w.tensor(a), w.tensor(b))
    if a.type.rank == b.type.rank == 2:
        transposes = {"transpose_a": transpose_a, "transpose_b": transpose_b}
        return w.add("MatMul", inputs, n.name, T=type_attr(a), **transposes)
    if 1 in (a.type.rank, b.type.rank):
        raise refusal(n, "a product with a vector is not written; reshape it to a matrix")
    return w.add(
        "BatchMatMulV2", inputs, n.name, T=type_attr(a), adj_x=transpose_a, adj_y=transpose_b
    )


def _matmul(w: GraphNodes, n: Node) -> str:
    a, b = n.operands["a"], n.operands["b"]
    transpose_a, transpose_b = bool(n.attrs["trans_a"]), bool(n.attrs["trans_b"])
    return _biased(
        w,
        n,
        _product(w, n, a, b, transpose_a=transpose_a, transpose_b=transpose_b),
        n.operands.get("bias"),
    )


def _gemm(w: GraphNodes, n: Node) -> str:
    a, b, c = n.operands["a"], n.operands["b"], n.operands.get("c")
    transpose_a, transpose_b = bool(n.attrs["trans_a"]), bool(n.attrs["trans_b"])
    product = _product(w, n, a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    alpha, beta = number(n, "alpha"), number(n, "beta")
    if alpha != 1:
        product = binary(w, "Mul", product, scalar(w, alpha, a), a, n.name)
    if c is None:
        return product
    addend = (
        w.tensor(c) if beta == 1 else binary(w, "Mul", w.tensor(c), scalar(w, beta, a), a, n.name)
    )
    return binary(w, "AddV2", product, addend, a, n.name)


def _linear(w: GraphNodes, n: Node) -> str:
    product = _product(w, n, n.operands["x"], n.operands["w"], transpose_a=False, transpose_b=True)
    return _biased(w, n, product, n.operands.get("bias"))


def _biased(w: GraphNodes, n: Node, product: str, bias: Value | None) -> str:
    return (
        product if bias is None else binary(w, "AddV2", product, w.tensor(bias), n.result, n.name)
    )


def _softmax(w: GraphNodes, n: Node) -> str:
    op = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}[n.op]
    x, axis = n.operands["x"], int(number(n, "axis"))
    rank = x.type.rank
    axis %= rank
    if axis == rank - 1:
        return unary(w, op, w.tensor(x), x, n.name)
    # Softmax works on the last axis: swap it there and back.
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    result = unary(w, op, transposed(w, w.tensor(x), perm, x, n.name), x, n.name)
    return transposed(w, result, perm, x, n.name)


def _lrn(w: GraphNodes, n: Node) -> str:
    x, size = n.operands["x"], int(number(n, "size"))
    if x.type.rank != 4 or size % 2 == 0:
        reason = "TensorFlow's LRN has as many channels before as after, of images of four axes"
        raise refusal(n, f"{reason}; write ONNX")
    attrs: dict[str, Attr] = {
        "T": type_attr(x),
        "depth_radius": size // 2,
        "bias": number(n, "bias"),
        "alpha": number(n, "alpha") / size,  # TensorFlow does not divide the sum of squares
        "beta": number(n, "beta"),
    }
    image = transposed(w, w.tensor(x), (0, 2, 3, 1), x, n.name)
    normalized = w.add("LRN", (image,), n.name, **attrs)
    return transposed(w, normalized, (0, 3, 1, 2), n.result, n.name)


OPS: Mapping[str, Write] = {
    "conv2d": _conv2d,
    "lrn": _lrn,
    "conv1d": _conv1d,
    "max_pool2d": _max_pool("MaxPool"),
    "max_pool3d": _max_pool("MaxPool3D"),
    "avg_pool2d": _avg_pool("AvgPool"),
    "avg_pool3d": _avg_pool("AvgPool3D"),
    "global_avg_pool": _global_pool("Mean"),
    "global_max_pool": _global_pool("Max"),
    "matmul": _matmul,
    "gemm": _gemm,
    "linear": _linear,
    "softmax": _softmax,
    "log_softmax": _softmax,
}
