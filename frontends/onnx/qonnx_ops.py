"""QONNX's Quant, BipolarQuant and Trunc as groups: they return floats on a quantization grid.

With constant parameters the body of a Quant is quantize and dequantize with QONNX's arithmetic, and
that of a BipolarQuant the same by a table of two entries. With computed parameters, or without a
storage type that is wide enough, the body has the formula in float ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import QuantType, TensorType, make_param, uniform

from .contrib.group_bodies import BodyBuilder, add_group, named_operands
from .op import KeepOperator, OnnxOp
from .reader import OnnxReader

DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
PROFILE = "qonnx-1.0"
_ROUNDING_MODES = {
    "ROUND": "even",
    "HALF_EVEN": "even",
    "CEIL": "ceil",
    "FLOOR": "floor",
    "UP": "up",
    "DOWN": "down",
    "HALF_UP": "away",
}
"""QONNX's rounding modes by the language's names; HALF_DOWN has none, and takes the formula."""
_QONNX_MODES = frozenset((*_ROUNDING_MODES, "HALF_DOWN"))
_MAX_BITS, _MAX_BITS_WITH_ZERO_POINT = 24, 16
"""Bit widths whose integers are exact in float32, which QONNX computes in; less with an offset."""
Numbers = NDArray[np.float32]


def _rounding_mode(op: OnnxOp, default: str) -> str:
    mode = op.text("rounding_mode", default).upper()
    if mode not in _QONNX_MODES:
        raise KeepOperator(f"rounding_mode {mode[:40]!r} is none that QONNX has")
    return mode


def _check_float_operands(op: OnnxOp, operands: dict[str, Value], count: int) -> None:
    if len(operands) != count:
        raise op.error(f"has {len(operands)} operands, it takes {count}")
    if any(v.type.element != F32 for v in operands.values()):
        raise KeepOperator("an operand is no f32")


def _quant(reader: OnnxReader, op: OnnxOp) -> None:
    """Quant, also called IntQuant."""
    op.allow_only("signed", "narrow", "rounding_mode")
    operands = named_operands(reader, op)
    _check_float_operands(op, operands, 4)
    signed, narrow = op.integer("signed", 1) != 0, op.integer("narrow", 1) != 0
    mode = _rounding_mode(op, "ROUND")
    quant = (
        _quant_type(reader, op, operands["X"].type, signed, narrow)
        if mode in _ROUNDING_MODES
        else None
    )
    if quant is not None and mode == "HALF_UP" and quant.storage.bits == _MAX_BITS:
        quant = None  # QONNX adds 0.5 in float32, which has no effect on integers of 24 bits

    def build(body: BodyBuilder) -> list[Value]:
        if quant is None:
            return [_float_formula(body, mode, signed, narrow)]
        return [
            _quantize_dequantize(
                body, quant, "" if _ROUNDING_MODES[mode] == "even" else _ROUNDING_MODES[mode]
            )
        ]

    add_group(reader, op, operands, build)


def _quantize_dequantize(body: BodyBuilder, quant: QuantType, rounding: str) -> Value:
    """Adds quantize and dequantize with QONNX's arithmetic."""
    x = body["X"]
    quantized = body.graph.add(
        "quantize",
        {"x": x},
        {"round": rounding},
        types=[x.type.with_element(quant)],
        profile=PROFILE,
    )
    return body.graph.add("dequantize", {"x": quantized.result}, profile=PROFILE).result


def _scale_axis(scale: Numbers, x: TensorType) -> int | None:
    """Returns the axis of per-channel scales; None for one scale.

    Raises ValueError for other shapes.
    """
    axes = [i for i, n in enumerate(scale.shape) if n > 1]
    if len(axes) > 1 or scale.ndim > x.rank:
        raise ValueError
    # Scales broadcast: their axes are aligned with the last ones of x.
    axis = x.rank - scale.ndim + axes[0] if axes else None
    if axis is not None and x.shape[axis] != scale.size:
        raise ValueError
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise ValueError
    return axis


