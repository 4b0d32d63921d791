"""Errors of the tensors that a quantized graph stores, summed over batches by channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qir.calibration.scaling import Scaled
from qir.ir.graph import Graph
from qir.ir.layer_channels import summed_axis
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import LAYERS
from qir.ir.types import QuantType

Tensor = NDArray[np.generic]
Float64Array = NDArray[np.float64]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that a quantized graph stores as integers, or one of its float outputs."""

    tensor: str
    """Its name in the float graph."""
    value: Value
    """What is read in its place."""
    before: Value | None
    """What was quantized; None for float outputs."""
    quant: QuantType | None
    axis: int
    """Where its channels are."""
    layers: tuple[Node, ...]
    """The layers between the stored tensors that it is computed from and itself, nearest first."""
    sources: tuple[str, ...]
    """These tensors."""

    @property
    def covered(self) -> tuple[float, float] | None:
        """The range that its integers cover; None without one scale for all of it."""
        if self.quant is None or self.quant.dynamic or np.size(self.quant.scales()) != 1:
            return None
        scale = float(np.asarray(self.quant.scales()).reshape(-1)[0])
        zero = float(np.asarray(self.quant.zeros()).reshape(-1)[0])
        return scale * (self.quant.low - zero), scale * (self.quant.high - zero)


def stored_tensors(quantized: Graph) -> list[StoredTensor]:
    """Returns the activations that a graph in QDQ form stores, and its float outputs, in order."""
    axes = _axes(quantized)
    out = []
    for node in quantized:
        if node.op == "dequantize":
            value, stored = node.result, node.operands["x"]
            # Constants are weights, not activations.
            if stored.constant is not None or stored.node.op != "quantize":
                continue
            before = stored.node.operands["x"]
            layers, sources = _between(before)
            quant = stored.type.quant
        elif node.op == "output":
            for value in node.operands.values():
                if value.node.op != "dequantize" and value.type.dtype.is_float:
                    layers, sources = _between(value)
                    axis = axes.get(value.lineage.tensor, value.type.rank - 1)
                    tensor = value.lineage.tensor
                    out.append(StoredTensor(tensor, value, None, None, axis, layers, sources))
            continue
        else:
            continue
        tensor = value.lineage.tensor
        axis = axes.get(tensor, 1 if value.type.rank == 4 else max(value.type.rank - 1, 0))
        out.append(StoredTensor(tensor, value, before, quant, axis, layers, sources))
    return out


def _axes(graph: Graph) -> dict[str, int]:
    """By tensor, the axis that a layer sums over."""
    out: dict[str, int] = {}
    for node in graph:
        if node.op in LAYERS:
            data = node.operands[spec(node.op).traits.data]
            axis = summed_axis(node, data)
            if axis is not None and 0 <= axis < data.type.rank:
                out.setdefault(data.lineage.tensor, axis)
    return out


def _between(value: Value) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """Returns the layers between a value and the stored tensors that it is computed from, and
    these."""
    layers: dict[Node, None] = {}
    sources: dict[str, None] = {}
    visited: set[Value] = set()
    queue = [value]
    while queue:
        current = queue.pop(0)
        if current in visited:
            continue
        visited.add(current)
        node = current.node
        if node.op == "dequantize":
            if node.operands["x"].constant is None:
                sources[current.lineage.tensor] = None
            continue
        if node.op in LAYERS:
            layers[node] = None
        queue.extend(node.operands.values())
    return tuple(layers), tuple(sources)


