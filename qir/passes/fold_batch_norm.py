"""Moves batch normalization into the weights of the convolution or product before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.ir.calls import make_call
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import Array
from qir.ledger import Change, Ledger
from qir.rewrite import Pass, Tolerance
from qir.rewrite.watch import may

_PRODUCERS = frozenset({"conv2d", "linear", "gemm", "matmul"})


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """conv2d |> batch_norm becomes conv2d, where nobody else reads what stands between.

    New weights are computed in float64 and rounded once.
    """

    name = "fold-batch-norm"
    tolerance = Tolerance(1024, 0, "equal in reals; new weights are rounded")

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in graph:
            if node.op == "batch_norm" and (producer := _producer(node)):
                if not may(self.name, "fold", node, producer):
                    continue
                subject, into = node.name, producer.name
                _fold(graph, producer, node)
                ledger.add(Change.REGROUPED, self.name, subject, f"folded into {into}'s weights")
                count += 1
        return count + (graph.prune() if count else 0)


def _producer(norm: Node) -> Node | None:
    """The op that can take the normalization in; None if its result has other uses."""
    x = norm.operands["x"]
    node = x.node
    if node.op not in _PRODUCERS or x.only_use is None:
        return None
    traits = spec(node.op).traits
    weight = node.operands.get(traits.weight or "")
    bias = node.operands.get(traits.bias or "")
    if weight is None or weight.constant is None or weight.type.quant:
        return None
    if bias is not None and (bias.constant is None or bias.type.quant or bias.type.rank != 1):
        return None
    if node.op == "gemm" and (node.attrs["beta"] != 1.0):
        return None
    if node.op == "matmul" and weight.type.rank != 2:
        return None
    parts = [norm.operands[s] for s in ("gamma", "beta", "mean", "var")]
    if any(p.constant is None or p.type.quant for p in parts):
        return None
    if any(v.type.quant for v in (*node.operands.values(), x)):
        return None
    call = make_call(node.op, node.operands, node.attrs)
    axis = norm.attrs["axis"]
    assert isinstance(axis, int)
    assert traits.result_axis is not None
    return node if axis % x.type.rank == traits.result_axis(call) else None


def _fold(graph: Graph, node: Node, norm: Node) -> None:
    traits = spec(node.op).traits
    assert traits.weight
    assert traits.bias
    assert traits.weight_axis
    gamma, beta, mean, var = (_reals(norm.operands[s]) for s in ("gamma", "beta", "mean", "var"))
    eps = norm.attrs["eps"]
    assert isinstance(eps, float)
    gain = gamma / np.sqrt(var + eps)
    weight = node.operands[traits.weight]
    axis = traits.weight_axis(make_call(node.op, node.operands, node.attrs))
    along = [1] * weight.type.rank
    along[axis] = -1
    bias = node.operands.get(traits.bias)
    shift = beta + ((_reals(bias) if bias else 0.0) - mean) * gain
    kind = weight.type.dtype.carrier
    new = graph.constant(
        Array.of((_reals(weight) * gain.reshape(along)).astype(kind), weight.name),
        name=graph.fresh(f"{weight.name}.folded"),
        before=node,
    )
    new_bias = graph.constant(
        Array.of(shift.astype(kind), f"{node.name}.bias"),
        name=graph.fresh(f"{node.name}.bias"),
        before=node,
    )
    graph.set_lineage(new, weight.lineage.then("scaled"))
    graph.set_operand(node, traits.weight, new)
    graph.set_operand(node, traits.bias, new_bias)
    _take_over(graph, node, norm)


def _take_over(graph: Graph, node: Node, norm: Node) -> None:
    """The producer's result becomes the normalization's, name and lineage included."""
    old, new = norm.result, node.result
    graph.replace(old, new)
    lineage, name, origins = old.lineage, old.name, norm.origins
    graph.remove(norm)
    graph.rename(new, name)
    graph.set_lineage(new, lineage)
    graph.set_origins(node, (*node.origins, *origins))


def _reals(value: Value) -> NDArray[np.float64]:
    assert value.constant is not None
    return value.constant.data.astype(np.float64)
