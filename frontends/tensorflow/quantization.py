"""Simulated quantization: FakeQuant and QuantizeAndDequantize, as quantize and dequantize."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import Array, Granularity, QuantType, TensorType

from .call import KeepNode, NodeCall

F = np.float32
Floats = NDArray[np.float32]


def nudged_qparams(
    low: Floats, high: Floats, lowest: int, highest: int
) -> tuple[Floats, NDArray[np.int64]]:
    """Returns scales and zero points of ranges that are nudged to represent zero exactly.

    Each operation is rounded to float32, as in `Nudge` of TensorFlow's fake_quant_ops_functor.h.
    """
    with np.errstate(all="ignore"):
        scale = ((high - low) / F(highest - lowest)).astype(F)
        zero = (F(lowest) - low / scale).astype(F)
    if not np.all(np.isfinite(scale) & (scale > 0) & np.isfinite(zero)):
        raise KeepNode("one of its ranges is empty")
    rounded = np.copysign(np.floor(np.abs(zero) + F(0.5)), zero)
    return scale, np.clip(rounded, lowest, highest).astype(np.int64)


def _fake_quant(call: NodeCall) -> Value:
    """Reads FakeQuantWithMinMaxArgs, Vars and VarsPerChannel."""
    bits, narrow = call.integer("num_bits", 8), call.flag("narrow_range")
    if call.node.op == "FakeQuantWithMinMaxArgs":
        ends = [call.number("min", -6.0)], [call.number("max", 6.0)]
        low, high = (np.asarray(end, F) for end in ends)
    else:
        low, high = (call.constant_elements(i).astype(F).reshape(-1) for i in (1, 2))
    bounds = (int(narrow), 2**bits - 1)
    scale, zero = nudged_qparams(low, high, *bounds)
    channels = call.node.op == "FakeQuantWithMinMaxVarsPerChannel"
    axis = call.rank(0) - 1 if channels else None
    return _quantize_dequantize(call, _quant_type(f"u{bits}", scale, zero, axis, bounds))


def _quant_type(
    storage: str,
    scale: Floats,
    zero: NDArray[np.int64],
    axis: int | None,
    bounds: tuple[int, int],
) -> QuantType:
    """Returns the quantized type, per channel if an axis is given."""
    kind = dtype(storage)
    if axis is None:
        return QuantType(kind, F32, (float(scale[0]),), (int(zero[0]),), bounds=bounds)
    scales = Array(scale, TensorType(scale.shape, F32))
    zeros = zero.astype(kind.carrier)
    zero_array = Array(zeros, TensorType(zeros.shape, kind)) if zeros.any() else ()
    return QuantType(kind, F32, scales, zero_array, Granularity(((axis, 1),)), bounds=bounds)


def _quantize_dequantize(call: NodeCall, quant: QuantType, rounding: str = "") -> Value:
    """Adds quantize and dequantize."""
    x = call[0]
    kind = x.type.with_element(quant)
    quantized = call.add_typed("quantize", {"x": x}, {"round": rounding} if rounding else {}, kind)
    return call.add("dequantize", {"x": quantized})


def _quantize_and_dequantize(call: NodeCall) -> Value:
    """Reads QuantizeAndDequantizeV2, V3 and V4, which are symmetric."""
    if not call.flag("range_given"):
        raise KeepNode("its range is computed from its data; quantize with range_given")
    bits = (
        int(call.constant_elements(3).item())
        if call.node.op.endswith("V3")
        else call.integer("num_bits", 8)
    )
    signed, narrow = call.flag("signed_input", True), call.flag("narrow_range")
    low, high = (call.constant_elements(i).astype(F).reshape(-1) for i in (1, 2))
    least = -(1 << (bits - 1)) + narrow if signed else 0
    most = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    axis = call.integer("axis", -1)
    scale = symmetric_scales(low, high, least, most)
    rounding = {"HALF_TO_EVEN": "even", "HALF_UP": "half_up"}[
        call.text("round_mode", "HALF_TO_EVEN")
    ]
    zero = np.zeros(scale.shape, np.int64)
    storage = f"{'i' if signed else 'u'}{bits}"
    quant = _quant_type(storage, scale, zero, axis if axis >= 0 else None, (least, most))
    return _quantize_dequantize(call, quant, rounding)


def symmetric_scales(low: Floats, high: Floats, least: int, most: int) -> Floats:
    """Returns the scale of the side that needs the larger one, as QuantizeAndDequantizeV2 does."""
    with np.errstate(all="ignore"):
        of_low = np.where(F(least) * low > 0, F(least) / low, np.finfo(F).max)
        of_high = np.where(F(most) * high > 0, F(most) / high, np.finfo(F).max)
        below = low / F(least) if least else np.zeros_like(low)
        found: Floats = np.where(of_low < of_high, below, high / F(most)).astype(F)
    if not np.all(found > 0):
        raise KeepNode("one of its ranges is empty")
    return found


OPS: dict[str, Callable[[NodeCall], Value]] = {
    **dict.fromkeys(
        (
            "FakeQuantWithMinMaxArgs",
            "FakeQuantWithMinMaxVars",
            "FakeQuantWithMinMaxVarsPerChannel",
        ),
        _fake_quant,
    ),
    **{f"QuantizeAndDequantizeV{version}": _quantize_and_dequantize for version in (2, 3, 4)},
}
