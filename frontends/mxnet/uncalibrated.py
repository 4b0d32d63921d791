"""Quantized operators without calibrated ranges, which MXNet chooses while a model runs.

Integers are plain tensors here, and their ranges are numbers that the graph computes, step by step
as oneDNN's operators in MXNet 1.9.1 do in float32. A bias that leaves 31 bits in units of the sum,
where MXNet makes the scale of the weights less, is not looked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, DType, dtype
from qir.ir.node import Value

from . import pooling
from .call import Made, RangeEnd, SymbolCall, Unsupported
from .ranges import I8, LEVELS, U8, calibrated, ends

I32 = dtype("i32")
_F = np.float32
_TOP = {I8: 127.0, U8: 255.0}
"""Levels that ranges of 32-bit sums and their requantization count, unlike those of 8 bits."""


def is_plain(call: SymbolCall, index: int) -> bool:
    """Returns whether an operand is computed integers whose range is computed too."""
    value = call.value(index)
    return value.type.quant is None and value.node.op != "constant"


def _op(call: SymbolCall, op: str, *operands: Value) -> Value:
    slots = ("x",) if len(operands) == 1 else ("a", "b")
    if op in ("min", "max"):
        slots = ("xs.0", "xs.1")
    return call.add(op, dict(zip(slots, operands, strict=True)))


def _number(call: SymbolCall, held: float) -> Value:
    return call.number(held, F32)


def _end(call: SymbolCall, index: int) -> Value:
    found = call.inputs[index] if index < len(call) else None
    if isinstance(found, RangeEnd):
        return _number(call, found.number)
    return call.value(index)


def _plain(call: SymbolCall, index: int) -> Value:
    """Returns integers as a plain tensor."""
    x = call.value(index)
    if x.type.quant is None:
        return x
    return call.place("recode", {"x": x}, {}, [x.type.with_element(x.type.dtype)]).result


def _reach(call: SymbolCall, low: Value, high: Value) -> Value:
    return _op(call, "max", _op(call, "abs", low), _op(call, "abs", high))


def _gain(call: SymbolCall, kind: DType, reach: Value) -> Value:
    return _op(call, "div", _number(call, LEVELS[kind]), reach)


def _rounded(call: SymbolCall, x: Value, kind: DType) -> Value:
    """Returns floats rounded to integers of a type, those beyond its ends at them."""
    x = call.add("round", {"x": x})
    if kind in LEVELS:
        low, high = (-128.0, 127.0) if kind == I8 else (0.0, 255.0)
        x = call.add("clip", {"x": x}, {"min": low, "max": high})
    return call.cast(x, kind)


def _extremes(call: SymbolCall, x: Value) -> tuple[Value, Value]:
    axes = tuple(range(x.type.rank))
    low, high = (
        call.add(f"reduce_{end}", {"x": x}, {"axes": axes, "keep": False}) for end in ("min", "max")
    )
    return low, high


def quantize(call: SymbolCall, signed: bool) -> list[Made]:
    """Adds a quantization by the least and the greatest element."""
    x, kind = call.value(0), I8 if signed else U8
    low, high = _extremes(call, x)
    reach = _reach(call, low, high)
    made = _rounded(call, _op(call, "mul", x, _gain(call, kind, reach)), kind)
    return [made, _op(call, "neg", reach), reach] if signed else [made, low, high]


def dequantize(call: SymbolCall) -> Value:
    """Adds the floats of integers of a computed range."""
    x = _plain(call, 0)
    reach = _reach(call, _end(call, 1), _end(call, 2))
    step = _op(call, "div", reach, _number(call, LEVELS[x.type.dtype]))
    return _op(call, "mul", call.cast(x, F32), step)


def requantize(call: SymbolCall) -> list[Made]:
    """Adds 8-bit integers of 32-bit ones: by calibrated ranges, or by the extremes of the data."""
    out = call.only("out_type", "int8", "int8", "uint8", "auto")
    x, made = _plain(call, 0), calibrated(call)
    unsigned = out == "uint8" or (out == "auto" and made is not None and made[0] >= 0)
    kind = U8 if unsigned else I8
    over = _number(call, float(_F(2**31 - 1)))
    first = _op(call, "div", _reach(call, _end(call, 1), _end(call, 2)), over)
    if made is not None:
        reach = _number(call, max(abs(end) for end in made))
    else:
        low, high = (_op(call, "mul", call.cast(end, F32), first) for end in _extremes(call, x))
        reach = _reach(call, low, high)
    gain = _op(call, "mul", first, _op(call, "div", _number(call, _TOP[kind]), reach))
    result = _rounded(call, _op(call, "mul", call.cast(x, F32), gain), kind)
    return [result, _number(call, 0.0) if unsigned else _op(call, "neg", reach), reach]


def moved(call: SymbolCall, op: str, attrs: dict[str, Attr]) -> list[Made]:
    """Adds an op that moves integers and keeps their range."""
    x = _plain(call, 0)
    return [call.add(op, {"x": x}, attrs), _end(call, 1), _end(call, 2)]


def relu(call: SymbolCall, x: Value) -> Value:
    """Adds the greater of integers and 0."""
    return _op(call, "max", x, call.number(0, x.type.dtype))


def activation(call: SymbolCall) -> list[Made]:
    """Adds a relu of integers that keep their range."""
    call.only("act_type", "relu")
    return [relu(call, _plain(call, 0)), _end(call, 1), _end(call, 2)]


def pool(call: SymbolCall) -> list[Made]:
    """Adds pooling, in floats, which hold 8-bit integers and their means exactly enough."""
    x = _plain(call, 0)
    wide = call.cast(x, F32)
    kind = call.only("pool_type", "max", "max", "avg")
    call.skip("p_value")
    call.only("layout", "", "", "NCHW")
    if call.attrs.flag("global_pool"):
        call.skip("kernel", "stride", "pad", "pooling_convention", "count_include_pad")
        made = call.add(f"global_{kind}_pool", {"x": wide})
    else:
        attrs = pooling.windows(call)
        if kind == "avg":
            attrs["count_pad"] = call.attrs.flag("count_include_pad", True)
        else:
            call.skip("count_include_pad")
        made = call.add(f"{kind}_pool2d", {"x": wide}, attrs)
    return [_rounded(call, made, x.type.dtype), _end(call, 1), _end(call, 2)]


class LayerSums:
    """A layer's 32-bit sums, and the range that they are given."""

    def __init__(self, call: SymbolCall, index: int, low: int, high: int) -> None:
        self.call, self.span, self.swapped = call, 0.0, False
        self.x = _plain(call, index)
        if self.x.type.dtype not in LEVELS:
            raise Unsupported(f"its data are {self.x.type.dtype}, int8 and uint8 are read")
        self.reach = _reach(call, _end(call, low), _end(call, high))
        self.gain = _gain(call, self.x.type.dtype, self.reach)

    def convolution(
        self, w: NDArray[np.float32], bias: NDArray[np.float32] | None, attrs: dict[str, Attr]
    ) -> tuple[Value, Value]:
        """Returns sums of a convolution, and their gain: one scale for all weights."""
        call = self.call
        self.span = _some(float(np.abs(w).max(initial=0)))
        gain = _F(LEVELS[I8]) / _F(self.span)
        held = np.clip(np.rint(w * gain), -128, 127).astype(np.int8)
        sums = call.add("conv_integer", {"x": self.x, "w": call.constant(held, "w")}, attrs)
        both = _op(call, "mul", self.gain, _number(call, float(gain)))
        if bias is not None:
            start = call.constant(bias.reshape(-1, 1, 1).astype(_F), "bias")
            added = _rounded(call, _op(call, "mul", start, both), I32)
            sums = _op(call, "add", sums, added)
        return sums, both

    def product(
        self,
        w: NDArray[np.int8],
        span: float,
        bias: NDArray[np.int8] | None,
        reach: float,
    ) -> Value:
        """Returns sums of a fully connected layer, whose bias has a scale of its own."""
        # MXNet gives QuantizationRangeForS8U8Multiplication the weights where it takes the data
        call, self.span, self.swapped = self.call, _some(span), True
        held = call.constant(np.ascontiguousarray(w.T), "w")
        sums = call.add("matmul_integer", {"a": self.x, "b": held})
        if bias is None:
            return sums
        gain = _number(call, float(_F(LEVELS[I8]) / _F(span)))
        own = _number(call, float(_F(LEVELS[I8]) / _F(reach)))
        ratio = _op(call, "div", _op(call, "mul", self.gain, gain), own)
        scaled = _op(call, "mul", call.constant(bias.astype(_F), "bias"), ratio)
        half = call.constant(np.where(bias < 0, _F(-0.5), _F(0.5)), "half")
        away = call.add("trunc", {"x": _op(call, "add", scaled, half)})
        return _op(call, "add", sums, call.cast(away, I32))

    def product_by_channel(
        self, w: NDArray[np.float32], bias: NDArray[np.float32] | None
    ) -> list[Made]:
        """Returns the floats of sums whose channels have scales of their own, and their range.

        Weights and bias are rounded as those of calibrated layers are. The range counts one unit a
        step, as no other has a meaning for all channels.
        """
        call = self.call
        spans = np.abs(w).max(axis=1, initial=0).astype(_F)
        gains = _F(LEVELS[I8]) / np.where(spans > 0, spans, _F(1))
        held = np.clip(np.rint(w * gains[:, None]), -128, 127).astype(np.int8)
        sums = call.add(
            "matmul_integer", {"a": self.x, "b": call.constant(np.ascontiguousarray(held.T), "w")}
        )
        both = _op(call, "mul", call.constant(gains, "gains"), self.gain)
        if bias is not None:
            start = call.constant(bias.astype(_F), "bias")
            sums = _op(call, "add", sums, _rounded(call, _op(call, "mul", start, both), I32))
        made = _op(call, "div", call.cast(sums, F32), both)
        reach = _number(call, float(_F(2**31 - 1)))
        return [made, _op(call, "neg", reach), reach]

    def with_summand(self, sums: Value, gain: Value, ends_at: Sequence[int]) -> Value:
        """Returns sums with another tensor added in their unit."""
        call = self.call
        index, low, high = ends_at
        other = _plain(call, index)
        theirs = _gain(call, other.type.dtype, _reach(call, _end(call, low), _end(call, high)))
        scaled = _op(call, "mul", call.cast(other, F32), _op(call, "div", gain, theirs))
        return _rounded(call, _op(call, "add", call.cast(sums, F32), scaled), I32)

    def results(self, sums: Value) -> list[Made]:
        """Returns sums with their range, which counts 127 and 255 levels."""
        call = self.call
        levels = _TOP[self.x.type.dtype], _TOP[I8]
        ours, theirs = reversed(levels) if self.swapped else levels
        level = _op(call, "div", self.reach, _number(call, ours))
        step = _op(call, "mul", level, _number(call, float(_F(self.span) / _F(theirs))))
        high = _op(call, "mul", step, _number(call, float(_F(2**31 - 1))))
        return [sums, _op(call, "neg", high), high]


def _some(span: float) -> float:
    """Returns the range of weights; Unsupported where it has no scale."""
    if not 0 < span < np.inf:
        raise Unsupported(f"its weights reach to {span}")
    return span


def range_of(value: Value) -> float:
    """Returns how far the range of stored integers reaches."""
    return max(abs(end) for end in ends(value))
