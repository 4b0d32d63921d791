"""Measures what quantizing costs: the SQNR of outputs on a few samples, and where it is lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.inspect.metrics import Sqnr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.reference.interpreter import run

LOW = 10.0
"""Decibels below which an output is reported: noise of a tenth of the signal's power.

Real 8-bit networks that keep their accuracy reach 11 to 40 dB, broken ones are below 5 dB.
"""
SAMPLES = 4
"""How many samples are measured, so that it costs little next to calibration."""
_NOISELESS_DECIBELS = 40.0
"""Decibels that count as no noise, where a layer's share is asked for: those of 8 bits alone."""
_NOTABLE_LOSS = 3.0
"""Decibels, half of the signal's power, from which on a layer is worth naming."""
_MAX_LAYERS = 3


@dataclass(frozen=True, slots=True)
class LayerNoise:
    """A layer, the SQNR of its result, and how much less that is than its operands'."""

    node: str
    op: str
    sqnr: float
    lost: float


@dataclass(frozen=True, slots=True)
class QuantizationNoise:
    """How near a quantized graph is to its float one."""

    samples: int
    outputs: Mapping[str, float]
    """By float output, its SQNR in decibels; infinite where nothing differs."""
    layers: tuple[LayerNoise, ...] = ()
    """Where an output is below `LOW`: the layers that lose most, the worst first."""

    @property
    def low(self) -> dict[str, float]:
        """The outputs below `LOW`, the worst first."""
        below = sorted((sqnr, name) for name, sqnr in self.outputs.items() if sqnr < LOW)
        return {name: sqnr for sqnr, name in below}


Tensors = Mapping[str, NDArray[np.generic]]


def quantization_noise(graph: Graph, quantized: Graph, inputs: Tensors) -> QuantizationNoise:
    """Runs a float graph and what was quantized of it on one batch, by the reference.

    Layers are measured only where an output is low. Raises DataError for inputs that do not fit.
    """
    samples = max((len(a) for a in inputs.values() if np.ndim(a)), default=1)
    expected, actual = run(graph, inputs), run(quantized, inputs)
    # Outputs without signal or of other shapes have no ratio, and say nothing of quality.
    outputs = {
        name: sqnr
        for name, array in expected.items()
        if _is_float(array) and not math.isnan(sqnr := _sqnr(array, actual.get(name)))
    }
    noise = QuantizationNoise(samples, outputs)
    if not noise.low:
        return noise
    return QuantizationNoise(samples, outputs, tuple(_worst(graph, quantized, inputs)))


def _is_float(array: NDArray[np.generic]) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _sqnr(expected: NDArray[np.generic], actual: NDArray[np.generic] | None) -> float:
    if actual is None or actual.shape != expected.shape or not _is_float(actual):
        return math.nan
    return Sqnr()(expected, actual)


def _worst(graph: Graph, quantized: Graph, inputs: Tensors) -> Iterator[LayerNoise]:
    """Yields the layers whose results lose most against their operands."""
    by_tensor = _by_tensor(graph, quantized, inputs)
    known: dict[Value, float] = {}
    layers: list[LayerNoise] = []
    for node in graph:
        operand_sqnr = min(
            (known[v] for v in node.operands.values() if v in known), default=_NOISELESS_DECIBELS
        )
        for value in node.results:
            if value.constant is None:  # what was folded is as its operands
                known[value] = min(
                    by_tensor.get(value.lineage.tensor, operand_sqnr), _NOISELESS_DECIBELS
                )
        if node.results and node.results[0] in known and not _moves(node):
            sqnr = known[node.results[0]]
            # A layer loses what its result has less than the noisiest of its operands.
            layers.append(LayerNoise(_name(node), node.op, sqnr, operand_sqnr - sqnr))
    yield from sorted((x for x in layers if x.lost >= _NOTABLE_LOSS), key=lambda x: -x.lost)[
        :_MAX_LAYERS
    ]


def _moves(node: Node) -> bool:
    return node.op in ("input", "output") or spec(node.op).traits.value_preserving


def _name(node: Node) -> str:
    """Returns what the source calls an op, else what the graph does."""
    return next((o.name for o in node.origins if o.name), node.name)


def _by_tensor(graph: Graph, quantized: Graph, inputs: Tensors) -> dict[str, float]:
    """By tensor of the source, the SQNR of what is read in its place."""
    float_arrays: dict[str, NDArray[np.generic]] = {}
    sqnrs: dict[str, float] = {}

    def keep(value: Value, data: NDArray[np.generic]) -> None:
        # Both graphs name tensors by the source, so passes between them do not matter.
        if value.type.quant is None and _is_float(data):
            float_arrays[value.lineage.tensor] = data

    def measure(value: Value, data: NDArray[np.generic]) -> None:
        expected = float_arrays.get(value.lineage.tensor)
        if expected is not None and value.type.quant is None:
            sqnr = _sqnr(expected, data)
            if not math.isnan(sqnr):
                sqnrs[value.lineage.tensor] = sqnr

    run(graph, inputs, observe=keep)
    run(quantized, inputs, observe=measure)
    return sqnrs