def _bipolar_quant_type(reader: OnnxReader, op: OnnxOp, x: TensorType) -> QuantType | None:
    """Returns the type of BipolarQuant: 1-bit values by a table of two entries, +end and -end.

    A table picks the nearest entry, the first of two at equal distance. So 0 gets the upper entry,
    and NaN value 0 the lower. The entries are 1 and -1, or larger powers of two where a large scale
    would make small x become 0.
    """
    if not reader.is_constant(op.input(1)):
        return None
    scale = np.asarray(reader.constant_data(op.input(1)), np.float32)
    try:
        axis = _scale_axis(scale, x)
    except ValueError:
        return None
    # frexp returns scale = m * 2^e with m in [0.5, 1), so the reduced scale is in [1, 2) at most.
    shift = max(int(np.frexp(scale.max())[1]) - 1, 0)
    reduced_scale = np.ldexp(scale, -shift)
    if (np.ldexp(reduced_scale, shift) != scale).any():
        return None  # the division by 2^shift is inexact: the scale became denormal
    entry = float(2.0**shift)
    scales = reduced_scale.reshape(-1) if axis is not None else reduced_scale.reshape(-1)[0]
    return replace(uniform(dtype("i1"), scales, axis=axis), kind="lut", codes=(entry, -entry))


def _quant_type(
    reader: OnnxReader, op: OnnxOp, x: TensorType, signed: bool, narrow: bool
) -> QuantType | None:
    """Returns the quantized type that constants state.

    Returns None for computed ones, and where no type can express them.
    """
    if not all(reader.is_constant(op.input(i)) for i in (1, 2, 3)):
        return None
    scale, zero, bit_width = (
        np.asarray(reader.constant_data(op.input(i)), np.float32) for i in (1, 2, 3)
    )
    bits = float(bit_width.reshape(-1)[0]) if bit_width.size == 1 else 0.0
    try:
        axis = _scale_axis(scale, x)
    except ValueError:
        return None
    if not bits.is_integer():
        return None
    # Signed integers of 1 bit are -1 and 1 in QONNX, but -1 and 0 in the language.
    if not (1 if not signed else 2) <= bits <= _MAX_BITS or (bits == 1 and narrow):
        return None
    storage = dtype(f"{'i' if signed else 'u'}{int(bits)}")
    low, high = storage.bounds
    # `narrow` leaves out the lowest signed integer, and the highest unsigned one.
    bounds = (low + 1, high) if signed and narrow else (low, high - (narrow and not signed))
    if zero.size not in (1, scale.size):
        return None
    if bits > _MAX_BITS_WITH_ZERO_POINT and zero.any():
        return None
    if not ((zero >= low) & (zero <= high)).all():
        return None
    scales = scale.reshape(-1) if axis is not None else scale.reshape(-1)[0]
    zeros = np.broadcast_to(zero.reshape(-1), scale.size)
    quant = uniform(storage, scales, axis=axis, bounds=bounds)
    # QONNX has zero points between integers, too.
    if (zero != np.rint(zero)).any():
        float_zero = make_param(
            zeros if axis is not None else zeros[0], quant.granularity, f"{op.name}.zero"
        )
        return replace(quant, zero=float_zero)
    integer_zeros = zeros.astype(np.int64)
    return uniform(
        storage,
        scales,
        integer_zeros if axis is not None else integer_zeros[0],
        axis=axis,
        bounds=bounds,
    )


def _float_formula(body: BodyBuilder, mode: str, signed: bool, narrow: bool) -> Value:
    """Adds the formula of Quant: divide, add the zero point, clamp, round, and back to floats."""
    zero, scale = body["zeropt"], body["scale"]
    shifted = body.op("add", body.op("div", body["X"], scale), zero)
    # QONNX clamps first and rounds then.
    clamped = _clamped(body, shifted, body["bitwidth"], signed, narrow)
    rounded = _rounded(body, clamped, mode)
    # Signed integers of 1 bit are the sign of y.
    if signed:
        one = body.constant(1.0)
        is_positive = body.op("greater_equal", shifted, body.constant(0.0))
        signs = body.op("where", is_positive, one, body.op("neg", one))
        rounded = body.op("where", body.op("equal", body["bitwidth"], one), signs, rounded)
    return body.op("mul", body.op("sub", rounded, zero), scale)


