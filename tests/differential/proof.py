"""Proofs that a code may be one off: the exact value lies within the float error of a tie.

Values are summed in float64, where products of two float32 are exact and sums of a few thousand
are wrong by less than a millionth of the bounds used here. A sum of K products in float32, in any
order, fused or not, is off by at most (K + 2) * 2^-24 * sum |a * b|.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from .population import ints

Real = NDArray[np.float64]
Tensors = Mapping[str, NDArray[np.generic]]
ULP = 2.0**-24
FUNCTION = 2.0**-20
"""What an approximated exponential may be off, relatively: sixteen units in the last place."""


@dataclass(frozen=True)
class Exact:
    """A float tensor in exact arithmetic, and how far float32 may be off."""

    value: Real
    bound: Real


def proven(
    proto: onnx.ModelProto,
    feeds: Tensors,
    name: str,
    actual: NDArray[np.generic],
    expected: NDArray[np.generic],
) -> list[str]:
    """Returns why a difference of quantized values is not one that float sums explain; empty where
    it is.

    The model is one op between quantized values that are given and the result `name`.
    """
    arrays: dict[str, NDArray[np.generic]] = {
        t.name: numpy_helper.to_array(t) for t in proto.graph.initializer
    }
    arrays |= feeds
    producers = {output: node for node in proto.graph.node for output in node.output}
    quantize = producers[name]
    scale = float(arrays[quantize.input[1]])
    zero = int(arrays[quantize.input[2]])
    exact = real(quantize.input[0], producers, arrays)
    units = exact.value / scale
    # Dividing by the scale and adding the zero point round, too.
    slack = exact.bound / scale * (1 + 2.0**-20) + np.abs(units) * 2.0**-23 + 2.0**-40
    low = np.minimum(actual.astype(np.int64), expected.astype(np.int64))
    boundary = low - zero + 0.5
    gap = np.abs(actual.astype(np.int64) - expected.astype(np.int64))
    unexplained = []
    for index in map(tuple, np.argwhere(gap != 0)):
        if gap[index] > 1:
            unexplained.append(
                f"{list(index)}: {actual[index]} for {expected[index]} is more than one off"
            )
        elif abs(units[index] - boundary[index]) > slack[index]:
            unexplained.append(
                f"{list(index)}: {units[index]!r} is {abs(units[index] - boundary[index])!r} from "
                f"the tie {boundary[index]}, and float sums are off by {slack[index]!r} at most"
            )
    return unexplained


def real(name: str, producers: Mapping[str, onnx.NodeProto], arrays: Tensors) -> Exact:
    """Returns a float tensor of a small model, computed exactly."""
    if name in arrays:
        value = arrays[name].astype(np.float64)
        return Exact(value, np.zeros_like(value))
    node = producers[name]
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "DequantizeLinear":
        value = meaning(node, attrs, arrays)
        return Exact(value, np.zeros_like(value))
    inputs = [real(i, producers, arrays) for i in node.input if i]
    return _OPS[node.op_type](inputs, attrs)


def meaning(node: onnx.NodeProto, attrs: Mapping[str, object], arrays: Tensors) -> Real:
    """What integers mean, as the float32 that (q - z) * s is rounded to."""
    quantized = arrays[node.input[0]].astype(np.int64)
    scale = arrays[node.input[1]].astype(np.float32)
    shape = [1] * quantized.ndim
    if scale.ndim:
        (axis,) = ints(attrs, "axis", (1,))
        shape[axis] = -1
    zero = arrays[node.input[2]].astype(np.int64) if len(node.input) > 2 else np.zeros(1, np.int64)
    if scale.ndim == 0:
        steps = quantized - int(zero.reshape(-1)[0])
        return (steps.astype(np.float32) * scale).astype(np.float64)
    steps = quantized - (zero.reshape(shape) if zero.size == scale.size else 0)
    return (steps.astype(np.float32) * scale.reshape(shape)).astype(np.float64)


def _conv(inputs: list[Exact], attrs: Mapping[str, object]) -> Exact:
    x, w = inputs[0].value, inputs[1].value
    value = _windows(x, w, attrs)
    size = _windows(np.abs(x), np.abs(w), attrs)
    if len(inputs) > 2:
        bias = inputs[2].value.reshape(-1, 1, 1)
        value, size = value + bias, size + np.abs(bias)
    return Exact(value, (int(np.prod(w.shape[1:])) + 2) * ULP * size)


def _windows(x: Real, w: Real, attrs: Mapping[str, object]) -> Real:
    strides, dilations = ints(attrs, "strides", (1, 1)), ints(attrs, "dilations", (1, 1))
    top_pad, left_pad, bottom_pad, right_pad = ints(attrs, "pads", (0, 0, 0, 0))
    (groups,) = ints(attrs, "group", (1,))
    padded = np.pad(x, ((0, 0), (0, 0), (top_pad, bottom_pad), (left_pad, right_pad)))
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(padded, reach, (2, 3))
    view = view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    n, c, h, wide, kh, kw = view.shape
    by_group = view.reshape(n, groups, c // groups, h, wide, kh, kw)
    weights = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    sums: Real = np.einsum("ngchwij,gocij->ngohw", by_group, weights)
    return sums.reshape(n, w.shape[0], h, wide)


def _gemm(inputs: list[Exact], attrs: Mapping[str, object]) -> Exact:
    a, b = inputs[0].value, inputs[1].value
    if attrs.get("transB"):
        b = b.T
    product = _matmul([Exact(a, a), Exact(b, b)], attrs)
    if len(inputs) < 3:
        return product
    bias = inputs[2].value
    bias_bound = (a.shape[1] + 2) * ULP * np.abs(bias)
    return Exact(product.value + bias, product.bound + bias_bound)


def _matmul(inputs: list[Exact], attrs: Mapping[str, object]) -> Exact:
    a, b = inputs[0].value, inputs[1].value
    size = np.matmul(np.abs(a), np.abs(b))
    return Exact(np.matmul(a, b), (a.shape[-1] + 2) * ULP * size)


def _average(inputs: list[Exact], attrs: Mapping[str, object]) -> Exact:
    x = inputs[0].value
    kernel, strides = ints(attrs, "kernel_shape", ()), ints(attrs, "strides", (1, 1))
    pads, (ceil,) = ints(attrs, "pads", (0, 0, 0, 0)), ints(attrs, "ceil_mode", (0,))
    (count_pad,) = ints(attrs, "count_include_pad", (0,))
    sizes = []
    for i in range(2):
        free = x.shape[2 + i] + pads[i] + pads[2 + i] - kernel[i]
        sizes.append((-(-free // strides[i]) if ceil else free // strides[i]) + 1)
    value = np.zeros((*x.shape[:2], *sizes))
    bound = np.zeros_like(value)
    for r in range(sizes[0]):
        for c in range(sizes[1]):
            first_row, first_column = r * strides[0] - pads[0], c * strides[1] - pads[1]
            rows = slice(max(first_row, 0), min(first_row + kernel[0], x.shape[2]))
            columns = slice(max(first_column, 0), min(first_column + kernel[1], x.shape[3]))
            part = x[:, :, rows, columns]
            count = kernel[0] * kernel[1] if count_pad else part.shape[2] * part.shape[3]
            value[:, :, r, c] = part.sum((2, 3)) / count
            bound[:, :, r, c] = (count + 3) * ULP * np.abs(part).sum((2, 3)) / count
    return Exact(value, bound)


def _global_average(inputs: list[Exact], attrs: Mapping[str, object]) -> Exact:
    x = inputs[0].value
    count = x.shape[2] * x.shape[3]
    size = np.abs(x).sum((2, 3), keepdims=True) / count
    return Exact(x.mean((2, 3), keepdims=True), (count + 3) * ULP * size)


def _sigmoid(inputs: list[Exact], attrs: Mapping[str, object]) -> Exact:
    value = 1 / (1 + np.exp(-inputs[0].value))
    return Exact(value, FUNCTION * value)


def _softmax(inputs: list[Exact], attrs: Mapping[str, object]) -> Exact:
    x = inputs[0].value
    (axis,) = ints(attrs, "axis", (-1,))
    terms = np.exp(x - x.max(axis, keepdims=True))
    value = terms / terms.sum(axis, keepdims=True)
    return Exact(value, (FUNCTION + x.shape[axis] * ULP) * value)


def _bounded(inputs: list[Exact], attrs: Mapping[str, object]) -> Exact:
    """Relu and clip: what bounds a value bounds its error too."""
    low = inputs[1].value if len(inputs) > 1 else np.zeros(())
    high = inputs[2].value if len(inputs) > 2 else np.full((), np.inf)
    return Exact(np.clip(inputs[0].value, low, high), inputs[0].bound)


_OPS = {
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "AveragePool": _average,
    "GlobalAveragePool": _global_average,
    "Sigmoid": _sigmoid,
    "Softmax": _softmax,
    "Relu": _bounded,
    "Clip": _bounded,
}
SUMS = frozenset(_OPS) - {"Relu", "Clip"}
"""Operators for which there is more than one right float32."""
