"""Converts element types and arrays to PyTorch."""

from __future__ import annotations

from typing import TypeAlias

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from qir.errors import Refused
from qir.ir.dtype import DType
from qir.ir.types import QuantType

Numbers: TypeAlias = NDArray[np.generic]
KINDS = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
"""PyTorch's element types."""
STORED = {"u8": torch.quint8, "i8": torch.qint8, "i32": torch.qint32}
"""Those of quantized tensors."""


def kind(dtype: DType, where: str) -> torch.dtype:
    """Returns PyTorch's element type; Refused where it has none."""
    if str(dtype) not in KINDS:
        raise Refused(f"{where}: PyTorch has no element type {dtype}; convert it to another first")
    return KINDS[str(dtype)]


def tensor(data: NDArray[np.generic]) -> torch.Tensor:
    """Returns elements as a tensor of its own."""
    # A copy: constants are read-only maps of a file, and torch warns of arrays that it may not
    # write.
    contiguous = np.array(data, order="C")
    # NumPy's bfloat16 is of ml_dtypes, which torch does not read: the bits go through int16.
    if contiguous.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(contiguous.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(contiguous)


def array(value: torch.Tensor) -> NDArray[np.generic]:
    """Returns a tensor's elements; of a quantized tensor its stored integers."""
    plain = (value.int_repr() if value.is_quantized else value).detach().contiguous()
    if plain.dtype == torch.bfloat16:
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def fits(quant: QuantType) -> bool:
    """Returns whether a quantized tensor of PyTorch can be of that type."""
    if quant.kind != "uniform" or quant.plus is not None or quant.dynamic or quant.has_float_zero:
        return False
    return str(quant.storage) in STORED and (quant.granularity is None or quant.axis is not None)


def parameters(quant: QuantType) -> tuple[float, int]:
    """Returns scale and zero point of one scale for a tensor."""
    return float(np.asarray(quant.scales()).item()), int(np.asarray(quant.zeros()).item())


def channel_parameters(quant: QuantType) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the scales, as doubles, and zero points of one scale for each index."""
    return _along(np.asarray(quant.scales()), np.asarray(quant.zeros()))


def _along(scales: Numbers, zeros: Numbers) -> tuple[torch.Tensor, torch.Tensor]:
    channel_scales = np.atleast_1d(scales).astype(np.float64)
    channel_zeros = np.broadcast_to(zeros.astype(np.int64), channel_scales.shape)
    return torch.from_numpy(channel_scales.copy()), torch.from_numpy(channel_zeros.copy())


def quantized(data: torch.Tensor, quant: QuantType) -> torch.Tensor:
    """Returns stored integers as a quantized tensor."""
    return scaled(data, np.asarray(quant.scales()), np.asarray(quant.zeros()), quant.axis or 0)


def scaled(data: torch.Tensor, scales: Numbers, zeros: Numbers, axis: int = 0) -> torch.Tensor:
    """Returns stored integers with one scale, or with one for each index of an axis."""
    result: torch.Tensor
    if not scales.ndim:
        result = torch._make_per_tensor_quantized_tensor(data, float(scales), int(zeros))
    else:
        result = torch._make_per_channel_quantized_tensor(data, *_along(scales, zeros), axis)
    return result
