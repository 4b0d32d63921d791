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
from .call import SymbolCall
from .ranges import I8, LEVELS, U8, calibrated_range, declared_range
from .results import RangeBound, Result, Unsupported

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


def _float_scalar(call: SymbolCall, number: float) -> Value:
    return call.number(number, F32)


def _range_bound(call: SymbolCall, index: int) -> Value:
    bound = call.inputs[index] if index < len(call) else None
    if isinstance(bound, RangeBound):
        return _float_scalar(call, bound.number)
    return call.value(index)


def _plain_integers(call: SymbolCall, index: int) -> Value:
    """Returns an operand as plain integers."""
    x = call.value(index)
    if x.type.quant is None:
        return x
    # Same bits, without the type: ranges are computed next to them.
    return call.add_node("recode", {"x": x}, {}, [x.type.with_element(x.type.dtype)]).result


def _absmax(call: SymbolCall, low: Value, high: Value) -> Value:
    return _add_op(call, "max", _add_op(call, "abs", low), _add_op(call, "abs", high))


def _gain(call: SymbolCall, storage: DType, absmax: Value) -> Value:
    return _add_op(call, "div", _float_scalar(call, LEVELS[storage]), absmax)


def _round_and_saturate(call: SymbolCall, x: Value, target: DType) -> Value:
    """Returns floats rounded to an integer type; 8-bit types saturate."""
    x = call.add("round", {"x": x})
    if target in LEVELS:
        low, high = (-128.0, 127.0) if target == I8 else (0.0, 255.0)
        x = call.add("clip", {"x": x}, {"min": low, "max": high})
    return call.cast(x, target)


def _extremes(call: SymbolCall, x: Value) -> tuple[Value, Value]:
    axes = tuple(range(x.type.rank))
    low, high = (
        call.add(f"reduce_{reduction}", {"x": x}, {"axes": axes, "keep": False})
        for reduction in ("min", "max")
    )
    return low, high


def quantize(call: SymbolCall, signed: bool) -> list[Result]:
    """Adds a quantization by the minimum and maximum of the data."""
    x, storage = call.value(0), I8 if signed else U8
    low, high = _extremes(call, x)
    absmax = _absmax(call, low, high)
    quantized = _round_and_saturate(
        call, _add_op(call, "mul", x, _gain(call, storage, absmax)), storage
    )
    # The range of int8 is symmetric, that of uint8 is the one of the data.
    return [quantized, _add_op(call, "neg", absmax), absmax] if signed else [quantized, low, high]


def dequantize(call: SymbolCall) -> Value:
    """Adds a dequantization by a computed range."""
    x = _plain_integers(call, 0)
    absmax = _absmax(call, _range_bound(call, 1), _range_bound(call, 2))
    step = _add_op(call, "div", absmax, _float_scalar(call, LEVELS[x.type.dtype]))
    return _add_op(call, "mul", call.cast(x, F32), step)


