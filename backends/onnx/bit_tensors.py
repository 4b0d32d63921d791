"""Passes tensors of types that NumPy lacks to onnxruntime and back, as raw bits."""

from __future__ import annotations

import ctypes

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from qir.ir.dtype import DType, dtype
from qir.numerics import pack, unpack

from .writer.elements import ELEMENT_TYPES

_ELEMENT_TYPES = {
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
"""QIR's element type for onnxruntime's name of a tensor type."""


def unsupported_by_numpy(tensor_type: str) -> DType | None:
    """Returns the element type of a tensor type that NumPy lacks; None for the others."""
    return dtype(_ELEMENT_TYPES[tensor_type]) if tensor_type in _ELEMENT_TYPES else None


def to_ort_value(array: NDArray[np.generic], kind: DType | None) -> onnxruntime.OrtValue:
    """Returns an array as a value that onnxruntime accepts."""
    if kind is None:
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
    if array.dtype != kind.carrier:
        raise ValueError(f"{array.dtype} where it takes {kind}")
    # An OrtValue made from NumPy cannot have these types; an empty one is filled with the bits.
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
        list(array.shape), ELEMENT_TYPES[kind.name]
    )
    data = pack(array, kind).tobytes()
    if data:
        ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def from_ort_value(value: onnxruntime.OrtValue) -> object:
    """Returns a result of onnxruntime as an array."""
    kind = unsupported_by_numpy(value.data_type())
    if kind is None:
        return value.numpy()
    size, shape = value.tensor_size_in_bytes(), tuple(value.shape())
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return unpack(np.frombuffer(data, np.uint8), kind, shape)
