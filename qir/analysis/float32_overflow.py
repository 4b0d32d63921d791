"""Quantized tensors whose dequantized value overflows float32, where integer kernels stay
finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from qir.analysis.int32_overflow import profile_within
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import Array, QuantType, TensorType
from qir.profiles import profile, query_for_node

MOST = float(np.finfo(np.float32).max)
_INFINITE = MOST + 2.0**103  # what rounds to infinity: half a unit past the end
_NEAR = MOST * (1 + 2.0**-23)  # what the rounding of a scale takes the end's own number to
_SUMMED = frozenset(
    "mean batch_norm layer_norm rms_norm instance_norm group_norm lp_normalize avg_pool1d "
    "avg_pool2d avg_pool3d global_avg_pool adaptive_avg_pool lp_pool1d lp_pool2d lp_pool3d "
    "global_lp_pool reduce_mean reduce_sum reduce_l1 reduce_l2 reduce_sum_square cumsum".split()
)
_ANY = 2**31  # elements, where nobody knows how many


def ending(graph: Graph, node: Node, value: Value) -> bool:
    """Returns whether a value reaches the greatest float32, and is infinite only by the rounding of
    its scale, where the node computes on quantized values.
    """
    return _INFINITE <= furthest(value) <= _NEAR and not _of_reals(graph, node)


def held(graph: Graph, node: Node, codes: Value, reals: Value) -> Value:
    """Returns the dequantized values before a node, with infinite ones replaced by the greatest
    float32.
    """
    constant, quant = codes.constant, codes.type.quant
    if constant is not None and quant is not None and quant.granularity is None:
        data = np.clip(_meant(constant, quant), -MOST, MOST).astype(np.float32)
        return graph.constant(Array.of(data), name=f"{codes.name}.held", before=node)
    ends = {"min": -MOST, "max": MOST}
    return graph.add("clip", {"x": reals}, ends, name=f"{codes.name}.held", before=node).result


def beyond(graph: Graph, node: Node) -> str:
    """Notes that a float replacement overflows float32 where quantized kernels stay finite.

    The text ends a line of the ledger; it is empty where float32 holds all values, or both
    overflow.
    """
    said = _beyond(node)
    return f", which float32 does not hold: {said}" if said and not _of_reals(graph, node) else ""


def _beyond(node: Node) -> str:
    for value in node.operands.values():
        if (far := furthest(value)) > _NEAR:
            return f"quantized values of {value.name} mean up to {far:.4g}"
    for kind in _rounded(node):
        if (lost := _cut(kind)) is not None:
            return f"quantized values of its result mean up to {lost:.4g}"
    far = _sums(node)
    return f"its sums come to {far:.4g}" if far > MOST else ""


def _of_reals(graph: Graph, node: Node) -> bool:
    """Returns whether a kernel dequantizes its quantized values itself, whose infinite ones it has
    too."""
    named = profile_within(graph, node)
    method = profile(named).resolve(query_for_node(node)).method if named else None
    return method is not None and method.name == "reals"


def infinite(codes: Iterable[Value], made: TensorType) -> bool:
    """Returns whether floats between integers are infinite where a kernel on the integers counts
    on."""
    return _cut(made) is not None or any(furthest(v) >= _INFINITE for v in codes)


def counts_on(x: Value, w: Value) -> bool:
    """Returns whether integer sums count on where floats of a side, or of both scales, are
    infinite."""
    far = furthest(x), furthest(w)
    return max(far) >= _INFINITE or far[0] * far[1] > MOST


def furthest(value: Value) -> float:
    """Returns how far the float values of a value's quantized values are from 0; of a constant of
    those that it holds.

    0 where it has no quantized values, or their numbers are computed.
    """
    quant = value.type.quant
    if quant is None or not _counts(quant):
        return 0.0
    zeros, scales = (np.asarray(n, np.float64) for n in (quant.zeros(), quant.scales()))
    reach = np.maximum(np.abs(quant.low - zeros), np.abs(quant.high - zeros))
    far = float(np.max(reach * scales, initial=0.0))
    if far < _INFINITE or value.constant is None or quant.granularity is not None:
        return far
    return float(np.abs(_meant(value.constant, quant)).max(initial=0.0))


def _counts(quant: QuantType) -> bool:
    """Returns whether its integers mean (q - zero) * scale in float32, by numbers that are
    known."""
    known = quant.scale is not None and quant.zero is not None and not quant.has_float_zero
    plain = quant.plus is None and quant.kind == "uniform" and quant.storage.is_integer
    return known and plain and quant.express == F32


def _ends(quant: QuantType) -> Iterator[tuple[float, float, float, int]]:
    """The floats of both ends of the integers, with scale, zero point and code, channel by
    channel."""
    scales = np.asarray(quant.scales(), np.float64).ravel()
    low, high = quant.storage.bounds
    far = scales * (high - low) * 2 > MOST
    if not far.any():
        return
    zeros = np.broadcast_to(np.asarray(quant.zeros(), np.float64).ravel(), scales.shape)
    for scale, zero in zip(scales[far].tolist(), zeros[far].tolist(), strict=True):
        for code in (quant.low, quant.high):
            yield (code - zero) * scale, scale, zero, code


def _meant(constant: Array, quant: QuantType) -> NDArray[np.float64]:
    """Returns the float values of a constant whose integers have one scale, as float64 holds
    them."""
    scale, zero = (float(np.asarray(n).flat[0]) for n in (quant.scales(), quant.zeros()))
    with np.errstate(invalid="ignore"):
        return (np.asarray(constant.data).astype(np.float64) - zero) * scale


def _rounded(node: Node) -> Iterator[TensorType]:
    """Yields the types that a node, or a stage of it, rounds to."""
    yield from (v.type for v in node.results)
    yield from (stage.type for stage in node.stages if stage.type is not None)


def _cut(kind: TensorType) -> float | None:
    """Returns what an end of the quantized values means, if float32's end has another quantized
    value."""
    if kind.quant is None or not _counts(kind.quant):
        return None
    for real, scale, zero, code in _ends(kind.quant):
        most = math.copysign(MOST, real)
        if abs(real) > MOST and round(most / scale) + zero != code:
            return abs(real)
    return None


def _sums(node: Node) -> float:
    """Returns how far sums of floats in a node's place can come, part sums too; 0 where nothing is
    known."""
    far = max((furthest(v) for v in node.operands.values()), default=0.0)
    if far < 1:
        return 0.0
    steps = [(stage.op, node.stage_operands(i)) for i, stage in enumerate(node.stages)]
    for op, given in steps or [(node.op, node.operands)]:
        traits = spec(op).traits
        x, w = given.get(traits.data), given.get(traits.weight or "")
        if x is not None and w is not None:
            return furthest(x) * furthest(w) * _count(w)
        if op in _SUMMED:
            return far * max(map(_count, node.operands.values()))
    return 0.0


def _count(value: Value) -> int:
    """Returns how many elements a value has; very many where a size is not known."""
    sizes = value.type.shape
    return min(math.prod(n if isinstance(n, int) else _ANY for n in sizes), _ANY**2)
