"""QuantizeV2 and Dequantize in the modes SCALED, MIN_FIRST and MIN_COMBINED."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import QuantType

from .call import KeepNode, NodeCall
from .ranges import PROFILE, F, RangeEnds, ends_of, range_of, read_as, storage_of

_FROM_LOW = {"MIN_FIRST": "tf-2.21.onednn.min_first", "MIN_COMBINED": "tf-2.21.min_combined"}
"""The modes whose integers are steps from the low end; the profile of each."""
_LEAST = 0.01
"""The part of its ends that TensorFlow widens a small range to."""


def quantize(call: NodeCall) -> Sequence[Value]:
    """Reads QuantizeV2."""
    call.reader.graph.profile = PROFILE
    mode, storage = _mode(call), storage_of(call, "T")
    if F(call.real("ensure_minimum_range", _LEAST)) != F(_LEAST):
        raise KeepNode("it widens small ranges by another part than 0.01")
    if storage == "i32":
        raise KeepNode("it makes qint32")
    given, axis = range_of(call, 1), _axis(call)
    if mode == "SCALED":
        return _scaled(call, storage, given, axis)
    if mode == "MIN_FIRST" and axis is not None:
        raise KeepNode("TensorFlow has no kernel of MIN_FIRST along an axis")
    found = given.widened
    kind = found.from_low(storage, axis, first=mode == "MIN_FIRST")
    return _made(call, kind, found, {}, _FROM_LOW[mode])


def _mode(call: NodeCall) -> str:
    mode = call.text("mode", "MIN_COMBINED")
    if mode not in ("SCALED", *_FROM_LOW):
        raise KeepNode(f"its mode is {mode!r}")
    return mode


def _axis(call: NodeCall) -> int | None:
    axis = call.whole("axis", -1)
    return None if axis < 0 else axis


def _made(
    call: NodeCall, kind: QuantType, stated: RangeEnds, attrs: dict[str, Attr], profile: str | None
) -> list[Value]:
    made = call.add_typed("quantize", {"x": call[0]}, attrs, call[0].type.with_element(kind))
    if profile is not None:
        call.reader.graph.set_profile(made.node, profile)
    return [made, *ends_of(call, stated)]


def _scaled(call: NodeCall, storage: str, given: RangeEnds, axis: int | None) -> Sequence[Value]:
    """Reads the mode SCALED: oneDNN's kernel, and TensorFlow's own one where oneDNN has none."""
    away = call.text("round_mode", "HALF_AWAY_FROM_ZERO") == "HALF_AWAY_FROM_ZERO"
    narrow, found = call.flag("narrow_range"), given.widened
    if narrow and storage == "u8":
        raise KeepNode("it is narrow quint8")
    if not away and axis is None and not narrow:
        reach = found.reach
        found = RangeEnds(-reach if storage == "i8" else F(0) * reach, reach)
        return _made(call, found.type(storage), found, {}, None)
    if not (found.high > 0).all():
        raise KeepNode("one of its ranges has nothing above zero")
    kind = found.sided(storage, axis, narrow=narrow)
    attrs: dict[str, Attr] = {"round": "away" if away else "even"}
    if not away and axis is None:
        attrs = {}
    return _made(call, kind, _stated(found, storage, narrow=narrow), attrs, None)


def _stated(found: RangeEnds, storage: str, *, narrow: bool) -> RangeEnds:
    """Returns the range that TensorFlow's own kernel gives out, as its QuantizeV2Op makes it."""
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
    if call.has("dtype") and call.kind("dtype") != F32:
        raise KeepNode("its result is not float32")
    given, storage = range_of(call, 1), storage_of(call, "T")
    if mode == "SCALED":
        if axis is not None and call.flag("narrow_range"):
            raise KeepNode("it is narrow along an axis")
        kind = _read_scaled(call, given, storage, axis)
    elif storage == "i32" or call.flag("narrow_range"):
        raise KeepNode("it reads qint32, or a narrow range, from the low end")
    else:
        kind = given.from_low(storage, axis, first=mode == "MIN_FIRST")
    return call.add("dequantize", {"x": read_as(call[0], kind, call)})


def _read_scaled(call: NodeCall, given: RangeEnds, storage: str, axis: int | None) -> QuantType:
    """Returns the type of what Dequantize reads; of i8 the end of the lowest integer counts too."""
    if storage == "i8" and (-given.low > given.high).any():
        least = -127 if call.flag("narrow_range") else -128
        reach = np.maximum(given.low / F(least), given.high / F(127)) * F(127)
        given = RangeEnds(-reach, reach)
    return given.type(storage, axis)
