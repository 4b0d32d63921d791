"""Ops that a runtime computes in float32 in an order of its own, and how far quantized values may
be off.

What rounds once has one right float32. A sum of K products has as many as it has orders: any two
are within 2 (K + 2) 2^-24 of the sum of their magnitudes. Where such a sum is quantized again, one
next to a tie may be another. With quantized values of 8 bits that is one quantized value in
hundreds or thousands; those of 16 bits are 256 times as fine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.ir import dims
from qir.ir.dims import Shape
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.quantized_ops import source_quant_type
from qir.ir.types import QuantType
from qir.numerics.definition import dequantize
from qir.numerics.fields import Rule
from qir.numerics.stated_parameters import map_of

F32_ULP = 2.0**-24
FUNCTION = 2.0**-20
"""What an approximated exponential may be off, relatively: sixteen units in the last place."""
MAX_WEIGHT_ELEMENTS = 1 << 22
"""Elements of weights that are looked at; of larger ones the ends of their integers count."""
_NON_COMPUTE_OPS = frozenset(
    {"input", "constant", "output", "quantize", "dequantize", "recode", "foreign"}
)
_SINGLE_ROUNDING_OPS = frozenset(
    "add sub mul div relu clip min max leaky_relu prelu thresholded_relu sqrt reciprocal floor "
    "ceil round square trunc abs neg sign where reduce_max reduce_min arg_max arg_min top_k cast "
    "global_max_pool max_pool_places max_unpool constant_of_shape scatter_elements scatter_nd "
    "one_hot nonzero unique hardmax eye_like range choose_qparams if loop scan".split()
)
"""Ops whose float values have one right float32, next to those that move elements."""
_MEANS = frozenset(
    "avg_pool1d avg_pool2d avg_pool3d global_avg_pool adaptive_avg_pool reduce_mean".split()
)
_CURVES = frozenset({"sigmoid", "softmax"})
"""Results between 0 and 1."""


@dataclass(frozen=True, slots=True)
class FloatSum:
    """An op whose float32 has more than one right last bit."""

    path: str
    """Of the body that it is in."""
    node: str
    op: str
    bits: int
    """Of the widest integers that it reads, biases aside, or its result becomes; 0 without any."""
    codes: int | None
    """By how many quantized values two right results may differ at most, made of the same quantized
    values; None where its result becomes no quantized values of one scale, or nothing here bounds
    it."""


def float_sums(graph: Graph, beyond: int = -1) -> list[FloatSum]:
    """Such ops of a graph and its bodies that are in float, in their order.

    Of those alone whose quantized values have more than so many bits.
    """
    out: list[FloatSum] = []
    for path, body in graph.walk():
        for node in body:
            if has_own_order(node) and (bits := _widest_bits(node)) > beyond:
                out.append(FloatSum(path, node.name, node.op, bits, _max_steps(node)))
    return out


def float_sums_text(sums: Sequence[FloatSum], who: str) -> str:
    """Returns one sentence: how many there are, which, and how far quantized values may be off."""
    ops = ", ".join(f"{n} {op}" for op, n in Counter(s.op for s in sums).most_common())
    distances = [s.codes for s in sums if s.codes is not None]
    distance_text = f", by {max(distances)} at most for one op" if distances else ""
    subject = "1 op is" if len(sums) == 1 else f"{len(sums)} ops are"
    return (
        f"{subject} computed in float32 ({ops}): {who} adds sums up in an order of its own, so a"
        f" last bit may be another, and a quantized value next to a tie{distance_text}"
    )


def has_own_order(node: Node) -> bool:
    """Returns whether a float32 result of an op depends on the order of its sums."""
    return _has_order(node) and any(r.type.element == F32 for r in node.results)


def _has_order(node: Node) -> bool:
    """Returns whether a float result of an op, of any width, depends on the order of its sums."""
    if node.op in _NON_COMPUTE_OPS or node.op in _SINGLE_ROUNDING_OPS or node.bodies:
        return False
    if node.op == "sum" and len(node.operands) <= 2:
        return False  # it rounds once
    types = [v.type for v in (*node.operands.values(), *node.results)]
    if any(t.quant for t in types) or not any(r.type.dtype.is_float for r in node.results):
        return False
    return not spec(node.op).traits.value_preserving


def depends_on_float_sums(value: Value) -> bool:
    """Returns whether float values depend on the order of sums, after the last quantized values."""
    pending, visited = [value], {value}
    while pending:
        node = pending.pop().node
        if _has_order(node) or any(map(_has_order, _inner_nodes(node))):
            return True
        if any(operand.type.quant for operand in node.operands.values()):
            continue
        operands = set(node.operands.values()) - visited
        visited |= operands
        pending.extend(operands)
    return False


def _inner_nodes(node: Node) -> list[Node]:
    """Returns the nodes of a branch or loop; a kernel's own body is not looked into."""
    if node.op == "fused":
        return []
    return [
        n for body in node.bodies.values() for inner in body for n in (inner, *_inner_nodes(inner))
    ]


def _widest_bits(node: Node) -> int:
    added_slots = (spec(node.op).traits.bias, "beta")  # once, and their bits are an accumulator's
    quant_types = [source_quant_type(v) for s, v in node.operands.items() if s not in added_slots]
    quant_types += [_resulting_quant_type(value) for value in node.results]
    return max((m.storage.bits for m in quant_types if m is not None), default=0)


def _resulting_quant_type(value: Value) -> QuantType | None:
    """Returns the quantized type of the integers that a result becomes, after activations that
    round nothing."""
    use = value.only_use
    while use is not None and use.node.op in ("relu", "clip"):
        use = use.node.result.only_use
    return use.node.result.type.quant if use is not None and use.node.op == "quantize" else None


