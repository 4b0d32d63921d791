"""Writes float convolutions, pools and matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np

from qir.ir.node import Node, Value
from qir.profiles import dequantize_by_profile, profile

from . import simulated
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
    each = zip(sizes, kernel, stride, dilation or (1,) * axes, before, after, strict=True)
    if all(_is_same_padding(*of_axis) for of_axis in each):
        return {"padding": "SAME"}
    sides = [side for pair in zip(before, after, strict=True) for side in pair]
    return {"padding": "EXPLICIT", "explicit_paddings": (0, 0, *sides, 0, 0)}


def _is_same_padding(
    size: object, kernel: int, stride: int, dilation: int, before: int, after: int
) -> bool:
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
    made, rank = w.tensor(x), x.type.rank
    return made if _is_nhwc(n) else transposed(w, made, (0, *range(2, rank), 1), x, n.name)


def from_nhwc(w: GraphNodes, n: Node, made: str, value: Value) -> str:
    """Returns a result in the layout that the op states."""
    rank = value.type.rank
    perm = (0, rank - 1, *range(1, rank - 1))
    return made if _is_nhwc(n) else transposed(w, made, perm, value, n.name)


def is_depthwise(groups: int, weights: Sequence[int]) -> bool:
    """Returns whether each channel has filters of its own."""
    return groups > 1 and weights[1] == 1


def tensorflow_filters(data: np.ndarray, groups: int) -> tuple[np.ndarray, bool]:
    """Returns constant filters in TensorFlow's axis order, and whether they are depthwise.

    Other groups become one convolution, with zeros between the groups.
    """
    outer, inner, *window = data.shape
    if is_depthwise(groups, data.shape):
        each = data.reshape(groups, outer // groups, *window)
        return np.ascontiguousarray(each.transpose(2, 3, 0, 1)), True
    if groups > 1:
        wide = np.zeros((outer, inner * groups, *window), data.dtype)
        for g in range(groups):
            rows = slice(g * outer // groups, (g + 1) * outer // groups)
            wide[rows, g * inner : (g + 1) * inner] = data[rows]
        data = wide
    return np.ascontiguousarray(data.transpose(2, 3, 1, 0)), False


def constant_weights(n: Node, value: Value) -> np.ndarray:
    """Returns weights that are constant, or a dequantized constant; raises Refused for others."""
    x = value.node.operands.get("x") if value.node.op == "dequantize" else None
    if x is not None and x.constant is not None and x.type.quant is not None:
        return dequantize_by_profile(profile(n.profile or PROFILE), x.constant.data, x.type.quant)
    value = simulated.quantized_source(value) or value
    if value.constant is None:
        raise refusal(n, "TensorFlow's filters are written as constants, these are computed")
    return np.asarray(value.constant.data)


def filter_constant(w: GraphNodes, n: Node, value: Value, data: np.ndarray) -> str:
    """Adds constant filters, with the FakeQuant op of their type if there is one."""
    made = w.constant(data, type_attr(value).name, value.name)
    if simulated.quantized_source(value) is None:
        return made
    quant = value.node.operands["x"].type.quant
    assert quant is not None
    if not w.simulates:
        raise refusal(n, "its weights are quantized while it runs; fold constants first")
    whole = quant.axis == 0 and value.type.shape[0] == data.shape[-1]
    axis = data.ndim - 1 if whole else None
    return simulated.write(w, value.node, made, quant, axis, data.ndim)


def _conv2d(w: GraphNodes, n: Node) -> str:
    x, weight, groups = n.operands["x"], n.operands["w"], int(number(n, "groups"))
    data, deep = tensorflow_filters(constant_weights(n, weight), groups)
    stride, dilation = int_tuple(n, "stride"), int_tuple(n, "dilation")
    attrs: dict[str, Attr] = {
        "T": type_attr(x),
        "strides": (1, *stride, 1),
        "dilations": (1, *dilation, 1),
        "data_format": "NHWC",
        **padding(spatial_sizes(n, x), data.shape[:2], stride, int_tuple(n, "pad"), dilation),
    }
    if deep and stride[0] != stride[1]:
        raise refusal(n, "TensorFlow's depthwise convolution has one stride for both axes")
    image = to_nhwc(w, n, x)
    if deep and attrs["padding"] == "EXPLICIT":  # its fusion with a bias aborts on these
        image = padded(w, n, image, x, int_tuple(n, "pad"))
        del attrs["explicit_paddings"]
        attrs["padding"] = "VALID"
    given = (image, filter_constant(w, n, weight, data))
    made = w.add("DepthwiseConv2dNative" if deep else "Conv2D", given, n.name, **attrs)
    if bias := n.operands.get("bias"):
        made = w.add("BiasAdd", (made, w.tensor(bias)), n.name, T=type_attr(x), data_format="NHWC")
    return from_nhwc(w, n, made, n.result)


def padded(
    w: GraphNodes, n: Node, image: str, x: Value, pad: Sequence[int], value: float = 0
) -> str:
    """Adds a value, zero as a rule, around images or volumes whose channels are last."""
    axes = len(pad) // 2
    rows = np.asarray([[0, 0], *zip(pad[:axes], pad[axes:], strict=True), [0, 0]], np.int32)
    return w.add("PadV2", (image, w.constant(rows), scalar(w, value, x)), n.name, T=type_attr(x))


def _conv1d(w: GraphNodes, n: Node) -> str:
    """Returns one row of an image: [batch, channels, width] is [batch, 1, width, channels]."""
    x, weight = n.operands["x"], n.operands["w"]
    held = constant_weights(n, weight)[:, :, None]
    data, deep = tensorflow_filters(held, int(number(n, "groups")))
    (stride,), (dilation,) = int_tuple(n, "stride"), int_tuple(n, "dilation")
    before, after = int_tuple(n, "pad")
    image = transposed(w, w.tensor(x), (0, 2, 1), x, n.name)
    image = w.add("ExpandDims", (image, w.int_constant([1])), n.name, T=type_attr(x))
    steps = (stride, stride) if deep else (1, stride)
    attrs: dict[str, Attr] = {
        "T": type_attr(x),
        "strides": (1, *steps, 1),
        "dilations": (1, 1, dilation, 1),
        **padding((1, None), data.shape[:2], steps, (0, before, 0, after), (1, dilation)),
    }
    given = (image, filter_constant(w, n, weight, data))
    made = w.add("DepthwiseConv2dNative" if deep else "Conv2D", given, n.name, **attrs)
    if bias := n.operands.get("bias"):
        made = w.add("BiasAdd", (made, w.tensor(bias)), n.name, T=type_attr(x))
    made = w.add("Squeeze", (made,), n.name, T=type_attr(x), squeeze_dims=(1,))
    return transposed(w, made, (0, 2, 1), n.result, n.name)


def _max_pool(op: str) -> Write:
    def write(w: GraphNodes, n: Node) -> str:
        x, kernel, stride = n.operands["x"], int_tuple(n, "kernel"), int_tuple(n, "stride")
        if any(step != 1 for step in int_tuple(n, "dilation")):
            raise refusal(n, "TensorFlow's pools have no dilation")
        pad, given = _pads(n, x), to_nhwc(w, n, x)
        pads = padding(spatial_sizes(n, x), kernel, stride, pad)
        if pads["padding"] == "EXPLICIT" and len(kernel) > 2:  # MaxPool alone takes these
            given, pads = padded(w, n, given, x, pad, -math.inf), {"padding": "VALID"}
        sides: dict[str, Attr] = {"ksize": (1, *kernel, 1), "strides": (1, *stride, 1)}
        made = w.add(op, (given,), n.name, T=type_attr(x), **sides, **pads)
        return from_nhwc(w, n, made, n.result)

    return write


def _pads(n: Node, x: Value) -> tuple[int, ...]:
    """Returns the padding, with what a rounded up size of the result adds at the end."""
    pad, kernel, stride = list(int_tuple(n, "pad")), int_tuple(n, "kernel"), int_tuple(n, "stride")
    if n.attrs["ceil"]:
        for i, (size, made) in enumerate(
            zip(spatial_sizes(n, x), spatial_sizes(n, n.result), strict=True)
        ):
            if not isinstance(size, int) or not isinstance(made, int):
                if n.op.startswith("avg") or pad[i + len(kernel)] or stride[i] > kernel[i]:
                    raise refusal(n, f"sizes that are rounded up {NEED_SIZES}")
                pad[i + len(kernel)] = stride[i] - 1  # a window more wherever one is left
                continue
            more = (made - 1) * stride[i] + kernel[i] - size - pad[i]
            pad[i + len(kernel)] = max(pad[i + len(kernel)], more)
    return tuple(pad)


def _avg_pool(op: str) -> Write:
    def write(w: GraphNodes, n: Node) -> str:
        x, kernel, stride = n.operands["x"], int_tuple(n, "kernel"), int_tuple(n, "stride")
        pad, given = _pads(n, x), to_nhwc(w, n, x)
        sides: dict[str, Attr] = {"ksize": (1, *kernel, 1), "strides": (1, *stride, 1)}
        pads = padding(spatial_sizes(n, x), kernel, stride, pad)
        apart = pads["padding"] == "EXPLICIT" or (any(pad) and n.attrs["count_pad"])
        if apart:
            given, pads = padded(w, n, given, x, pad), {"padding": "VALID"}
        made = w.add(op, (given,), n.name, T=type_attr(x), **sides, **pads)
        if apart:
            counts = reduce(np.multiply.outer, [_counted(n, x, i) for i in range(len(kernel))])
            factor = (math.prod(kernel) / counts).astype(x.type.dtype.carrier)
            if np.any(factor != 1):
                by = w.constant(factor[None, ..., None], type_attr(x).name)
                made = binary(w, "Mul", made, by, x, n.name)
        return from_nhwc(w, n, made, n.result)

    return write


def _counted(n: Node, x: Value, axis: int) -> np.ndarray:
    """Returns how many elements along an axis each window of an average pool counts."""
    size, made = spatial_sizes(n, x)[axis], spatial_sizes(n, n.result)[axis]
    if not isinstance(size, int) or not isinstance(made, int):
        raise refusal(n, f"an average pool with padding {NEEDS_SIZES}")
    pad, kernel, stride = int_tuple(n, "pad"), int_tuple(n, "kernel"), int_tuple(n, "stride")
    low, high = (-pad[axis], size + pad[axis + len(kernel)]) if n.attrs["count_pad"] else (0, size)
    starts = np.arange(made) * stride[axis] - pad[axis]
    ends = np.minimum(starts + kernel[axis], high)
    return np.asarray(ends - np.maximum(starts, low), np.float64)


def _global(op: str) -> Write:
    def write(w: GraphNodes, n: Node) -> str:
        x = n.operands["x"]
        rank = x.type.rank
        axes = range(1, rank - 1) if n.attrs["layout"] == "NHWC" else range(2, rank)
        given = (w.tensor(x), w.int_constant(list(axes)))
        return w.add(op, given, n.name, T=type_attr(x), keep_dims=True)

    return write


def _product(w: GraphNodes, n: Node, a: Value, b: Value, *, left: bool, right: bool) -> str:
    """Returns a product of matrices, or of stacks of them, which may be transposed."""
    given = (w.tensor(a), w.tensor(b))
    if a.type.rank == b.type.rank == 2:
        turned = {"transpose_a": left, "transpose_b": right}
        return w.add("MatMul", given, n.name, T=type_attr(a), **turned)
    if 1 in (a.type.rank, b.type.rank):
        raise refusal(n, "a product with a vector is not written; reshape it to a matrix")
    return w.add("BatchMatMulV2", given, n.name, T=type_attr(a), adj_x=left, adj_y=right)


def _matmul(w: GraphNodes, n: Node) -> str:
    a, b = n.operands["a"], n.operands["b"]
    left, right = bool(n.attrs["trans_a"]), bool(n.attrs["trans_b"])
    return _biased(w, n, _product(w, n, a, b, left=left, right=right), n.operands.get("bias"))


def _gemm(w: GraphNodes, n: Node) -> str:
    a, b, c = n.operands["a"], n.operands["b"], n.operands.get("c")
    left, right = bool(n.attrs["trans_a"]), bool(n.attrs["trans_b"])
    made = _product(w, n, a, b, left=left, right=right)
    alpha, beta = number(n, "alpha"), number(n, "beta")
    if alpha != 1:
        made = binary(w, "Mul", made, scalar(w, alpha, a), a, n.name)
    if c is None:
        return made
    add = w.tensor(c) if beta == 1 else binary(w, "Mul", w.tensor(c), scalar(w, beta, a), a, n.name)
    return binary(w, "AddV2", made, add, a, n.name)


def _linear(w: GraphNodes, n: Node) -> str:
    made = _product(w, n, n.operands["x"], n.operands["w"], left=False, right=True)
    return _biased(w, n, made, n.operands.get("bias"))


def _biased(w: GraphNodes, n: Node, made: str, bias: Value | None) -> str:
    return made if bias is None else binary(w, "AddV2", made, w.tensor(bias), n.result, n.name)


def _softmax(w: GraphNodes, n: Node) -> str:
    op = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}[n.op]
    x, axis = n.operands["x"], int(number(n, "axis"))
    rank = x.type.rank
    axis %= rank
    if axis == rank - 1:
        return unary(w, op, w.tensor(x), x, n.name)
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    made = unary(w, op, transposed(w, w.tensor(x), perm, x, n.name), x, n.name)
    return transposed(w, made, perm, x, n.name)


OPS: Mapping[str, Write] = {
    "conv2d": _conv2d,
    "conv1d": _conv1d,
    "max_pool2d": _max_pool("MaxPool"),
    "max_pool3d": _max_pool("MaxPool3D"),
    "avg_pool2d": _avg_pool("AvgPool"),
    "avg_pool3d": _avg_pool("AvgPool3D"),
    "global_avg_pool": _global("Mean"),
    "global_max_pool": _global("Max"),
    "matmul": _matmul,
    "gemm": _gemm,
    "linear": _linear,
    "softmax": _softmax,
    "log_softmax": _softmax,
}
