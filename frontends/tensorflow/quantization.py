"""Simulated quantization: FakeQuant and QuantizeAndDequantize, as quantize and dequantize."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import Array, Granularity, QuantType, TensorType

from .call import NodeCall
from .reader import KeepNode

F = np.float32
Floats = NDArray[np.float32]
_MOST_BITS = 32
"""More bits than any kernel of TensorFlow makes of float32."""


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


def _bits(count: int) -> int:
    """Returns a number of bits; raises KeepNode for one that quantized values cannot have."""
    if not 1 <= count <= _MOST_BITS:
        raise KeepNode(f"its quantized values have {count} bits; 1 to {_MOST_BITS} are read")
    return count


def _fake_quant(call: NodeCall) -> Value:
    """Reads FakeQuantWithMinMaxArgs, Vars and VarsPerChannel."""
    bits, narrow = _bits(call.integer("num_bits", 8)), call.flag("narrow_range")
    if call.node.op == "FakeQuantWithMinMaxArgs":
        stated = [call.number("min", -6.0)], [call.number("max", 6.0)]
        low, high = (np.asarray(limit, F) for limit in stated)
    else:
        low, high = (call.constant_elements(i).astype(F).reshape(-1) for i in (1, 2))
    # `narrow_range` leaves out the lowest integer.
    bounds = (int(narrow), 2**bits - 1)
    scale, zero = nudged_qparams(low, high, *bounds)
    is_per_channel = call.node.op == "FakeQuantWithMinMaxVarsPerChannel"
    axis = call.rank(0) - 1 if is_per_channel else None
    return _quantize_dequantize(call, _quant_type(f"u{bits}", scale, zero, axis, bounds))


def _quant_type(
    storage: str,
    scale: Floats,
    zero: NDArray[np.int64],
    axis: int | None,
    bounds: tuple[int, int],
) -> QuantType:
    """Returns the quantized type, per channel if an axis is given."""
    storage_type = dtype(storage)
    if axis is None:
        return QuantType(storage_type, F32, (float(scale[0]),), (int(zero[0]),), bounds=bounds)
    scales = Array(scale, TensorType(scale.shape, F32))
    zeros = zero.astype(storage_type.carrier)
    zero_array = Array(zeros, TensorType(zeros.shape, storage_type)) if zeros.any() else ()
    return QuantType(
        storage_type, F32, scales, zero_array, Granularity(((axis, 1),)), bounds=bounds
    )


def _quantize_dequantize(call: NodeCall, quant: QuantType, rounding: str = "") -> Value:
    """Adds quantize and dequantize."""
    x = call[0]
    quantized_type = x.type.with_element(quant)
    quantized = call.add_typed(
        "quantize", {"x": x}, {"round": rounding} if rounding else {}, quantized_type
    )
    return call.add("dequantize", {"x": quantized})


def _quantize_and_dequantize(call: NodeCall) -> Value:
    """Reads QuantizeAndDequantizeV2, V3 and V4, which are symmetric."""
    if not call.flag("range_given"):
        raise KeepNode("its range is computed from its data; quantize with range_given")
    has_operand = call.node.op.endswith("V3")
    stated = int(call.constant_elements(3).item()) if has_operand else call.integer("num_bits", 8)
    bits = _bits(stated)
    signed, narrow = call.flag("signed_input", True), call.flag("narrow_range")
    low, high = (call.constant_elements(i).astype(F).reshape(-1) for i in (1, 2))
    lowest = -(1 << (bits - 1)) + narrow if signed else 0
    highest = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    axis = call.integer("axis", -1)
    scale = symmetric_scales(low, high, lowest, highest)
    rounding = {"HALF_TO_EVEN": "even", "HALF_UP": "half_up"}[
        call.text("round_mode", "HALF_TO_EVEN")
    ]
    zero = np.zeros(scale.shape, np.int64)
    storage = f"{'i' if signed else 'u'}{bits}"
    quant = _quant_type(storage, scale, zero, axis if axis >= 0 else None, (lowest, highest))
    return _quantize_dequantize(call, quant, rounding)


def symmetric_scales(low: Floats, high: Floats, lowest: int, highest: int) -> Floats:
    """Returns the scale of the side that needs the larger one, as QuantizeAndDequantizeV2 does."""
    with np.errstate(all="ignore"):
        levels_per_low = np.where(F(lowest) * low > 0, F(lowest) / low, np.finfo(F).max)
        levels_per_high = np.where(F(highest) * high > 0, F(highest) / high, np.finfo(F).max)
        scale_of_low = low / F(lowest) if lowest else np.zeros_like(low)
        scales: Floats = np.where(
            levels_per_low < levels_per_high, scale_of_low, high / F(highest)
        ).astype(F)
    if not np.all(scales > 0):
        raise KeepNode("one of its ranges is empty")
    return scales


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
