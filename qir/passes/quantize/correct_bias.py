"""Moves biases by the mean error that rounding a layer's weights makes.

    graph main as native {
      %x = input() : 2x3xf32
      %w = constant([1.0, 0.2, -0.3]) : 1x3xf32
      %b = constant([0.5]) : 1xf32
      %m = linear(%x, %w, bias=%b) : 2x1xf32
          plan {bias = "i32 symmetric tensor minmax",
          w = "i8 symmetric tensor minmax"}
      output(y=%m)
    }

By `correct-bias` it becomes:

    graph main as native {
      %x = input() : 2x3xf32
      %w = constant([1.0, 0.2, -0.3]) : 1x3xf32
      %m.bias = constant([0.5023622]) : 1xf32
      %m = linear(%x, %w, bias=%m.bias) : 2x1xf32
          plan {bias = "i32 symmetric tensor minmax",
          w = "i8 symmetric tensor minmax"}
      output(y=%m)
    }

Here all data have the mean 1. Rounded weights differ from the weights, by dw. Where the channels of
the data have the mean m, results are wrong by the sum of dw * m on average. The bias takes that
away. The means are those of calibration; a tap of a convolution that meets padding meets zeros,
which count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qir.calibration import Key, Statistics
from qir.capability import Capability
from qir.ir import file
from qir.ir.dtype import I8, I32
from qir.ir.graph import Graph
from qir.ir.layer_channels import layer_data, summed_axis
from qir.ir.node import Node, Value
from qir.ir.ops.layers import MATRIX_PRODUCTS, TRANSPOSED_CONVOLUTIONS
from qir.ir.origin import Lineage
from qir.ir.scheme import Scheme
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.numerics.scale_rules import known_scales
from qir.passes.quantize.assign_schemes import read_capability, write_capability
from qir.passes.quantize.materialize import read_statistics, weight_type
from qir.profiles import Profile, dequantize_by_profile, profile_in, quantize_by_profile
from qir.rewrite import ANOTHER, Pass
from qir.rewrite.layer_weights import (
    Float64Array,
    float_weights,
    inward,
    operands,
    slots,
    store_bias,
    through,
)
from qir.rewrite.runner.options import option

CORRECTED = "corrected"
"""The step in the lineage of a bias that was corrected: it is not corrected again."""


def read_graph(path: str | list[str]) -> Graph:
    """Reads the graph of a .qir file."""
    if isinstance(path, list):
        raise ValueError("a list")
    return file.read(Path(path)).graph


@dataclass(frozen=True)
class BiasCorrection(Pass):
    """A pass that moves the biases of planned layers."""

    tolerance = ANOTHER
    nested = False
    capability: Capability = field(
        default_factory=lambda: Capability("none", {}),
        kw_only=True,
        metadata=option(name="target", read=read_capability, write=write_capability, kind="target"),
    )
    """Says which layers take a bias, and how it is stored."""
    exact: Graph | None = field(
        default=None, kw_only=True, metadata=option(read=read_graph, kind="file")
    )
    """The graph before `clip-weights` and `round-weights` changed weights, as a .qir file; none:
    the planned graph itself."""


@dataclass(frozen=True)
class CorrectBias(BiasCorrection):
    """Moves the biases of planned layers by the mean error of their rounded weights.

    It runs between `assign-schemes`, which says how weights will be stored, and `materialize`. A
    layer without bias gets one where the target takes one, and no constant is added after it.
    Layers whose data have no means in the statistics stay as they are.
    """

    name = "correct-bias"
    statistics: Statistics = field(
        default_factory=lambda: Statistics(""), metadata=option(read=read_statistics, kind="file")
    )
    """Of the float model; a file that `qir calibrate` wrote."""
    profile: str = "native"
    """The profile whose rules quantize the weights."""
    scales: str = field(default="profile", metadata=option(read=lambda t: known_scales(str(t))))
    """The scale rule, or the family of them, that takes the place of the profile's."""

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a product with a plan for its weights and bias."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n"
            "  %w = constant([1.0, 0.2, -0.3]) : 1x3xf32\n  %b = constant([0.5]) : 1xf32\n"
            "  %m = linear(%x, %w, bias=%b) : 2x1xf32\n  output(y=%m)\n}\n"
        )
        graph = parse(text)
        node = next(n for n in graph if n.op == "linear")
        graph.set_scheme(node, "w", Scheme(I8, symmetric=True))
        graph.set_scheme(node, "bias", Scheme(I32, symmetric=True))
        statistics = Statistics("sample")
        with statistics.batch("sample", 0) as batch:
            batch.update("x", np.ones((2, 3), np.float32))
            batch.update("x", np.ones((2, 3), np.float32), 1)
        yield cls(statistics), graph

    def run(self, graph: Graph, ledger: Ledger) -> int:
        rules, count = profile_in(graph, self.profile), 0
        for node in list(graph):
            scheme = bias_scheme(node, self.capability)
            if scheme is None or _is_corrected(node) or (mean := self._input_means(node)) is None:
                continue
            shift = _mean_error(node, mean, rules, self.scales, self._exact_weights(node))
            # Nothing to correct, or statistics that hold an infinity.
            if not shift.any() or not np.isfinite(shift).all():
                continue
            move_bias(graph, node, shift)
            graph.set_scheme(node, slots(node)[2], scheme)
            reach = f"{np.abs(shift).max():.3g}"
            message = f"its bias takes away the mean error of its rounded weights, up to {reach}"
            ledger.add(Change.QUANTIZED, self.name, node.name, message)
            count += 1
        return count + (graph.prune() if count else 0)

    def _exact_weights(self, node: Node) -> Float64Array:
        """Returns the weights of a layer before passes of quantizing changed them."""
        original = self.exact.values.get(node.result.name) if self.exact is not None else None
        weight = operands(node)[1]
        if original is not None and original.node.op == node.op:
            original_weight = operands(original.node)[1]
            # The exact weights count only where they still stand for the same tensor.
            if original_weight.constant is not None and original_weight.type == weight.type:
                weight = original_weight
        return float_weights(weight)

    def _input_means(self, node: Node) -> Float64Array | None:
        """Returns the mean of each input channel, over all batches; None where it is not known."""
        data = operands(node)[0]
        axis = summed_axis(node, data)
        return None if axis is None else channel_mean(self.statistics, data, axis)


