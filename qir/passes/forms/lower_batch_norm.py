"""Rewrites a batch norm that no layer takes in as a depthwise convolution of one tap.

    graph main as native {
      %x = input() : 1x2x3x3xf32
      %g = constant([3.0, 0.5]) : 2xf32
      %m = constant([1.0, 2.0]) : 2xf32
      %v = constant([1.0, 4.0]) : 2xf32
      %r = relu(%x) : 1x2x3x3xf32
      %y = batch_norm(%r, %g, %m, %m, %v) {eps = 0.0} : 1x2x3x3xf32
      output(y=%y)
    }

By `lower-batch-norm` it becomes:

    graph main as native {
      %x = input() : 1x2x3x3xf32
      %r = relu(%x) : 1x2x3x3xf32
      %y.weight = constant([3.0, 0.25]) : 2x1x1x1xf32
      %y.bias = constant([-2.0, 1.5]) : 2xf32
      %y = conv2d(%r, %y.weight, bias=%y.bias) {groups = 2} : 1x2x3x3xf32
      output(y=%y)
    }

Runtimes have integer kernels for that convolution and none for a batch norm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.passes.fold.fold_batch_norm import affine
from qir.rewrite import Pass
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.tolerance import REGROUPED

CONVOLUTION = {3: "conv1d", 4: "conv2d", 5: "conv3d"}
"""The convolution over data of so many axes."""


@dataclass(frozen=True)
class LowerBatchNorm(Pass):
    """Rewrites a float batch_norm of constants as a depthwise convolution of one tap.

    With `beside`, only where its operand and all results are of such ops: between them its input
    and output are quantized anyway. Factors and shifts are computed in float64 and rounded once.
    """

    name = "lower-batch-norm"
    tolerance = REGROUPED
    beside: frozenset[str] = frozenset()
    """The ops that must be before and after it; none: any."""

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Yields a norm between a relu and a padded convolution."""
        text = (
            "graph main as native {\n  %x = input() : 1x2x3x3xf32\n"
            "  %g = constant([3.0, 0.5]) : 2xf32\n  %m = constant([1.0, 2.0]) : 2xf32\n"
            "  %v = constant([1.0, 4.0]) : 2xf32\n  %r = relu(%x) : 1x2x3x3xf32\n"
            "  %y = batch_norm(%r, %g, %m, %m, %v) : 1x2x3x3xf32\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if node.op != "batch_norm" or not self._is_supported(node):
                continue
            if (parts := affine(node)) is None or not may(self.name, "lower", node):
                continue
            name = node.name
            _lower(graph, node, parts.gain, parts.beta - parts.mean * parts.gain)
            ledger.add(Change.REGROUPED, self.name, name, "a batch norm as a depthwise convolution")
            count += 1
        return count + (graph.prune() if count else 0)

    def _is_supported(self, node: Node) -> bool:
        x, y = node.operands["x"], node.result
        axis = node.attrs["axis"]
        # Convolutions have their channels second, and only for three to five axes is there one.
        is_channel_axis = axis in (1, 1 - x.type.rank) and x.type.rank in CONVOLUTION
        if not is_channel_axis or node.schemes or x.type.quant or y.type.quant:
            return False
        # Elsewhere a convolution of one tap would add two roundings to 8 bits around an op that is
        # cheap in float.
        ops = {x.node.op, *(user.op for user in y.users)}
        return not self.beside or ops <= self.beside


def _lower(graph: Graph, node: Node, gain: NDArray[np.float64], shift: NDArray[np.float64]) -> None:
    x, rank = node.operands["x"], node.result.type.rank
    gamma = node.operands["gamma"].constant
    assert gamma is not None
    float_type, stem = gamma.data.dtype, node.name
    # One tap for each channel: [channels, 1, 1, ...] with as many groups.
    taps = gain.reshape(-1, *(1,) * (rank - 1)).astype(float_type)
    weight = graph.constant(taps, name=graph.fresh(f"{stem}.weight"), before=node)
    bias = graph.constant(shift.astype(float_type), name=graph.fresh(f"{stem}.bias"), before=node)
    convolution = graph.add(
        CONVOLUTION[rank],
        {"x": x, "w": weight, "bias": bias},
        {"groups": len(gain)},
        before=node,
        origins=node.origins,
        profile=node.profile,
    )
    graph.substitute(node, convolution.result)
