"""Reads sums of a quantized tensor and a number, whose kernel may choose another scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .quantized_tensors import QuantizedCall, QuantizedTensor, dequantize, integer_range, quantize

ATEN = torch.ops.aten
_MAX_NUDGES = 8
"""How many floats next to the number are tried."""


def rescaled_sum(kernel: QuantizedCall, x: QuantizedTensor, addend: float) -> QuantizedTensor:
    """Returns a sum whose zero point would leave the range: the kernel widens the scale.

    ATen's qadd with a scalar multiplies integers by a float where dequantize, add and quantize
    round more than once. A number next to the true one makes all 256 results equal; where there is
    none, the results are a table.
    """
    low, high, storage = integer_range(x.kind)
    integers = torch.arange(low, high + 1, dtype=torch.int64).to(storage)
    every = torch._make_per_tensor_quantized_tensor(integers, x.scale, x.zero)
    has_relu = "_relu" in kernel.name
    wanted = (torch.ops.quantized.add_relu if has_relu else torch.ops.quantized.add)(every, addend)
    qparams = wanted.q_scale(), wanted.q_zero_point(), x.kind
    activation: Callable[[Tensor], Tensor] = torch.relu if has_relu else torch.clone
    # The kernel adds whole steps.
    for number in _neighbours(round(addend / x.scale) * x.scale):
        made = torch.quantize_per_tensor(activation(every.dequantize() + number), *qparams)
        if torch.equal(made, wanted):
            result = kernel.add_call(ATEN.add.Tensor, dequantize(kernel.builder, x), number)
            result = kernel.add_call(ATEN.relu.default, result) if has_relu else result
            return quantize(kernel.builder, result, *qparams, kernel.name)
    index = kernel.add_call(ATEN.to.dtype, x.node, torch.int64)
    index = kernel.add_call(ATEN.sub.Tensor, index, low) if low else index
    table: Any = kernel.builder.constant(f"{x.node.name}.sums", wanted.int_repr())
    return QuantizedTensor(kernel.add_call(ATEN.index.Tensor, table, [index]), *qparams)


def _neighbours(number: float) -> Iterator[float]:
    """Yields a float32 and those next to it, nearest first."""
    above = below = np.float32(number)
    yield float(above)
    for _ in range(_MAX_NUDGES):
        above = np.nextafter(above, np.float32(np.inf))
        below = np.nextafter(below, np.float32(-np.inf))
        yield from (float(above), float(below))


__all__ = ["rescaled_sum"]
