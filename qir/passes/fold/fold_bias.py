"""Makes a constant that is added to a convolution or product its bias.

    graph main as native {
      %x = input() : 1x2x6x6xf32
      %w = constant(@w) : 2x2x3x3xf32
      %b = constant([1.375, 7.0]) : 1x2x1x1xf32
      %c = conv2d(%x, %w) : 1x2x4x4xf32
      %y = add(%c, %b) : 1x2x4x4xf32
      output(y=%y)
    }

By `fold-bias` it becomes:

    graph main as native {
      %x = input() : 1x2x6x6xf32
      %w = constant(@w) : 2x2x3x3xf32
      %y.bias = constant([1.375, 7.0]) : 2xf32
      %y = conv2d(%x, %w, bias=%y.bias) : 1x2x4x4xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.ir.calls import make_call
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import TRANSPOSED_CONVOLUTIONS
from qir.ir.text import parse
from qir.ir.types import Array
from qir.ledger import Change
from qir.rewrite import Pass
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Op, Pattern, Var, op
from qir.rewrite.patterns.rewriting import PatternPass, Rewrite
from qir.rewrite.runner.tolerance import REGROUPED

_TRANSPOSED = tuple(sorted(TRANSPOSED_CONVOLUTIONS))
_CONVS = ("conv1d", "conv2d", "conv3d", *_TRANSPOSED, "linear")
_BIAS = {"gemm": "c"}


def _bias_slot(node: Node) -> str:
    return _BIAS.get(node.op, "bias")


def _channel_axis(node: Node) -> int:
    """Returns the axis of the output channels in the result."""
    if node.op in _TRANSPOSED:
        return 1
    axis_rule = spec(node.op).traits.result_axis
    assert axis_rule is not None
    return axis_rule(make_call(node.op, node.operands, node.attrs))


def _per_channel(value: Value, node: Node) -> NDArray[np.float64] | None:
    """Returns a constant as one number per channel; None if it varies along another axis."""
    array, size = value.constant, node.result.type.shape[_channel_axis(node)]
    if array is None or array.type.quant or not isinstance(size, int):
        return None
    rank = node.result.type.rank
    if array.type.rank > rank:
        return None
    # Broadcasting aligns shapes at the last axis.
    padded_shape = (1,) * (rank - array.type.rank) + array.contents.shape
    other_sizes = padded_shape[: _channel_axis(node)] + padded_shape[_channel_axis(node) + 1 :]
    if any(d != 1 for d in other_sizes) or padded_shape[_channel_axis(node)] not in (1, size):
        return None
    return np.broadcast_to(array.data.astype(np.float64).reshape(-1), (size,))


def _with_bias(graph: Graph, match: Match) -> Value | None:
    """Returns the op with the constant in its bias; None where that is impossible."""
    root = match.root
    node = next(n for n in match.nodes if n is not root)
    values = {slot: v for slot, v in root.operands.items() if v is not node.result}
    (slot, value), *others = values.items()
    summand, old_bias = _per_channel(value, node), node.operands.get(_bias_slot(node))
    if others or summand is None or node.attrs.get("beta", 1.0) != 1.0:
        return None
    if root.op == "sub":  # x - k adds -k, whereas k - x would negate the product
        if slot != "b":
            return None
        summand = -summand
    if old_bias is not None:
        if old_bias.constant is None or old_bias.type.rank != 1 or old_bias.type.quant:
            return None
        # Rounded once below: in float32 two roundings could move the bias by a bit more.
        summand = summand + old_bias.constant.data.astype(np.float64)
    # The addition broadcasts the product to a larger shape, which a bias cannot do.
    if root.result.type != node.result.type:
        return None
    elements = Array.of(summand.astype(value.type.dtype.carrier), f"{root.name}.bias")
    bias = graph.constant(elements, name=graph.fresh(f"{root.name}.bias"))
    operands = {**node.operands, _bias_slot(node): bias}
    return graph.add(node.op, operands, node.attrs, types=[root.result.type]).result


def _rewrite(name: str, layer: Op) -> Rewrite:
    constant = Var("k").check("it is a constant", lambda value: value.constant is not None)
    term = op.any_of("add", "sub")(layer, constant)
    doc = "What is added to every element of a channel."
    return Rewrite(
        Pattern(name, (term | op.add(constant, layer),), doc=doc), _with_bias, Change.REGROUPED
    )


_WEIGHT = Var("w").where("constant")
_CONSTANT_WEIGHT_REWRITES = (
    _rewrite("bias", op.any_of(*_CONVS)(Var("x"), _WEIGHT, ...)),
    _rewrite("product-bias", op.any_of("matmul", "gemm")(Var("x"), _WEIGHT, ...)),
)


@dataclass(frozen=True)
class FoldBias(PatternPass):
    """Makes a constant a channel that is added after conv2d its bias.

    Likewise convolutions along one and three axes, transposed ones, linear, matmul and gemm; what
    is taken away goes too. A bias that is there and constant gets the sum, in float64. What is
    added is then rounded together with the sum, once instead of twice.
    """

    name = "fold-bias"
    tolerance = REGROUPED
    rewrites = (
        _rewrite("bias", op.any_of(*_CONVS)(Var("x"), ...)),
        _rewrite("product-bias", op.any_of("matmul", "gemm")(Var("x"), ...)),
    )
    layers: bool = False
    """Only where the weights are constants: what is added to other products may be a mask."""

    products: bool = True
    """After matmul and gemm too."""

    def chosen(self) -> tuple[Rewrite, ...]:
        candidates = _CONSTANT_WEIGHT_REWRITES if self.layers else self.rewrites
        # The first row is that of convolutions and linear.
        return candidates if self.products else candidates[:1]

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a row that is added to a product."""
        text = (
            "graph main as native {\n  %x = input() : 2x2xf32\n"
            "  %w = constant([1.0, 3.0, -1.0, 2.0]) : 2x2xf32\n"
            "  %k = constant([0.5, -1.0]) : 2xf32\n  %p = linear(%x, %w) : 2x2xf32\n"
            "  %s = add(%p, %k) : 2x2xf32\n  output(y=%s)\n}\n"
        )
        yield cls(), parse(text)
