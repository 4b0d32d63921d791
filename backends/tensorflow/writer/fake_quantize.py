"""Writes pairs of quantize and dequantize as TensorFlow's FakeQuant ops."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import QuantType

from .nodes import F32, GraphNodes, refusal
from .wire import Attr

FLOAT_PROFILE = "native"
"""The profile of graphs that no runtime's kernels compute."""
Data = NDArray[np.float32]
Ends = tuple["Data | np.float32", "Data | np.float32", dict[str, Attr]]
_ULPS = (0, 1, -1, 2, -2)
"""Distances in float32 steps at which to look for a range that gives a scale again."""


def is_simulated(graph: Graph) -> bool:
    """Returns whether a graph came from FakeQuant ops: all quantized values are in pairs, and
    some have types that QuantizeV2 lacks."""
    quantized = [v for v in graph.values.values() if v.type.quant is not None]
    if graph.profile != FLOAT_PROFILE or any(n.bodies for n in graph):
        return False
    return any(_has_zero_point(v) for v in quantized) and all(_is_pair(v) for v in quantized)


def _has_zero_point(value: Value) -> bool:
    quant = value.type.quant
    return quant is not None and not quant.dynamic and bool(np.any(quant.zeros()))


def _is_pair(value: Value) -> bool:
    quant = value.type.quant
    is_quantize_pair = value.node.op == "quantize" and all(
        u.node.op == "dequantize" for u in value.uses
    )
    return (
        is_quantize_pair
        and bool(value.uses)
        and quant is not None
        and fake_quant_range(quant) is not None
    )


def quantized_source(value: Value) -> Value | None:
    """Returns the value that was quantized and dequantized to give another one, if it was."""
    integers = value.node.operands["x"] if value.node.op == "dequantize" else None
    is_pair = integers is not None and integers.node.op == "quantize"
    return integers.node.operands["x"] if integers is not None and is_pair else None


def is_filter(value: Value) -> bool:
    """Returns whether only convolutions read a value, as their filters."""
    layers = [(spec(use.node.op).traits.layer, use.slot) for use in value.uses]
    return all(layer in ("convolution", "transposed") and s == "w" for layer, s in layers)


def write(
    w: GraphNodes, n: Node, source: str, quant: QuantType, axis: int | None, rank: int
) -> str:
    """Adds the FakeQuant op of a type; `axis` is that of its scales."""
    fake_range = fake_quant_range(quant)
    assert fake_range is not None
    low, high, attrs = fake_range
    if quant.granularity is not None and axis != rank - 1:
        raise refusal(n, "FakeQuant has a scale for each index of the last axis alone")
    op = "FakeQuantWithMinMaxVars" + ("PerChannel" if quant.granularity is not None else "")
    range_constants = (
        w.constant(low, "float", f"{n.name}/min"),
        w.constant(high, "float", f"{n.name}/max"),
    )
    return w.add(op, (source, *range_constants), n.name, **attrs)


def fake_quant_range(quant: QuantType) -> Ends | None:
    """Returns the range from which TensorFlow computes a scale and zero point, and the attributes.

    Returns None for types that no FakeQuant op has.
    """
    width = quant.high - quant.low
    # narrow_range leaves out the lowest integer, so that the number of steps is even.
    narrow = width % 2 == 0
    bits = (width + 1 + narrow).bit_length() - 1
    is_unusual = (
        quant.dynamic or quant.kind != "uniform" or quant.has_float_zero or quant.plus is not None
    )
    if is_unusual or width != 2**bits - 1 - narrow or not 2 <= bits <= 16:
        return None
    if quant.granularity is not None and quant.axis is None:
        return None
    scales = np.asarray(quant.scales(), F32).reshape(-1)
    zeros = np.broadcast_to(np.asarray(quant.zeros(), np.int64).reshape(-1), scales.shape)
    zeros = zeros - quant.low + narrow
    # FakeQuant computes zero = lowest - low / scale: the low end follows from the zero point.
    nearest = ((F32(narrow) - zeros.astype(F32)) * scales).astype(F32)
    low, high = nearest, np.full(scales.shape, np.nan, F32)
    # Rounding may keep the nearest range from giving the scale: try its neighbours.
    for shift, step in product(_ULPS, _ULPS):
        first = _floats_next_to(nearest, shift)
        last = (first + _floats_next_to(scales * F32(width), step)).astype(F32)
        gives_type = np.isnan(high) & _nudges_to(first, last, int(narrow), width, scales, zeros)
        low, high = np.where(gives_type, first, low), np.where(gives_type, last, high)
    if np.any(np.isnan(high)):
        return None
    attrs: dict[str, Attr] = {"num_bits": bits, "narrow_range": bool(narrow)}
    return (low, high, attrs) if quant.granularity is not None else (low[0], high[0], attrs)


def _floats_next_to(values: Data, step: int) -> Data:
    """Returns the floats that are some steps further from zero, or nearer to it."""
    moved = np.asarray(values, F32)
    away = np.copysign(F32(np.inf), moved)
    for _ in range(abs(step)):
        moved = np.nextafter(moved, away if step > 0 else F32(0))
    return moved


def _nudges_to(
    low: Data, high: Data, lowest: int, width: int, scales: Data, zeros: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Returns where a range gives a scale and zero point, by `Nudge` of
    fake_quant_ops_functor.h."""
    with np.errstate(all="ignore"):
        computed_scale = ((high - low) / F32(width)).astype(F32)
        zero = (F32(lowest) - low / computed_scale).astype(F32)
    # `Nudge` rounds half up, and clamps to the range of integers.
    rounded = np.clip(np.floor(zero + F32(0.5)), lowest, lowest + width)
    is_same: NDArray[np.bool_] = (computed_scale == scales) & (rounded == zeros)
    return is_same
