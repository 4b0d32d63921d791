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
      %w.equalized = constant([1.4142135, 2.828427, 0.047568284, -0.09513657]) : 2x2xf32
      %m = linear(%x, %w.equalized) : 2x2xf32
      %r = relu(%m) : 2x2xf32
      %v.equalized = constant([0.70710677, 0.2102241, 1.4142135, -0.2102241]) : 2x2xf32
      %y = linear(%r, %v.equalized) : 2x2xf32
      output(y=%y)
    }

The graph computes what it did. Where one channel of %w is much larger than another, one scale for
all of %w leaves the other few steps. So %w and its bias are divided by one number a channel, and %v
is multiplied by it. It goes through relu, pads, pools, depthwise layers and residual sums. Channels
that reach their clip on the calibration data keep their scale, so that the clip stays exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qir.analysis.channel_noise import NoisyLayer, minimize_noise
from qir.calibration import Key, Statistics
from qir.calibration.scaling import Scaled
from qir.ir.dims import known_shape
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops.layers import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from qir.ir.origin import Lineage
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.passes.quantize.materialize import read_statistics
from qir.rewrite import Pass
from qir.rewrite.channel_groups import ChannelGroup, channel_groups, stored_values
from qir.rewrite.layer_weights import (
    Float64Array,
    float_weights,
    groups,
    inward,
    operands,
    outward,
    store,
)
from qir.rewrite.runner.options import option
from qir.rewrite.runner.tolerance import Tolerance

SWEEPS = 40
"""Rounds over all groups; each makes neighbours a little more alike."""
SETTLED = 0.01
"""The rounds end where no scale changed by more than so much of itself."""
REACH = 1024.0
"""No channel is scaled by more than this, up or down: dead channels have no scale of their own."""
MOST_PAIRS = 1 << 22
"""Channels next to a layer with more pairs of channels are left as they are: it would take long."""
UNSEEN = 3.0
"""How far a channel may reach beyond one sample, of the largest reach; over the root of the number
of samples."""
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
            batch.update("r", np.tile(np.array([3, 0.03], np.float32), (64, 1)), 1)
        yield cls(statistics), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        scaled_groups = scales(graph, self.statistics)
        sides: dict[Node, dict[str, Float64Array]] = {}
        for group, factors in scaled_groups:
            for node in group.producers:
                sides.setdefault(node, {})["out"] = factors
            for node in group.consumers:
                sides.setdefault(node, {})["in"] = factors
        for node, factors_by_side in sides.items():
            _rescale(graph, node, factors_by_side)
            texts = [
                f"{name} channels by {_range_text(factors)}"
                for name, factors in factors_by_side.items()
            ]
            ledger.add(Change.REGROUPED, self.name, node.name, f"divides {', '.join(texts)}")
        for group, _ in scaled_groups:
            for value in group.values:
                lineage = Lineage(scaled_name(value.lineage.tensor), value.lineage.how)
                graph.set_lineage(value, lineage.then(STEP))
        return len(scaled_groups) + (graph.prune() if scaled_groups else 0)


def scaled_name(tensor: str) -> str:
    """The tensor id of a value after its channels were divided."""
    return f"{tensor}/{STEP}"


def scaled_tensors(graph: Graph, statistics: Statistics) -> Mapping[str, Scaled]:
    """Returns what `Equalize` will divide: new tensor id -> the old one, its channel axis and
    scales."""
    return {
        scaled_name(value.lineage.tensor): Scaled(value.lineage.tensor, group.axis, factors)
        for group, factors in scales(graph, statistics)
        for value in group.values
    }


def scales(graph: Graph, statistics: Statistics) -> list[tuple[ChannelGroup, Float64Array]]:
    """Returns the groups whose channels are to be divided, and by what.

    From `_balanced` factors on, those are looked for that let rounding add the least noise.
    """
    candidates = _candidates(graph, statistics)
    if not candidates:
        return []
    groups, bounds = [group for group, _ in candidates], [found for _, found in candidates]
    balanced = _balanced(groups, bounds, statistics)
    factors = minimize_noise(_noisy_layers(groups, statistics), balanced, bounds)
    rounded = [_rounded(found, *ends) for found, ends in zip(factors, bounds, strict=True)]
    return [
        (group, found)
        for group, found in zip(groups, rounded, strict=True)
        if np.abs(np.log(found)).max(initial=0) > 1e-3
    ]


