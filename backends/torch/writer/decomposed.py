"""Writes QDQ form in ops of `quantized_decomposed`, or by the oneDNN kernels that inductor
selects."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import fx

from qir.ir.dtype import F64, DType
from qir.ir.node import Node, Value
from qir.ir.types import QuantType

from . import movement, packed_weights
from .elements import KINDS, channel_parameters, parameters
from .kernels import anchor_attrs, anchor_operands, float_bias, float_handler, fused_ops
from .layers import int_list, split_padding
from .program import FxProgram, Handler

importlib.import_module("torch.ao.quantization.fx._decomposed")  # which makes its operators known

_KEEPS_ELEMENTS = frozenset(
    "reshape flatten transpose concat squeeze unsqueeze slice split gather expand tile".split()
)
"""Ops whose aten operators accept plain integers. The trait `value_preserving` has more, such as
pad."""


def handler(node: Node) -> Handler | None:
    """Returns the writer of a node in QDQ form."""
    if packed_handler := packed_weights.handler(node):
        return packed_handler
    if node.op in _CONVERSIONS:
        return _CONVERSIONS[node.op]
    if any(v.type.quant for v in (*node.operands.values(), *node.results)):
        return movement.OPS.get(node.op) if node.op in _KEEPS_ELEMENTS else None
    return float_handler(node)


def kernel_handler(node: Node) -> Handler | None:
    """Returns the writer of a node, with groups as calls of oneDNN's kernels."""
    on_integers = any(v.type.quant for v in anchor_operands(node).values())
    if on_integers and fused_ops(node)[0] in _KERNELS:
        return _KERNELS[fused_ops(node)[0]]
    return handler(node)


def _type_arguments(program: FxProgram, node: Node, quant: QuantType) -> tuple[Any, ...]:
    """Returns the arguments of quantize and dequantize that state a type."""
    if quant.kind != "uniform" or quant.plus is not None or quant.dynamic or quant.has_float_zero:
        raise program.refuse(node, f"quantized_decomposed has no type {quant}")
    kind = KINDS.get(str(quant.storage))
    if kind is None or (quant.granularity is not None and quant.axis is None):
        raise program.refuse(node, f"quantized_decomposed has no type {quant}")
    if quant.axis is None:
        return (*parameters(quant), quant.low, quant.high, kind)
    scales, zeros = channel_parameters(quant)
    # Scales and zero points per channel are tensors, so they are attributes of the module.
    scale_node = program.add_attribute(scales.float(), f"{node.name}_scale")
    return (
        scale_node,
        program.add_attribute(zeros, f"{node.name}_zero"),
        quant.axis,
        quant.low,
        quant.high,
        kind,
    )


def _call(program: FxProgram, node: Node, op: str, x: fx.Node, quant: QuantType | None) -> fx.Node:
    assert quant is not None
    granularity = "tensor" if quant.axis is None else "channel"
    arguments = _type_arguments(program, node, quant)
    return program.call(f"quantized_decomposed.{op}_per_{granularity}", x, *arguments)


def _quantize(program: FxProgram, node: Node) -> fx.Node:
    if node.attrs["round"] not in ("", "even") or not node.attrs["saturate"]:
        raise program.refuse(node, "PyTorch rounds to the nearest, ties to even, and saturates")
    x = program.operand(node, "x")
    if "scale" in node.operands:
        return _by_computed_parameters(program, node, x, "scale", "zero", node.result)
    return _call(program, node, "quantize", x, node.result.type.quant)


def _dequantize(program: FxProgram, node: Node) -> fx.Node:
    x = node.operands["x"]
    if "x.scale" in node.operands:
        return _by_computed_parameters(program, node, program.node_of(x), "x.scale", "x.zero", x)
    return _call(program, node, "dequantize", program.node_of(x), x.type.quant)


def _by_computed_parameters(
    program: FxProgram, node: Node, x: fx.Node, scale: str, zero: str, quantized: Value
) -> fx.Node:
    """Quantizes or dequantizes by parameters that are computed at run time."""
    quant = quantized.type.quant
    assert quant is not None
    kind = KINDS.get(str(quant.storage))
    producers = [node.operands[slot].node.op for slot in (scale, zero) if slot in node.operands]
    if producers != ["choose_qparams"] * 2 or kind is None or quant.granularity is not None:
        raise program.refuse(node, "quantized_decomposed takes numbers of choose_qparams alone")
    parameters_of = program.operand(node, scale), program.operand(node, zero)
    op = f"quantized_decomposed.{node.op}_per_tensor"
    return program.call(op, x, *parameters_of, quant.low, quant.high, kind)


def _choose_qparams(program: FxProgram, node: Node) -> list[fx.Node]:
    """Computes scale and zero point of the data's range, as tensors of one element."""
    attrs, rule = node.attrs, str(node.attrs["rule"])
    lowest_scale = _LEAST_SCALES.get(rule)
    kind = KINDS.get(str(attrs["storage"]))
    is_per_tensor_affine = not (attrs["keep"] or attrs["blocks"] or attrs["symmetric"])
    if (
        lowest_scale is None
        or kind is None
        or not is_per_tensor_affine
        or attrs["scale_type"] != F64
    ):
        reason = f"choose_qparams has no scale rule {rule} of such a scale"
        raise program.refuse(node, f"{reason}; quantize for pt2e, or write an engine's TorchScript")
    # The op returns tensors of one element that only quantize and dequantize accept.
    if other_readers := [
        u for r in node.results for u in r.users if u.op not in ("quantize", "dequantize")
    ]:
        raise program.refuse(node, f"what it chooses is read by {other_readers[0].name} too")
    storage, bounds = attrs["storage"], attrs["bounds"]
    assert isinstance(storage, DType)
    assert bounds is None or isinstance(bounds, tuple)
    low, high = bounds or storage.bounds
    x = program.operand(node, "x")
    result = program.call("quantized_decomposed.choose_qparams", x, low, high, lowest_scale, kind)
    return [program.item(result, index) for index in range(2)]


