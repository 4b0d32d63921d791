"""Moves the spread of a norm's channels into the weights that read it (SmoothQuant).

    graph main as native {
      %x = input() : 2x3xf32
      %g = constant([1.0, 40.0, 0.5]) : 3xf32
      %b = constant([0.0, 2.0, 0.1]) : 3xf32
      %n = layer_norm(%x, %g, beta=%b) : 2x3xf32
      %w = constant([1.0, 0.5, -1.0]) : 1x3xf32
      %y = linear(%n, %w) : 2x1xf32
      output(y=%y)
    }

By `smooth` it becomes:

    graph main as native {
      %x = input() : 2x3xf32
      %g.smoothed = constant([1.0, 4.472136, 0.70710677]) : 3xf32
      %b.smoothed = constant([0.0, 0.2236068, 0.14142136]) : 3xf32
      %n = layer_norm(%x, %g.smoothed, beta=%b.smoothed) : 2x3xf32
      %w.smoothed = constant([1.0, 4.472136, -0.70710677]) : 1x3xf32
      %y = linear(%n, %w.smoothed) : 2x1xf32
      output(y=%y)
    }

The graph computes what it did. A few channels of a norm in a transformer are far larger than the
others, and one scale for all leaves these few steps. So the factors and summands of the norm are
divided by one number a channel, and the weights are multiplied by it (Xiao et al., SmoothQuant,
2022).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from qir.calibration import Key, Statistics
from qir.calibration.scaling import Scaled
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.layers import MATRIX_PRODUCTS
from qir.ir.origin import Lineage
from qir.ir.text import parse
from qir.ir.types import Array
from qir.ledger import Change, Ledger
from qir.passes.quantize.equalize import REACH, STEP, scaled_name
from qir.passes.quantize.materialize import read_statistics
from qir.rewrite import Pass
from qir.rewrite.channel_groups import plain_layer
from qir.rewrite.layer_weights import Float64Array, float_weights, inward, operands, slots, store
from qir.rewrite.runner.options import option
from qir.rewrite.runner.tolerance import Tolerance

NORMS = frozenset({"layer_norm", "rms_norm"})
"""Ops that multiply each channel of the last axis by a factor, `gamma`, and may add `beta`."""


@dataclass(frozen=True)
class Smooth(Pass):
    """Divides the channels of norms that only matrix products read, and multiplies their weights.

    Values that it scaled are known by another name in statistics, since their range is another:
    `qir quantize` derives it, other programs are to be calibrated again.
    """

    name = "smooth"
    nested = False
    tolerance = Tolerance(4096, 0, "equal in exact arithmetic; weights are rounded")
    statistics: Statistics = field(
        default_factory=lambda: Statistics(""), metadata=option(read=read_statistics, kind="file")
    )
    """Of the float model; a file that `qir calibrate` wrote."""
    strength: float = 0.5
    """How much of the spread moves to the weights: 0 evens out the weights, 1 the data."""

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a norm with one large channel before a product."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n"
            "  %g = constant([1.0, 40.0, 0.5]) : 3xf32\n"
            "  %b = constant([0.0, 2.0, 0.1]) : 3xf32\n"
            "  %n = layer_norm(%x, %g, beta=%b) : 2x3xf32\n"
            "  %w = constant([1.0, 0.5, -1.0]) : 1x3xf32\n  %y = linear(%n, %w) : 2x1xf32\n"
            "  output(y=%y)\n}\n"
        )
        statistics = Statistics("sample")
        with statistics.batch("sample", 0) as batch:
            batch.update("n", np.array([[1, 40, 0.5], [-1, 30, 0.25]], np.float32), 1)
        yield cls(statistics), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        scaled_norms = scales(graph, self.statistics, self.strength)
        for value, factors in scaled_norms:
            norm = value.node
            for slot in ("gamma", "beta"):
                if slot in norm.operands:
                    _divide_parameter(graph, norm, slot, factors)
            for use in list(value.uses):
                weight = float_weights(operands(use.node)[1])
                # The bias stays: it is added to the sum, in which the factors have cancelled.
                store(graph, use.node, inward(use.node)(weight, factors), None, "smoothed")
            lineage = Lineage(scaled_name(value.lineage.tensor), value.lineage.how)
            graph.set_lineage(value, lineage.then(STEP))
            message = f"divides channels by {factors.min():.3g} to {factors.max():.3g}"
            ledger.add(Change.REGROUPED, self.name, norm.name, message)
        return len(scaled_norms) + (graph.prune() if scaled_norms else 0)


def smoothed_tensors(
    graph: Graph, statistics: Statistics, strength: float = Smooth.strength
) -> Mapping[str, Scaled]:
    """Returns what `Smooth` will divide: new tensor id -> the old one, its channel axis and
    scales."""
    return {
        scaled_name(value.lineage.tensor): Scaled(
            value.lineage.tensor, value.type.rank - 1, factors
        )
        for value, factors in scales(graph, statistics, strength)
    }


def scales(
    graph: Graph, statistics: Statistics, strength: float
) -> list[tuple[Value, Float64Array]]:
    """Returns the results of norms whose channels are to be divided, and by what.

    A channel's number is `max|x| ** strength / max|w| ** (1 - strength)`; channels of zeros alone
    keep theirs.
    """
    scaled = []
    for node in graph:
        if node.op in NORMS and _scalable(node):
            value = node.result
            reach = _channel_reach(value, statistics)
            if reach is None or STEP in value.lineage.how:
                continue
            # All readers share the factors, so the widest of their weights decides.
            weight_reach = np.max([_input_sizes(use.node) for use in value.uses], axis=0)
            with np.errstate(divide="ignore", invalid="ignore"):
                # As SmoothQuant (Xiao et al., 2022) has it; its alpha is `strength`.
                factors = reach**strength / weight_reach ** (1 - strength)
            # Channels that are always 0, or that no weight reads, keep their factor.
            factors[~np.isfinite(factors) | (factors == 0)] = 1.0
            factors = np.clip(factors, 1 / REACH, REACH)
            # Factors nearer to 1 gain nothing, and would round the weights for it.
            if np.abs(np.log(factors)).max(initial=0) > 1e-3:
                scaled.append((value, factors))
    return scaled


def _scalable(node: Node) -> bool:
    """Tells norms over the last axis, with constant factors, that only matrix products read."""
    value = node.result
    size = value.type.shape[-1] if value.type.rank else None
    parameters = [node.operands[slot] for slot in ("gamma", "beta") if slot in node.operands]
    if "gamma" not in node.operands or not value.uses or value.type.quant is not None:
        return False
    if any(
        parameter.constant is None or parameter.type.shape != (size,) for parameter in parameters
    ):
        return False
    return all(
        plain_layer(use.node)
        and use.node.op in MATRIX_PRODUCTS
        and use.slot == slots(use.node)[0]
        and use.node.attrs.get("trans_a") is not True
        for use in value.uses
    )


def _channel_reach(value: Value, statistics: Statistics) -> Float64Array | None:
    """Returns the largest magnitude of each channel; None where statistics do not tell."""
    summary = statistics.get(Key(value.lineage.tensor, value.type.rank - 1))
    if summary is None or summary.channel_high.size != value.type.shape[-1]:
        return None
    ends = np.maximum(np.abs(summary.channel_low), np.abs(summary.channel_high))
    return np.where(np.isfinite(ends), ends, 0).astype(np.float64)


def _input_sizes(node: Node) -> Float64Array:
    """Returns the largest weight of each input channel."""
    weight = np.abs(float_weights(operands(node)[1]))
    outputs_first = node.op == "linear" or node.attrs.get("trans_b") is True
    return np.asarray(weight.max(axis=0 if outputs_first else 1))


def _divide_parameter(graph: Graph, norm: Node, slot: str, factors: Float64Array) -> None:
    old = norm.operands[slot]
    divided = (float_weights(old) / factors).astype(old.type.dtype.carrier)
    name = graph.fresh(f"{old.name}.smoothed")
    replacement = graph.constant(Array.of(divided, old.name), name=name, before=norm)
    graph.set_lineage(replacement, old.lineage.then(STEP))
    graph.set_operand(norm, slot, replacement)
