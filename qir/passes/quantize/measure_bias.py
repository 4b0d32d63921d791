"""Moves biases by the mean error that a run of the quantized layers shows on samples.

    graph main as native {
      %x = input() : 2x3xf32
      %w = constant([1.0, 0.2, -0.3]) : 1x3xf32
      %b = constant([0.5]) : 1xf32
      %m = linear(%x, %w, bias=%b) : 2x1xf32
          plan {bias = "i32 symmetric tensor minmax",
          w = "i8<-7:7> symmetric tensor minmax",
          x = "u8 affine tensor minmax"}
      output(y=%m)
    }

By `measure-bias` it becomes:

    graph main as native {
      %x = input() : 2x3xf32
      %w = constant([1.0, 0.2, -0.3]) : 1x3xf32
      %m.bias = constant([0.54285717]) : 1xf32
      %m = linear(%x, %w, bias=%m.bias) : 2x1xf32
          plan {bias = "i32 symmetric tensor minmax",
          w = "i8<-7:7> symmetric tensor minmax",
          x = "u8 affine tensor minmax"}
      output(y=%m)
    }

Here the samples are ones. `correct-bias` computes the mean error of rounded weights alone; this
pass runs the quantized graph layer by layer next to the float graph. The mean difference of each
result channel, rounded data and clipped ranges included, is taken away before the next layer reads
it (empirical bias correction; Nagel et al., Data-Free Quantization, 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import I8, I32, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.scheme import Scheme
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.passes.quantize.correct_bias import BiasCorrection, bias_scheme, move_bias, read_graph
from qir.passes.quantize.round_weights import Samples, read_samples
from qir.reference.interpreter import bind_inputs, rules_of, run_node
from qir.reference.interpreter import run as run_reference
from qir.rewrite import Pass
from qir.rewrite.layer_weights import Float64Array, operands, result_axis, slots
from qir.rewrite.runner.options import option

Tensor = NDArray[np.generic]
Means = dict[str, Float64Array]
"""By the name of a layer's result, the mean of each channel."""
MEASURED = "measured"
"""In the lineage of a bias that this pass moved."""
_SHIFT_GRID = 2.0**-30
"""Of the largest shift of a layer: what the order of summing leaves open must not decide."""


