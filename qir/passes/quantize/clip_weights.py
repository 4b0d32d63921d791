"""Clips outlying weights where all weights together lose less by that.

    graph main as native {
      %x = input() : 2x8xf32
      %w = constant([7.0, 3.5, -3.5, 3.5, 3.5, -3.5, -3.5, 3.5]) : 1x8xf32
      %y = linear(%x, %w) : 2x1xf32 plan {w = "i8<-7:7> symmetric tensor minmax"}
      output(y=%y)
    }

By `clip-weights` it becomes:

    graph main as native {
      %x = input() : 2x8xf32
      %w.clipped = constant([6.3984375, 3.5, -3.5, 3.5, 3.5, -3.5, -3.5, 3.5]) : 1x8xf32
      %y = linear(%x, %w.clipped) : 2x1xf32 plan {w = "i8<-7:7> symmetric tensor minmax"}
      output(y=%y)
    }

The largest weight decides the scale, so one outlier leaves the others few steps. The range with the
least mean squared error is narrower then, and what is outside is clipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from qir.ir.dtype import I8
from qir.ir.graph import Graph
from qir.ir.layer_channels import layer_data
from qir.ir.node import Node
from qir.ir.scheme import Scheme
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.passes.quantize.materialize import channel_axis
from qir.rewrite import ANOTHER, Pass
from qir.rewrite.layer_weights import Float64Array, float_weights, operands, slots, store

CANDIDATES = 96
"""Ranges that are tried, from the full one in equal steps."""
NARROWEST = 0.25
"""No range is narrower than this share of the full one."""
CLIPPED = "clipped"
"""Marks weights in their lineage: clipped once, they are not clipped again."""
IMPROVEMENT = 1 - 1e-9
"""A narrower range must be better by more than rounding, which differs between processors."""


@dataclass(frozen=True)
class ClipWeights(Pass):
    """Clips the weights of planned layers to the symmetric range with the least squared error.

    It runs between `assign-schemes`, which says how weights will be stored, and `materialize`,
    which takes the range from the largest weight that is left.
    """

    name = "clip-weights"
    nested = False
    tolerance = ANOTHER

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a product one of whose weights is far larger than the others."""
        rng = np.random.default_rng(1)
        weights = rng.standard_normal((1, 512)).astype(np.float32)
        weights[0, 0] = 6
        text = (
            "graph main as native {\n  %x = input() : 2x512xf32\n"
            "  %w = constant(@w) : 1x512xf32\n  %y = linear(%x, %w) : 2x1xf32\n  output(y=%y)\n}\n"
        )
        graph = parse(text, {"w": weights})
        node = next(n for n in graph if n.op == "linear")
        graph.set_scheme(node, "w", Scheme(I8, bounds=(-7, 7), symmetric=True))
        yield cls(), graph

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node, scheme in symmetric_layers(graph):
            weight = operands(node)[1]
            if CLIPPED in weight.lineage.how:
                continue
            exact = float_weights(weight)
            reach = clipped_reach(exact, channel_axis(node, scheme), scheme.high)
            clipped_weights = np.clip(exact, -reach, reach)
            changed = int((clipped_weights != exact).sum())
            if changed:
                store(graph, node, clipped_weights, None, CLIPPED)
                clipped = operands(node)[1]
                graph.set_lineage(clipped, clipped.lineage.then(CLIPPED))
                message = f"clips {changed} of {exact.size} weights, for the least squared error"
                ledger.add(Change.QUANTIZED, self.name, node.name, message)
                count += 1
        return count + (graph.prune() if count else 0)


def symmetric_layers(graph: Graph) -> Iterator[tuple[Node, Scheme]]:
    """Yields the layers whose weights are planned with a scale found from them and zero point 0."""
    for node in list(graph):
        if layer_data(node) is None:
            continue
        scheme = node.schemes.get(slots(node)[1])
        # A scheme with a scale of its own does not follow from the largest weight.
        is_symmetric = scheme is not None and scheme.symmetric and scheme.scale is None
        if (
            scheme is not None
            and is_symmetric
            and np.isfinite(float_weights(operands(node)[1])).all()
        ):
            yield node, scheme


def clipped_reach(weights: Float64Array, axis: int | None, high: int) -> Float64Array:
    """Returns the largest magnitude to keep, for each index of an axis or for all weights."""
    other_axes = tuple(i for i in range(weights.ndim) if i != axis)
    full = np.abs(weights).max(axis=other_axes if axis is not None else None, keepdims=True)
    best, least_error = full, _error(weights, full, other_axes if axis is not None else None, high)
    # A search by bisection could miss the optimum: the error is not convex in the range.
    for share in np.linspace(1, NARROWEST, CANDIDATES, endpoint=False)[1:].tolist():
        candidate = full * share
        error = _error(weights, candidate, other_axes if axis is not None else None, high)
        is_better = error < least_error * IMPROVEMENT
        best, least_error = (
            np.where(is_better, candidate, best),
            np.where(is_better, error, least_error),
        )
    return np.asarray(best)


def _error(
    weights: Float64Array, reach: Float64Array, axes: tuple[int, ...] | None, high: int
) -> Float64Array:
    # Channels of zeros alone have no range; by a scale of 1 their error is 0.
    scale = np.where(reach > 0, reach / high, 1.0)
    quantized = np.clip(np.rint(weights / scale), -high, high)
    return np.asarray(np.square(quantized * scale - weights).sum(axis=axes, keepdims=True))
