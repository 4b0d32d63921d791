"""Rewrites sums of integers that are scaled once as float products of dequantized values.

    graph main as native {
      %x = input() : 2x4x!quant.uniform<u8:f32, 0.5:3>
      %x.raw = recode(%x) : 2x4xu8
      %w_1 = constant(@w_1) : 4x3xi8
      %x.zero = constant(3) : u8
      %y.sum = matmul_integer(%x.raw, %w_1, a.zero=%x.zero) : 2x3xi32
      %y.real = cast(%y.sum) {to = f32} : 2x3xf32
      %y.scale = constant(0.5) : f32
      %y.scale_1 = constant(0.25) : f32
      %y.scales = mul(%y.scale, %y.scale_1) : f32
      %y = mul(%y.real, %y.scales) : 2x3xf32
      output(y=%y)
    }

By `raise-integer` it becomes:

    graph main as native {
      %x = input() : 2x4x!quant.uniform<u8:f32, 0.5:3>
      %dequantize = dequantize(%x) : 2x4xf32
      %w_1.codes = constant(@w_1.codes) : 4x3x!quant.uniform<i8:f32, 0.25>
      %dequantize_1 = dequantize(%w_1.codes) : 4x3xf32
      %y = matmul(%dequantize, %dequantize_1) : 2x3xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.analysis.int32_overflow import overflow_text
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.text import parse
from qir.ir.types import Array, QuantType, uniform
from qir.ledger import Change, Ledger
from qir.rewrite import REGROUPED, Pass
from qir.rewrite.runner.filter import may

_SLOTS = {"matmul_integer": ("a", "b"), "conv_integer": ("x", "w")}
_Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class _ScaledSum:
    """A sum of raw integers, and what dequantizes it."""

    sum: Node
    scaled: Value
    """The float values, without a bias."""
    factors: tuple[_Array, ...]
    """What the sum is multiplied by: the scales in any order, or their product."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a product: raw integers, and the integers of which they are, where any
    are known."""

    raw: Value
    quantized: Value | None
    zeros: _Array | None
    perm: tuple[int, ...] = ()
    """How the quantized values are turned before they are summed."""

    @property
    def quant(self) -> QuantType | None:
        return None if self.quantized is None else self.quantized.type.quant


@dataclass(frozen=True)
class RaiseInteger(Pass):
    """Rewrites `matmul_integer` and `conv_integer` with constant scales as float products.

    What `lower-integer` makes, and any sum of 8-bit integers that is cast to f32 and multiplied by
    constants alone, becomes dequantize, dequantize and the product, with the bias that follows a
    convolution, or one in accumulator units that follows a matrix product. The same float values,
    rounded in other places. The scales stand apart, or those of the data are known from their
    quantized values; zero points are constants, and those of the data are their quantized values';
    sum, cast and products have no other use. A sum that some input takes beyond 32 bits stays as it
    is: it wraps, float values continue.
    """

    name = "raise-integer"
    tolerance = REGROUPED

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if node.op not in _SLOTS or (chain := _scaled_sum(node)) is None:
                continue
            sides = [_side(node, slot) for slot in _SLOTS[node.op]]
            found_sides = [side for side in sides if side is not None]
            if (
                len(found_sides) < len(sides)
                or (quants := _operand_types(chain, *found_sides)) is None
            ):
                continue
            # Floats do not wrap, so the result would be another where the sum of integers does.
            if overflow := overflow_text(graph, node):
                ledger.add(
                    Change.EXACT, self.name, node.name, f"stays a sum of integers: {overflow}"
                )
                continue
            if not may(self.name, f"raise {node.op}", node):
                continue
            name = _raise(graph, chain, list(zip(found_sides, quants, strict=True)))
            reason = "a sum of integers scaled once is a product of dequantized values"
            ledger.add(Change.REGROUPED, self.name, name, reason)
            count += 1
        return count + (graph.prune() if count else 0)

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a product of raw integers whose scales are constants."""
        text = (
            "graph main as native {\n  %x = input() : (B)x3xf32\n"
            "  %w = constant([1, -2, 3, 4, 5, 6]) : 3x2xi8\n  %z = constant(128) : u8\n"
            "  %q = quantize(%x) : (B)x3x!quant.uniform<u8:f32, 0.125:128>\n"
            "  %r = recode(%q) : (B)x3xu8\n  %p = matmul_integer(%r, %w, a.zero=%z) : (B)x2xi32\n"
            "  %f = cast(%p) {to = f32} : (B)x2xf32\n"
            "  %s = constant([0.0625, 0.03125]) : 2xf32\n"
            "  %y = mul(%f, %s) : (B)x2xf32\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)


# -- what is found --------------------------------------------------------------------------------


def _only_user(value: Value, op: str) -> Node | None:
    """Returns the only use of a value, where it is such an op."""
    nodes = [use.node for use in value.uses]
    return nodes[0] if len(nodes) == 1 and nodes[0].op == op else None


def _scaled_sum(node: Node) -> _ScaledSum | None:
    cast = _only_user(node.result, "cast")
    if cast is None or cast.attrs["to"] != F32:
        return None
    result, factors = cast.result, list[_Array]()
    # Runtimes write the two scales as one product, or as two multiplications.
    while (product := _only_user(result, "mul")) is not None and len(factors) < 2:
        constants = _constant_factors(_other_operand(product, result))
        if not constants:
            break
        result, factors = product.result, [*factors, *constants]
    return _ScaledSum(node, result, tuple(factors)) if factors else None


def _other_operand(node: Node, value: Value) -> Value:
    a, b = node.operands["a"], node.operands["b"]
    return b if a is value else a


def _constant_factors(value: Value) -> list[_Array]:
    """Returns the constants of which a value is the product; none where it is no such product."""
    if value.node.op != "mul":
        array = value.constant
        return [array.data] if array is not None and array.type.element == F32 else []
    parts = [_constant_factors(operand) for operand in value.node.operands.values()]
    return [constant for factor in parts for constant in factor] if all(parts) else []


def _side(node: Node, slot: str) -> _Side | None:
    """Raw integers of 8 bits, and their constant zero points."""
    zero_value, raw = node.operands.get(f"{slot}.zero"), node.operands[slot]
    zeros = None if zero_value is None else zero_value.constant
    if zero_value is not None and (zeros is None or zeros.type.quant is not None):
        return None
    zero_array = None if zeros is None else zeros.data
    source, perm = raw.node, tuple[int, ...]()
    if source.op == "transpose" and (permutation := source.attrs["perm"]):
        assert isinstance(permutation, tuple)
        source = source.operands["x"].node
        perm = tuple(axis for axis in permutation if isinstance(axis, int))
    if source.op != "recode" or source.result.type.element != raw.type.element:
        return _Side(raw, None, zero_array)
    quantized = source.operands["x"]
    quant = quantized.type.quant
    if quant is None:
        return _Side(raw, None, zero_array)
    is_unusual = quant.kind != "uniform" or quant.plus is not None or quant.has_float_zero
    if quant.dynamic or is_unusual or quant.express != F32 or quant.storage != raw.type.element:
        return None
    return _Side(raw, quantized, zero_array, perm)


# -- the maps that the numbers say ----------------------------------------------------------------


def _operand_types(chain: _ScaledSum, x: _Side, w: _Side) -> tuple[QuantType, QuantType] | None:
    """Returns the maps of both sides, where there are two whose scales multiply to what is
    there."""
    data, factors = _existing_type(x, None), list(chain.factors)
    if x.quantized is None and len(factors) > 1:
        # Of two scales the first is the data's, as runtimes write them; float values are the same.
        data_scale = next((factor for factor in factors if factor.size == 1), None)
        data = None if data_scale is None else _derived_type(x, data_scale.reshape(()), None, None)
    weight_factor = None if data is None else _remaining_factor(np.float32(data.scales()), factors)
    if data is None or weight_factor is None:
        return None
    axis = _channel_axis(chain.sum)
    scales = _scalar_or_vector(weight_factor, chain.sum, _axes_after_channels(chain.sum))
    if scales is None:
        return None
    if w.quantized is None:
        weights = _derived_type(w, scales, axis, chain.sum)
    else:
        weights = _existing_type(w, axis)
        if weights is not None and not _equal_broadcast(np.asarray(weights.scales()), scales):
            weights = None
    return None if weights is None else (data, weights)


def _existing_type(side: _Side, channel_axis: int | None) -> QuantType | None:
    """Returns the quantized type of integers, where the sum takes off its zero points and its
    scales are as they may."""
    quant = side.quant
    if quant is None or (quant.granularity is not None and channel_axis is None):
        return None
    axis = quant.axis
    if axis is not None and side.perm:
        # The type states the axis before the transpose; the sum sees the one after it.
        axis = side.perm.index(axis)
    if quant.granularity is not None and axis != channel_axis:
        return None
    zeros = np.zeros((), np.int64) if side.zeros is None else side.zeros.astype(np.int64)
    return quant if _equal_broadcast(np.asarray(quant.zeros(), np.int64), zeros) else None


def _equal_broadcast(a: _Array, b: _Array) -> bool:
    """Returns whether numbers are the same, one for all being so many."""
    if a.size != b.size and 1 not in (a.size, b.size):
        return False
    return bool((a.reshape(-1) == b.reshape(-1)).all())


def _remaining_factor(scale: np.float32, factors: list[_Array]) -> _Array | None:
    """Returns what else the sum is multiplied by."""
    index = next((i for i, f in enumerate(factors) if f.size == 1 and f.reshape(()) == scale), None)
    remaining = [f for i, f in enumerate(factors) if i != index]
    if not remaining:
        return None
    # The factors are multiplied in float32, as the model does.
    product = remaining[0]
    for factor in remaining[1:]:
        product = np.multiply(product, factor, dtype=np.float32)
    return _quotient(product, scale) if index is None else product


def _quotient(product: _Array, scale: np.float32) -> _Array | None:
    """Numbers whose products with a scale are those in float32; None where there are none."""
    with np.errstate(all="ignore"):
        nearest = np.asarray(product.astype(np.float64) / np.float64(scale)).astype(np.float32)
        # Rounding of the division may be off by one ulp either way; the neighbours are tried too.
        candidates = (
            nearest,
            np.nextafter(nearest, np.float32(0)),
            np.nextafter(nearest, np.float32(np.inf)),
        )
        # Last tried, first kept: the nearest quotient wins where several give the product.
        quotient = nearest
        for candidate in reversed(candidates):
            quotient = np.where(candidate * scale == product, candidate, quotient)
        is_exact = bool((quotient * scale == product).all() and np.isfinite(quotient).all())
    return np.asarray(quotient, np.float32) if is_exact else None


def _channel_axis(node: Node) -> int:
    rank = node.operands[_SLOTS[node.op][1]].type.rank
    return rank - 1 if node.op == "matmul_integer" else 0


def _axes_after_channels(node: Node) -> int:
    """Returns how many axes are after that of the channels."""
    return node.result.type.rank - 2 if node.op == "conv_integer" else 0


def _scalar_or_vector(array: _Array, node: Node, axes_after: int) -> _Array | None:
    """Returns one number, or one an output channel; None for others."""
    if array.size == 1:
        return array.reshape(())
    count = node.operands[_SLOTS[node.op][1]].type.shape[_channel_axis(node)]
    aligned_shape = (count, *(1,) * axes_after)
    is_aligned = array.size == count and array.shape[-len(aligned_shape) :] == aligned_shape
    return array.reshape(-1) if is_aligned else None


def _derived_type(
    side: _Side, scales: _Array, channel_axis: int | None, node: Node | None
) -> QuantType | None:
    """Returns the quantized type of raw integers by the numbers next to them."""
    zeros = np.zeros((), np.int64) if side.zeros is None else side.zeros.astype(np.int64)
    zero_row: _Array | None = zeros.reshape(()) if zeros.size == 1 else None
    if zero_row is None and node is not None and node.op == "matmul_integer":
        zero_row = _scalar_or_vector(zeros, node, 0)
    # A quantized type has finite scales above zero; factors of a model may be anything.
    if zero_row is None or not (np.greater(scales, 0) & np.isfinite(scales)).all():
        return None
    per_channel = scales.ndim or zero_row.ndim
    if per_channel:
        scales, zero_row = np.broadcast_arrays(scales, zero_row)
    storage = side.raw.type.dtype
    axis = channel_axis if per_channel else None
    return uniform(
        storage,
        np.asarray(scales, np.float32),
        zero_row.astype(np.int64),
        axis=axis,
        name=side.raw.name,
    )


# -- what stands instead --------------------------------------------------------------------------


def _raise(graph: Graph, chain: _ScaledSum, sides: list[tuple[_Side, QuantType]]) -> str:
    """Puts float values between integers in a chain's place; gives the name of what they make."""
    node = chain.sum
    floats = [_float_operand(graph, node, side, quant) for side, quant in sides]
    operands = dict(zip(_SLOTS[node.op], floats, strict=True))
    bias_add, bias = _following_bias(graph, chain, [q for _, q in sides])
    replaced = chain.scaled if bias_add is None else bias_add.result
    if node.op == "conv_integer":
        axes = node.result.type.rank - 2
        op, attrs = f"conv{axes}d", _conv_attrs(node, axes)
        operands |= {} if bias is None else {"bias": bias}
    else:
        # gemm alone has an operand for a bias in the accumulator's unit.
        op, attrs = "matmul" if bias is None else "gemm", dict[str, Attr]()
        operands |= {} if bias is None else {"c": bias}
    replaced_node = replaced.node
    product = graph.add(
        op,
        operands,
        attrs,
        before=replaced_node,
        origins=node.origins,
        profile=replaced_node.profile,
    ).result
    graph.substitute(replaced_node, product)
    return product.name


def _conv_attrs(node: Node, axes: int) -> dict[str, Attr]:
    defaults = {"stride": (1,) * axes, "pad": (0,) * (2 * axes), "dilation": (1,) * axes}
    attrs: dict[str, Attr] = {name: node.attrs[name] or value for name, value in defaults.items()}
    return {**attrs, "groups": node.attrs["groups"]}


def _float_operand(graph: Graph, node: Node, side: _Side, quant: QuantType) -> Value:
    """Returns the float values of one side, turned as the raw integers were."""
    quantized = side.quantized or _as_quantized(graph, node, side.raw, quant)
    dequantizes = (
        user for user in quantized.users if user.op == "dequantize" and user.precedes(node)
    )
    existing = next(dequantizes, None)
    floats = (
        existing.result
        if existing
        else graph.add("dequantize", {"x": quantized}, before=node).result
    )
    if not side.perm:
        return floats
    return graph.add("transpose", {"x": floats}, {"perm": side.perm}, before=node).result


def _as_quantized(graph: Graph, node: Node, raw: Value, quant: QuantType) -> Value:
    """Raw integers as quantized values."""
    tensor_type = raw.type.with_element(quant)
    if (array := raw.constant) is None:
        name = graph.fresh(f"{raw.name}.codes")
        return graph.add("recode", {"x": raw}, types=[tensor_type], name=name, before=node).result
    typed_array = Array(array.contents, tensor_type, array.name)
    constant = graph.constant(typed_array, name=graph.fresh(f"{raw.name}.codes"), before=node)
    graph.set_origins(constant.node, raw.node.origins)
    graph.set_lineage(constant, raw.lineage)
    return constant


def _following_bias(
    graph: Graph, chain: _ScaledSum, quants: list[QuantType]
) -> tuple[Node | None, Value | None]:
    """Returns the sum with a bias that belongs to the product, and the bias with one axis."""
    node, bias_add = chain.sum, _only_user(chain.scaled, "add")
    if bias_add is None or bias_add.result.type != chain.scaled.type:
        return None, None
    value = _other_operand(bias_add, chain.scaled)
    # x + x doubles the sum and adds no bias.
    if value is chain.scaled:
        return None, None
    count = node.operands[_SLOTS[node.op][1]].type.shape[_channel_axis(node)]
    if node.op == "matmul_integer":
        is_row = chain.scaled.type.rank == 2 and value.type.shape == (count,)
        return (
            (bias_add, value) if is_row and _is_in_accumulator_unit(value, quants) else (None, None)
        )
    aligned_shape = (count, *(1,) * _axes_after_channels(node))
    if value.type.element != F32 or value.type.shape[-len(aligned_shape) :] != aligned_shape:
        return None, None
    if any(d != 1 for d in value.type.shape[: -len(aligned_shape)]):
        return None, None
    source = value.node.operands["x"] if value.node.op == "reshape" else None
    if source is not None and source.type.shape == (count,):
        return bias_add, source
    if (array := value.constant) is None:
        return None, None
    name = graph.fresh(f"{value.name}.row")
    vector = graph.constant(Array.of(array.data.reshape(-1), name), name=name, before=node)
    graph.set_origins(vector.node, value.node.origins)
    graph.set_lineage(vector, value.lineage)
    return bias_add, vector


def _is_in_accumulator_unit(value: Value, quants: list[QuantType]) -> bool:
    """Returns whether floats are 32-bit integers in the unit of an accumulator, as a product adds
    them."""
    quantized = value.node.operands["x"] if value.node.op == "dequantize" else None
    quant = None if quantized is None else quantized.type.quant
    if quant is None or quant.dynamic or quant.storage != I32 or quant.zeros().any():
        return False
    x_scale, w_scale = (np.asarray(factor.scales(), np.float32) for factor in quants)
    return _equal_broadcast(np.asarray(quant.scales(), np.float32), x_scale * w_scale)