@dataclass(frozen=True)
class MeasureBias(BiasCorrection):
    """Moves the biases of planned layers by the mean error of their results on samples.

    It runs between `assign-schemes`, or `correct-bias`, and `materialize`, and needs what the
    latter makes of the plan. Layers that cannot take a bias stay as they are.
    """

    name = "measure-bias"
    inputs: Samples = field(
        default_factory=dict, metadata=option(name="samples", read=read_samples, kind="file")
    )
    """Inputs of one run of the model."""
    quantized: Graph | None = field(default=None, metadata=option(read=read_graph, kind="file"))
    """The planned graph as `materialize` quantizes it, as a .qir file; none: nothing is done."""

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a product with a plan for its data, weights and bias."""
        layer = "%m = linear(%x, {w}, bias=%b) : 2x1xf32"
        start = (
            "graph main as native {{\n  %x = input() : 2x3xf32\n"
            "  %w = constant([1.0, 0.2, -0.3]) : 1x3xf32\n  %b = constant([0.5]) : 1xf32\n"
            "  {more}\n  output(y=%m)\n}}\n"
        )
        quantized_weights = (
            "%q = quantize(%w) : 1x3x!quant.uniform<i8<-7:7>:f32, 0.14285715>\n"
            "  %d = dequantize(%q) : 1x3xf32\n  "
        )
        graph = parse(start.format(more=layer.format(w="%w")))
        quantized_graph = parse(start.format(more=quantized_weights + layer.format(w="%d")))
        node = next(n for n in graph if n.op == "linear")
        graph.set_scheme(node, "x", Scheme(U8))
        graph.set_scheme(node, "w", Scheme(I8, bounds=(-7, 7), symmetric=True))
        graph.set_scheme(node, "bias", Scheme(I32, symmetric=True))
        yield cls({"x": np.ones((2, 3), np.float32)}, quantized_graph), graph

    def run(self, graph: Graph, ledger: Ledger) -> int:
        layers: dict[str, tuple[Node, Scheme]] = {}
        for node in graph:
            scheme = bias_scheme(node, self.capability)
            if scheme is not None and not _is_measured(node):
                layers[node.result.name] = node, scheme
        if not self.inputs or not layers or self.quantized is None:
            return 0
        # The float graph before clipping and rounding is the goal, where it is given.
        float_means = _float_means(self.exact or graph, self.inputs, layers)
        shifts = _measured_shifts(self.quantized, self.inputs, float_means)
        count = 0
        for name, shift in shifts.items():
            node, scheme = layers[name]
            if not shift.any() or not np.isfinite(shift).all():
                continue
            move_bias(graph, node, shift, MEASURED)
            graph.set_scheme(node, slots(node)[2], scheme)
            reach = f"{np.abs(shift).max():.3g}"
            message = f"its bias takes away the mean error of its results on samples, up to {reach}"
            ledger.add(Change.QUANTIZED, self.name, node.name, message)
            count += 1
        return count + (graph.prune() if count else 0)


def _is_measured(node: Node) -> bool:
    """Returns whether this pass moved the bias of a layer before."""
    bias = operands(node)[2]
    return bias is not None and MEASURED in bias.lineage.how


def _float_means(graph: Graph, inputs: Samples, layers: Mapping[str, tuple[Node, Scheme]]) -> Means:
    """Returns the mean of each result channel in the float graph."""
    means: Means = {}

    def record(value: Value, data: Tensor) -> None:
        if value.name in layers:
            means[value.name] = _channel_means(value.node, data)

    run_reference(graph, inputs, observe=record)
    return means


def _channel_means(node: Node, data: Tensor) -> Float64Array:
    axis = result_axis(node) % data.ndim
    other_axes = tuple(i for i in range(data.ndim) if i != axis)
    return np.asarray(data.astype(np.float64).mean(axis=other_axes))


@np.errstate(all="ignore")  # infinities and NaNs are numbers here, and need no warnings
def _measured_shifts(graph: Graph, inputs: Samples, float_means: Means) -> Means:
    """Runs a graph in QDQ form and moves each layer's results to the wanted means; says how far."""
    bind_inputs(graph, inputs)
    # How often each value is still read; arrays are dropped after their last use, since all
    # activations of a large model would not fit into memory.
    uses_left: dict[Value, int] = {}
    for node in graph:
        for value in node.operands.values():
            uses_left[value] = uses_left.get(value, 0) + 1
    live: dict[Value, Tensor] = {}
    shifts: Means = {}
    for node in graph:
        if node.op == "output":
            continue
        arguments = {slot: live[value] for slot, value in node.operands.items()}
        results: tuple[Tensor, ...] = (
            (np.asarray(inputs[node.name]),)
            if node.op == "input"
            else run_node(node, arguments, rules_of(graph, node))
        )
        name = node.results[0].name if node.results else ""
        if name in float_means:
            # The next layers read the corrected results, so that their own shifts do not count this
            # layer's error again.
            shift = _on_shift_grid(_channel_means(node, results[0]) - float_means[name])
            shape = [1] * results[0].ndim
            shape[result_axis(node)] = -1
            moved = results[0].astype(np.float64) - shift.reshape(shape)
            results, shifts[name] = (moved.astype(results[0].dtype),), shift
        live.update(zip(node.results, results, strict=True))
        for value in node.operands.values():
            uses_left[value] -= 1
            if not uses_left[value]:
                live.pop(value, None)
    return shifts


def _on_shift_grid(shift: Float64Array) -> Float64Array:
    # Sums in another order, by other thread counts or processors, differ in the last bits.
    unit = np.abs(shift).max(initial=0) * _SHIFT_GRID
    return np.asarray(np.rint(shift / unit) * unit if unit and np.isfinite(unit) else shift)
