"""Quantized operators without calibrated ranges: MXNet computes the ranges at run time.

Integers are plain tensors here, and their ranges are scalars that the graph computes in float32,
operation by operation as MXNet 1.9.1's oneDNN operators do. Where a bias exceeds 31 bits in the
scale of the sums, MXNet reduces the scale of the weights; that case is not covered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, DType, dtype
from qir.ir.node import Value

from . import pooling
from .call import RangeBound, Result, SymbolCall, Unsupported
from .ranges import I8, LEVELS, U8, calibrated_range, declared_range

I32 = dtype("i32")
_F = np.float32
_SUM_LEVELS = {I8: 127.0, U8: 255.0}
"""Levels L of scale = absmax / L in ranges of 32-bit sums and in requantize.

They differ from the 127.5 and 255.5 of 8-bit ranges.
"""


def is_uncalibrated(call: SymbolCall, index: int) -> bool:
    """Returns whether an operand has plain integers, whose range is computed."""
    value = call.value(index)
    return value.type.quant is None and value.node.op != "constant"


def _add_op(call: SymbolCall, op: str, *operands: Value) -> Value:
    slots = ("x",) if len(operands) == 1 else ("a", "b")
    if op in ("min", "max"):
        slots = ("xs.0", "xs.1")
    return call.add(op, dict(zip(slots, operands, strict=True)))


def _float_scalar(call: SymbolCall, held: float) -> Value:
    return call.number(held, F32)


def _range_bound(call: SymbolCall, index: int) -> Value:
    found = call.inputs[index] if index < len(call) else None
    if isinstance(found, RangeBound):
        return _float_scalar(call, found.number)
    return call.value(index)


def _plain_integers(call: SymbolCall, index: int) -> Value:
    """Returns an operand as plain integers."""
    x = call.value(index)
    if x.type.quant is None:
        return x
    return call.add_node("recode", {"x": x}, {}, [x.type.with_element(x.type.dtype)]).result


def _absmax(call: SymbolCall, low: Value, high: Value) -> Value:
    return _add_op(call, "max", _add_op(call, "abs", low), _add_op(call, "abs", high))


def _gain(call: SymbolCall, kind: DType, absmax: Value) -> Value:
    return _add_op(call, "div", _float_scalar(call, LEVELS[kind]), absmax)


def _round_and_saturate(call: SymbolCall, x: Value, kind: DType) -> Value:
    """Returns floats rounded to an integer type; 8-bit types saturate."""
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


def quantize(call: SymbolCall, signed: bool) -> list[Result]:
    """Adds a quantization by the minimum and maximum of the data."""
    x, kind = call.value(0), I8 if signed else U8
    low, high = _extremes(call, x)
    absmax = _absmax(call, low, high)
    made = _round_and_saturate(call, _add_op(call, "mul", x, _gain(call, kind, absmax)), kind)
    # The range of int8 is symmetric, that of uint8 is the one of the data.
    return [made, _add_op(call, "neg", absmax), absmax] if signed else [made, low, high]


def dequantize(call: SymbolCall) -> Value:
    """Adds a dequantization by a computed range."""
    x = _plain_integers(call, 0)
    absmax = _absmax(call, _range_bound(call, 1), _range_bound(call, 2))
    step = _add_op(call, "div", absmax, _float_scalar(call, LEVELS[x.type.dtype]))
    return _add_op(call, "mul", call.cast(x, F32), step)


def requantize(call: SymbolCall) -> list[Result]:
    """Adds a requantization of 32-bit sums: by a calibrated range, or by that of the data."""
    out = call.choice("out_type", "int8", "int8", "uint8", "auto")
    x, made = _plain_integers(call, 0), calibrated_range(call)
    # `auto` is uint8 only if a calibrated range says that nothing is negative.
    unsigned = out == "uint8" or (out == "auto" and made is not None and made[0] >= 0)
    kind = U8 if unsigned else I8
    over = _float_scalar(call, float(_F(2**31 - 1)))
    # The range of 32-bit sums is that of 2^31 - 1, so this quotient is their scale.
    first = _add_op(call, "div", _absmax(call, _range_bound(call, 1), _range_bound(call, 2)), over)
    if made is not None:
        absmax = _float_scalar(call, max(abs(end) for end in made))
    else:
        low, high = (_add_op(call, "mul", call.cast(end, F32), first) for end in _extremes(call, x))
        absmax = _absmax(call, low, high)
    gain = _add_op(
        call, "mul", first, _add_op(call, "div", _float_scalar(call, _SUM_LEVELS[kind]), absmax)
    )
    result = _round_and_saturate(call, _add_op(call, "mul", call.cast(x, F32), gain), kind)
    return [result, _float_scalar(call, 0.0) if unsigned else _add_op(call, "neg", absmax), absmax]


def move_integers(call: SymbolCall, op: str, attrs: dict[str, Attr]) -> list[Result]:
    """Adds an op that moves integers and keeps their range."""
    x = _plain_integers(call, 0)
    return [call.add(op, {"x": x}, attrs), _range_bound(call, 1), _range_bound(call, 2)]


def relu(call: SymbolCall, x: Value) -> Value:
    """Adds a relu of plain integers."""
    return _add_op(call, "max", x, call.number(0, x.type.dtype))


def activation(call: SymbolCall) -> list[Result]:
    """Adds a relu of integers; the range stays."""
    call.choice("act_type", "relu")
    return [relu(call, _plain_integers(call, 0)), _range_bound(call, 1), _range_bound(call, 2)]


def pooling_of_integers(call: SymbolCall) -> list[Result]:
    """Adds pooling, computed in floats, which are exact for 8-bit integers and their sums."""
    x = _plain_integers(call, 0)
    wide = call.cast(x, F32)
    kind = call.choice("pool_type", "max", "max", "avg")
    call.ignore("p_value")
    call.choice("layout", "", "", "NCHW")
    if call.attrs.flag("global_pool"):
        call.ignore("kernel", "stride", "pad", "pooling_convention", "count_include_pad")
        made = call.add(f"global_{kind}_pool", {"x": wide})
    else:
        attrs = pooling.window_attrs(call)
        if kind == "avg":
            attrs["count_pad"] = call.attrs.flag("count_include_pad", True)
        else:
            call.ignore("count_include_pad")
        made = call.add(f"{kind}_pool2d", {"x": wide}, attrs)
    return [
        _round_and_saturate(call, made, x.type.dtype),
        _range_bound(call, 1),
        _range_bound(call, 2),
    ]


class LayerSums:
    """The 32-bit sums of a layer, and their range."""

    def __init__(self, call: SymbolCall, index: int, low: int, high: int) -> None:
        self.call, self.weight_absmax, self.has_swapped_ranges = call, 0.0, False
        self.x = _plain_integers(call, index)
        if self.x.type.dtype not in LEVELS:
            raise Unsupported(f"its data are {self.x.type.dtype}, int8 and uint8 are read")
        self.data_absmax = _absmax(call, _range_bound(call, low), _range_bound(call, high))
        self.gain = _gain(call, self.x.type.dtype, self.data_absmax)

    def convolution(
        self, w: NDArray[np.float32], bias: NDArray[np.float32] | None, attrs: dict[str, Attr]
    ) -> tuple[Value, Value]:
        """Returns the sums of a convolution and their reciprocal scale; weights are per tensor."""
        call = self.call
        self.weight_absmax = _checked_span(float(np.abs(w).max(initial=0)))
        gain = _F(LEVELS[I8]) / _F(self.weight_absmax)
        held = np.clip(np.rint(w * gain), -128, 127).astype(np.int8)
        sums = call.add("conv_integer", {"x": self.x, "w": call.constant(held, "w")}, attrs)
        # Sums of products have the product of both scales.
        both = _add_op(call, "mul", self.gain, _float_scalar(call, float(gain)))
        if bias is not None:
            start = call.constant(bias.reshape(-1, 1, 1).astype(_F), "bias")
            added = _round_and_saturate(call, _add_op(call, "mul", start, both), I32)
            sums = _add_op(call, "add", sums, added)
        return sums, both

    def fully_connected(
        self,
        w: NDArray[np.int8],
        span: float,
        bias: NDArray[np.int8] | None,
        reach: float,
    ) -> Value:
        """Returns the sums of a fully connected layer, whose bias is quantized by its own scale."""
        # A defect of MXNet: it passes the ranges of data and weights to
        # QuantizationRangeForS8U8Multiplication in exchanged order.
        call, self.weight_absmax, self.has_swapped_ranges = self.call, _checked_span(span), True
        held = call.constant(np.ascontiguousarray(w.T), "w")
        sums = call.add("matmul_integer", {"a": self.x, "b": held})
        if bias is None:
            return sums
        gain = _float_scalar(call, float(_F(LEVELS[I8]) / _F(span)))
        own = _float_scalar(call, float(_F(LEVELS[I8]) / _F(reach)))
        ratio = _add_op(call, "div", _add_op(call, "mul", self.gain, gain), own)
        scaled = _add_op(call, "mul", call.constant(bias.astype(_F), "bias"), ratio)
        # Here MXNet rounds half away from zero, elsewhere half to even.
        half = call.constant(np.where(bias < 0, _F(-0.5), _F(0.5)), "half")
        away = call.add("trunc", {"x": _add_op(call, "add", scaled, half)})
        return _add_op(call, "add", sums, call.cast(away, I32))

    def fully_connected_by_channel(
        self, w: NDArray[np.float32], bias: NDArray[np.float32] | None
    ) -> list[Result]:
        """Returns dequantized sums of a layer with per-channel weights, and a range of scale 1.

        Weights and bias are rounded as in calibrated layers. No other range would apply to all
        channels.
        """
        call = self.call
        spans = np.abs(w).max(axis=1, initial=0).astype(_F)
        gains = _F(LEVELS[I8]) / np.where(spans > 0, spans, _F(1))
        held = np.clip(np.rint(w * gains[:, None]), -128, 127).astype(np.int8)
        sums = call.add(
            "matmul_integer", {"a": self.x, "b": call.constant(np.ascontiguousarray(held.T), "w")}
        )
        both = _add_op(call, "mul", call.constant(gains, "gains"), self.gain)
        if bias is not None:
            start = call.constant(bias.astype(_F), "bias")
            sums = _add_op(
                call, "add", sums, _round_and_saturate(call, _add_op(call, "mul", start, both), I32)
            )
        made = _add_op(call, "div", call.cast(sums, F32), both)
        reach = _float_scalar(call, float(_F(2**31 - 1)))
        return [made, _add_op(call, "neg", reach), reach]

    def add_summand(self, sums: Value, gain: Value, ends_at: Sequence[int]) -> Value:
        """Returns the sums with another quantized tensor added in their scale."""
        call = self.call
        index, low, high = ends_at
        other = _plain_integers(call, index)
        theirs = _gain(
            call, other.type.dtype, _absmax(call, _range_bound(call, low), _range_bound(call, high))
        )
        # The other tensor is rescaled to the scale of the sums.
        scaled = _add_op(call, "mul", call.cast(other, F32), _add_op(call, "div", gain, theirs))
        return _round_and_saturate(call, _add_op(call, "add", call.cast(sums, F32), scaled), I32)

    def results_with_range(self, sums: Value) -> list[Result]:
        """Returns the sums and their range, in levels of 127 and 255."""
        call = self.call
        levels = _SUM_LEVELS[self.x.type.dtype], _SUM_LEVELS[I8]
        ours, theirs = reversed(levels) if self.has_swapped_ranges else levels
        level = _add_op(call, "div", self.data_absmax, _float_scalar(call, ours))
        step = _add_op(
            call, "mul", level, _float_scalar(call, float(_F(self.weight_absmax) / _F(theirs)))
        )
        high = _add_op(call, "mul", step, _float_scalar(call, float(_F(2**31 - 1))))
        return [sums, _add_op(call, "neg", high), high]


def _checked_span(span: float) -> float:
    """Returns a range of weights; raises Unsupported if it is 0 or not finite."""
    if not 0 < span < np.inf:
        raise Unsupported(f"its weights reach to {span}")
    return span


def absmax_of(value: Value) -> float:
    """Returns the absolute maximum of a declared range."""
    return max(abs(end) for end in declared_range(value))
