"""Quantized tensors whose dequantized value overflows float32, where integer kernels stay
finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import Array, QuantType, TensorType
from qir.profiles import profile_in, query_for_node

FLOAT32_MAX = float(np.finfo(np.float32).max)
_ROUNDS_TO_INFINITY = FLOAT32_MAX + 2.0**103
"""From here on a number rounds to infinity: half a unit in the last place past the greatest."""
_MAX_BY_ROUNDED_SCALE = FLOAT32_MAX * (1 + 2.0**-23)
"""Up to here a value may still be the greatest float32, whose scale was rounded up by one ulp."""
_SUMMING_OPS = frozenset(
    "mean batch_norm layer_norm rms_norm instance_norm group_norm lp_normalize avg_pool1d "
    "avg_pool2d avg_pool3d global_avg_pool adaptive_avg_pool lp_pool1d lp_pool2d lp_pool3d "
    "global_lp_pool reduce_mean reduce_sum reduce_l1 reduce_l2 reduce_sum_square cumsum".split()
)
"""Ops that sum float values, so that part sums may overflow even if each value does not."""
_UNKNOWN_SIZE = 2**31
"""Elements that an axis of unknown size may have."""


def is_infinite_by_rounding(graph: Graph, node: Node, value: Value) -> bool:
    """Returns whether a value is infinite only because its scale was rounded.

    Its range ends at the greatest float32, and the node computes on quantized values, so that the
    infinity never appears there.
    """
    largest = largest_magnitude(value)
    if not _ROUNDS_TO_INFINITY <= largest <= _MAX_BY_ROUNDED_SCALE:
        return False
    return not _computes_on_floats(graph, node)


def clipped_to_float32(graph: Graph, node: Node, quantized: Value, dequantized: Value) -> Value:
    """Adds a clip of dequantized values to the finite range of float32 before a node.

    A constant of one scale is computed here instead.
    """
    constant, quant = quantized.constant, quantized.type.quant
    # A constant that is clipped now needs no node at run time.
    if constant is not None and quant is not None and quant.granularity is None:
        data = np.clip(_dequantized(constant, quant), -FLOAT32_MAX, FLOAT32_MAX).astype(np.float32)
        return graph.constant(Array.of(data), name=f"{quantized.name}.held", before=node)
    bounds = {"min": -FLOAT32_MAX, "max": FLOAT32_MAX}
    return graph.add(
        "clip", {"x": dequantized}, bounds, name=f"{quantized.name}.held", before=node
    ).result


def overflow_note(graph: Graph, node: Node) -> str:
    """Notes that a float replacement overflows float32 where quantized kernels stay finite.

    The text ends a line of the ledger; it is empty where float32 holds all values, or both
    overflow.
    """
    overflow = _overflow_of(node)
    # A kernel that dequantizes its operands has the same infinities, so nothing changes there.
    if not overflow or _computes_on_floats(graph, node):
        return ""
    return f", which float32 does not hold: {overflow}"


def _overflow_of(node: Node) -> str:
    """Returns where float32 overflows: in an operand, a rounded result, or a part sum."""
    for value in node.operands.values():
        if (largest := largest_magnitude(value)) > _MAX_BY_ROUNDED_SCALE:
            return f"quantized values of {value.name} mean up to {largest:.4g}"
    for kind in _rounded_types(node):
        if (extreme := _lost_extreme(kind)) is not None:
            return f"quantized values of its result mean up to {extreme:.4g}"
    largest = _largest_sum(node)
    return f"its sums come to {largest:.4g}" if largest > FLOAT32_MAX else ""


def _computes_on_floats(graph: Graph, node: Node) -> bool:
    """Returns whether a kernel dequantizes its operands and computes in float (method `reals`)."""
    from qir.analysis.int32_overflow import profile_name_of  # and with it the verifier

    profile_name = profile_name_of(graph, node)
    if not profile_name:
        return False
    method = profile_in(graph, profile_name).resolve(query_for_node(node)).method
    return method is not None and method.name == "reals"


def floats_overflow(operands: Iterable[Value], result: TensorType) -> bool:
    """Returns whether dequantized operands or results overflow where an integer kernel does not."""
    return _lost_extreme(result) is not None or any(
        largest_magnitude(v) >= _ROUNDS_TO_INFINITY for v in operands
    )


def float_product_overflows(x: Value, w: Value) -> bool:
    """Returns whether a float product of two operands overflows where the integer sum does not."""
    x_largest, w_largest = largest_magnitude(x), largest_magnitude(w)
    operand_overflows = max(x_largest, w_largest) >= _ROUNDS_TO_INFINITY
    return operand_overflows or x_largest * w_largest > FLOAT32_MAX


def largest_magnitude(value: Value) -> float:
    """Returns the largest magnitude that a quantized value can have once dequantized.

    0 for a value that is not quantized, or whose scale and zero point are computed.
    """
    quant = value.type.quant
    if quant is None or not _is_known_uniform(quant):
        return 0.0
    zeros, scales = (np.asarray(n, np.float64) for n in (quant.zeros(), quant.scales()))
    reach = np.maximum(np.abs(quant.low - zeros), np.abs(quant.high - zeros))
    largest = float(np.max(reach * scales, initial=0.0))
    if largest < _ROUNDS_TO_INFINITY or value.constant is None or quant.granularity is not None:
        return largest
    # The type of a constant may reach past float32 while none of its elements does.
    return float(np.abs(_dequantized(value.constant, quant)).max(initial=0.0))


def _is_known_uniform(quant: QuantType) -> bool:
    """Returns whether a type is (q - zero) * scale in float32, with constant scale and zero."""
    known = quant.scale is not None and quant.zero is not None and not quant.has_float_zero
    plain = quant.plus is None and quant.kind == "uniform" and quant.storage.is_integer
    return known and plain and quant.express == F32


def _extreme_values(quant: QuantType) -> Iterator[tuple[float, float, float, int]]:
    """Yields the float value of the lowest and highest integer of each channel that may overflow.

    Each comes with its scale, its zero point and the integer.
    """
    scales = np.asarray(quant.scales(), np.float64).ravel()
    low, high = quant.storage.bounds
    # A cheap bound first: most models have no such channel, and need no zero points here.
    may_overflow = scales * (high - low) * 2 > FLOAT32_MAX
    if not may_overflow.any():
        return
    zeros = np.broadcast_to(np.asarray(quant.zeros(), np.float64).ravel(), scales.shape)
    for scale, zero in zip(
        scales[may_overflow].tolist(), zeros[may_overflow].tolist(), strict=True
    ):
        for integer in (quant.low, quant.high):
            yield (integer - zero) * scale, scale, zero, integer


def _dequantized(constant: Array, quant: QuantType) -> NDArray[np.float64]:
    """Returns the float values of a per-tensor quantized constant, in float64."""
    scale, zero = (float(np.asarray(n).flat[0]) for n in (quant.scales(), quant.zeros()))
    with np.errstate(invalid="ignore"):
        return (np.asarray(constant.data).astype(np.float64) - zero) * scale


def _rounded_types(node: Node) -> Iterator[TensorType]:
    """Yields the types that a node, or a stage of it, rounds to."""
    yield from (v.type for v in node.results)
    yield from (stage.type for stage in node.stages if stage.type is not None)


def _lost_extreme(kind: TensorType) -> float | None:
    """Returns the magnitude of an extreme quantized value that float32 cannot represent.

    None if the greatest float32 would be quantized to the same integer.
    """
    if kind.quant is None or not _is_known_uniform(kind.quant):
        return None
    for number, scale, zero, integer in _extreme_values(kind.quant):
        most = math.copysign(FLOAT32_MAX, number)
        if abs(number) > FLOAT32_MAX and round(most / scale) + zero != integer:
            return abs(number)
    return None


def _largest_sum(node: Node) -> float:
    """Returns a bound of the float sums that would replace a node, part sums included.

    0 for nodes without a sum.
    """
    far = max((largest_magnitude(v) for v in node.operands.values()), default=0.0)
    if far < 1:  # No number of elements that memory holds takes such sums to 3.4e38.
        return 0.0
    steps = [(stage.op, node.stage_operands(i)) for i, stage in enumerate(node.stages)]
    for op, operands in steps or [(node.op, node.operands)]:
        traits = spec(op).traits
        x, w = operands.get(traits.data), operands.get(traits.weight or "")
        if x is not None and w is not None:
            return largest_magnitude(x) * largest_magnitude(w) * _element_count(w)
        if op in _SUMMING_OPS:
            return far * max(map(_element_count, node.operands.values()))
    return 0.0


def _element_count(value: Value) -> int:
    """Returns how many elements a value has, an upper bound where a size is symbolic."""
    sizes = value.type.shape
    return min(
        math.prod(n if isinstance(n, int) else _UNKNOWN_SIZE for n in sizes), _UNKNOWN_SIZE**2
    )
