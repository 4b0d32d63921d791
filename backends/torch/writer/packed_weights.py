"""Writes weight-only low-bit products by PyTorch's packed kernels.

Data and sums are float. `_weight_int8pack_mm` has i8 with one scale a row,
`_weight_int4pack_mm_for_cpu` 4 bits in blocks along the row, each with a scale and an offset.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from qir.ir.node import Node
from qir.ir.types import QuantType

from .elements import tensor
from .program import FxProgram, Handler

_BLOCK_SIZES = (32, 64, 128, 256)
"""Elements in a block that the kernel for 4 bits takes."""
_ROW_MULTIPLE = 16
"""It takes a multiple of so many rows."""
_REMEDY = "take --weights i8:65536, one block a row, or u4 in blocks of 32, 64, 128 or 256"


def handler(node: Node) -> Handler | None:
    """Returns what writes a product of weights in blocks, and their dequantize; None for others."""
    if _in_blocks(node):
        return _write_nothing
    weight = node.operands.get("w") if node.op == "linear" and not node.stages else None
    if weight is None or not _in_blocks(weight.node):
        return None
    return _linear


def _in_blocks(node: Node) -> bool:
    """Returns whether a node dequantizes constant weights in blocks, for linear layers alone."""
    if node.op != "dequantize" or node.operands["x"].constant is None:
        return False
    quant = node.operands["x"].type.quant
    has_blocks = quant is not None and quant.granularity is not None and quant.axis is None
    return has_blocks and all(user.op == "linear" for user in node.result.users)


def _write_nothing(program: FxProgram, node: Node) -> Any:
    return None


def _linear(program: FxProgram, node: Node) -> fx.Node:
    quantized = node.operands["w"].node.operands["x"]
    array, quant = quantized.constant, quantized.type.quant
    assert array is not None
    assert quant is not None
    data = np.asarray(array.data).astype(np.int32)
    rows, terms = data.shape
    sizes = [program.size(dim, node) for dim in node.result.type.shape]
    # The kernels take matrices alone.
    x = program.call("aten.reshape", program.operand(node, "x"), [-1, terms])
    write_product = _int8 if str(quant.storage) == "i8" else _int4
    product = write_product(program, node, x, data, quant)
    bias = program.optional(node, "bias")
    product = product if bias is None else program.call("aten.add", product, bias)
    return program.call("aten.reshape", product, [*sizes[:-1], rows])


def _block_parameters(quant: QuantType, rows: int) -> tuple[Any, Any]:
    """Returns scales and zero points by row and block."""
    scales = np.asarray(quant.scales(), np.float32).reshape(rows, -1)
    zeros = np.asarray(quant.zeros()).astype(np.float32)
    return scales, np.broadcast_to(zeros.reshape(rows, -1) if zeros.ndim else zeros, scales.shape)


def _int8(program: FxProgram, node: Node, x: fx.Node, data: Any, quant: QuantType) -> fx.Node:
    scales, zeros = _block_parameters(quant, len(data))
    if scales.shape[1] != 1 or zeros.any():
        reason = f"aten._weight_int8pack_mm takes one scale a row: {_REMEDY}"
        raise program.refuse(node, reason)
    name = node.operands["w"].name
    weights = program.add_attribute(tensor(data.astype(np.int8)), name)
    scale = program.add_attribute(tensor(scales[:, 0]), f"{name}_scale")
    return program.call("aten._weight_int8pack_mm", x, weights, scale)


def _int4(program: FxProgram, node: Node, x: fx.Node, data: Any, quant: QuantType) -> fx.Node:
    """Integers of 0 to 15 mean `(q - 8) * scale + offset`."""
    (rows, terms), (scales, zeros) = data.shape, _block_parameters(quant, len(data))
    size = terms // scales.shape[1]
    is_supported = (
        quant.storage.bits == 4 and size * scales.shape[1] == terms and size in _BLOCK_SIZES
    )
    if not is_supported or rows % _ROW_MULTIPLE:
        reason = f"takes 4 bits and rows by 16, not {rows} rows of {quant.storage}:{size}"
        raise program.refuse(node, f"aten._weight_int4pack_mm_for_cpu {reason}: {_REMEDY}")
    is_signed = quant.storage.bounds[0] < 0
    # The kernel's integers are unsigned; signed ones are moved by 8.
    unsigned = torch.from_numpy(data + 8 if is_signed else data)
    # (q - 8) * scale + offset = (q - zero) * scale, so offset = (8 - zero) * scale.
    offset = 0 - zeros if is_signed else 8 - zeros
    scales_and_offsets = np.stack([scales.T, (offset * scales).T], -1).astype(np.float32)
    name = node.operands["w"].name
    packed = program.add_attribute(
        torch.ops.aten._convert_weight_to_int4pack_for_cpu(unsigned, 1), name
    )
    parameters = program.add_attribute(tensor(scales_and_offsets), f"{name}_scale")
    return program.call("aten._weight_int4pack_mm_for_cpu", x, packed, size, parameters)