def _candidates(
    graph: Graph, statistics: Statistics
) -> list[tuple[ChannelGroup, tuple[Float64Array, Float64Array]]]:
    """Returns the groups that may be divided, with the least and greatest factors."""
    found = []
    for group in channel_groups(graph):
        is_scaled = any(STEP in value.lineage.how for value in group.values)
        if not is_scaled and (bounds := _factor_bounds(group, statistics)) is not None:
            found.append((group, bounds))
    return found


def _rounded(factors: Float64Array, lowest: Float64Array, highest: Float64Array) -> Float64Array:
    """Returns factors as eighths of octaves within bounds: the last bits of logarithms, which
    differ between processors, do not show in the weights."""
    return np.asarray(np.clip(np.exp2(np.rint(np.log2(factors) * 8) / 8), lowest, highest))


def _noisy_layers(groups: list[ChannelGroup], statistics: Statistics) -> list[NoisyLayer]:
    """Returns the layers before and after the groups, as their noise depends on factors."""
    after = {n: i for i, group in enumerate(groups) for n in group.producers}
    before = {n: i for i, group in enumerate(groups) for n in group.consumers}
    nodes = list(dict.fromkeys((*after, *before)))
    sums = {n: _sums_of_squares(n) for n in nodes}
    counts = {n: found.squares.shape[0] * found.squares.shape[2] for n, found in sums.items()}
    inputs = {n: _input_statistics(n, counts[n], groups, before.get(n), statistics) for n in nodes}
    readers: dict[int, list[Node]] = {}
    for node, i in before.items():
        readers.setdefault(i, []).append(node)

    def per_signal(node: Node) -> Float64Array:
        """Returns how much noise of an input channel raises a layer's noise, by its signal."""
        energy = sums[node].squares.sum(axis=1).reshape(-1)
        signal = float(np.sum(energy * inputs[node].power))
        return np.asarray(energy / signal if signal > 0 else energy)

    layers = []
    for node in nodes:
        found, data = sums[node], inputs[node]
        groups_, outputs, channels = found.squares.shape
        power = data.power.reshape(groups_, 1, channels)
        signal = float(np.sum(found.squares * power))
        # Noise counts relative to the signal, so that layers of different scale compare.
        importance = np.full(groups_ * outputs, 1 / signal if signal > 0 else 0.0)
        consumers = readers.get(after.get(node, -1), [])
        if consumers:
            importance = np.mean([per_signal(reader) for reader in consumers], axis=0)
        weighted = found.squares * importance.reshape(groups_, outputs, 1)
        layers.append(
            NoisyLayer(
                largest=found.largest,
                energy=weighted.sum(axis=1).reshape(-1),
                importance=importance,
                reach=data.reach,
                power=data.power * found.taps,
                inputs=before.get(node),
                outputs=after.get(node),
            )
        )
    return layers


class _Sums(NamedTuple):
    """A layer's weights over the taps, by group, output and input channel."""

    squares: Float64Array
    largest: NDArray[np.float32]
    taps: int


class _Data(NamedTuple):
    """A layer's input by channel: the largest magnitude to expect, and the mean square."""

    reach: Float64Array
    power: Float64Array


def _pair_shape(node: Node) -> tuple[int, int]:
    """Returns the first two sizes of a layer's weights: its channels, on one side by group."""
    shape = known_shape(operands(node)[1].type.shape)
    assert shape is not None  # of a constant
    return shape[0], shape[1]


def _sums_of_squares(node: Node) -> _Sums:
    weights = np.abs(float_weights(operands(node)[1]))
    if node.op in TRANSPOSED_CONVOLUTIONS:
        split = weights.reshape(groups(node), -1, weights.shape[1], math.prod(weights.shape[2:]))
        weights = split.transpose(0, 2, 1, 3)
    elif node.op in CONVOLUTIONS:
        weights = weights.reshape(groups(node), -1, weights.shape[1], math.prod(weights.shape[2:]))
    else:
        outputs_first = node.op == "linear" or node.attrs.get("trans_b") is True
        weights = (weights if outputs_first else weights.T)[None, :, :, None]
    squares = np.asarray((weights * weights).sum(axis=3))
    return _Sums(squares, weights.max(axis=3).astype(np.float32), weights.shape[3])


