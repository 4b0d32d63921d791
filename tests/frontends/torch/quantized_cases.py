"""PyTorch's quantized kernels, each as a module that quantizes its input first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.ao.nn.intrinsic.quantized as fused
import torch.ao.nn.quantized as quantized
import torch.nn.functional as F
from torch import Tensor, nn

OPS = torch.ops.quantized
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A module, and the shape of what it is given."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


class Quantizing(nn.Module):
    """Quantizes its input and hands it on."""

    def __init__(self, inner: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.quantize_per_tensor(x, 0.031, 117, torch.quint8))


def quantize(x: Tensor, scale: float = 0.05, zero: int = 3) -> Tensor:
    return torch.quantize_per_tensor(x, scale, zero, torch.quint8)


def _inverted(q: Tensor) -> Tensor:
    """A second operand, which depends on the first."""
    return OPS.hardswish(q, 0.027, 40)  # type: ignore[no-any-return]


SLOPES, GAINS = torch.linspace(0.1, 0.6, 6), torch.linspace(0.5, 1.7, 6)
IMAGE, LINE, VOLUME, ROWS = (2, 6, 9, 7), (2, 6, 9), (1, 6, 5, 6, 4), (5, 6)
FUNCTIONS: dict[str, Function] = {
    "add": lambda q: OPS.add(q, _inverted(q), 0.07, 100),
    "add_relu": lambda q: OPS.add_relu(q, _inverted(q), 0.07, 100),
    "mul": lambda q: OPS.mul(q, _inverted(q), 0.07, 100),
    "mul_scalar": lambda q: OPS.mul_scalar(q, 0.3),
    "add_scalar": lambda q: OPS.add_scalar(q, 0.3),
    "mul by a number": lambda q: OPS.mul(q, 0.3),
    "mul by a negative number": lambda q: OPS.mul(q, -0.3),
    "mul_relu by a number": lambda q: OPS.mul_relu(q, 0.3),
    "mul_relu by a negative number": lambda q: OPS.mul_relu(q, -0.3),
    "mul by 0": lambda q: OPS.mul(q, 0),
    "add of a number": lambda q: OPS.add(q, 1),
    "add of a number that widens the scale": lambda q: OPS.add(q, 5.5),
    "add of a number far below": lambda q: OPS.add(q, -7),
    "add_relu of a number that widens the scale": lambda q: OPS.add_relu(q, -4.7),
    "add of a number by a table": lambda q: OPS.add(q, -533 * 0.031),
    "add of a negative number": lambda q: OPS.add(q, -1.3),
    "add_relu of a number": lambda q: OPS.add_relu(q, 0.3),
    "add_relu of a negative number": lambda q: OPS.add_relu(q, -0.3),
    "cat": lambda q: OPS.cat([q, _inverted(q)], 1, 0.06, 50),
    "relu": torch.relu,
    "relu6": lambda q: OPS.relu6(q),
    "clamp": lambda q: torch.clamp(q, -0.5, 0.7),
    "hardtanh": lambda q: F.hardtanh(q, -0.5, 0.7),
    "hardswish": lambda q: OPS.hardswish(q, 0.02, 20),
    "sigmoid": torch.sigmoid,
    "sigmoid to a scale": lambda q: OPS.sigmoid(q, 0.01, 3),
    "tanh": torch.tanh,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda q: OPS.leaky_relu(q, 0.1, False, 0.02, 20),
    "leaky_relu of its own scale": lambda q: F.leaky_relu(q, 0.1),
    "elu": lambda q: OPS.elu(q, 0.02, 60, 1.0, 1.0, 1.0),
    "celu": lambda q: OPS.celu(q, 0.02, 60, 1.0),
    "gelu": F.gelu,
    "softmax": lambda q: OPS.softmax(q, 1, 1 / 256, 0),
    "prelu": lambda q: OPS.prelu(q, quantize(SLOPES), 0.02, 60),
    "threshold": lambda q: OPS.threshold(q, 0.4, 0.0),
    "batch_norm": lambda q: OPS.batch_norm2d(q, GAINS, SLOPES, SLOPES, GAINS, 1e-5, 0.03, 90),
    "layer_norm": lambda q: OPS.layer_norm(
        q, [9, 7], torch.ones(9, 7), torch.zeros(9, 7), 1e-5, 0.03, 90
    ),
    "group_norm": lambda q: OPS.group_norm(q, 3, GAINS, SLOPES, 1e-5, 0.03, 90),
    "instance_norm": lambda q: OPS.instance_norm(q, GAINS, SLOPES, 1e-5, 0.03, 90),
    "matmul": lambda q: OPS.matmul(q, _inverted(q).transpose(2, 3), 0.3, 90),
    "max_pool2d": lambda q: F.max_pool2d(q, 2),
    "avg_pool2d": lambda q: F.avg_pool2d(q, 2),
    "adaptive_avg_pool2d": lambda q: F.adaptive_avg_pool2d(q, (3, 2)),
    "global_avg_pool2d": lambda q: F.adaptive_avg_pool2d(q, 1),
    "mean": lambda q: q.mean([2, 3]),
    "nearest": lambda q: F.interpolate(q, scale_factor=2.0, mode="nearest"),
    "bilinear": lambda q: F.interpolate(q, scale_factor=2.0, mode="bilinear"),
    "views": lambda q: q.permute(0, 2, 1, 3)[:, 1:5].reshape(2, 4, -1).transpose(1, 2),
    "chunk": lambda q: torch.cat(q.chunk(2, 1)[::-1], 1),
    "max": lambda q: q.max(1)[0],
    "int_repr": lambda q: q.int_repr(),
    "pad": lambda q: F.pad(q, (1, 2, 0, 1)),
    "greater": lambda q: q > 0.5,
    "dequantize": lambda q: q.dequantize() * 2,
    "floats between quantized tensors": lambda q: quantize(
        q.dequantize() * 1.5 + _inverted(q).dequantize(), 0.07, 100
    ),
    "a float sum": lambda q: quantize(q.dequantize() + _inverted(q).dequantize(), 0.07, 101),
    "scales that are tensors": lambda q: torch.quantize_per_tensor(
        q.dequantize(), torch.tensor(0.03), torch.tensor(3), torch.qint8
    ),
}
"""Functions of a quantized image."""


def in_place(q: Tensor) -> Tensor:
    """Reads what an op in place has made of its operand."""
    result = OPS.hardswish(q, 0.02, 20)
    result.relu_()
    return OPS.add(result, result, 0.05, 3)  # type: ignore[no-any-return]


def _weights(*shape: int, channels: bool = True) -> Tensor:
    data = torch.randn(*shape) * 0.3
    if not channels:
        return torch.quantize_per_tensor(data, 0.011, 0, torch.qint8)
    zeros = torch.zeros(shape[0], dtype=torch.long)
    scales = torch.rand(shape[0]) * 0.01 + 0.005
    return torch.quantize_per_channel(data, scales, zeros, 0, torch.qint8)


def _layer(kind: type[nn.Module], *shape: int, channels: bool = True, **options: Any) -> nn.Module:
    """A quantized layer with weights of that shape."""
    torch.manual_seed(sum(shape))
    constructor: Any = kind
    # Transposed weights have the input's channels first.
    channels_out = shape[1] if "Transpose" in kind.__name__ else shape[0]
    if len(shape) == 2:
        layer = constructor(shape[1], channels_out)
    elif "Transpose" in kind.__name__:
        layer = constructor(shape[0], channels_out, shape[2:], **options)
    else:
        layer = constructor(shape[1] * options.get("groups", 1), channels_out, shape[2:], **options)
    bias = torch.randn(channels_out) if options.get("bias", True) else None
    layer.set_weight_bias(_weights(*shape, channels=channels), bias)
    layer.scale, layer.zero_point = 0.08, 77
    return layer  # type: ignore[no-any-return]


LAYERS: dict[str, Case] = {
    name: Case(make, shape)
    for name, shape, make in (
        ("conv2d", IMAGE, lambda: _layer(quantized.Conv2d, 8, 6, 3, 3, padding=1)),
        (
            "conv2d without a bias",
            IMAGE,
            lambda: _layer(
                quantized.Conv2d, 8, 6, 3, 3, stride=2, padding=(1, 2), dilation=(1, 2), bias=False
            ),
        ),
        ("conv2d_relu", IMAGE, lambda: _layer(fused.ConvReLU2d, 8, 6, 3, 3, padding=1)),
        ("conv2d in groups", IMAGE, lambda: _layer(quantized.Conv2d, 8, 3, 3, 3, groups=2)),
        (
            "depthwise conv2d",
            IMAGE,
            lambda: _layer(quantized.Conv2d, 6, 1, 3, 3, groups=6, padding=1),
        ),
        (
            "conv2d of one scale",
            IMAGE,
            lambda: _layer(quantized.Conv2d, 8, 6, 3, 3, channels=False),
        ),
        (
            "conv2d of reflected edges",
            IMAGE,
            lambda: _layer(quantized.Conv2d, 8, 6, 3, 3, padding=1, padding_mode="reflect"),
        ),
        ("conv1d", LINE, lambda: _layer(quantized.Conv1d, 8, 6, 3, padding=1)),
        ("conv1d_relu", LINE, lambda: _layer(fused.ConvReLU1d, 8, 6, 3, padding=1)),
        ("conv3d", VOLUME, lambda: _layer(quantized.Conv3d, 8, 6, 3, 3, 3, padding=1)),
        (
            "conv_transpose2d",
            IMAGE,
            lambda: _layer(quantized.ConvTranspose2d, 6, 6, 3, 3, stride=2, channels=False),
        ),
        ("linear", ROWS, lambda: _layer(quantized.Linear, 8, 6)),
        ("linear_relu", ROWS, lambda: _layer(fused.LinearReLU, 8, 6)),
    )
}
"""Quantized layers, and the shape of what they are given."""
