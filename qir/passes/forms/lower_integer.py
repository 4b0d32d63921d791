"""Rewrites products of dequantized values as sums of integers that are scaled once.

    graph main as native {
      %x = input() : 2x4x!quant.uniform<u8:f32, 0.5:3>
      %w = constant(@w) : 4x3x!quant.uniform<i8:f32, 0.25>
      %a = dequantize(%x) : 2x4xf32
      %b = dequantize(%w) : 4x3xf32
      %y = matmul(%a, %b) : 2x3xf32
      output(y=%y)
    }

By `lower-integer` it becomes:

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.analysis.float32_overflow import float_product_overflows
from qir.analysis.int32_overflow import overflow_text
from qir.ir import lazy_arrays
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I8, I32, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import Array, QuantType, TensorType
from qir.ledger import Change, Ledger
from qir.rewrite import REGROUPED, Pass
from qir.rewrite.runner.filter import may

_CONVS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
_PRODUCTS = frozenset({"matmul", "linear", "gemm", *_CONVS})


@dataclass(frozen=True, slots=True)
class _LoweredSide:
    """Quantized values of one side of a product: their dequantize, and the axis along which scales
    are."""

    node: Node
    quant: QuantType
    axis: int | None

    @property
    def quantized(self) -> Value:
        return self.node.operands["x"]

    def zeros(self) -> NDArray[np.generic] | None:
        """Zero points that are in the type, none where there are none."""
        if self.quant.zero is None:
            return None
        zeros = np.asarray(self.quant.zeros())
        return zeros.astype(self.quant.storage.carrier) if zeros.any() else None


@dataclass(frozen=True)
class LowerInteger(Pass):
    """Rewrites products of dequantized 8-bit values as `matmul_integer` or `conv_integer`.

    The sum is exact in 32 bits, is made a float, and is multiplied by the product of both scales:
    the same float values, rounded in other places. The left side has one scale, the right one for
    all or one an output channel; a convolution whose weights have several zero points stays as it
    is, as do what has channels last, since no runtime computes it, a sum that would wrap in 32
    bits, and float values that float32 does not hold.
    """

    name = "lower-integer"
    tolerance = REGROUPED

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if node.op not in _PRODUCTS or (sides := _sides(node)) is None:
                continue
            # Without the bias, which is added in float after the sum.
            if overflow_text(graph, node, biased=False) or float_product_overflows(
                *(s.quantized for s in sides)
            ):
                continue
            if not may(self.name, f"lower {node.op}", node):
                continue
            _lower(graph, node, *sides)
            reason = f"{node.op} is summed in integers and scaled once, by the product of scales"
            ledger.add(Change.REGROUPED, self.name, node.name, reason)
            count += 1
        return count + (graph.prune() if count else 0)


def _sides(node: Node) -> tuple[_LoweredSide, _LoweredSide] | None:
    traits = spec(node.op).traits
    x, w = node.operands[traits.data], node.operands[traits.weight or ""]
    if node.op in _CONVS:
        if node.attrs.get("layout", "NCHW") != "NCHW":
            return None
        channel_axis: int | None = 0
    elif node.op == "linear":
        channel_axis = 0 if w.type.rank == 2 else None
    else:
        channel_axis = max(w.type.rank - (2 if node.attrs["trans_b"] else 1), 0)
    data_side, weight_side = _side(x, None), _side(w, channel_axis)
    if data_side is None or weight_side is None:
        return None
    # A convolution is lowered with one zero point for its weights only; a matrix product may have
    # one a column.
    many_zeros = weight_side.axis is not None and (
        weight_side.quant.zero is None or weight_side.zeros() is not None
    )
    return None if node.op in _CONVS and many_zeros else (data_side, weight_side)


def _side(value: Value, channel_axis: int | None) -> _LoweredSide | None:
    """Returns what a value is dequantized from; None if no integer product takes it."""
    node = value.node
    if node.op != "dequantize" or value.type.element != F32:
        return None
    quant = node.operands["x"].type.quant
    if quant is None or quant.storage not in (I8, U8) or quant.kind != "uniform":
        return None
    # Integer products take one whole zero point off; all else has no place in them.
    if quant.plus is not None or quant.has_float_zero or quant.express != F32:
        return None
    # A range gives scale and zero point only while the model runs.
    if {"x.min", "x.max"} & node.operands.keys():
        return None
    if quant.granularity is None:
        return _LoweredSide(node, quant, None)
    return (
        _LoweredSide(node, quant, channel_axis)
        if quant.axis == channel_axis and channel_axis is not None
        else None
    )


def _lower(graph: Graph, node: Node, x: _LoweredSide, w: _LoweredSide) -> None:
    builder = _IntegerBuilder(graph, node)
    is_conv = node.op in _CONVS
    first, second = ("x", "w") if is_conv else ("a", "b")
    transposed = node.op == "linear" or node.attrs.get("trans_b") is True
    operands = {
        first: builder.raw_integers(x, transpose=node.attrs.get("trans_a") is True),
        second: builder.raw_integers(w, transpose=transposed),
    }
    for slot, side in ((first, x), (second, w)):
        if (zero := builder.zero(side)) is not None:
            operands[f"{slot}.zero"] = zero
    names = ("stride", "pad", "dilation", "groups")
    attrs = {n: node.attrs[n] for n in names} if is_conv else {}
    op = "conv_integer" if is_conv else "matmul_integer"
    sums = builder.add(op, operands, attrs, name=f"{node.name}.sum")
    floats = builder.add("cast", {"x": sums}, {"to": F32}, name=f"{node.name}.real")
    # Scales per channel of a convolution need axes of 1 for height and width after the channels.
    trailing_axes = _CONVS.get(node.op, 0) if w.axis is not None else 0
    scale = builder.scale(x, w, trailing_axes)
    result = builder.add("mul", {"a": floats, "b": scale}, name=f"{node.name}.scaled")
    bias = node.operands.get(spec(node.op).traits.bias or "")
    if bias is not None:
        result = builder.add("add", {"a": result, "b": builder.bias(bias, _CONVS.get(node.op, 0))})
    builder.replace(result)


class _IntegerBuilder:
    """Adds nodes in a node's place."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph = graph
        self.node = node

    def add(
        self,
        op: str,
        operands: dict[str, Value],
        attrs: Mapping[str, Attr] | None = None,
        name: str | None = None,
    ) -> Value:
        graph, node = self.graph, self.node
        fresh_name = None if name is None else graph.fresh(name)
        return graph.add(
            op,
            operands,
            attrs,
            name=fresh_name,
            before=node,
            # One node stands for the op in reports; the others only scale what it sums.
            origins=node.origins if op.endswith("_integer") else (),
            profile=node.profile,
        ).result

    def add_constant(self, data: NDArray[np.generic], name: str) -> Value:
        fresh_name = self.graph.fresh(name)
        return self.graph.constant(Array.of(data, fresh_name), name=fresh_name, before=self.node)

    def raw_integers(self, side: _LoweredSide, *, transpose: bool) -> Value:
        """Returns the quantized values as plain numbers, the last two axes swapped where that is
        asked."""
        quantized, raw_type = side.quantized, side.quantized.type.with_element(side.quant.storage)
        if (array := quantized.constant) is not None:
            axes = [*range(array.type.rank)]
            axes[-2:] = axes[:-3:-1]
            data = lazy_arrays.transposed(array.contents, axes) if transpose else array.contents
            name = array.name or quantized.name
            fresh_name = self.graph.fresh(name)
            raw_array = Array(data, TensorType(data.shape, side.quant.storage), name)
            raw = self.graph.constant(raw_array, name=fresh_name, before=self.node)
            self.graph.set_origins(raw.node, quantized.node.origins)
            self.graph.set_lineage(raw, quantized.lineage)
            return raw
        source = quantized.node.operands.get("x") if quantized.node.op == "recode" else None
        if source is not None and source.type == raw_type:
            raw = source
        else:
            recodes = (
                user
                for user in quantized.users
                if user.op == "recode" and user.result.type == raw_type
            )
            # Products of one tensor share its raw integers, if these are made before this product.
            existing = next((user for user in recodes if user.precedes(self.node)), None)
            raw = existing.result if existing else self._recode(quantized, raw_type)
        if not transpose:
            return raw
        axes = [*range(raw_type.rank)]
        axes[-2:] = axes[:-3:-1]
        return self.add("transpose", {"x": raw}, {"perm": tuple(axes)})

    def _recode(self, quantized: Value, raw_type: TensorType) -> Value:
        name = self.graph.fresh(f"{quantized.name}.raw")
        node = self.graph.add(
            "recode", {"x": quantized}, types=[raw_type], name=name, before=self.node
        )
        return node.result

    def zero(self, side: _LoweredSide) -> Value | None:
        """Zero points, whether they are next to or in the type."""
        if (zero_value := side.node.operands.get("x.zero")) is not None:
            return zero_value
        zeros = side.zeros()
        return None if zeros is None else self.add_constant(zeros, f"{side.quantized.name}.zero")

    def scale(self, x: _LoweredSide, w: _LoweredSide, trailing_axes: int) -> Value:
        """Returns the product of both scales, and of what else the op multiplies by.

        Constants stay apart, so that whoever reads the sum knows both of them.
        """
        factors = [self._scale(x), self._scale(w)]
        alpha = self.node.attrs.get("alpha", 1.0)
        assert isinstance(alpha, float)
        if (
            isinstance(factors[1], np.ndarray)
            and factors[1].ndim
            and isinstance(factors[0], np.ndarray)
        ):
            factors[1] = factors[1].reshape(-1, *(1,) * trailing_axes)
            # Constants are reshaped here, so that no reshape is left for the product.
            trailing_axes = 0
        if alpha != 1.0:
            factors.append(np.asarray(alpha, np.float32))
        values = [
            self.add_constant(factor, f"{self.node.name}.scale")
            if isinstance(factor, np.ndarray)
            else factor
            for factor in factors
        ]
        product = values[0]
        for value in values[1:]:
            product = self.add("mul", {"a": product, "b": value}, name=f"{self.node.name}.scales")
        return self._with_trailing_axes(product, trailing_axes)

    def _scale(self, side: _LoweredSide) -> Value | NDArray[np.generic]:
        scale_value = side.node.operands.get("x.scale")
        return np.asarray(side.quant.scales(), np.float32) if scale_value is None else scale_value

    def _with_trailing_axes(self, value: Value, axes: int) -> Value:
        """Returns a list of channels as a tensor with so many axes after."""
        if not axes or not value.type.rank:
            return value
        if (array := value.constant) is not None:
            expanded = array.data.reshape(-1, *(1,) * axes)
            return self.add_constant(expanded, f"{value.name}.wide")
        shape = self.add_constant(np.array([-1, *(1,) * axes], np.int64), f"{value.name}.shape")
        return self.add("reshape", {"x": value, "shape": shape})

    def bias(self, value: Value, axes: int) -> Value:
        """Returns what is added: float values, or sums in the accumulator's unit dequantized."""
        value = self._float_bias(value) if axes else value
        beta = self.node.attrs.get("beta", 1.0)
        if beta != 1.0:
            factor = self.add_constant(np.asarray(beta, np.float32), "beta")
            value = self.add("mul", {"a": value, "b": factor})
        return self._with_trailing_axes(value, axes) if value.type.rank == 1 else value

    def _float_bias(self, value: Value) -> Value:
        """Float values of raw sums as these times their unit.

        A dequantize would be reshaped, and onnxruntime moves the rounding of such sums there.
        """
        node = value.node
        quantized = node.operands["x"] if node.op == "dequantize" else value
        quant = quantized.type.quant
        if (
            node is quantized.node
            or quant is None
            or quant.storage != I32
            or quantized.constant is not None
        ):
            return value
        if quant.express != F32 or quant.zero is None or np.any(quant.zeros()):
            return value
        floats = self.add(
            "cast", {"x": self._raw_int32(quantized)}, {"to": F32}, name=f"{quantized.name}.float"
        )
        unit = node.operands.get("x.scale")
        if unit is None:
            unit = self.add_constant(
                np.asarray(quant.scales(), np.float32), f"{quantized.name}.unit"
            )
        return self.add("mul", {"a": floats, "b": unit}, name=f"{quantized.name}.real")

    def _raw_int32(self, quantized: Value) -> Value:
        """Quantized values as the numbers they are."""
        raw_type = quantized.type.with_element(I32)
        source = quantized.node.operands.get("x") if quantized.node.op == "recode" else None
        return (
            source
            if source is not None and source.type == raw_type
            else self._recode(quantized, raw_type)
        )

    def replace(self, replacement: Value) -> None:
        """Puts a value in the place of the node's."""
        self.graph.substitute(self.node, replacement)