def _clamped(body: BodyBuilder, value: Value, bits: Value, signed: bool, narrow: bool) -> Value:
    """Clamps y to the range of integers of `bits` bits."""
    one, two = body.constant(1.0), body.constant(2.0)
    if signed:
        half = body.op("pow", two, body.op("sub", bits, one))
        high, low = body.op("sub", half, one), body.op("neg", half)
        low = body.op("add", low, one) if narrow else low
    else:
        high = body.op("sub", body.op("pow", two, bits), two if narrow else one)
        low = body.constant(0.0)
    return body.op("max", body.op("min", value, high), low)


def _rounded(body: BodyBuilder, x: Value, mode: str) -> Value:
    if mode in ("ROUND", "HALF_EVEN"):
        return body.op("round", x)
    if mode in ("CEIL", "FLOOR"):
        return body.op(mode.lower(), x)
    if mode == "DOWN":
        return body.op("trunc", x)
    # These modes are symmetric: they round the magnitude and restore the sign.
    magnitude, half = body.op("abs", x), body.constant(0.5)
    if mode == "UP":
        magnitude = body.op("ceil", magnitude)
    elif mode == "HALF_UP":
        magnitude = body.op("floor", body.op("add", magnitude, half))
    else:
        # HALF_DOWN rounds a half toward zero.
        magnitude = body.op("ceil", body.op("sub", magnitude, half))
    return body.op("mul", body.op("sign", x), magnitude)


def _bipolar(reader: OnnxReader, op: OnnxOp) -> None:
    """BipolarQuant: the scale with the sign of x."""
    op.allow_only()
    operands = named_operands(reader, op)
    _check_float_operands(op, operands, 2)
    quant = _bipolar_quant_type(reader, op, operands["X"].type)

    def build(body: BodyBuilder) -> list[Value]:
        if quant is not None:
            return [_quantize_dequantize(body, quant, "")]
        one = body.constant(1.0)
        is_positive = body.op("greater_equal", body["X"], body.constant(0.0))
        return [
            body.op("mul", body.op("where", is_positive, one, body.op("neg", one)), body["scale"])
        ]

    add_group(reader, op, operands, build)


def _trunc(reader: OnnxReader, op: OnnxOp) -> None:
    """Trunc: version 1 drops low bits, version 2 states the scale of the result."""
    op.allow_only("rounding_mode", "signed", "narrow")
    has_output_scale = len(op.inputs) == 6
    operand_names = ("X", "scale", "zeropt", "input_bitwidth", "output_scale", "output_bitwidth")
    names = operand_names if has_output_scale else (*operand_names[:4], "output_bitwidth")
    if len(op.inputs) not in (5, 6) or not all(op.inputs):
        raise op.error(f"has {len(op.inputs)} operands, it takes 5, or 6 since version 2")
    operands = {s: reader.value(op, n) for s, n in zip(names, op.inputs, strict=True)}
    _check_float_operands(op, operands, len(names))
    mode = _rounding_mode(op, "FLOOR")
    signed, narrow = op.integer("signed", 1) != 0, op.integer("narrow", 0) != 0

    def build(body: BodyBuilder) -> list[Value]:
        scale, zero, two = body["scale"], body["zeropt"], body.constant(2.0)
        integers = body.op("round", body.op("add", body.op("div", body["X"], scale), zero))
        if not has_output_scale:
            # Version 1: as many low bits are dropped as the widths differ by.
            bits = body.op("sub", body["input_bitwidth"], body["output_bitwidth"])
            rounded = _rounded(body, body.op("div", integers, body.op("pow", two, bits)), mode)
            return [body.op("mul", body.op("sub", rounded, zero), scale)]
        # Version 2: low bits are dropped by the ratio of the scales, which is a power of two.
        ratio = body.op("log2", body.op("div", body["output_scale"], scale))
        step = body.op("pow", two, body.op("round", ratio))
        clamped = _clamped(
            body, body.op("div", integers, step), body["output_bitwidth"], signed, narrow
        )
        rounded = body.op("sub", _rounded(body, clamped, mode), body.op("div", zero, step))
        return [body.op("mul", rounded, body["output_scale"])]

    add_group(reader, op, operands, build)


_HANDLERS: dict[str, Callable[[OnnxReader, OnnxOp], None]] = {
    "Quant": _quant,
    "IntQuant": _quant,
    "BipolarQuant": _bipolar,
    "Trunc": _trunc,
}
OPS = {(domain, name): handler for domain in DOMAINS for name, handler in _HANDLERS.items()}
