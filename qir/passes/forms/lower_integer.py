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
class _Side:
    """Quantized values of one side of a product: their dequantize, and the axis along which scales
    are."""

    node: Node
    quant: QuantType
    axis: int | None

    @property
    def codes(self) -> Value:
        return self.node.operands["x"]

    def zeros(self) -> NDArray[np.generic] | None:
        """Zero points that are in the type, none where there are none."""
        if self.quant.zero is None:
            return None
        held = np.asarray(self.quant.zeros())
        return held.astype(self.quant.storage.carrier) if held.any() else None


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
            if overflow_text(graph, node, biased=False) or float_product_overflows(
                *(s.codes for s in sides)
            ):
                continue
            if not may(self.name, f"lower {node.op}", node):
                continue
            _lower(graph, node, *sides)
            reason = f"{node.op} is summed in integers and scaled once, by the product of scales"
            ledger.add(Change.REGROUPED, self.name, node.name, reason)
            count += 1
        return count + (graph.prune() if count else 0)


def _sides(node: Node) -> tuple[_Side, _Side] | None:
    traits = spec(node.op).traits
    x, w = node.operands[traits.data], node.operands[traits.weight or ""]
    if node.op in _CONVS:
        if node.attrs.get("layout", "NCHW") != "NCHW":
            return None
        along: int | None = 0
    elif node.op == "linear":
        along = 0 if w.type.rank == 2 else None
    else:
        along = max(w.type.rank - (2 if node.attrs["trans_b"] else 1), 0)
    one, other = _side(x, None), _side(w, along)
    if one is None or other is None:
        return None
    several = other.axis is not None and (other.quant.zero is None or other.zeros() is not None)
    return None if node.op in _CONVS and several else (one, other)


def _side(value: Value, along: int | None) -> _Side | None:
    """Returns the integers that a value's floats are of; None for integers that no integer product
    takes."""
    node = value.node
    if node.op != "dequantize" or value.type.element != F32:
        return None
    quant = node.operands["x"].type.quant
    if quant is None or quant.storage not in (I8, U8) or quant.kind != "uniform":
        return None
    if quant.plus is not None or quant.has_float_zero or quant.express != F32:
        return None
    if {"x.min", "x.max"} & node.operands.keys():
        return None
    if quant.granularity is None:
        return _Side(node, quant, None)
    return _Side(node, quant, along) if quant.axis == along and along is not None else None


def _lower(graph: Graph, node: Node, x: _Side, w: _Side) -> None:
    build = _Build(graph, node)
    conv = node.op in _CONVS
    first, second = ("x", "w") if conv else ("a", "b")
    turned = node.op == "linear" or node.attrs.get("trans_b") is True
    operands = {
        first: build.raw(x, turned=node.attrs.get("trans_a") is True),
        second: build.raw(w, turned=turned),
    }
    for slot, side in ((first, x), (second, w)):
        if (zero := build.zero(side)) is not None:
            operands[f"{slot}.zero"] = zero
    names = ("stride", "pad", "dilation", "groups")
    attrs = {n: node.attrs[n] for n in names} if conv else {}
    kind = "conv_integer" if conv else "matmul_integer"
    total = build.add(kind, operands, attrs, name=f"{node.name}.sum")
    real = build.add("cast", {"x": total}, {"to": F32}, name=f"{node.name}.real")
    spread = _CONVS.get(node.op, 0) if w.axis is not None else 0
    scale = build.scale(x, w, spread)
    made = build.add("mul", {"a": real, "b": scale}, name=f"{node.name}.scaled")
    bias = node.operands.get(spec(node.op).traits.bias or "")
    if bias is not None:
        made = build.add("add", {"a": made, "b": build.bias(bias, _CONVS.get(node.op, 0))})
    build.replace(made)