_LEAST_SCALES = {"torch.observer": 2.0**-23, "torch.qnnpack.symmetric": 2.0**-12}
"""The least scale of each scale rule, which is an argument of choose_qparams."""


def _requantize(program: FxProgram, node: Node) -> fx.Node:
    floats = _dequantize(program, node)
    return _call(program, node, "quantize", floats, node.result.type.quant)


_CONVERSIONS: dict[str, Handler] = {
    "choose_qparams": _choose_qparams,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "requantize": _requantize,
}

# -- the kernels that inductor calls --------------------------------------------------------------

_POST_OPS = {
    "relu": "relu",
    "hard_swish": "hardswish",
    "silu": "swish",
    "gelu": "gelu",
}
"""oneDNN's names of fused activations."""


def _post_op(program: FxProgram, node: Node) -> tuple[str, list[float], str]:
    """Returns the arguments for the activation that a kernel fuses: oneDNN's post-op."""
    activations = fused_ops(node)[1:]
    if not activations:
        return "none", [], ""
    attrs = node.stages[1].attrs
    if len(activations) > 1 or activations[0] not in (*_POST_OPS, "clip"):
        raise program.refuse(node, "oneDNN computes nothing like it in one kernel")
    # clip is oneDNN's hardtanh, relu6 included.
    if activations == ("clip",):
        low, high = attrs.get("min"), attrs.get("max")
        if not isinstance(low, float) or not isinstance(high, float):
            raise program.refuse(node, "oneDNN clips between two numbers")
        return "hardtanh", [low, high], ""
    if activations == ("gelu",):
        return "gelu", [], str(attrs["approximate"])
    # The argument of swish is its alpha.
    return _POST_OPS[activations[0]], [1.0] if activations == ("silu",) else [], ""


def _weight_arguments(program: FxProgram, node: Node) -> tuple[Any, ...]:
    """Returns weights with per-channel scales and zero points, and the bias."""
    operands = anchor_operands(node)
    quant = operands["w"].type.quant
    if quant is None:
        raise program.refuse(node, "its weights are floats")
    w = program.constant(operands["w"])
    scales, zeros = channel_parameters(quant)
    # The kernels take one scale per result channel, also where all are equal.
    scales, zeros = scales.float().expand(len(w)).contiguous(), zeros.expand(len(w)).contiguous()
    return w, scales, zeros, float_bias(program, node)


def _result_arguments(program: FxProgram, node: Node) -> tuple[Any, ...]:
    quant = node.result.type.quant
    if quant is None:
        return 1.0, 0, torch.float32
    return (*parameters(quant), KINDS[str(quant.storage)])


def _data_parameters(program: FxProgram, node: Node) -> tuple[float, int]:
    quant = anchor_operands(node)["x"].type.quant
    if quant is None:
        raise program.refuse(node, "its data are floats")
    return parameters(quant)


def _convolution(program: FxProgram, node: Node) -> fx.Node:
    attrs, x = anchor_attrs(node), anchor_operands(node)["x"]
    # oneDNN pads both sides alike; the rest is padded before, with the zero point.
    padded, pad = split_padding(
        program, program.node_of(x), int_list(attrs["pad"]), _data_parameters(program, node)[1]
    )
    shape = (int_list(attrs["stride"]), pad, int_list(attrs["dilation"]), attrs["groups"])
    w, scales, zeros, bias = _weight_arguments(program, node)
    data_parameters = _data_parameters(program, node)
    packed = torch.ops.onednn.qconv_prepack(w, scales, *data_parameters, *shape, None)
    attributes = _add_attributes(program, node, packed, scales, zeros, bias)
    epilogue = (*_result_arguments(program, node), *_post_op(program, node))
    return program.call(
        "onednn.qconv_pointwise", padded, *data_parameters, *attributes, *shape, *epilogue
    )


def _add_attributes(
    program: FxProgram, node: Node, *tensors: torch.Tensor | None
) -> list[fx.Node | None]:
    """Adds weights and parameters of a layer as attributes."""
    name = anchor_operands(node)["w"].name
    names = (name, f"{name}_scale", f"{name}_zero", f"{name}_bias")
    return [
        None if tensor is None else program.add_attribute(tensor, attribute_name)
        for attribute_name, tensor in zip(names, tensors, strict=True)
    ]


def _linear(program: FxProgram, node: Node) -> fx.Node:
    w, scales, zeros, bias = _weight_arguments(program, node)
    packed = torch.ops.onednn.qlinear_prepack(w, None)
    attributes = _add_attributes(program, node, packed, scales, zeros, bias)
    epilogue = (*_result_arguments(program, node), *_post_op(program, node))
    x, data_parameters = (
        program.node_of(anchor_operands(node)["x"]),
        _data_parameters(program, node),
    )
    return program.call("onednn.qlinear_pointwise", x, *data_parameters, *attributes, *epilogue)


_KERNELS: dict[str, Handler] = {
    "conv1d": _convolution,
    "conv2d": _convolution,
    "linear": _linear,
}
