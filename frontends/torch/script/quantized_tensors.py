"""Quantized tensors of TorchScript while a program is read, and calls of kernels on them.

A quantized tensor of PyTorch becomes a node of plain integers together with its scale and zero
point. Kernels are written as float operators between dequantize and quantize.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed
from torch import fx

from .builder import ArchiveTensor, ScriptBuilder

_DECOMPOSED = torch.ops.quantized_decomposed
_STORAGE = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}


@dataclass(eq=False)
class QuantizedTensor:
    """A quantized tensor with one scale; in-place ops replace its node."""

    node: fx.Node
    scale: float
    zero: int
    kind: torch.dtype

    def with_node(self, node: fx.Node) -> QuantizedTensor:
        """Returns other integers with the same scale and zero point."""
        return QuantizedTensor(node, self.scale, self.zero, self.kind)


@dataclass(frozen=True, eq=False)
class ChannelQuantizedTensor:
    """A tensor that is quantized per channel."""

    node: fx.Node
    scales: Any
    zeros: Any
    axis: int
    kind: torch.dtype


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """A ScriptObject with weights in the layout of an engine."""

    name: str
    object: Any


def integer_range(kind: torch.dtype) -> tuple[int, int, torch.dtype]:
    storage = _STORAGE[kind]
    info = torch.iinfo(storage)
    return info.min, info.max, storage


def quantize(
    builder: ScriptBuilder, x: Any, scale: float, zero: int, kind: torch.dtype, label: str = ""
) -> QuantizedTensor:
    """Quantizes a float tensor per tensor; `label` names the node after its kernel."""
    if kind not in _STORAGE:
        raise builder.error(f"quantizes to {str(kind).removeprefix('torch.')}, which is not read")
    call = _DECOMPOSED.quantize_per_tensor.default
    builder.label = label.partition("::")[2]
    node = builder.add_call(call, x, float(scale), int(zero), *integer_range(kind))
    builder.label = ""
    return QuantizedTensor(node, float(scale), int(zero), kind)


def quantize_channels(
    builder: ScriptBuilder, x: Any, scales: Any, zeros: Any, axis: int, kind: torch.dtype
) -> ChannelQuantizedTensor:
    """Quantizes a float tensor per channel."""
    scales, zeros = builder.as_node(scales), builder.as_node(zeros)
    call = _DECOMPOSED.quantize_per_channel.default
    node = builder.add_call(call, x, scales, zeros, axis, *integer_range(kind))
    return ChannelQuantizedTensor(node, scales, zeros, axis, kind)


def dequantize(builder: ScriptBuilder, tensor: Any) -> Any:
    """Dequantizes a quantized tensor; returns another one as it is."""
    if isinstance(tensor, ChannelQuantizedTensor):
        arguments = (
            tensor.node,
            tensor.scales,
            tensor.zeros,
            tensor.axis,
            *integer_range(tensor.kind),
        )
        return builder.add_call(_DECOMPOSED.dequantize_per_channel.default, *arguments)
    if not isinstance(tensor, QuantizedTensor):
        return tensor
    call = _DECOMPOSED.dequantize_per_tensor.default
    return builder.add_call(
        call, tensor.node, tensor.scale, tensor.zero, *integer_range(tensor.kind)
    )


def stored_tensor(builder: ScriptBuilder, name: str, data: torch.Tensor) -> Any:
    """Returns a tensor of the archive: quantized per tensor, dequantized weights, or plain."""
    if not data.is_quantized:
        return ArchiveTensor(name, data)
    if data.qscheme() == torch.per_tensor_affine:
        # Only tensors with one scale stay quantized: kernels take no others as data.
        node = builder.constant(name, data.int_repr())
        return QuantizedTensor(node, data.q_scale(), data.q_zero_point(), data.dtype)
    return dequantized_weights(builder, name, data)


def dequantized_weights(builder: ScriptBuilder, name: str, data: torch.Tensor) -> fx.Node:
    """Returns quantized weights, dequantized."""
    if data.dtype not in _STORAGE:
        raise builder.error(f"{name} holds {str(data.dtype).removeprefix('torch.')}")
    if data.qscheme() == torch.per_tensor_affine:
        dequantized_tensor: fx.Node = dequantize(builder, stored_tensor(builder, name, data))
        return dequantized_tensor
    if data.qscheme() != torch.per_channel_affine:
        raise builder.error(f"{name} has zero points that are no integers")
    node = builder.constant(name, data.int_repr())
    scales = builder.constant(f"{name}.scale", data.q_per_channel_scales())
    zeros = builder.constant(f"{name}.zero_point", data.q_per_channel_zero_points())
    channels = ChannelQuantizedTensor(node, scales, zeros, data.q_per_channel_axis(), data.dtype)
    dequantized: fx.Node = dequantize(builder, channels)
    return dequantized


class QuantizedCall:
    """A call of a quantized kernel, its arguments by the names of its schema."""

    def __init__(self, builder: ScriptBuilder, name: str, arguments: dict[str, Any]) -> None:
        self.builder = builder
        self.name = name
        self.arguments = arguments

    def __getitem__(self, name: str) -> Any:
        """Returns an argument."""
        return self.arguments[name]

    def add_call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Adds a call of a float operator."""
        return self.builder.add_call(target, *args, **kwargs)

    def quantized(self, name: str) -> QuantizedTensor:
        """Returns a quantized argument; raises InputError for one that is not quantized."""
        argument = self.arguments[name]
        if not isinstance(argument, QuantizedTensor):
            raise self.builder.error(f"{self.name} is given a tensor that is not quantized")
        return argument

    def dequantized(self, name: str) -> fx.Node:
        """Returns a quantized argument, dequantized."""
        tensor: fx.Node = dequantize(self.builder, self.quantized(name))
        return tensor

    def result(self, tensor: fx.Node, like: str) -> QuantizedTensor:
        """Quantizes a result by the scale and zero point that the call states."""
        # Kernels disagree on names: `scale`, `zero_point` or `output_scale`, `output_zero_point`.
        has_short_names = "zero_point" in self.arguments
        scale = self.arguments["scale" if has_short_names else "output_scale"]
        zero = self.arguments["zero_point" if has_short_names else "output_zero_point"]
        argument = self.arguments[like]
        first = argument[0] if isinstance(argument, list) else argument
        # A scale of None means that of the operand; `cat` takes the one of its first operand.
        scale = first.scale if scale is None else scale
        zero = first.zero if zero is None else zero
        return quantize(self.builder, tensor, scale, zero, first.kind, self.name)

    def result_with_scale_of(self, tensor: fx.Node, like: str) -> QuantizedTensor:
        """Quantizes a result by the scale and zero point of an argument."""
        x = self.quantized(like)
        return quantize(self.builder, tensor, x.scale, x.zero, x.kind, self.name)