def _input_statistics(
    node: Node,
    count: int,
    channel_groups: list[ChannelGroup],
    index: int | None,
    statistics: Statistics,
) -> _Data:
    data = operands(node)[0]
    tensor = statistics.get(Key(data.lineage.tensor))
    if index is None:
        square = 1.0 if tensor is None else tensor.variance + tensor.mean**2
        return _Data(np.ones(count), np.full(count, square))
    summary = statistics[Key(data.lineage.tensor, channel_groups[index].axis)]
    ends = np.maximum(np.abs(summary.channel_low), np.abs(summary.channel_high))
    reach = np.asarray(ends, np.float64)
    # Few samples say little of one channel: another sample may reach further, and would be cut.
    samples = max(1, summary.count // math.prod(d for d in data.type.shape[1:] if type(d) is int))
    margin = UNSEEN / math.sqrt(samples) * reach.max(initial=0)
    # A fifth of the reach is about the deviation of a channel; the tensor's mean square is known.
    power = (reach / 5) ** 2
    square = summary.variance + summary.mean**2
    known = power.mean() > 0 and np.isfinite(square) and square > 0
    return _Data(reach + margin, power * (square / power.mean()) if known else power)


def _balanced(
    groups: list[ChannelGroup],
    bounds: list[tuple[Float64Array, Float64Array]],
    statistics: Statistics,
) -> list[Float64Array]:
    """Returns factors that even out a channel's shares.

    Relative to the largest channel, a channel's share of the weights before it or of the values
    between (the larger one) is made equal to its share of the weights after it: the sum of
    precisions is then the largest (Nagel et al., Data-Free Quantization, 2019, for weights alone).
    """
    candidates = list(zip(groups, bounds, strict=True))
    sizes = {
        n: _pair_sizes(n) for group, _ in candidates for n in (*group.producers, *group.consumers)
    }
    factors = [np.ones(group.size) for group, _ in candidates]
    observed = [_channel_reach(group, statistics) for group, _ in candidates]
    group_after = {n: i for i, (group, _) in enumerate(candidates) for n in group.producers}
    group_before = {n: i for i, (group, _) in enumerate(candidates) for n in group.consumers}

    def current_sizes(node: Node) -> Float64Array:
        """Returns the largest weight between each input and output channel, as the scales have
        it."""
        size = sizes[node]
        if node in group_before:
            size = inward(node)(size, factors[group_before[node]])
        return (
            size if node not in group_after else outward(node)(size, 1 / factors[group_after[node]])
        )

    # Groups that share a layer influence each other, so the factors are found by iteration: in each
    # round a group moves to the optimum that its neighbours' present factors leave.
    for _ in range(SWEEPS):
        largest_change = 0.0
        for i, (group, (lowest, highest)) in enumerate(candidates):
            own_range = _relative_to_largest(observed[i] / factors[i])
            written = _elementwise_max(
                [own_range, *(_output_sizes(n, current_sizes(n)) for n in group.producers)]
            )
            read_weights = _elementwise_max(
                [_input_sizes(n, current_sizes(n)) for n in group.consumers]
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                step = np.sqrt(written / read_weights)
            # A channel without weights on one side has no optimum; it keeps its factor.
            step[~np.isfinite(step) | (step == 0)] = 1.0
            updated = np.clip(factors[i] * step, lowest, highest)
            largest_change = max(
                largest_change, float(np.abs(np.log(updated / factors[i])).max(initial=0))
            )
            factors[i] = updated
        if largest_change < SETTLED:
            break
    return factors


def _factor_bounds(
    group: ChannelGroup, statistics: Statistics
) -> tuple[Float64Array, Float64Array] | None:
    """Returns the least and the greatest scale of each channel; None where statistics do not tell.

    A clip cuts the scaled values where it cut the others: nowhere, on the calibration data.
    """
    layers = (*group.producers, *group.consumers)
    if any(math.prod(_pair_shape(node)) > MOST_PAIRS for node in layers):
        return None
    for value in stored_values(group):
        summary = statistics.get(Key(value.lineage.tensor, group.axis))
        if summary is None or summary.channel_high.size != group.size:
            return None
        per_tensor = statistics.get(Key(value.lineage.tensor))
        # Channels were recorded for some batches alone, so their ranges may be too narrow.
        if per_tensor is not None and per_tensor.count != summary.count:
            return None
    lowest, highest = np.full(group.size, 1 / REACH), np.full(group.size, REACH)
    for clip in group.clips:
        summary = statistics.get(Key(clip.result.lineage.tensor, group.axis))
        if summary is None:
            return None
        high, low = (np.asarray(s, np.float64) for s in (summary.channel_high, summary.channel_low))
        clip_max, clip_min = (float(str(clip.attrs[name])) for name in ("max", "min"))
        if clip_min > 0 or clip_max < 0:  # it moves values that it does not reach
            return None
        # A clip to 0 commutes with positive factors, as relu does; other bounds do not.
        is_clipped = (high >= clip_max) | ((low <= clip_min) & (clip_min != 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            lowest_exact = np.maximum(high / clip_max, low / clip_min if clip_min else 0.0)
        lowest = np.where(is_clipped, 1.0, np.maximum(lowest, lowest_exact))
        highest = np.where(is_clipped, 1.0, np.maximum(highest, lowest))
    return np.minimum(lowest, highest), highest


def _channel_reach(group: ChannelGroup, statistics: Statistics) -> Float64Array:
    """Returns the largest magnitude of each channel in what quantizing may store."""
    magnitudes = []
    for value in stored_values(group):
        summary = statistics[Key(value.lineage.tensor, group.axis)]
        ends = np.maximum(np.abs(summary.channel_low), np.abs(summary.channel_high))
        magnitudes.append(_relative_to_largest(np.asarray(ends, np.float64)))
    return _elementwise_max(magnitudes) if magnitudes else np.zeros(group.size)


def _pair_sizes(node: Node) -> Float64Array:
    """Absolute weights, the largest of the taps of each pair of channels."""
    size = np.abs(float_weights(operands(node)[1]))
    return size.max(axis=tuple(range(2, size.ndim)), keepdims=True) if size.ndim > 2 else size


def _output_sizes(node: Node, size: Float64Array) -> Float64Array:
    """Returns the largest weight of each output channel, the largest of all being 1."""
    outputs_first = (
        node.op in CONVOLUTIONS or node.op == "linear" or node.attrs.get("trans_b") is True
    )
    largest = size.reshape(size.shape[0], -1).max(axis=1) if outputs_first else size.max(axis=0)
    return _relative_to_largest(largest)


def _input_sizes(node: Node, size: Float64Array) -> Float64Array:
    """Returns the largest weight of each input channel, the largest of all being 1."""
    # In a grouped convolution, the second axis of the weights counts the inputs of one group.
    if node.op in CONVOLUTIONS:
        parts = size.reshape(groups(node), -1, size.shape[1])
        return _relative_to_largest(parts.max(axis=1).reshape(-1))
    outputs_first = node.op == "linear" or node.attrs.get("trans_b") is True
    return _relative_to_largest(size.max(axis=0 if outputs_first else 1))


def _relative_to_largest(magnitudes: Float64Array) -> Float64Array:
    largest = magnitudes.max(initial=0)
    return magnitudes / largest if largest else magnitudes


def _elementwise_max(candidates: list[Float64Array]) -> Float64Array:
    return np.asarray(np.max(np.stack(candidates), axis=0))


def _rescale(graph: Graph, node: Node, factors: Mapping[str, Float64Array]) -> None:
    _, weight, bias = operands(node)
    new_weight, new_bias = float_weights(weight), None if bias is None else float_weights(bias)
    if "in" in factors:
        new_weight = inward(node)(new_weight, factors["in"])
    if "out" in factors:
        new_weight = outward(node)(new_weight, 1 / factors["out"])
        new_bias = None if new_bias is None else new_bias / factors["out"]
    store(graph, node, new_weight, new_bias, "equalized")


def _range_text(factors: Float64Array) -> str:
    return f"{factors.min():.3g} to {factors.max():.3g}"