class _Build:
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
        given = None if name is None else graph.fresh(name)
        return graph.add(
            op,
            operands,
            attrs,
            name=given,
            before=node,
            origins=node.origins if op.endswith("_integer") else (),
            profile=node.profile,
        ).result

    def held(self, data: NDArray[np.generic], name: str) -> Value:
        free = self.graph.fresh(name)
        return self.graph.constant(Array.of(data, free), name=free, before=self.node)

    def raw(self, side: _Side, *, turned: bool) -> Value:
        """Returns the quantized values as plain numbers, the last two axes swapped where that is
        asked."""
        codes, plain = side.codes, side.codes.type.with_element(side.quant.storage)
        if (array := codes.constant) is not None:
            axes = [*range(array.type.rank)]
            axes[-2:] = axes[:-3:-1]
            data = lazy_arrays.transposed(array.contents, axes) if turned else array.contents
            name = array.name or codes.name
            free = self.graph.fresh(name)
            held = Array(data, TensorType(data.shape, side.quant.storage), name)
            made = self.graph.constant(held, name=free, before=self.node)
            self.graph.set_origins(made.node, codes.node.origins)
            self.graph.set_lineage(made, codes.lineage)
            return made
        source = codes.node.operands.get("x") if codes.node.op == "recode" else None
        if source is not None and source.type == plain:
            made = source
        else:
            known = (u for u in codes.users if u.op == "recode" and u.result.type == plain)
            old = next((u for u in known if u.precedes(self.node)), None)
            made = old.result if old else self._recoded(codes, plain)
        if not turned:
            return made
        axes = [*range(plain.rank)]
        axes[-2:] = axes[:-3:-1]
        return self.add("transpose", {"x": made}, {"perm": tuple(axes)})

    def _recoded(self, codes: Value, plain: TensorType) -> Value:
        name = self.graph.fresh(f"{codes.name}.raw")
        node = self.graph.add("recode", {"x": codes}, types=[plain], name=name, before=self.node)
        return node.result

    def zero(self, side: _Side) -> Value | None:
        """Zero points, whether they are next to or in the type."""
        if (given := side.node.operands.get("x.zero")) is not None:
            return given
        held = side.zeros()
        return None if held is None else self.held(held, f"{side.codes.name}.zero")

    def scale(self, x: _Side, w: _Side, spread: int) -> Value:
        """Returns the product of both scales, and of what else the op multiplies by.

        Constants stay apart, so that whoever reads the sum knows both of them.
        """
        parts = [self._scale(x), self._scale(w)]
        alpha = self.node.attrs.get("alpha", 1.0)
        assert isinstance(alpha, float)
        if isinstance(parts[1], np.ndarray) and parts[1].ndim and isinstance(parts[0], np.ndarray):
            parts[1] = parts[1].reshape(-1, *(1,) * spread)
            spread = 0
        if alpha != 1.0:
            parts.append(np.asarray(alpha, np.float32))
        values = [
            self.held(p, f"{self.node.name}.scale") if isinstance(p, np.ndarray) else p
            for p in parts
        ]
        made = values[0]
        for value in values[1:]:
            made = self.add("mul", {"a": made, "b": value}, name=f"{self.node.name}.scales")
        return self._spread(made, spread)

    def _scale(self, side: _Side) -> Value | NDArray[np.generic]:
        given = side.node.operands.get("x.scale")
        return np.asarray(side.quant.scales(), np.float32) if given is None else given

    def _spread(self, value: Value, axes: int) -> Value:
        """Returns a list of channels as a tensor with so many axes after."""
        if not axes or not value.type.rank:
            return value
        if (array := value.constant) is not None:
            wide = array.data.reshape(-1, *(1,) * axes)
            return self.held(wide, f"{value.name}.wide")
        shape = self.held(np.array([-1, *(1,) * axes], np.int64), f"{value.name}.shape")
        return self.add("reshape", {"x": value, "shape": shape})

    def bias(self, value: Value, axes: int) -> Value:
        """Returns what is added: float values, or sums in the accumulator's unit dequantized."""
        value = self._counted(value) if axes else value
        beta = self.node.attrs.get("beta", 1.0)
        if beta != 1.0:
            factor = self.held(np.asarray(beta, np.float32), "beta")
            value = self.add("mul", {"a": value, "b": factor})
        return self._spread(value, axes) if value.type.rank == 1 else value

    def _counted(self, value: Value) -> Value:
        """Float values of raw sums as these times their unit.

        A dequantize would be reshaped, and onnxruntime moves the rounding of such sums there.
        """
        node = value.node
        codes = node.operands["x"] if node.op == "dequantize" else value
        quant = codes.type.quant
        if (
            node is codes.node
            or quant is None
            or quant.storage != I32
            or codes.constant is not None
        ):
            return value
        if quant.express != F32 or quant.zero is None or np.any(quant.zeros()):
            return value
        real = self.add("cast", {"x": self._plain(codes)}, {"to": F32}, name=f"{codes.name}.float")
        unit = node.operands.get("x.scale")
        if unit is None:
            unit = self.held(np.asarray(quant.scales(), np.float32), f"{codes.name}.unit")
        return self.add("mul", {"a": real, "b": unit}, name=f"{codes.name}.real")

    def _plain(self, codes: Value) -> Value:
        """Quantized values as the numbers they are."""
        plain = codes.type.with_element(I32)
        source = codes.node.operands.get("x") if codes.node.op == "recode" else None
        return (
            source if source is not None and source.type == plain else self._recoded(codes, plain)
        )

    def replace(self, made: Value) -> None:
        """Puts a value in the place of the node's."""
        self.graph.substitute(self.node, made)