def _max_steps(node: Node) -> int | None:
    result_type = _resulting_quant_type(node.results[0])
    if (
        result_type is None
        or result_type.dynamic
        or result_type.kind != "uniform"
        or result_type.has_float_zero
    ):
        return None
    step = np.min(np.abs(result_type.scales().astype(np.float64)), initial=np.inf)
    error = error_bound(node)
    if error is None or not step > 0 or not np.isfinite(step):
        return None
    # Two results may be off in opposite directions; 2^-22 of the span is for the quantization
    # itself.
    steps_off = 2 * error / float(step) + (result_type.high - result_type.low + 1) * 2.0**-22
    return math.floor(steps_off) + 1 if steps_off < result_type.high - result_type.low else None


def error_bound(node: Node, max_elements: int = MAX_WEIGHT_ELEMENTS) -> float | None:
    """Returns how far a correct float32 result may be from the exact one; None where not known.

    Constants of more than `max_elements` count by their quantized type alone.
    """
    if node.op in _CURVES:
        terms = _product(node.operands["x"].type.shape[-1:]) if node.op == "softmax" else 1
        return None if terms is None else FUNCTION + terms * F32_ULP
    if node.op in _MEANS:
        largest, terms = _largest_magnitude(node.operands["x"], max_elements), _window(node)
        return None if largest is None or terms is None else (terms + 3) * F32_ULP * largest
    traits = spec(node.op).traits
    if traits.weight is None or node.op.startswith("conv_transpose"):
        return None
    return _product_error(node, traits.data, traits.weight, traits.bias, max_elements)


def _product_error(
    node: Node, data: str, weight: str, bias: str | None, max_elements: int
) -> float | None:
    w = node.operands[weight]
    largest, terms = (
        _largest_magnitude(node.operands[data], max_elements),
        _term_count(node, data, w),
    )
    if largest is None or terms is None:
        return None
    spread = _weight_sum(node, w, terms, max_elements)
    bias_value = node.operands.get(bias) if bias else None
    bias_size = 0.0 if bias_value is None else _largest_magnitude(bias_value, max_elements)
    if spread is None or bias_size is None:
        return None
    alpha, beta = _scalar_attr(node, "alpha"), _scalar_attr(node, "beta")
    # The standard bound (K + 2) u sum|x w| for any order, and one rounding more for the bias.
    return (terms + 3) * F32_ULP * (alpha * largest * spread + beta * bias_size)


def _scalar_attr(node: Node, name: str) -> float:
    value = node.attrs.get(name, 1.0)
    return abs(value) if isinstance(value, float) else 1.0


def _term_count(node: Node, data: str, w: Value) -> int | None:
    if node.op.startswith("conv"):
        return _product(w.type.shape[1:])
    shape = node.operands[data].type.shape
    return _product(shape[-2:-1] if node.attrs.get("trans_a") else shape[-1:])


def _weight_sum(node: Node, w: Value, terms: int, max_elements: int) -> float | None:
    """Returns the greatest sum of the magnitudes of weights that make one element."""
    weights = _constant_floats(w, max_elements)
    if weights is None:
        largest = _largest_magnitude(w, max_elements)
        return None if largest is None else terms * largest
    magnitudes = np.abs(weights)
    if node.op.startswith("conv"):
        return float(magnitudes.sum(tuple(range(1, magnitudes.ndim))).max(initial=0.0))
    summed_axis = (
        -1 if node.attrs.get("trans_b") or node.op == "linear" or magnitudes.ndim == 1 else -2
    )
    return float(magnitudes.sum(summed_axis).max(initial=0.0))


def _window(node: Node) -> int | None:
    kernel = node.attrs.get("kernel")
    if isinstance(kernel, tuple):
        return math.prod(k for k in kernel if isinstance(k, int))
    shape, axes = node.operands["x"].type.shape, node.attrs.get("axes")
    if node.op == "reduce_mean" and isinstance(axes, tuple) and axes:
        return _product(tuple(shape[i] for i in axes if isinstance(i, int)))
    return _product(shape if node.op == "reduce_mean" else shape[1:])  # as many at most


def _product(shape: Shape) -> int | None:
    sizes = dims.known_shape(shape)
    return None if sizes is None else math.prod(sizes)


def _constant_floats(value: Value, max_elements: int) -> NDArray[np.float64] | None:
    """Returns the float values of a constant, dequantized where it is quantized; None for what is
    none."""
    source = value.node.operands["x"] if value.node.op == "dequantize" else value
    array = source.constant
    if array is None or math.prod(array.contents.shape) > max_elements:
        return None
    quant = array.type.quant
    if quant is None:
        return array.data.astype(np.float64)
    if quant.dynamic:
        return None
    return dequantize(array.data, map_of(quant), Rule()).astype(np.float64)


def _largest_magnitude(value: Value, max_elements: int) -> float | None:
    """Returns the greatest magnitude that a value can have, by its quantized type or as a
    constant."""
    elements = _constant_floats(value, max_elements)
    if elements is not None:
        return float(np.abs(elements).max(initial=0.0))
    quant = source_quant_type(value)
    if quant is None or quant.kind != "uniform" or quant.dynamic or quant.plus is not None:
        return None
    zeros = quant.zeros().astype(np.float64)
    scales = np.abs(quant.scales().astype(np.float64))
    ends = (np.abs(end - zeros).max(initial=0.0) for end in (quant.low, quant.high))
    return float(max(ends) * scales.max(initial=0.0))
