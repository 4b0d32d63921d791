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
    spans = [(size - 1) * step + 1 for size, step in zip(window, dilation, strict=True)]
    wide = np.zeros((outer, inner * groups, *spans), data.dtype)
    taps = [slice(None, None, step) for step in dilation]
    for g in range(groups):
        rows = slice(g * outer // groups, (g + 1) * outer // groups)
        wide[(rows, slice(g * inner, (g + 1) * inner), *taps)] = data[rows]
    return np.ascontiguousarray(wide.transpose(*range(2, wide.ndim), 1, 0))


def _biased(w: GraphNodes, n: Node, made: str) -> str:
    bias = n.operands.get("bias")
    return made if bias is None else binary(w, "AddV2", made, w.tensor(bias), n.result, n.name)


def _conv3d(w: GraphNodes, n: Node) -> str:
    x, data, stride, pad = n.operands["x"], _filters(n), int_tuple(n, "stride"), int_tuple(n, "pad")
    given, pads = to_nhwc(w, n, x), padding(spatial_sizes(n, x), data.shape[:3], stride, pad)
    if pads["padding"] == "EXPLICIT":
        given, pads = padded(w, n, given, x, pad), {"padding": "VALID"}
    weights = filter_constant(w, n, n.operands["w"], data)
    attrs: dict[str, Attr] = {"T": type_attr(x), "strides": (1, *stride, 1), **pads}
    made = w.add("Conv3D", (given, weights), n.name, **attrs)
    return from_nhwc(w, n, _biased(w, n, made), n.result)


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
        axes, more = len(stride), int_tuple(n, "output_pad")
        if any(m >= s for m, s in zip(more, stride, strict=True)):
            raise refusal(n, f"TensorFlow has no output_pad {more} with stride {stride}")
        pads = padding(spatial_sizes(n, n.result), data.shape[:axes], stride, pad)
        cut = pads["padding"] == "EXPLICIT"
        steps = [span - s + m for span, s, m in zip(data.shape, stride, more, strict=False)]
        if not cut:
            steps = [m - pad[i] - pad[i + axes] for i, m in enumerate(steps)]
        shape = _sizes(w, n, x, stride, steps, data.shape[-2])
        weights = filter_constant(w, n, n.operands["w"], data)
        attrs: dict[str, Attr] = {"T": type_attr(x), "strides": (1, *stride, 1)}
        attrs["padding"] = "VALID" if cut else pads["padding"]
        if axes == 3:
            attrs["Tshape"] = TypeAttr("int32")
        made = w.add(op, (shape, weights, to_nhwc(w, n, x)), n.name, **attrs)
        if cut:
            made = _cut(w, n, made, pad)
        return from_nhwc(w, n, _biased(w, n, made), n.result)

    return write


def _sizes(
    w: GraphNodes, n: Node, x: Value, stride: Sequence[int], more: Sequence[int], channels: int
) -> str:
    """Returns the sizes of a result, channels last: each is a size of the data by its stride, and
    more; those of open sizes are computed."""
    batch, _, *sizes = x.type.shape
    each = list(zip((batch, *sizes), (1, *stride), (0, *more), strict=True))
    known = [size * by + plus for size, by, plus in each if isinstance(size, int)]
    if len(known) == len(each):
        return w.int_constant([*known, channels])
    own = w.add("Shape", (w.tensor(x),), n.name, T=type_attr(x), out_type=TypeAttr("int32"))
    made: list[str] = []
    for i, (size, by, plus) in enumerate(each):
        if isinstance(size, int):
            made.append(w.constant(np.asarray(size * by + plus, np.int32)))
            continue
        found = one_size(w, n, own, i + (i > 0))
        for op, what, usual in (("Mul", by, 1), ("AddV2", plus, 0)):
            if what != usual:
                given = (found, w.constant(np.asarray(what, np.int32)))
                found = w.add(op, given, n.name, T=TypeAttr("int32"))
        made.append(found)
    made.append(w.constant(np.asarray(channels, np.int32)))
    return w.add("Pack", made, n.name, N=len(made), T=TypeAttr("int32"), axis=0)


def _cut(w: GraphNodes, n: Node, made: str, pad: Sequence[int]) -> str:
    """Takes away what the padding covers, from both ends of each axis."""
    axes = len(pad) // 2
    whole = (0, *pad[:axes], 0), (0, *(-after for after in pad[axes:]), 0), (1,) * (axes + 2)
    open_ends = sum(1 << (i + 1) for i, after in enumerate(pad[axes:]) if not after)
    ends = 1 | open_ends | 1 << (axes + 1)
    attrs: dict[str, Attr] = {
        "T": type_attr(n.result),
        "Index": TypeAttr("int32"),
        "end_mask": ends,
    }
    return w.add("StridedSlice", (made, *(w.int_constant(row) for row in whole)), n.name, **attrs)


OPS: Mapping[str, Write] = {
    "conv3d": _conv3d,
    "conv_transpose2d": _transposed("Conv2DBackpropInput"),
    "conv_transpose3d": _transposed("Conv3DBackpropInputV2"),
}
