"""QuantizeV2 and Dequantize in the modes SCALED, MIN_FIRST and MIN_COMBINED."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import QuantType

from .call import NodeCall
from .ranges import PROFILE, F, RangeEnds, as_quantized, range_of, range_results, storage_of
from .reader import KeepNode

_ASYMMETRIC_MODES = {
    "MIN_FIRST": "tf-2.21.onednn.min_first",
    "MIN_COMBINED": "tf-2.21.min_combined",
}
"""Modes whose integers count steps from the minimum, and the profile of each."""
_MINIMUM_RANGE = 0.01
"""TensorFlow's default of `ensure_minimum_range`."""


def quantize(call: NodeCall) -> Sequence[Value]:
    """Reads QuantizeV2."""
    call.reader.graph.profile = PROFILE
    mode, storage = _mode(call), storage_of(call, "T")
    if F(call.number("ensure_minimum_range", _MINIMUM_RANGE)) != F(_MINIMUM_RANGE):
        raise KeepNode("it widens small ranges by another part than 0.01")
    if storage == "i32":
        raise KeepNode("it makes qint32")
    stated, axis = range_of(call, 1), _axis(call)
    if mode == "SCALED":
        return _quantize_scaled(call, storage, stated, axis)
    if mode == "MIN_FIRST" and axis is not None:
        raise KeepNode("TensorFlow has no kernel of MIN_FIRST along an axis")
    widened = stated.as_quantize_v2_widens
    quant = widened.min_first_type(storage, axis, first=mode == "MIN_FIRST")
    return _add_quantize(call, quant, widened, {}, _ASYMMETRIC_MODES[mode])


def _mode(call: NodeCall) -> str:
    mode = call.text("mode", "MIN_COMBINED")
    if mode not in ("SCALED", *_ASYMMETRIC_MODES):
        raise KeepNode(f"its mode is {mode!r}")
    return mode


def _axis(call: NodeCall) -> int | None:
    axis = call.integer("axis", -1)
    return None if axis < 0 else axis


def _add_quantize(
    call: NodeCall, quant: QuantType, stated: RangeEnds, attrs: dict[str, Attr], profile: str | None
) -> list[Value]:
    quantized = call.add_typed("quantize", {"x": call[0]}, attrs, call[0].type.with_element(quant))
    if profile is not None:
        call.reader.graph.set_profile(quantized.node, profile)
    return [quantized, *range_results(call, stated)]


def _quantize_scaled(
    call: NodeCall, storage: str, stated: RangeEnds, axis: int | None
) -> Sequence[Value]:
    """Reads mode SCALED: oneDNN's kernel, or TensorFlow's own where oneDNN has none.

    oneDNN's kernel rounds half to even, per tensor, without narrow range.
    """
    rounds_away = call.text("round_mode", "HALF_AWAY_FROM_ZERO") == "HALF_AWAY_FROM_ZERO"
    narrow, widened = call.flag("narrow_range"), stated.as_quantize_v2_widens
    if narrow and storage == "u8":
        raise KeepNode("it is narrow quint8")
    # oneDNN's kernel makes the range symmetric, and returns that one.
    if not rounds_away and axis is None and not narrow:
        reach = widened.absmax
        widened = RangeEnds(-reach if storage == "i8" else F(0) * reach, reach)
        return _add_quantize(call, widened.scaled_type(storage), widened, {}, None)
    if not (widened.high > 0).all():
        raise KeepNode("one of its ranges has nothing above zero")
    quant = widened.sided_type(storage, axis, narrow=narrow)
    attrs: dict[str, Attr] = {"round": "away" if rounds_away else "even"}
    if not rounds_away and axis is None:
        attrs = {}
    return _add_quantize(call, quant, _output_range(widened, storage, narrow=narrow), attrs, None)


def _output_range(range_ends: RangeEnds, storage: str, *, narrow: bool) -> RangeEnds:
    """Returns the output range of TensorFlow's own kernel, as QuantizeV2Op computes it."""
    lowest, highest = dtype(storage).bounds
    lowest += narrow
    with np.errstate(all="ignore"):
        gain_of_low = np.where(
            F(lowest) * range_ends.low > 0, F(lowest) / range_ends.low, np.finfo(F).max
        )
        gain_of_high = np.where(
            F(highest) * range_ends.high > 0, F(highest) / range_ends.high, np.finfo(F).max
        )
        # Levels per unit of the side that needs the larger scale.
        gain = np.minimum(gain_of_low, gain_of_high).astype(F)
        return RangeEnds((F(lowest) / gain).astype(F), (F(highest) / gain).astype(F))


def dequantize(call: NodeCall) -> Value:
    """Reads Dequantize."""
    call.reader.graph.profile = PROFILE
    mode, axis = _mode(call), _axis(call)
    if call.has("dtype") and call.dtype("dtype") != F32:
        raise KeepNode("its result is not float32")
    stated, storage = range_of(call, 1), storage_of(call, "T")
    if mode == "SCALED":
        if axis is not None and call.flag("narrow_range"):
            raise KeepNode("it is narrow along an axis")
        quant = _dequantize_scaled_type(call, stated, storage, axis)
    elif storage == "i32" or call.flag("narrow_range"):
        raise KeepNode("it reads qint32, or a narrow range, from the low end")
    else:
        quant = stated.min_first_type(storage, axis, first=mode == "MIN_FIRST")
    return call.add("dequantize", {"x": as_quantized(call[0], quant, call)})


def _dequantize_scaled_type(
    call: NodeCall, stated: RangeEnds, storage: str, axis: int | None
) -> QuantType:
    """Returns the quantized type by which Dequantize reads; for i8 it takes -128 into account."""
    if storage == "i8" and (-stated.low > stated.high).any():
        lowest = -127 if call.flag("narrow_range") else -128
        reach = np.maximum(stated.low / F(lowest), stated.high / F(127)) * F(127)
        stated = RangeEnds(-reach, reach)
    return stated.scaled_type(storage, axis)