def bias_scheme(node: Node, capability: Capability) -> Scheme | None:
    """Returns how the bias of a planned layer is stored, or would be; None where nothing can be
    moved."""
    if layer_data(node) is None or node.attrs.get("beta", 1.0) != 1.0:
        return None
    data, weight, bias = slots(node)
    if weight not in node.schemes:
        return None
    constant = node.operands.get(bias)
    if constant is not None:
        is_vector = constant.constant is not None and constant.type.rank == 1
        return node.schemes.get(bias) if is_vector else None
    if _has_separate_bias_add(node):
        return None
    # A layer without a bias gets one, of the granularity of its weights where the target has it.
    entry = capability.ops.get(node.op)
    allowed = entry.biases(bias, node.schemes.get(data)) if entry else ()
    granularity = node.schemes[weight].granularity
    return next(
        (s for s in allowed if s.granularity == granularity), allowed[0] if allowed else None
    )


def _is_corrected(node: Node) -> bool:
    """Returns whether this pass moved the bias of a layer before."""
    bias = operands(node)[2]
    return bias is not None and CORRECTED in bias.lineage.how


def _has_separate_bias_add(node: Node) -> bool:
    """Returns whether a constant is added right after a layer: some runtimes take both as one
    kernel."""
    use = node.result.only_use
    if use is None or use.node.op != "add":
        return False
    return any(v.constant is not None for v in use.node.operands.values())