def requantize(call: SymbolCall) -> list[Result]:
    """Adds a requantization of 32-bit sums: by a calibrated range, or by that of the data."""
    out_type = call.choice("out_type", "int8", "int8", "uint8", "auto")
    x, calibrated = _plain_integers(call, 0), calibrated_range(call)
    # `auto` is uint8 only if a calibrated range says that nothing is negative.
    is_unsigned = out_type == "uint8" or (
        out_type == "auto" and calibrated is not None and calibrated[0] >= 0
    )
    storage = U8 if is_unsigned else I8
    max_integer = _float_scalar(call, float(_F(2**31 - 1)))
    # The range of 32-bit sums is that of 2^31 - 1, so this quotient is their scale.
    sums_scale = _add_op(
        call, "div", _absmax(call, _range_bound(call, 1), _range_bound(call, 2)), max_integer
    )
    # With a calibrated range, values beyond it saturate.
    if calibrated is not None:
        absmax = _float_scalar(call, max(abs(bound) for bound in calibrated))
    else:
        low, high = (
            _add_op(call, "mul", call.cast(bound, F32), sums_scale) for bound in _extremes(call, x)
        )
        absmax = _absmax(call, low, high)
    gain = _add_op(
        call,
        "mul",
        sums_scale,
        _add_op(call, "div", _float_scalar(call, _SUM_LEVELS[storage]), absmax),
    )
    result = _round_and_saturate(call, _add_op(call, "mul", call.cast(x, F32), gain), storage)
    return [
        result,
        _float_scalar(call, 0.0) if is_unsigned else _add_op(call, "neg", absmax),
        absmax,
    ]


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
    floats = call.cast(x, F32)
    pool_type = call.choice("pool_type", "max", "max", "avg")
    call.ignore("p_value")
    call.choice("layout", "", "", "NCHW")
    if call.attrs.flag("global_pool"):
        call.ignore("kernel", "stride", "pad", "pooling_convention", "count_include_pad")
        pooled = call.add(f"global_{pool_type}_pool", {"x": floats})
    else:
        attrs = pooling.window_attrs(call)
        if pool_type == "avg":
            attrs["count_pad"] = call.attrs.flag("count_include_pad", True)
        else:
            call.ignore("count_include_pad")
        pooled = call.add(f"{pool_type}_pool2d", {"x": floats}, attrs)
    return [
        _round_and_saturate(call, pooled, x.type.dtype),
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
        quantized = np.clip(np.rint(w * gain), -128, 127).astype(np.int8)
        sums = call.add("conv_integer", {"x": self.x, "w": call.constant(quantized, "w")}, attrs)
        # Sums of products have the product of both scales.
        product_gain = _add_op(call, "mul", self.gain, _float_scalar(call, float(gain)))
        if bias is not None:
            bias_value = call.constant(bias.reshape(-1, 1, 1).astype(_F), "bias")
            bias_integers = _round_and_saturate(
                call, _add_op(call, "mul", bias_value, product_gain), I32
            )
            sums = _add_op(call, "add", sums, bias_integers)
        return sums, product_gain

    def fully_connected(
        self,
        w: NDArray[np.int8],
        weight_span: float,
        bias: NDArray[np.int8] | None,
        bias_span: float,
    ) -> Value:
        """Returns the sums of a fully connected layer, whose bias is quantized by its own scale."""
        # A defect of MXNet: it passes the ranges of data and weights to
        # QuantizationRangeForS8U8Multiplication in exchanged order.
        call, self.weight_absmax, self.has_swapped_ranges = (
            self.call,
            _checked_span(weight_span),
            True,
        )
        weights = call.constant(np.ascontiguousarray(w.T), "w")
        sums = call.add("matmul_integer", {"a": self.x, "b": weights})
        if bias is None:
            return sums
        gain = _float_scalar(call, float(_F(LEVELS[I8]) / _F(weight_span)))
        bias_gain = _float_scalar(call, float(_F(LEVELS[I8]) / _F(bias_span)))
        ratio = _add_op(call, "div", _add_op(call, "mul", self.gain, gain), bias_gain)
        scaled = _add_op(call, "mul", call.constant(bias.astype(_F), "bias"), ratio)
        # Here MXNet rounds half away from zero, elsewhere half to even.
        half_away = call.constant(np.where(bias < 0, _F(-0.5), _F(0.5)), "half")
        rounded = call.add("trunc", {"x": _add_op(call, "add", scaled, half_away)})
        return _add_op(call, "add", sums, call.cast(rounded, I32))

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
        quantized = np.clip(np.rint(w * gains[:, None]), -128, 127).astype(np.int8)
        sums = call.add(
            "matmul_integer",
            {"a": self.x, "b": call.constant(np.ascontiguousarray(quantized.T), "w")},
        )
        product_gain = _add_op(call, "mul", call.constant(gains, "gains"), self.gain)
        if bias is not None:
            bias_value = call.constant(bias.astype(_F), "bias")
            sums = _add_op(
                call,
                "add",
                sums,
                _round_and_saturate(call, _add_op(call, "mul", bias_value, product_gain), I32),
            )
        dequantized = _add_op(call, "div", call.cast(sums, F32), product_gain)
        # A range of 2^31 - 1 means a scale of 1: the floats are the sums already.
        max_integer = _float_scalar(call, float(_F(2**31 - 1)))
        return [dequantized, _add_op(call, "neg", max_integer), max_integer]

    def add_summand(self, sums: Value, gain: Value, operand_indices: Sequence[int]) -> Value:
        """Returns the sums with another quantized tensor added in their scale."""
        call = self.call
        index, low, high = operand_indices
        summand = _plain_integers(call, index)
        summand_gain = _gain(
            call,
            summand.type.dtype,
            _absmax(call, _range_bound(call, low), _range_bound(call, high)),
        )
        # The other tensor is rescaled to the scale of the sums.
        scaled = _add_op(
            call, "mul", call.cast(summand, F32), _add_op(call, "div", gain, summand_gain)
        )
        return _round_and_saturate(call, _add_op(call, "add", call.cast(sums, F32), scaled), I32)

    def results_with_range(self, sums: Value) -> list[Result]:
        """Returns the sums and their range, in levels of 127 and 255."""
        call = self.call
        levels = _SUM_LEVELS[self.x.type.dtype], _SUM_LEVELS[I8]
        data_level, weight_level = reversed(levels) if self.has_swapped_ranges else levels
        level = _add_op(call, "div", self.data_absmax, _float_scalar(call, data_level))
        step = _add_op(
            call,
            "mul",
            level,
            _float_scalar(call, float(_F(self.weight_absmax) / _F(weight_level))),
        )
        # The range of 32-bit sums reaches to 2^31 - 1 steps.
        high = _add_op(call, "mul", step, _float_scalar(call, float(_F(2**31 - 1))))
        return [sums, _add_op(call, "neg", high), high]


def _checked_span(absmax: float) -> float:
    """Returns a range of weights; raises Unsupported if it is 0 or not finite."""
    if not 0 < absmax < np.inf:
        raise Unsupported(f"its weights reach to {absmax}")
    return absmax


def absmax_of(value: Value) -> float:
    """Returns the absolute maximum of a declared range."""
    return max(abs(bound) for bound in declared_range(value))
