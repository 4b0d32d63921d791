"""Convolutions of volumes, and transposed convolutions, on floats as TensorFlow's ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qir.ir.node import Node, Value

from .elementwise import binary, number
from .layers import (
    constant_weights,
    filter_constant,
    from_nhwc,
    int_tuple,
    padded,
    padding,
    spatial_sizes,
    to_nhwc,
)
from .moves import one_size
from .nodes import GraphNodes, refusal, type_attr
from .wire import Attr, TypeAttr

Write = Callable[[GraphNodes, Node], str]


def _filters(n: Node) -> np.ndarray:
    """Returns constant filters as TensorFlow has them, the first two axes last and exchanged.

    Its kernels for CPUs have neither groups nor dilation here: zeros take the places between.
    """
    data, groups = constant_weights(n, n.operands["w"]), int(number(n, "groups"))
    dilation = int_tuple(n, "dilation")
    outer, inner, *window = data.shape
    # A dilated kernel spans (size - 1) * dilation + 1 elements, zeros in between.
    spans = [(size - 1) * step + 1 for size, step in zip(window, dilation, strict=True)]
    expanded = np.zeros((outer, inner * groups, *spans), data.dtype)
    taps = [slice(None, None, step) for step in dilation]
    # Grouped filters become block diagonal ones.
    for g in range(groups):
        group_rows = slice(g * outer // groups, (g + 1) * outer // groups)
        expanded[(group_rows, slice(g * inner, (g + 1) * inner), *taps)] = data[group_rows]
    return np.ascontiguousarray(expanded.transpose(*range(2, expanded.ndim), 1, 0))


def _biased(w: GraphNodes, n: Node, product: str) -> str:
    bias = n.operands.get("bias")
    return (
        product if bias is None else binary(w, "AddV2", product, w.tensor(bias), n.result, n.name)
    )


def _conv3d(w: GraphNodes, n: Node) -> str:
    x, data, stride, pad = n.operands["x"], _filters(n), int_tuple(n, "stride"), int_tuple(n, "pad")
    data_tensor, pads = to_nhwc(w, n, x), padding(spatial_sizes(n, x), data.shape[:3], stride, pad)
    # Conv3D has no explicit padding: a Pad comes before it.
    if pads["padding"] == "EXPLICIT":
        data_tensor, pads = padded(w, n, data_tensor, x, pad), {"padding": "VALID"}
    weights = filter_constant(w, n, n.operands["w"], data)
    attrs: dict[str, Attr] = {"T": type_attr(x), "strides": (1, *stride, 1), **pads}
    product = w.add("Conv3D", (data_tensor, weights), n.name, **attrs)
    return from_nhwc(w, n, _biased(w, n, product), n.result)


def _transposed(op: str) -> Write:
    """Returns what writes the gradient of a convolution, which a transposed one is.

    The padding of the convolution cuts its gradient: SAME, or a slice of that of VALID.
    """

    def write(w: GraphNodes, n: Node) -> str:
        x, data, stride, pad = (
            n.operands["x"],
            _filters(n),
            int_tuple(n, "stride"),
            int_tuple(n, "pad"),
        )
        axes, output_pad = len(stride), int_tuple(n, "output_pad")
        if any(m >= s for m, s in zip(output_pad, stride, strict=True)):
            raise refusal(n, f"TensorFlow has no output_pad {output_pad} with stride {stride}")
        pads = padding(spatial_sizes(n, n.result), data.shape[:axes], stride, pad)
        needs_slice = pads["padding"] == "EXPLICIT"
        addends = [span - s + m for span, s, m in zip(data.shape, stride, output_pad, strict=False)]
        if not needs_slice:
            addends = [m - pad[i] - pad[i + axes] for i, m in enumerate(addends)]
        shape = _result_sizes(w, n, x, stride, addends, data.shape[-2])
        weights = filter_constant(w, n, n.operands["w"], data)
        attrs: dict[str, Attr] = {"T": type_attr(x), "strides": (1, *stride, 1)}
        attrs["padding"] = "VALID" if needs_slice else pads["padding"]
        if axes == 3:
            attrs["Tshape"] = TypeAttr("int32")
        gradient = w.add(op, (shape, weights, to_nhwc(w, n, x)), n.name, **attrs)
        if needs_slice:
            gradient = _slice_padding_off(w, n, gradient, pad)
        return from_nhwc(w, n, _biased(w, n, gradient), n.result)

    return write


def _result_sizes(
    w: GraphNodes, n: Node, x: Value, stride: Sequence[int], addends: Sequence[int], channels: int
) -> str:
    """Returns the sizes of a result, channels last: each is a size of the data by its stride, and
    more; those of open sizes are computed."""
    batch, _, *sizes = x.type.shape
    # Each size is size * stride + addend; open ones are computed from the shape of the data.
    terms = list(zip((batch, *sizes), (1, *stride), (0, *addends), strict=True))
    known = [size * factor + addend for size, factor, addend in terms if isinstance(size, int)]
    if len(known) == len(terms):
        return w.int_constant([*known, channels])
    shape_tensor = w.add(
        "Shape", (w.tensor(x),), n.name, T=type_attr(x), out_type=TypeAttr("int32")
    )
    sizes_made: list[str] = []
    for i, (size, factor, addend) in enumerate(terms):
        if isinstance(size, int):
            sizes_made.append(w.constant(np.asarray(size * factor + addend, np.int32)))
            continue
        size_tensor = one_size(w, n, shape_tensor, i + (i > 0))
        for op, operand, neutral in (("Mul", factor, 1), ("AddV2", addend, 0)):
            if operand != neutral:
                inputs = (size_tensor, w.constant(np.asarray(operand, np.int32)))
                size_tensor = w.add(op, inputs, n.name, T=TypeAttr("int32"))
        sizes_made.append(size_tensor)
    sizes_made.append(w.constant(np.asarray(channels, np.int32)))
    return w.add("Pack", sizes_made, n.name, N=len(sizes_made), T=TypeAttr("int32"), axis=0)


def _slice_padding_off(w: GraphNodes, n: Node, tensor: str, pad: Sequence[int]) -> str:
    """Takes away what the padding covers, from both ends of each axis."""
    # StridedSlice: begin at the padding, end before it; an end of 0 means the end of the axis.
    axes = len(pad) // 2
    slice_lists = (
        (0, *pad[:axes], 0),
        (0, *(-pad_after for pad_after in pad[axes:]), 0),
        (1,) * (axes + 2),
    )
    open_ends = sum(1 << (i + 1) for i, pad_after in enumerate(pad[axes:]) if not pad_after)
    end_mask = 1 | open_ends | 1 << (axes + 1)
    attrs: dict[str, Attr] = {
        "T": type_attr(n.result),
        "Index": TypeAttr("int32"),
        "end_mask": end_mask,
    }
    return w.add(
        "StridedSlice",
        (tensor, *(w.int_constant(slice_list) for slice_list in slice_lists)),
        n.name,
        **attrs,
    )


OPS: Mapping[str, Write] = {
    "conv3d": _conv3d,
    "conv_transpose2d": _transposed("Conv2DBackpropInput"),
    "conv_transpose3d": _transposed("Conv3DBackpropInputV2"),
}
