"""Divides channels between layers by scales that even out the weights on both sides.

    graph main as native {
      %x = input() : 2x2xf32
      %w = constant([1.0, 2.0, 0.01, -0.02]) : 2x2xf32
      %m = linear(%x, %w) : 2x2xf32
      %r = relu(%m) : 2x2xf32
      %v = constant([1.0, 1.0, 2.0, -1.0]) : 2x2xf32
      %y = linear(%r, %v) : 2x2xf32
      output(y=%y)
    }

By `equalize` it becomes:

    graph main as native {
      %x = input() : 2x2xf32
      %w.equalized = constant([1.0, 2.0, 0.0070710676, -0.014142135]) : 2x2xf32
      %m = linear(%x, %w.equalized) : 2x2xf32
      %r = relu(%m) : 2x2xf32
      %v.equalized = constant([1.0, 1.4142135, 2.0, -1.4142135]) : 2x2xf32
      %y = linear(%r, %v.equalized) : 2x2xf32
      output(y=%y)
    }

The graph computes what it did. Where one channel of %w is much larger than another, one scale for
all of %w leaves the other few steps. So %w and its bias are divided by one number a channel, and %v
is multiplied by it. It goes through relu, pads, pools, depthwise layers and residual sums. Channels
that reach their clip on the calibration data keep their scale, so that the clip stays exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from qir.calibration import Key, Statistics
from qir.calibration.scaling import Scaled
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops.layers import CONVOLUTIONS
from qir.ir.origin import Lineage
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.passes.quantize.materialize import read_statistics
from qir.rewrite import Pass
from qir.rewrite.channel_groups import ChannelGroup, channel_groups, stored_values
from qir.rewrite.layer_weights import Reals, float_weights, groups, inward, operands, outward, store
from qir.rewrite.runner.options import option
from qir.rewrite.runner.tolerance import Tolerance

SWEEPS = 40
"""Rounds over all groups; each makes neighbours a little more alike."""
SETTLED = 0.01
"""The rounds end where no scale changed by more than so much of itself."""
REACH = 1024.0
"""No channel is scaled by more than this, up or down: dead channels have no scale of their own."""
STEP = "scaled"
"""The step in the lineage of values whose channels were divided."""


@dataclass(frozen=True)
class Equalize(Pass):
    """Divides the channels between layers so that one scale suits the weights on both sides.

    Values that it scaled are known by another name in statistics, since their range is another:
    `qir quantize` derives it, other programs are to be calibrated again.
    """

    name = "equalize"
    nested = False
    tolerance = Tolerance(4096, 0, "equal on the calibration data; weights are rounded")
    statistics: Statistics = field(
        default_factory=lambda: Statistics(""), metadata=option(read=read_statistics, kind="file")
    )
    """Of the float model; a file that `qir calibrate` wrote."""

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Two layers with a relu between them."""
        text = (
            "graph main as native {\n  %x = input() : 2x2xf32\n"
            "  %w = constant([1.0, 2.0, 0.01, -0.02]) : 2x2xf32\n"
            "  %m = linear(%x, %w) : 2x2xf32\n  %r = relu(%m) : 2x2xf32\n"
            "  %v = constant([1.0, 1.0, 2.0, -1.0]) : 2x2xf32\n"
            "  %y = linear(%r, %v) : 2x2xf32\n  output(y=%y)\n}\n"
        )
        statistics = Statistics("sample")
        with statistics.batch("sample", 0) as batch:
            batch.update("r", np.ones((2, 2), np.float32), 1)
        yield cls(statistics), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        found = scales(graph, self.statistics)
        sides: dict[Node, dict[str, Reals]] = {}
        for group, row in found:
            for node in group.producers:
                sides.setdefault(node, {})["out"] = row
            for node in group.consumers:
                sides.setdefault(node, {})["in"] = row
        for node, rows in sides.items():
            _rescale(graph, node, rows)
            spread = [f"{name} channels by {_spread(row)}" for name, row in rows.items()]
            ledger.add(Change.REGROUPED, self.name, node.name, f"divides {', '.join(spread)}")
        for group, _ in found:
            for value in group.values:
                lineage = Lineage(scaled_name(value.lineage.tensor), value.lineage.how)
                graph.set_lineage(value, lineage.then(STEP))
        return len(found) + (graph.prune() if found else 0)


def scaled_name(tensor: str) -> str:
    """The tensor id of a value after its channels were divided."""
    return f"{tensor}/{STEP}"


def scaled_tensors(graph: Graph, statistics: Statistics) -> Mapping[str, Scaled]:
    """Returns what `Equalize` will divide: new tensor id -> the old one, its channel axis and
    scales."""
    return {
        scaled_name(value.lineage.tensor): Scaled(value.lineage.tensor, group.axis, row)
        for group, row in scales(graph, statistics)
        for value in group.values
    }


