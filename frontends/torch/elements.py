"""Converts element types and tensors between PyTorch and NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from qir.errors import InputError
from qir.ir.dtype import DType, dtype

DTYPE_NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
"""The language's name of each supported element type."""


def dtype_of(kind: torch.dtype) -> DType | None:
    """Returns the language's element type; None if it has none."""
    name = DTYPE_NAMES.get(kind)
    return None if name is None else dtype(name)


def torch_dtype(element_type: DType) -> torch.dtype:
    """Returns PyTorch's element type; raises InputError if it has none."""
    for torch_type, name in DTYPE_NAMES.items():
        if name == str(element_type):
            return torch_type
    raise InputError(f"PyTorch has no {element_type}")


def array_of(tensor: torch.Tensor) -> NDArray[np.generic]:
    """Returns a tensor as an array that shares its memory if possible."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # NumPy has no bfloat16, so `Tensor.numpy` refuses it: its bits go over as int16.
    if plain.dtype == torch.bfloat16:
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def tensor_of(data: NDArray[np.generic]) -> torch.Tensor:
    """Returns the elements as a tensor of PyTorch."""
    contiguous = np.asarray(data, order="C")  # np.ascontiguousarray turns rank 0 into rank 1
    if contiguous.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(contiguous.view(np.int16)).view(torch.bfloat16)
    # `from_numpy` shares memory, and warns of arrays that are read-only.
    return torch.from_numpy(contiguous if contiguous.flags.writeable else contiguous.copy())
