"""QuantizeV2 and Dequantize in the modes SCALED, MIN_FIRST and MIN_COMBINED."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import QuantType

from .call import KeepNode, NodeCall
from .ranges import PROFILE, F, RangeEnds, as_quantized, range_of, range_results, storage_of

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
    given, axis = range_of(call, 1), _axis(call)
    if mode == "SCALED":
        return _quantize_scaled(call, storage, given, axis)
    if mode == "MIN_FIRST" and axis is not None:
        raise KeepNode("TensorFlow has no kernel of MIN_FIRST along an axis")
    found = given.as_quantize_v2_widens
    kind = found.min_first_type(storage, axis, first=mode == "MIN_FIRST")
    return _add_quantize(call, kind, found, {}, _ASYMMETRIC_MODES[mode])


def _mode(call: NodeCall) -> str:
    mode = call.text("mode", "MIN_COMBINED")
    if mode not in ("SCALED", *_ASYMMETRIC_MODES):
        raise KeepNode(f"its mode is {mode!r}")
    return mode


def _axis(call: NodeCall) -> int | None:
    axis = call.integer("axis", -1)
    return None if axis < 0 else axis


def _add_quantize(
    call: NodeCall, kind: QuantType, stated: RangeEnds, attrs: dict[str, Attr], profile: str | None
) -> list[Value]:
    made = call.add_typed("quantize", {"x": call[0]}, attrs, call[0].type.with_element(kind))
    if profile is not None:
        call.reader.graph.set_profile(made.node, profile)
    return [made, *range_results(call, stated)]


def _quantize_scaled(
    call: NodeCall, storage: str, given: RangeEnds, axis: int | None
) -> Sequence[Value]:
    """Reads mode SCALED: oneDNN's kernel, or TensorFlow's own where oneDNN has none.

    oneDNN's kernel rounds half to even, per tensor, without narrow range.
    """
    away = call.text("round_mode", "HALF_AWAY_FROM_ZERO") == "HALF_AWAY_FROM_ZERO"
    narrow, found = call.flag("narrow_range"), given.as_quantize_v2_widens
    if narrow and storage == "u8":
        raise KeepNode("it is narrow quint8")
    if not away and axis is None and not narrow:
        reach = found.absmax
        found = RangeEnds(-reach if storage == "i8" else F(0) * reach, reach)
        return _add_quantize(call, found.scaled_type(storage), found, {}, None)
    if not (found.high > 0).all():
        raise KeepNode("one of its ranges has nothing above zero")
    kind = found.sided_type(storage, axis, narrow=narrow)
    attrs: dict[str, Attr] = {"round": "away" if away else "even"}
    if not away and axis is None:
        attrs = {}
    return _add_quantize(call, kind, _output_range(found, storage, narrow=narrow), attrs, None)


def _output_range(found: RangeEnds, storage: str, *, narrow: bool) -> RangeEnds:
    """Returns the output range of TensorFlow's own kernel, as QuantizeV2Op computes it."""
    least, most = dtype(storage).bounds
    least += narrow
    with np.errstate(all="ignore"):
        below = np.where(F(least) * found.low > 0, F(least) / found.low, np.finfo(F).max)
        above = np.where(F(most) * found.high > 0, F(most) / found.high, np.finfo(F).max)
        gain = np.minimum(below, above).astype(F)
        return RangeEnds((F(least) / gain).astype(F), (F(most) / gain).astype(F))


def dequantize(call: NodeCall) -> Value:
    """Reads Dequantize."""
    call.reader.graph.profile = PROFILE
    mode, axis = _mode(call), _axis(call)
    if call.has("dtype") and call.dtype("dtype") != F32:
        raise KeepNode("its result is not float32")
    given, storage = range_of(call, 1), storage_of(call, "T")
    if mode == "SCALED":
        if axis is not None and call.flag("narrow_range"):
            raise KeepNode("it is narrow along an axis")
        kind = _dequantize_scaled_type(call, given, storage, axis)
    elif storage == "i32" or call.flag("narrow_range"):
        raise KeepNode("it reads qint32, or a narrow range, from the low end")
    else:
        kind = given.min_first_type(storage, axis, first=mode == "MIN_FIRST")
    return call.add("dequantize", {"x": as_quantized(call[0], kind, call)})


def _dequantize_scaled_type(
    call: NodeCall, given: RangeEnds, storage: str, axis: int | None
) -> QuantType:
    """Returns the quantized type by which Dequantize reads; for i8 it takes -128 into account."""
    if storage == "i8" and (-given.low > given.high).any():
        least = -127 if call.flag("narrow_range") else -128
        reach = np.maximum(given.low / F(least), given.high / F(127)) * F(127)
        given = RangeEnds(-reach, reach)
    return given.scaled_type(storage, axis)