@dataclass
class Errors:
    """Sums over all batches, by channel; `add` takes one batch."""

    axis: int
    covered: tuple[float, float] | None = None
    count: Float64Array = field(default_factory=lambda: np.zeros(0))
    signal: Float64Array = field(default_factory=lambda: np.zeros(0))
    """Squares of the float tensor."""
    noise: Float64Array = field(default_factory=lambda: np.zeros(0))
    """Squared errors against the float tensor."""
    error: Float64Array = field(default_factory=lambda: np.zeros(0))
    own: Float64Array = field(default_factory=lambda: np.zeros(0))
    """Squared errors that storing the tensor made by itself."""
    beyond: Float64Array = field(default_factory=lambda: np.zeros(0))
    """Those of values outside of the range."""
    outside: Float64Array = field(default_factory=lambda: np.zeros(0))
    """How many values that are."""
    low: Float64Array = field(default_factory=lambda: np.zeros(0))
    high: Float64Array = field(default_factory=lambda: np.zeros(0))

    def add(self, wanted: Tensor, given: Tensor, before: Tensor | None) -> None:
        """Adds a batch: the float tensor, what is read in its place, and what was stored."""
        a, b = (self._rows(array) for array in (wanted, given))
        x = b if before is None else self._rows(before)
        # The first batch says how many channels there are.
        if not self.count.size:
            zeros = np.zeros(len(a))
            self.count, self.signal, self.noise, self.error = (zeros.copy() for _ in range(4))
            self.own, self.beyond, self.outside = (zeros.copy() for _ in range(3))
            self.low, self.high = zeros + np.inf, zeros - np.inf
        self.count += a.shape[1]
        self.signal += np.square(a).sum(axis=1)
        self.noise += np.square(b - a).sum(axis=1)
        self.error += (b - a).sum(axis=1)
        # From the value just before it was stored: earlier errors are not this tensor's own.
        own = np.square(b - x)
        self.own += own.sum(axis=1)
        if self.covered is not None:
            outside = (x < self.covered[0]) | (x > self.covered[1])
            self.outside += outside.sum(axis=1)
            self.beyond += np.where(outside, own, 0.0).sum(axis=1)
        self.low = np.minimum(self.low, x.min(axis=1))
        self.high = np.maximum(self.high, x.max(axis=1))

    def _rows(self, array: Tensor) -> Float64Array:
        """Returns the elements as float64, a row for each channel."""
        floats = np.atleast_1d(array).astype(np.float64)
        floats = np.moveaxis(floats, min(self.axis, floats.ndim - 1), 0)
        return np.asarray(np.nan_to_num(floats.reshape(len(floats), -1), posinf=0.0, neginf=0.0))

    @property
    def sqnr(self) -> float:
        """The signal-to-noise ratio in decibels; infinite where nothing differs."""
        signal, noise = float(self.signal.sum()), float(self.noise.sum())
        if not noise:
            return np.inf
        return float(10 * np.log10(signal / noise)) if signal else -np.inf


def original_tensor_name(tensor: str, scaled: Mapping[str, Scaled]) -> str:
    """Returns the name of a tensor in the float graph, before `equalize` divided its channels."""
    return scaled[tensor].tensor if tensor in scaled else tensor


def with_channel_scales(array: Tensor, tensor: str, scaled: Mapping[str, Scaled]) -> Tensor:
    """Returns a float tensor as `equalize` divided its channels."""
    if tensor not in scaled:
        return array
    _, axis, row = scaled[tensor]
    shape = [-1 if i == axis else 1 for i in range(array.ndim)]
    return np.asarray(array.astype(np.float64) / row.reshape(shape))


def weights_of(layer: Node) -> tuple[Float64Array, QuantType, int] | None:
    """Returns the stored weights of a layer as float64, their type, and their channel axis.

    None for weights that are float, or have scales of blocks.
    """
    weight = layer.operands.get(spec(layer.op).traits.weight or "w")
    if weight is None or weight.node.op != "dequantize":
        return None
    stored = weight.node.operands["x"]
    quant = stored.type.quant
    if stored.constant is None or quant is None or quant.dynamic:
        return None
    quantized = np.asarray(stored.constant.data).astype(np.float64)
    scales, zeros = (np.asarray(p, np.float64).reshape(-1) for p in (quant.scales(), quant.zeros()))
    shape = [1] * quantized.ndim
    if quant.axis is not None:
        shape[quant.axis] = -1
    # Scales of blocks do not broadcast over an axis.
    if scales.size not in (1, quantized.shape[quant.axis or 0]):
        return None
    each = (p.reshape(shape) if p.size > 1 else p for p in (scales, zeros))
    scale, zero = each
    channels_last = layer.op == "matmul" and layer.attrs.get("trans_b") is not True
    return (quantized - zero) * scale, quant, quantized.ndim - 1 if channels_last else 0
