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
from qir.numerics.ranges import known_scales
from qir.passes.quantize.assign_schemes import read_capability, write_capability
from qir.passes.quantize.materialize import read_statistics, weight_type
from qir.profiles import Profile, dequantize_by_profile, profile, quantize_by_profile
from qir.rewrite import ANOTHER, Pass
from qir.rewrite.layer_weights import (
    Reals,
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
    """The range rule, or the family of them, that takes the place of the profile's."""

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
        of, count = profile(self.profile), 0
        for node in list(graph):
            kind = bias_scheme(node, self.capability)
            if kind is None or _corrected(node) or (mean := self._mean(node)) is None:
                continue
            shift = _shift(node, mean, of, self.scales, self._exact(node))
            if not shift.any() or not np.isfinite(shift).all():
                continue
            move_bias(graph, node, shift)
            graph.set_scheme(node, slots(node)[2], kind)
            reach = f"{np.abs(shift).max():.3g}"
            said = f"its bias takes away the mean error of its rounded weights, up to {reach}"
            ledger.add(Change.QUANTIZED, self.name, node.name, said)
            count += 1
        return count + (graph.prune() if count else 0)

    def _exact(self, node: Node) -> Reals:
        """Returns the weights of a layer before passes of quantizing changed them."""
        before = self.exact.values.get(node.result.name) if self.exact is not None else None
        weight = operands(node)[1]
        if before is not None and before.node.op == node.op:
            held = operands(before.node)[1]
            if held.constant is not None and held.type == weight.type:
                weight = held
        return float_weights(weight)

    def _mean(self, node: Node) -> Reals | None:
        """Returns the mean of each input channel, over all batches; None where it is not known."""
        data = operands(node)[0]
        axis = summed_axis(node, data)
        return None if axis is None else channel_mean(self.statistics, data, axis)


def bias_scheme(node: Node, capability: Capability) -> Scheme | None:
    """Returns how the bias of a planned layer is stored, or would be; None where nothing can be
    moved."""
    if layer_data(node) is None or node.attrs.get("beta", 1.0) != 1.0:
        return None
    _, weight, bias = slots(node)
    if weight not in node.schemes:
        return None
    held = node.operands.get(bias)
    if held is not None:
        plain = held.constant is not None and held.type.rank == 1
        return node.schemes.get(bias) if plain else None
    if _added_apart(node):
        return None
    row = capability.ops.get(node.op)
    allowed = row.allowed(bias, True) if row else ()
    grain = node.schemes[weight].granularity
    return next((s for s in allowed if s.granularity == grain), allowed[0] if allowed else None)


def _corrected(node: Node) -> bool:
    """Returns whether this pass moved the bias of a layer before."""
    bias = operands(node)[2]
    return bias is not None and CORRECTED in bias.lineage.how


def _added_apart(node: Node) -> bool:
    """Returns whether a constant is added right after a layer: some runtimes take both as one
    kernel."""
    use = node.result.only_use
    if use is None or use.node.op != "add":
        return False
    return any(v.constant is not None for v in use.node.operands.values())


def channel_mean(statistics: Statistics, data: Value, axis: int) -> Reals | None:
    """Returns the mean of each channel; None where batches were seen without their channels."""
    data, axis = _unreshaped(data, axis)
    apart, whole = (statistics.get(Key(data.lineage.tensor, a)) for a in (axis, None))
    if apart is None or (whole is not None and whole.count != apart.count):
        return None
    mean = apart.channel_mean
    return mean if mean is not None and mean.size == data.type.shape[axis] else None


def _unreshaped(data: Value, axis: int) -> tuple[Value, int]:
    """Returns what a reshape that keeps the last axis was made of, with that axis there."""
    while data.node.op == "reshape" and axis == data.type.rank - 1:
        before = data.node.operands["x"]
        if not before.type.rank or before.type.shape[-1] != data.type.shape[-1]:
            break
        data, axis = before, before.type.rank - 1
    return data, axis


def _shift(node: Node, mean: Reals, of: Profile, scales: str, exact: Reals) -> Reals:
    """Returns the mean error of each output channel that rounding the weights causes."""
    weight = operands(node)[1]
    scheme = node.schemes[slots(node)[1]]
    kind = weight_type(of, node, weight, scheme, scales)
    assert weight.constant is not None
    rounded = dequantize_by_profile(
        of, quantize_by_profile(of, weight.constant.data, kind), kind
    ).astype(np.float64)
    return through(node, inward(node)((rounded - exact) * _inside(node), mean))


def move_bias(graph: Graph, node: Node, shift: Reals, how: str = CORRECTED) -> None:
    """Takes a shift of each result channel away in a layer's bias; its lineage says how."""
    _, weight, bias = operands(node)
    kind = weight.type.dtype.carrier
    lineage = Lineage(f"{node.name}.bias") if bias is None else bias.lineage
    moved = (0.0 if bias is None else float_weights(bias)) - shift
    made = store_bias(graph, node, moved.astype(kind))
    graph.set_lineage(made, lineage.then(how))


def _inside(node: Node) -> Reals:
    """For each tap of a window, the share of results in which it meets data, not padding."""
    if node.op in MATRIX_PRODUCTS:
        return np.ones(())
    data, weight, _ = operands(node)
    rank = weight.type.rank - 2
    first = 1 if node.attrs.get("layout") == "NHWC" else 2
    taps = weight.constant.contents.shape[2:] if weight.constant is not None else ()
    strides, dilations, pads = (_whole(node, name) for name in ("stride", "dilation", "pad"))
    out = np.ones(())
    for i in range(rank):
        sizes = data.type.shape[first + i], node.result.type.shape[first + i]
        row = _share(
            taps[i], *sizes, strides[i], dilations[i], pads[i], node.op in TRANSPOSED_CONVOLUTIONS
        )
        out = np.multiply.outer(out, row)
    return out


def _whole(node: Node, name: str) -> tuple[int, ...]:
    found = node.attrs[name]
    assert isinstance(found, tuple)
    return tuple(int(n) for n in found if isinstance(n, int))


def _share(
    taps: int, size: object, results: object, stride: int, dilation: int, pad: int, turned: bool
) -> Reals:
    """Along one axis, the share of results that each tap reaches; 1 where a size is open."""
    if not (isinstance(size, int) and isinstance(results, int)) or not results:
        return np.full(taps, 1 / stride if turned else 1.0)
    tap = np.arange(taps)[:, None] * dilation - pad
    windows, end = (size, results) if turned else (results, size)
    at = np.arange(windows) * stride + tap
    return np.asarray(((at >= 0) & (at < end)).sum(axis=1) / results)
