"""Layers that quantize their data by the range that these have while the program runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, F64, dtype
from qir.ir.node import Value
from qir.ir.types import QuantType

from .call import Call

_STORAGE = dtype("u8")
_SEVEN_BITS = (0, 127)


def _linear(call: Call) -> Value:
    """Reads linear_dynamic, whose second operand is the pair of weights and bias."""
    x = call.value("X")
    weight, bias = call["W_prepack"]
    attrs: dict[str, Attr] = {"rule": "torch.dynamic", "storage": _STORAGE, "scale_type": F64}
    if call.flag("reduce_range"):
        attrs["bounds"] = _SEVEN_BITS
    scale, zero = call.add_many("choose_qparams", {"x": x}, attrs)
    kind = x.type.with_element(QuantType(_STORAGE, F32, None, None, scale_dtype=F64))
    data = call.add_typed("quantize", {"x": x, "scale": scale, "zero": zero}, kind)
    operands = {
        "x": data,
        "w": call.reader.tensor(weight).node.operands["x"],
        "bias": None if bias is None else call.reader.tensor(bias),
        "x.scale": scale,
        "x.zero": zero,
    }
    return call.add("linear", operands)


OPS: dict[str, Callable[[Call], Any]] = {"quantized.linear_dynamic.default": _linear}
"""Kernels of PyTorch's quantized engines that no float operators state."""
