"""How the weights of a layer depend on its input and output channels, for passes that scale them.

All of it is computed in float64 and rounded once, when `store` writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir.calls import make_call
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from qir.ir.types import Array

Float64Array: TypeAlias = NDArray[np.float64]
"""Numbers as they are computed with, before they are rounded once."""


def slots(node: Node) -> tuple[str, str, str]:
    """Returns the slots of a layer's data, weights and bias; transposed convolutions have no
    traits."""
    traits = spec(node.op).traits
    return traits.data, traits.weight or "w", traits.bias or "bias"


def operands(node: Node) -> tuple[Value, Value, Value | None]:
    """Returns data, weights and bias, the last one if there is one."""
    x, w, bias = slots(node)
    return node.operands[x], node.operands[w], node.operands.get(bias)


def float_weights(value: Value) -> Float64Array:
    """Returns the elements of a constant in float64."""
    assert value.constant is not None
    return value.constant.data.astype(np.float64)


def groups(node: Node) -> int:
    """Returns how many groups a convolution's channels are split into."""
    found = node.attrs["groups"]
    assert isinstance(found, int)
    return found


def result_axis(node: Node) -> int:
    """Returns where the output channels are in the result."""
    if node.op in TRANSPOSED_CONVOLUTIONS:
        return 1
    found = spec(node.op).traits.result_axis
    assert found is not None
    return found(make_call(node.op, node.operands, node.attrs))


def _times_along(weights: Float64Array, factors: Float64Array, axis: int) -> Float64Array:
    shape = [1] * weights.ndim
    shape[axis] = -1
    return weights * factors.reshape(shape)


def _by_group(weights: Float64Array, factors: Float64Array, groups: int) -> Float64Array:
    """Weights whose second axis is of one group, times a row of all groups."""
    rest = weights.shape[2:]
    # The first axis counts the channels of all groups, the second those of one group: both in
    # convolutions (out, in / groups) and in transposed ones (in, out / groups).
    split = weights.reshape(groups, weights.shape[0] // groups, weights.shape[1], *rest)
    return (split * factors.reshape(groups, 1, -1, *(1,) * len(rest))).reshape(weights.shape)


def outward(node: Node) -> Callable[[Float64Array, Float64Array], Float64Array]:
    """Returns how weights are multiplied by a factor for each output channel."""
    if node.op in TRANSPOSED_CONVOLUTIONS:
        return lambda weights, row: _by_group(weights, row, groups(node))
    found = spec(node.op).traits.weight_axis
    assert found is not None
    axis = found(make_call(node.op, node.operands, node.attrs))
    return lambda weights, row: _times_along(weights, row, axis)


def inward(node: Node) -> Callable[[Float64Array, Float64Array], Float64Array]:
    """Returns how weights are multiplied by a factor for each input channel."""
    if node.op in CONVOLUTIONS:
        return lambda weights, row: _by_group(weights, row, groups(node))
    if node.op in TRANSPOSED_CONVOLUTIONS:
        return lambda weights, row: _times_along(weights, row, 0)
    # linear has [out, in]; matmul and gemm have [in, out] unless they transpose it.
    axis = 1 if node.op == "linear" or node.attrs.get("trans_b") is True else 0
    return lambda weights, row: _times_along(weights, row, axis)


def through(node: Node, products: Float64Array) -> Float64Array:
    """Returns the sum of products of weights for each output channel, over input channels and
    taps."""
    if node.op in CONVOLUTIONS:
        return np.asarray(np.sum(products.reshape(products.shape[0], -1), axis=1))
    if node.op in TRANSPOSED_CONVOLUTIONS:
        rows = products.reshape(
            groups(node), -1, products.shape[1], int(np.prod(products.shape[2:]))
        )
        return np.asarray(np.sum(rows, axis=(1, 3)).reshape(-1))
    turned = node.op == "linear" or node.attrs.get("trans_b") is True
    # Only gemm has an alpha, by which it multiplies the sum.
    alpha = node.attrs.get("alpha", 1.0)
    assert isinstance(alpha, float)
    return np.asarray(alpha * np.sum(products, axis=1 if turned else 0))


def energy(node: Node) -> Float64Array:
    """Returns the sum of the squared weights that multiply each input channel."""
    squares = np.square(float_weights(operands(node)[1]))
    if node.op in CONVOLUTIONS:
        parts = squares.reshape(groups(node), -1, squares.shape[1], int(np.prod(squares.shape[2:])))
        return np.asarray(parts.sum(axis=(1, 3)).reshape(-1))
    if node.op in TRANSPOSED_CONVOLUTIONS:
        return np.asarray(squares.reshape(len(squares), -1).sum(axis=1))
    turned = node.op == "linear" or node.attrs.get("trans_b") is True
    return np.asarray(squares.sum(axis=0 if turned else 1))


def store(
    graph: Graph, node: Node, weights: Float64Array, bias: Float64Array | None, step: str
) -> None:
    """Gives a layer new weights, and a new bias where there is one; `step` names the change."""
    _, old, _ = operands(node)
    kind = old.type.dtype.carrier
    # A new constant, as other layers may read the old one.
    new = graph.constant(
        Array.of(weights.astype(kind), old.name),
        name=graph.fresh(f"{old.name}.{step}"),
        before=node,
    )
    graph.set_lineage(new, old.lineage.then("scaled"))
    graph.set_operand(node, slots(node)[1], new)
    if bias is not None:
        store_bias(graph, node, bias.astype(kind))


def store_bias(graph: Graph, node: Node, bias: NDArray[np.floating]) -> Value:
    """Gives a layer a new bias; returns it."""
    name = f"{node.name}.bias"
    elements = Array.of(np.ascontiguousarray(bias), name)
    constant = graph.constant(elements, name=graph.fresh(name), before=node)
    graph.set_operand(node, slots(node)[2], constant)
    return constant