def channel_mean(statistics: Statistics, data: Value, axis: int) -> Float64Array | None:
    """Returns the mean of each channel; None where batches were seen without their channels."""
    data, axis = _before_reshapes(data, axis)
    by_channel, per_tensor = (statistics.get(Key(data.lineage.tensor, a)) for a in (axis, None))
    # Means of some batches alone would be those of another data set.
    if by_channel is None or (per_tensor is not None and per_tensor.count != by_channel.count):
        return None
    mean = by_channel.channel_mean
    return mean if mean is not None and mean.size == data.type.shape[axis] else None


def _before_reshapes(data: Value, axis: int) -> tuple[Value, int]:
    """Returns what a reshape that keeps the last axis was made of, with that axis there."""
    # Calibration keeps channels of the tensor before the reshape, which has the same last axis.
    while data.node.op == "reshape" and axis == data.type.rank - 1:
        source = data.node.operands["x"]
        if not source.type.rank or source.type.shape[-1] != data.type.shape[-1]:
            break
        data, axis = source, source.type.rank - 1
    return data, axis


def _mean_error(
    node: Node, mean: Float64Array, rules: Profile, scales: str, exact_weights: Float64Array
) -> Float64Array:
    """Returns the mean error of each output channel that rounding the weights causes."""
    weight = operands(node)[1]
    scheme = node.schemes[slots(node)[1]]
    quant_type = weight_type(rules, node, weight, scheme, scales)
    assert weight.constant is not None
    # The weights as the kernel will see them: quantized and dequantized by the profile's rules.
    rounded = dequantize_by_profile(
        rules, quantize_by_profile(rules, weight.constant.data, quant_type), quant_type
    ).astype(np.float64)
    return through(node, inward(node)((rounded - exact_weights) * _data_shares(node), mean))


def move_bias(graph: Graph, node: Node, shift: Float64Array, how: str = CORRECTED) -> None:
    """Takes a shift of each result channel away in a layer's bias; its lineage says how."""
    _, weight, bias = operands(node)
    float_type = weight.type.dtype.carrier
    lineage = Lineage(f"{node.name}.bias") if bias is None else bias.lineage
    moved_bias = (0.0 if bias is None else float_weights(bias)) - shift
    new_bias = store_bias(graph, node, moved_bias.astype(float_type))
    graph.set_lineage(new_bias, lineage.then(how))


def _data_shares(node: Node) -> Float64Array:
    """For each tap of a window, the share of results in which it meets data, not padding."""
    if node.op in MATRIX_PRODUCTS:
        return np.ones(())
    data, weight, _ = operands(node)
    rank = weight.type.rank - 2
    first_spatial = 1 if node.attrs.get("layout") == "NHWC" else 2
    taps = weight.constant.contents.shape[2:] if weight.constant is not None else ()
    strides, dilations, pads = (
        _int_attribute(node, name) for name in ("stride", "dilation", "pad")
    )
    # The share of a tap is the product of its shares along each axis.
    shares = np.ones(())
    for i in range(rank):
        sizes = data.type.shape[first_spatial + i], node.result.type.shape[first_spatial + i]
        axis_shares = _tap_shares(
            taps[i], *sizes, strides[i], dilations[i], pads[i], node.op in TRANSPOSED_CONVOLUTIONS
        )
        shares = np.multiply.outer(shares, axis_shares)
    return shares


def _int_attribute(node: Node, name: str) -> tuple[int, ...]:
    numbers = node.attrs[name]
    assert isinstance(numbers, tuple)
    return tuple(int(n) for n in numbers if isinstance(n, int))


def _tap_shares(
    taps: int, size: object, results: object, stride: int, dilation: int, pad: int, transposed: bool
) -> Float64Array:
    """Along one axis, the share of results that each tap reaches; 1 where a size is open."""
    if not (isinstance(size, int) and isinstance(results, int)) or not results:
        return np.full(taps, 1 / stride if transposed else 1.0)
    offsets = np.arange(taps)[:, None] * dilation - pad
    windows, end = (size, results) if transposed else (results, size)
    # positions[tap, window]: the element that a tap of a window meets; outside it meets padding.
    positions = np.arange(windows) * stride + offsets
    return np.asarray(((positions >= 0) & (positions < end)).sum(axis=1) / results)
