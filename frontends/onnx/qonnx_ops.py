"""QONNX's Quant, BipolarQuant and Trunc, which give floats that are on a grid, as groups.

With constant numbers a Quant is a quantize and a dequantize of QONNX's own arithmetic, and a
BipolarQuant one by a table of two entries; where scale, zero point or bit width are computed, or no
storage type holds the quantized values, they are their formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import QuantType, TensorType, make_param, uniform

from .contrib.body import BodyBuilder, given, group
from .op import KeepOperator, OnnxOp
from .reader import OnnxReader

DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
PROFILE = "qonnx-1.0"
_ROUNDS = {
    "ROUND": "even",
    "HALF_EVEN": "even",
    "CEIL": "ceil",
    "FLOOR": "floor",
    "UP": "up",
    "DOWN": "down",
    "HALF_UP": "away",
}
"""Its rounding modes and what they are called here; HALF_DOWN is none of ours."""
_KNOWN = frozenset((*_ROUNDS, "HALF_DOWN"))
_MOST_BITS, _WITH_ZERO = 24, 16
"""Whole numbers of so many bits are exact in float32, and with zero points added."""
Numbers = NDArray[np.float32]


def _mode(op: OnnxOp, default: str) -> str:
    mode = op.text("rounding_mode", default).upper()
    if mode not in _KNOWN:
        raise KeepOperator(f"rounding_mode {mode[:40]!r} is none that QONNX has")
    return mode


def _reals(op: OnnxOp, operands: dict[str, Value], count: int) -> None:
    if len(operands) != count:
        raise op.fail(f"has {len(operands)} operands, it takes {count}")
    if any(v.type.element != F32 for v in operands.values()):
        raise KeepOperator("an operand is no f32")


def _quant(reader: OnnxReader, op: OnnxOp) -> None:
    """Quant, also called IntQuant."""
    op.only("signed", "narrow", "rounding_mode")
    operands = given(reader, op)
    _reals(op, operands, 4)
    signed, narrow = op.integer("signed", 1) != 0, op.integer("narrow", 1) != 0
    mode = _mode(op, "ROUND")
    kind = _map(reader, op, operands["X"].type, signed, narrow) if mode in _ROUNDS else None
    if kind is not None and mode == "HALF_UP" and kind.storage.bits == _MOST_BITS:
        kind = None  # it adds a half in float32, which has no effect on numbers so large

    def build(body: BodyBuilder) -> list[Value]:
        if kind is None:
            return [_formula(body, mode, signed, narrow)]
        return [_through(body, kind, "" if _ROUNDS[mode] == "even" else _ROUNDS[mode])]

    group(reader, op, operands, build)


def _through(body: BodyBuilder, kind: QuantType, stated: str) -> Value:
    """X by way of quantized values, as QONNX computes them."""
    x = body["X"]
    codes = body.graph.add(
        "quantize",
        {"x": x},
        {"round": stated},
        types=[x.type.with_element(kind)],
        profile=PROFILE,
    )
    return body.graph.add("dequantize", {"x": codes.result}, profile=PROFILE).result


def _axis(scale: Numbers, x: TensorType) -> int | None:
    """Returns the axis that has a scale for each index; None for one scale. ValueError for other
    shapes."""
    axes = [i for i, n in enumerate(scale.shape) if n > 1]
    if len(axes) > 1 or scale.ndim > x.rank:
        raise ValueError
    axis = x.rank - scale.ndim + axes[0] if axes else None
    if axis is not None and x.shape[axis] != scale.size:
        raise ValueError
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise ValueError
    return axis


def _sides(reader: OnnxReader, op: OnnxOp, x: TensorType) -> QuantType | None:
    """Returns a table of two entries, so far from each other that every x is on its side of 0.

    Of two entries as near the first is taken: 0 is on the upper side; NaN is quantized value 0, on
    the lower. Entries are 1 and -1, or so much larger that no x becomes 0 over the scale.
    """
    if not reader.is_constant(op.input(1)):
        return None
    scale = np.asarray(reader.numbers(op.input(1)), np.float32)
    try:
        axis = _axis(scale, x)
    except ValueError:
        return None
    far = max(int(np.frexp(scale.max())[1]) - 1, 0)
    least = np.ldexp(scale, -far)
    if (np.ldexp(least, far) != scale).any():
        return None  # below what float32 holds whole
    end = float(2.0**far)
    flat = least.reshape(-1) if axis is not None else least.reshape(-1)[0]
    return replace(uniform(dtype("i1"), flat, axis=axis), kind="lut", codes=(end, -end))


def _map(
    reader: OnnxReader, op: OnnxOp, x: TensorType, signed: bool, narrow: bool
) -> QuantType | None:
    """Returns the quantized type that constants state; None where no type says
    it."""
    if not all(reader.is_constant(op.input(i)) for i in (1, 2, 3)):
        return None
    scale, zero, wide = (np.asarray(reader.numbers(op.input(i)), np.float32) for i in (1, 2, 3))
    bits = float(wide.reshape(-1)[0]) if wide.size == 1 else 0.0
    try:
        axis = _axis(scale, x)
    except ValueError:
        return None
    if not bits.is_integer():
        return None
    if not (1 if not signed else 2) <= bits <= _MOST_BITS or (bits == 1 and narrow):
        return None
    storage = dtype(f"{'i' if signed else 'u'}{int(bits)}")
    low, high = storage.bounds
    bounds = (low + 1, high) if signed and narrow else (low, high - (narrow and not signed))
    if zero.size not in (1, scale.size):
        return None
    if bits > _WITH_ZERO and zero.any():
        return None
    if not ((zero >= low) & (zero <= high)).all():
        return None
    flat = scale.reshape(-1) if axis is not None else scale.reshape(-1)[0]
    zeros = np.broadcast_to(zero.reshape(-1), scale.size)
    kind = uniform(storage, flat, axis=axis, bounds=bounds)
    if (zero != np.rint(zero)).any():
        real = make_param(
            zeros if axis is not None else zeros[0], kind.granularity, f"{op.name}.zero"
        )
        return replace(kind, zero=real)
    whole = zeros.astype(np.int64)
    return uniform(storage, flat, whole if axis is not None else whole[0], axis=axis, bounds=bounds)


def _formula(body: BodyBuilder, mode: str, signed: bool, narrow: bool) -> Value:
    """Divide, add the zero point, keep between the ends, round, and back."""
    zero, scale = body["zeropt"], body["scale"]
    y = body.op("add", body.op("div", body["X"], scale), zero)
    held = _kept(body, y, body["bitwidth"], signed, narrow)
    made = _rounded(body, held, mode)
    if signed:
        one = body.constant(1.0)
        side = body.op("greater_equal", y, body.constant(0.0))
        both = body.op("where", side, one, body.op("neg", one))
        made = body.op("where", body.op("equal", body["bitwidth"], one), both, made)
    return body.op("mul", body.op("sub", made, zero), scale)


def _kept(body: BodyBuilder, y: Value, bits: Value, signed: bool, narrow: bool) -> Value:
    """y between the least and the greatest whole number of so many bits."""
    one, two = body.constant(1.0), body.constant(2.0)
    if signed:
        half = body.op("pow", two, body.op("sub", bits, one))
        high, low = body.op("sub", half, one), body.op("neg", half)
        low = body.op("add", low, one) if narrow else low
    else:
        high = body.op("sub", body.op("pow", two, bits), two if narrow else one)
        low = body.constant(0.0)
    return body.op("max", body.op("min", y, high), low)


def _rounded(body: BodyBuilder, x: Value, mode: str) -> Value:
    if mode in ("ROUND", "HALF_EVEN"):
        return body.op("round", x)
    if mode in ("CEIL", "FLOOR"):
        return body.op(mode.lower(), x)
    if mode == "DOWN":
        return body.op("trunc", x)
    size, half = body.op("abs", x), body.constant(0.5)
    if mode == "UP":
        size = body.op("ceil", size)
    elif mode == "HALF_UP":
        size = body.op("floor", body.op("add", size, half))
    else:
        size = body.op("ceil", body.op("sub", size, half))
    return body.op("mul", body.op("sign", x), size)


def _bipolar(reader: OnnxReader, op: OnnxOp) -> None:
    """BipolarQuant: the scale, negative where x is."""
    op.only()
    operands = given(reader, op)
    _reals(op, operands, 2)
    kind = _sides(reader, op, operands["X"].type)

    def build(body: BodyBuilder) -> list[Value]:
        if kind is not None:
            return [_through(body, kind, "")]
        one = body.constant(1.0)
        side = body.op("greater_equal", body["X"], body.constant(0.0))
        return [body.op("mul", body.op("where", side, one, body.op("neg", one)), body["scale"])]

    group(reader, op, operands, build)


def _trunc(reader: OnnxReader, op: OnnxOp) -> None:
    """Trunc of version 1, which drops bits, or 2, which states the scale of what is left."""
    op.only("rounding_mode", "signed", "narrow")
    later = len(op.inputs) == 6
    formal = ("X", "scale", "zeropt", "input_bitwidth", "output_scale", "output_bitwidth")
    names = formal if later else (*formal[:4], "output_bitwidth")
    if len(op.inputs) not in (5, 6) or not all(op.inputs):
        raise op.fail(f"has {len(op.inputs)} operands, it takes 5, or 6 since version 2")
    operands = {s: reader.value(op, n) for s, n in zip(names, op.inputs, strict=True)}
    _reals(op, operands, len(names))
    mode = _mode(op, "FLOOR")
    signed, narrow = op.integer("signed", 1) != 0, op.integer("narrow", 0) != 0

    def build(body: BodyBuilder) -> list[Value]:
        scale, zero, two = body["scale"], body["zeropt"], body.constant(2.0)
        y = body.op("round", body.op("add", body.op("div", body["X"], scale), zero))
        if not later:
            bits = body.op("sub", body["input_bitwidth"], body["output_bitwidth"])
            made = _rounded(body, body.op("div", y, body.op("pow", two, bits)), mode)
            return [body.op("mul", body.op("sub", made, zero), scale)]
        ratio = body.op("log2", body.op("div", body["output_scale"], scale))
        step = body.op("pow", two, body.op("round", ratio))
        held = _kept(body, body.op("div", y, step), body["output_bitwidth"], signed, narrow)
        made = body.op("sub", _rounded(body, held, mode), body.op("div", zero, step))
        return [body.op("mul", made, body["output_scale"])]

    group(reader, op, operands, build)


_HANDLERS: dict[str, Callable[[OnnxReader, OnnxOp], None]] = {
    "Quant": _quant,
    "IntQuant": _quant,
    "BipolarQuant": _bipolar,
    "Trunc": _trunc,
}
OPS = {(domain, name): handler for domain in DOMAINS for name, handler in _HANDLERS.items()}