def scales(graph: Graph, statistics: Statistics) -> list[tuple[ChannelGroup, Reals]]:
    """Returns the groups whose channels are to be divided, and by what.

    Relative to the largest channel, a channel's share of the weights before it or of the values
    between (the larger one) is made equal to its share of the weights after it: the sum of
    precisions is then the largest (Nagel et al., Data-Free Quantization, 2019, for weights alone).
    """
    wide: list[tuple[ChannelGroup, tuple[Reals, Reals]]] = []
    for group in channel_groups(graph):
        done = any(STEP in value.lineage.how for value in group.values)
        if not done and (bounds := _bounds(group, statistics)) is not None:
            wide.append((group, bounds))
    sizes = {n: _sizes(n) for group, _ in wide for n in (*group.producers, *group.consumers)}
    rows = [np.ones(group.size) for group, _ in wide]
    ranges = [_reach(group, statistics) for group, _ in wide]
    outs = {n: i for i, (group, _) in enumerate(wide) for n in group.producers}
    ins = {n: i for i, (group, _) in enumerate(wide) for n in group.consumers}

    def now(node: Node) -> Reals:
        """Returns the largest weight between each input and output channel, as the scales have
        it."""
        size = sizes[node]
        if node in ins:
            size = inward(node)(size, rows[ins[node]])
        return size if node not in outs else outward(node)(size, 1 / rows[outs[node]])

    for _ in range(SWEEPS):
        moved = 0.0
        for i, (group, (least, most)) in enumerate(wide):
            held = _unit(ranges[i] / rows[i])
            made = _largest([held, *(_outputs(n, now(n)) for n in group.producers)])
            read = _largest([_inputs(n, now(n)) for n in group.consumers])
            with np.errstate(divide="ignore", invalid="ignore"):
                factor = np.sqrt(made / read)
            factor[~np.isfinite(factor) | (factor == 0)] = 1.0
            row = np.clip(rows[i] * factor, least, most)
            moved = max(moved, float(np.abs(np.log(row / rows[i])).max(initial=0)))
            rows[i] = row
        if moved < SETTLED:
            break
    return [
        (group, row)
        for (group, _), row in zip(wide, rows, strict=True)
        if np.abs(np.log(row)).max(initial=0) > 1e-3
    ]


def _bounds(group: ChannelGroup, statistics: Statistics) -> tuple[Reals, Reals] | None:
    """Returns the least and the greatest scale of each channel; None where statistics do not tell.

    A clip cuts the scaled values where it cut the others: nowhere, on the calibration data.
    """
    for value in stored_values(group):
        summary = statistics.get(Key(value.lineage.tensor, group.axis))
        if summary is None or summary.channel_high.size != group.size:
            return None
        whole = statistics.get(Key(value.lineage.tensor))
        if whole is not None and whole.count != summary.count:
            return None
    least, most = np.full(group.size, 1 / REACH), np.full(group.size, REACH)
    for clip in group.clips:
        summary = statistics.get(Key(clip.result.lineage.tensor, group.axis))
        if summary is None:
            return None
        high, low = (np.asarray(s, np.float64) for s in (summary.channel_high, summary.channel_low))
        top, bottom = (float(str(clip.attrs[name])) for name in ("max", "min"))
        cut = (high >= top) | ((low <= bottom) & (bottom != 0))
        with np.errstate(divide="ignore"):
            needed = np.maximum(high / top, low / bottom if bottom else 0.0)
        least = np.where(cut, 1.0, np.maximum(least, needed))
        most = np.where(cut, 1.0, np.maximum(most, least))
    return np.minimum(least, most), most


def _reach(group: ChannelGroup, statistics: Statistics) -> Reals:
    """Returns the largest magnitude of each channel in what quantizing may store."""
    rows = []
    for value in stored_values(group):
        summary = statistics[Key(value.lineage.tensor, group.axis)]
        ends = np.maximum(np.abs(summary.channel_low), np.abs(summary.channel_high))
        rows.append(_unit(np.asarray(ends, np.float64)))
    return _largest(rows) if rows else np.zeros(group.size)


def _sizes(node: Node) -> Reals:
    """Absolute weights, the largest of the taps of each pair of channels."""
    size = np.abs(float_weights(operands(node)[1]))
    return size.max(axis=tuple(range(2, size.ndim)), keepdims=True) if size.ndim > 2 else size


def _outputs(node: Node, size: Reals) -> Reals:
    """Returns the largest weight of each output channel, the largest of all being 1."""
    turned = node.op in CONVOLUTIONS or node.op == "linear" or node.attrs.get("trans_b") is True
    found = size.reshape(size.shape[0], -1).max(axis=1) if turned else size.max(axis=0)
    return _unit(found)


def _inputs(node: Node, size: Reals) -> Reals:
    """Returns the largest weight of each input channel, the largest of all being 1."""
    if node.op in CONVOLUTIONS:
        parts = size.reshape(groups(node), -1, size.shape[1])
        return _unit(parts.max(axis=1).reshape(-1))
    turned = node.op == "linear" or node.attrs.get("trans_b") is True
    return _unit(size.max(axis=0 if turned else 1))


def _unit(row: Reals) -> Reals:
    most = row.max(initial=0)
    return row / most if most else row


def _largest(rows: list[Reals]) -> Reals:
    return np.asarray(np.max(np.stack(rows), axis=0))


def _rescale(graph: Graph, node: Node, rows: Mapping[str, Reals]) -> None:
    _, weight, bias = operands(node)
    made, moved = float_weights(weight), None if bias is None else float_weights(bias)
    if "in" in rows:
        made = inward(node)(made, rows["in"])
    if "out" in rows:
        made = outward(node)(made, 1 / rows["out"])
        moved = None if moved is None else moved / rows["out"]
    store(graph, node, made, moved, "equalized")


def _spread(row: Reals) -> str:
    return f"{row.min():.3g} to {row.max():.3g}"
