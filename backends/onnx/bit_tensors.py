"""Tensors of elements that onnxruntime's binding does not hand over to NumPy, bit by bit."""

from __future__ import annotations

import ctypes

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from qir.ir.dtype import DType, dtype
from qir.numerics import pack, unpack

from .writer.elements import NUMBERS

_KINDS = {
    "tensor(bfloat16)": "bf16",
    "tensor(float8e4m3fn)": "f8e4m3fn",
    "tensor(float8e4m3fnuz)": "f8e4m3fnuz",
    "tensor(float8e5m2)": "f8e5m2",
    "tensor(float8e5m2fnuz)": "f8e5m2fnuz",
    "tensor(float4e2m1)": "f4e2m1fn",
    "tensor(int4)": "i4",
    "tensor(uint4)": "u4",
    "tensor(int2)": "i2",
    "tensor(uint2)": "u2",
}
"""Elements by onnxruntime's name of the tensor."""


def odd(said: str) -> DType | None:
    """Returns the elements of a tensor that NumPy has no type of its own for; nothing for
    others."""
    return dtype(_KINDS[said]) if said in _KINDS else None


def given(array: NDArray[np.generic], kind: DType | None) -> onnxruntime.OrtValue:
    """Returns an array as onnxruntime takes it."""
    if kind is None:
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
    if array.dtype != kind.carrier:
        raise ValueError(f"{array.dtype} where it takes {kind}")
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), NUMBERS[kind.name])
    data = pack(array, kind).tobytes()
    if data:
        ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def found(value: onnxruntime.OrtValue) -> object:
    """Returns what a result holds, as an array."""
    kind = odd(value.data_type())
    if kind is None:
        return value.numpy()
    size, shape = value.tensor_size_in_bytes(), tuple(value.shape())
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return unpack(np.frombuffer(data, np.uint8), kind, shape)
