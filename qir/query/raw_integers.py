"""The quantized type of plain integers, where the op that reads them states it.

The weights of an integer product mean what its result is multiplied by, and the bias of an op on
quantized values counts in units of its sum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.ir.node import Node, Use, Value
from qir.ir.ops import OPS
from qir.ir.types import QuantType, uniform

_WEIGHTS = {("conv_integer", "w"): 0, ("matmul_integer", "b"): -1}
"""Where an integer product has its weights, and the axis of their channels."""


def plain_integer_mapping(value: Value) -> QuantType | None:
    """Returns the quantized type of a constant of plain integers; None where it has its own, or
    none is known."""
    use = value.only_use
    if use is None or value.type.quant is not None or not value.type.dtype.is_integer:
        return None
    if (axis := _WEIGHTS.get((use.node.op, use.slot))) is not None:
        scale = _multiplier(use.node.result)
        return (
            None
            if scale is None
            else _slot_mapping(value, scale, axis % max(value.type.rank, 1), use)
        )
    scale = _unit(use.node, use.slot)
    return None if scale is None else _slot_mapping(value, scale, 0, None)


def _slot_mapping(
    value: Value, scales: NDArray[np.generic], axis: int, use: Use | None
) -> QuantType | None:
    zero_operand = use.node.operands.get(f"{use.slot}.zero") if use is not None else None
    zero: NDArray[np.generic] = np.zeros((), np.int64)
    if zero_operand is not None:
        if zero_operand.constant is None or not zero_operand.type.dtype.is_integer:
            return None
        zero = zero_operand.constant.data.reshape(-1).astype(np.int64)
    scale = scales.reshape(-1).astype(np.float32)
    count = max(scale.size, zero.size)
    shape = value.type.shape
    if count == 1:
        return uniform(value.type.dtype, scale[0], int(zero.reshape(-1)[0]))
    if not shape or shape[axis] != count or {scale.size, zero.size} - {1, count}:
        return None
    per_channel = np.broadcast_to(scale, count).copy()
    return uniform(value.type.dtype, per_channel, np.broadcast_to(zero, count), axis=axis)


def _multiplier(value: Value) -> NDArray[np.generic] | None:
    """Returns the constant factor of what an integer product's result is multiplied by."""
    use = value.only_use
    if use is not None and use.node.op == "cast":
        use = use.node.result.only_use
    if use is None or use.node.op != "mul":
        return None
    factor = use.node.operands["b" if use.slot == "a" else "a"]
    factors = list(factor.node.operands.values()) if factor.node.op == "mul" else [factor]
    known = [f.constant.data for f in factors if f.constant is not None]
    return known[0] if len(known) == 1 and known[0].dtype.kind == "f" else None


def _unit(node: Node, slot: str) -> NDArray[np.generic] | None:
    """scale(data) * scale(weight), where the slot is that of a bias."""
    traits = OPS[node.stages[0].op if node.stages else node.op].traits
    data, weight = node.operands.get(traits.data), node.operands.get(traits.weight or "")
    if slot != traits.bias or data is None or weight is None:
        return None
    x, w = data.type.quant, weight.type.quant
    if x is None or w is None or x.scale is None or w.scale is None:
        return None
    scales = np.asarray(x.scales()), np.asarray(w.scales())
    if scales[0].size != 1 or (w.granularity is not None and w.axis is None):
        return None
    return np.asarray(scales[0].reshape(()) * scales[1])
