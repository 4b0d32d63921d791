"""Convolutions, linear layers and products of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qir.ir.dtype import I32
from qir.ir.node import Value
from qir.ir.types import TensorType

from .flatbuffer import Field
from .images import finish_image, padded_image, result_image, same_padding
from .network import OpCall, Options, OpWriter, float_kind
from .schema import SAME, VALID
from .transposed import padding_mode

SYMMETRIC_PROFILE = "tflite-2.21.symmetric"
"""Layers that quantize float data about zero."""


def is_depthwise(groups: int, weights: Sequence[object]) -> bool:
    """Returns whether each channel has filters of its own."""
    return groups > 1 and weights[1] == 1


def _conv2d(c: OpCall) -> int | Sequence[int]:
    weight, groups = c.operands["w"], c.integer("groups")
    data = c.constant("w", "constant filter")
    depthwise = is_depthwise(groups, data.shape)
    filters = _permuted(c, weight, _axes_of(depthwise), 3 if depthwise else 0)
    stride, dilation, pad = c.integers("stride"), c.integers("dilation"), c.integers("pad")
    image, kind = c.image("x")
    padding = SAME if same_padding(c) else VALID
    if padding == VALID and any(pad):
        image, kind = padded_image(c, image, kind, pad)
    options: dict[str, Field] = {
        "padding": padding,
        "stride_h": stride[0],
        "stride_w": stride[1],
        "dilation_h_factor": dilation[0],
        "dilation_w_factor": dilation[1],
        "fused_activation_function": c.activation,
    }
    if depthwise:
        options["depth_multiplier"] = data.shape[0] // groups
    inputs = (image, filters, _bias(c, data.shape[0]))
    op, title = ("DEPTHWISE_CONV_2D", "DepthwiseConv2D") if depthwise else ("CONV_2D", "Conv2D")
    return finish_image(c, op, inputs, (f"{title}Options", options))


def _axes_of(depthwise: bool) -> tuple[int, ...]:
    """Returns the axes of filters in the file, by those of the op.

    CONV_2D has filters [out, height, width, in], DEPTHWISE_CONV_2D [1, height, width, out].
    """
    return (1, 2, 3, 0) if depthwise else (0, 2, 3, 1)


def _permuted(c: OpCall, value: Value, perm: Sequence[int], axis: int) -> int:
    """Returns constant weights with their axes in another order, with scales along one of them."""
    array, quant = value.constant, value.type.quant
    assert array is not None
    data = np.ascontiguousarray(array.data.transpose(perm))
    if quant is None:
        return c.w.plain(data, value.name, halves=value in c.w.halves)
    number, quantization = c.w.element(c.node, value.type)
    assert quantization is not None
    if quantization.scales.size > 1 and perm[axis] != quant.axis:
        raise c.refused("its weights have scales along another axis than that of its results")
    return c.w.model.tensor(value.name, data.shape, number, quantization.along(axis), data)


def _bias(c: OpCall, channels: int, slot: str = "bias", weight: str = "w", data: str = "x") -> int:
    """Returns the bias of a layer; zeros where it has none, as its kernels want one."""
    value, x, w = c.operands.get(slot), c.kind(data).quant, c.kind(weight).quant
    if x is None or w is None:
        if value is None:
            halves = c.operands[weight] in c.w.halves
            return c.w.plain(np.zeros(channels, np.float32), "bias", halves=halves)
        return c.tensor(slot)
    wide = str(x.storage) == "i16"
    carrier = np.int64 if wide else np.int32
    stored = np.zeros(channels, carrier) if value is None else c.constant(slot, "constant bias")
    if stored.dtype.kind != "i":
        raise c.refused("its bias is a float; TensorFlow Lite adds integers to its sums")
    unit = np.float32(x.scales()) * np.asarray(w.scales(), np.float32)
    name = "bias" if value is None else value.name
    return c.w.sums(np.broadcast_to(stored.astype(carrier), channels), unit, name)


def _linear(c: OpCall) -> int:
    inputs = [c.tensor("x"), c.tensor("w")]
    channels = c.kind("w").shape[0]
    if not isinstance(channels, int) or c.kind("w").rank != 2:
        raise c.refused("its weights are no matrix of known sizes")
    if "bias" in c.operands or c.kind("w").quant is not None:
        inputs.append(_bias(c, channels))
    options: Options = (
        "FullyConnectedOptions",
        {
            "fused_activation_function": c.activation,
            "keep_num_dims": c.kind("x").rank != 2,
            "asymmetric_quantize_inputs": _is_dynamic(c, "x", "w"),
        },
    )
    return c.finish("FULLY_CONNECTED", inputs, options)


def _is_dynamic(c: OpCall, data: str, weights: str) -> bool:
    """Returns whether float data are quantized while the model runs, not about zero."""
    if c.node.profile == SYMMETRIC_PROFILE:
        return False
    return c.kind(data).quant is None and c.kind(weights).quant is not None


def _matmul(c: OpCall) -> int:
    a, b = c.kind("a"), c.kind("b")
    if 1 in (a.rank, b.rank):
        raise c.refused("a product with a vector is not written; reshape it to a matrix")
    left = c.tensor("a")
    if c.attrs["trans_a"]:  # which XNNPACK leaves to another kernel
        perm = (*range(a.rank - 2), a.rank - 1, a.rank - 2)
        left = c.w.transposed(c.node, left, a.with_shape(tuple(a.shape[i] for i in perm)), perm)
    options: dict[str, Field] = {
        "adj_x": False,
        "adj_y": bool(c.attrs["trans_b"]),
        "asymmetric_quantize_inputs": _is_dynamic(c, "a", "b"),
    }
    inputs = (left, c.tensor("b"))
    if "bias" not in c.operands:
        return c.finish("BATCH_MATMUL", inputs, ("BatchMatMulOptions", options))
    if c.result.quant is not None:
        raise c.refused("TensorFlow Lite's product of two tensors has no bias; add it")
    product = c.add("BATCH_MATMUL", inputs, c.result, ("BatchMatMulOptions", options))
    return c.finish("ADD", (product, c.tensor("bias")), ADDED)


ADDED: Options = ("AddOptions", {"fused_activation_function": 0})


def _gemm(c: OpCall) -> int:
    """Writes a product of matrices neither of which is constant, and what is added to it."""
    if c.result.quant is not None:
        raise c.refused("a product of constant weights is written as linear, others as matmul")
    a = c.tensor("a")
    if c.attrs["trans_a"]:
        kind = c.kind("a")
        a = c.w.transposed(c.node, a, kind.with_shape((kind.shape[1], kind.shape[0])), (1, 0))
    options: Mapping[str, Field] = {"adj_x": False, "adj_y": bool(c.attrs["trans_b"])}
    made = c.add("BATCH_MATMUL", (a, c.tensor("b")), c.result, ("BatchMatMulOptions", options))
    made = _times(c, made, c.real("alpha"), c.result)
    if "c" not in c.operands:
        return c.finish("ADD", (made, c.scalar(0.0)), ADDED)
    added = _times(c, c.tensor("c"), c.real("beta"), c.kind("c"))
    return c.finish("ADD", (made, added), ADDED)


def _times(c: OpCall, x: int, factor: float, kind: TensorType) -> int:
    if factor == 1.0:
        return x
    return c.add("MUL", (x, c.scalar(factor)), kind, ("MulOptions", {}))


def _conv_transpose2d(c: OpCall) -> int | Sequence[int]:
    weight = c.operands["w"]
    data = c.constant("w", "constant filter")
    if c.integer("groups") != 1 or any(step != 1 for step in c.integers("dilation")):
        raise c.refused("TRANSPOSE_CONV has neither groups nor dilation; write ONNX")
    # TRANSPOSE_CONV has filters [out, height, width, in]; those of the op are [in, out, h, w].
    filters = _permuted(c, weight, (1, 2, 3, 0), 0)
    image, _ = c.image("x")
    stride, whole = c.integers("stride"), result_image(c)
    rest = c.known(whole.shape[1:])
    padding = padding_mode(c.node)
    if padding is None:
        raise c.refused("its padding is neither SAME nor VALID, and sizes of its data are open")
    options: Options = (
        "TransposeConvOptions",
        {
            "padding": padding,
            "stride_h": stride[0],
            "stride_w": stride[1],
            "fused_activation_function": c.activation,
        },
    )
    batch = whole.shape[0]
    if isinstance(batch, int):
        shape = c.w.ints((batch, *rest), "shape")
    else:
        shape = _sizes_after_batch(c, image, [c.w.ints(size) for size in rest])
    inputs = [shape, filters, image]
    if "bias" in c.operands:
        inputs.append(_bias(c, data.shape[1]))
    return finish_image(c, "TRANSPOSE_CONV", inputs, options)


def _sizes_after_batch(c: OpCall, image: int, rest: Sequence[int]) -> int:
    """Returns the sizes of a result, whose batch is that of an image."""
    sizes = c.add("SHAPE", (image,), float_kind((4,), I32), ("ShapeOptions", {"out_type": 2}))
    bounds = [c.w.ints([each]) for each in (0, 1, 1)]
    cut: Options = ("StridedSliceOptions", {"shrink_axis_mask": 1})
    batch = c.add("STRIDED_SLICE", (sizes, *bounds), float_kind((), I32), cut)
    pack: Options = ("PackOptions", {"values_count": 4, "axis": 0})
    return c.add("PACK", (batch, *rest), float_kind((4,), I32), pack)


OPS: Mapping[str, OpWriter] = {
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "gemm": _gemm,
    "linear": _linear,
    "matmul": _matmul,
}
