"""Packs embedding tables with a scale and a float zero point for each row, in 8 bits."""

from __future__ import annotations

import numpy as np
import torch
from torch import fx

from qir.ir.node import Node

from .program import FxProgram, Handler


def _packed(program: FxProgram, node: Node) -> fx.Node:
    """Holds the rows as quantized::embedding_byte reads them; Refused for other rows."""
    table = node.operands["w"]
    quant, array = table.type.quant, table.constant
    if quant is None or array is None:
        raise program.refuse(node, f"%{table.name} is no table of quantized rows")
    if str(quant.storage) != "u8" or not quant.has_float_zero or quant.axis != 0:
        reason = f"PyTorch packs rows of u8 with float zero points, and these are {quant.storage}"
        raise program.refuse(node, reason)
    quantized = torch.from_numpy(np.array(array.data))
    row_parameters = [
        torch.from_numpy(np.array(np.ravel(each), np.float32))
        for each in (quant.scales(), quant.zeros())
    ]
    scales, zeros = row_parameters
    quantized_table = torch._make_per_channel_quantized_tensor(quantized, scales, zeros, 0)
    return program.add_attribute(
        torch.ops.quantized.embedding_bag_prepack(quantized_table), table.name
    )


def _embedding(program: FxProgram, node: Node) -> fx.Node:
    indices = program.operand(node, "indices")
    return program.call("quantized.embedding_byte", _packed(program, node), indices)


def _bags(program: FxProgram, node: Node) -> fx.Node:
    if node.attrs["mode"] != "sum":
        raise program.refuse(node, "PyTorch adds quantized rows, and takes no other mean of them")
    return program.call(
        "quantized.embedding_bag_byte",
        _packed(program, node),
        program.operand(node, "indices"),
        program.optional(node, "offsets"),
        per_sample_weights=program.optional(node, "weights"),
        include_last_offset=node.attrs["last"],
    )


OPS: dict[str, Handler] = {"embedding": _embedding, "embedding_bag": _bags}
