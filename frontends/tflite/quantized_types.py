"""The types of a file's tensors: what scale and zero point say of integers."""

from __future__ import annotations

import numpy as np

from qir.errors import TypeRuleError
from qir.ir.dtype import F32, dtype
from qir.ir.types import Granularity, QuantType, make_param, uniform

from .flatbuffer import Table
from .model_file import FileTensor, TfliteFile

_STORAGES = ("i4", "u4", "i8", "u8", "i16")
"""Element types that are quantized where a tensor has scales.

Sums and biases have scales too, which kernels do not read: they are plain integers.
"""


def quantized_type(
    file: TfliteFile, tensor: FileTensor, tensors: list[FileTensor]
) -> QuantType | None:
    """Returns what a tensor's integers mean; None for one that is not quantized."""
    table = tensor.quantization
    if table is None or tensor.element not in _STORAGES:
        return None
    try:
        if table.integer("details_type"):
            return _in_blocks(file, tensor, tensors, table)
        scales = table.numbers("scale").astype(np.float32)
        if not scales.size:
            return None
        if not (np.isfinite(scales) & (scales > 0)).all():
            raise file.refused(tensor, f"has a scale of {scales.min():g}")
        zeros = table.numbers("zero_point").astype(np.int64)
        if zeros.size not in (0, 1, scales.size):
            raise file.refused(tensor, f"has {scales.size} scales and {zeros.size} zero points")
        zeros = np.broadcast_to(zeros if zeros.size else np.int64(0), scales.shape)
        storage = dtype(tensor.element)
        if scales.size == 1:
            return uniform(storage, scales[0], int(zeros[0]))
        axis = table.integer("quantized_dimension")
        if not 0 <= axis < len(tensor.sizes) or tensor.sizes[axis] != scales.size:
            raise file.refused(
                tensor, f"has {scales.size} scales along axis {axis} of {list(tensor.sizes)}"
            )
        return uniform(storage, scales, zeros, axis=axis, name=tensor.name)
    except TypeRuleError as error:
        raise file.refused(tensor, f"has a quantized type that is none: {error}") from error


def _in_blocks(
    file: TfliteFile, tensor: FileTensor, tensors: list[FileTensor], table: Table
) -> QuantType:
    """Returns the type of weights that have a scale for each block of terms."""
    details = table.table("details")
    if table.integer("details_type") != 2 or details is None:
        raise file.refused(tensor, "is quantized by a custom rule, which no reader knows")
    block, index = details.integer("block_size"), details.integer("scales")
    scale_tensor = tensors[index] if 0 <= index < len(tensors) else None
    scales = None if scale_tensor is None else file.elements(scale_tensor)
    if scales is None or len(tensor.sizes) != 2 or block < 1 or scales.ndim != 2:
        raise file.refused(tensor, "has scales in blocks, which are not there or fit no matrix")
    if scales.shape != (tensor.sizes[0], tensor.sizes[1] // block) or tensor.sizes[1] % block:
        raise file.refused(tensor, f"has scales of shape {list(scales.shape)} in blocks of {block}")
    grain = Granularity(((0, 1), (1, block)))
    held = make_param(scales.astype(np.float32), grain, f"{tensor.name}.scale")
    return QuantType(dtype(tensor.element), F32, held, granularity=grain, scale_dtype=F32)
